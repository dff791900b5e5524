package replay

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// tally counts decisions by rule and by subject.
type tally struct {
	set         *rules.Set
	match       rules.Match
	rules       []ruleTally // by Rule.Index
	subjectRoom int64       // number of further subjects that may be counted, over all rules
	Report                  // its Rules and Top are empty until report
}

type ruleTally struct {
	checks, refused int64
	index           map[rules.Hash]int32 // into subjects
	subjects        []subjectTally
	keys            map[int32][]string // of the refused subjects
}

type subjectTally struct {
	checks, refused int64
	headroom        uint8 // the least so far, in tenths of the capacity, rounded up
}

// maxSkippedLines bounds the skipped lines that the report shows.
const maxSkippedLines = 10

func newTally(c *Config) *tally {
	t := &tally{set: c.Rules, subjectRoom: c.MaxCounters}
	if t.set != nil {
		t.rules = make([]ruleTally, len(t.set.Rules))
	}
	for i := range t.rules {
		t.rules[i] = ruleTally{index: make(map[rules.Hash]int32), keys: make(map[int32][]string)}
	}
	return t
}

func (t *tally) addSkipped(line SkippedLine) {
	t.Skipped++
	if len(t.SkippedLines) < maxSkippedLines {
		t.SkippedLines = append(t.SkippedLines, line)
	}
}

// add counts a check decided at time at.
func (t *tally) add(at int64, attributes []rules.Attribute, a *limiter.Answer) {
	if t.Checks == 0 {
		t.First = at
	}

	t.Last = at
	t.Checks++

	if !a.Allowed {
		t.Refused++
	}

	if a.DecidedBy >= limiter.ByList {
		switch {
		case a.Allowed:
		case a.DecidedBy == limiter.ByList:
			t.ByList++
		default:
			t.ByDefault++
		}
		return
	}

	// The answer has no subjects, so match again to find them.
	t.set.Match(attributes, nil, &t.match)
	limits := a.Limits
	for i := range t.match.Hits {
		h := &t.match.Hits[i]
		t.addHit(h, limits[:len(h.Limits)], attributes)
		limits = limits[len(h.Limits):]
	}
}

// addHit counts the decision of one rule's limits about one subject.
func (t *tally) addHit(h *rules.Hit, limits []limiter.LimitAnswer, attributes []rules.Attribute) {
	refused, headroom := false, uint8(10)
	for i := range limits {
		refused = refused || !limits[i].Allowed
		headroom = min(headroom, headroomTenths(limits[i].Remaining, limits[i].Limit.Capacity()))
	}

	r := &t.rules[h.Rule.Index]
	r.checks++

	if refused {
		r.refused++
	}

	n, ok := r.index[h.Subject]
	if !ok {
		if t.subjectRoom == 0 {
			t.Untallied++
			return
		}
		t.subjectRoom--
		n = int32(len(r.subjects))
		r.index[h.Subject] = n
		r.subjects = append(r.subjects, subjectTally{headroom: 10})
	}

	s := &r.subjects[n]
	s.checks++
	s.headroom = min(s.headroom, headroom)

	if refused {
		if s.refused == 0 {
			r.keys[n] = h.Rule.SubjectOf(attributes)
		}
		s.refused++
	}
}

// headroomTenths returns 10 × remaining ÷ capacity, rounded up and at most 10.
func headroomTenths(remaining, capacity int64) uint8 {
	if remaining >= capacity {
		return 10
	}
	hi, lo := bits.Mul64(uint64(max(remaining, 0)), 10)
	q, rest := bits.Div64(hi, lo, uint64(capacity))
	if rest > 0 {
		q++
	}
	return uint8(q)
}

// report summarises the tally. The report's Top holds at most top subjects.
func (t *tally) report(top int) *Report {
	r := t.Report // a copy, which does not keep the subjects in memory
	for i := range t.rules {
		rt, rule := &t.rules[i], t.set.Rules[i]
		sum := RuleReport{
			Name: rule.Name, Shadow: rule.Shadow, Checks: rt.checks, Refused: rt.refused,
			Subjects: int64(len(rt.subjects)),
		}
		for j := range rt.subjects {
			if s := &rt.subjects[j]; s.refused == 0 {
				sum.Headroom[s.headroom]++
			}
		}

		r.Rules = append(r.Rules, sum)
		if !rule.Shadow {
			r.Top = append(r.Top, rt.top(rule.Name, top)...)
		}
	}

	slices.SortStableFunc(r.Top, compareByRefusals)
	r.Top = r.Top[:min(top, len(r.Top))]
	return &r
}

// top returns the n most refused subjects of one rule.
func (r *ruleTally) top(name string, n int) []Subject {
	all := make([]Subject, 0, len(r.keys))
	for i, key := range r.keys {
		s := &r.subjects[i]
		all = append(all, Subject{Rule: name, Key: key, Refused: s.refused, Checks: s.checks})
	}
	slices.SortFunc(all, compareByRefusals)
	return slices.Clone(all[:min(n, len(all))])
}

// compareByRefusals orders subjects by refusals, most first.
func compareByRefusals(a, b Subject) int {
	return cmp.Or(cmp.Compare(b.Refused, a.Refused), cmp.Compare(b.Checks, a.Checks), cmp.Compare(a.Rule, b.Rule),
		slices.Compare(a.Key, b.Key))
}
