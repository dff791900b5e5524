package replay

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// Comparison is how the decisions of two documents about one log differ.
type Comparison struct {
	Refused  int64   `json:"refused"`           // by the other document
	Newly    Decided `json:"newly_refused"`     // refused, but not by the other document
	NoLonger Decided `json:"no_longer_refused"` // refused by the other document only
	// Unnamed checks are left out of both lists of subjects, because there were too
	// many subjects.
	Unnamed int64 `json:"-"`
}

// Decided are checks that only one document refuses.
type Decided struct {
	Checks   int64     `json:"checks"`
	Subjects int64     `json:"subjects"` // how many different ones
	Top      []Subject `json:"top"`      // those with most of these checks; their Refused and Checks count only these
}

// rival decides each record by other rules, with counters of its own, and compares.
type rival struct {
	limiter *limiter.Limiter
	table   *counters.Table
	answer  limiter.Answer
	result  Comparison
	newly   differences
	gone    differences
	room    int64 // further subjects that may be named
}

// differences counts the checks that only one of two documents refuses, by
// subject.
type differences struct {
	index map[string]int // into list, by rule and key
	list  []Subject
}

func newRival(set *rules.Set, maxCounters int64) *rival {
	r := &rival{table: counters.New(maxCounters), room: maxCounters}
	r.limiter = limiter.New(r.table, nil)
	r.limiter.SetRules(set)
	return r
}

// decide decides a record by the other rules, and compares the decision with
// tried, that of the rules being tried.
func (r *rival) decide(now algorithms.Instant, q *limiter.Query, tried *limiter.Answer) error {
	if err := r.limiter.CheckAt(now, q, &r.answer); err != nil {
		return err
	}

	other := &r.answer
	if !other.Allowed {
		r.result.Refused++
	}

	switch {
	case !tried.Allowed && other.Allowed:
		r.result.Newly.Checks++
		r.count(&r.newly, tried, q)
	case tried.Allowed && !other.Allowed:
		r.result.NoLonger.Checks++
		r.count(&r.gone, other, q)
	}

	return nil
}

// count counts a check that was refused with the answer a, by the subject of
// its tightest limit.
func (r *rival) count(d *differences, a *limiter.Answer, q *limiter.Query) {
	s := Subject{Rule: "(" + a.DecidedBy.String() + ")"} // a list, or the default
	if a.TightestIndex >= 0 {
		rule := a.Limits[a.TightestIndex].Rule
		s.Rule, s.Key = rule.Name, rule.SubjectOf(q.Attributes)
	}

	id := fmt.Sprintf("%q %q", s.Rule, s.Key)
	i, known := d.index[id]
	if !known {
		if r.room == 0 {
			r.result.Unnamed++
			return
		}

		r.room--
		if d.index == nil {
			d.index = map[string]int{}
		}

		i = len(d.list)
		d.index[id] = i
		d.list = append(d.list, s)
	}

	d.list[i].Refused++
	d.list[i].Checks++
}

// comparison returns the result, with at most top subjects in each list.
func (r *rival) comparison(top int) *Comparison {
	out := r.result
	for _, one := range []struct {
		from *differences
		to   *Decided
	}{{&r.newly, &out.Newly}, {&r.gone, &out.NoLonger}} {
		slices.SortFunc(one.from.list, compareByRefusals)
		one.to.Subjects = int64(len(one.from.list))
		one.to.Top = append([]Subject{}, one.from.list[:min(top, len(one.from.list))]...)
	}
	return &out
}

// print writes the comparison in readable form.
func (c *Comparison) print(b *strings.Builder, checks int64) {
	fmt.Fprintf(b, "\nThe other rules refuse %s (%s)\n", withCommas(c.Refused), percent(c.Refused, checks))

	for _, one := range []struct {
		title string
		d     *Decided
	}{{"Newly refused", &c.Newly}, {"No longer refused", &c.NoLonger}} {
		fmt.Fprintf(b, "\n%s: %s checks of %s subjects\n", one.title, withCommas(one.d.Checks),
			withCommas(one.d.Subjects))
		for _, s := range one.d.Top {
			fmt.Fprintf(b, "  %10s  %s: %s\n", withCommas(s.Refused), Printable(s.Rule), s.Key)
		}
	}

	if c.Unnamed > 0 {
		fmt.Fprintf(b, "\nToo many subjects: %s checks are not named.\n", withCommas(c.Unnamed))
	}
}
