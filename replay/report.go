package replay

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is what rules would have done to a log. As JSON it is
//
//	{"checks", "refused", "skipped",
//	 "rules": {name: {"checks", "refused", "subjects"}},
//	 "top": [{"rule", "key", "refused", "checks"}],
//	 "against": {"refused", "newly_refused": {"checks", "subjects", "top"}, "no_longer_refused": {…}}}
type Report struct {
	Checks  int64
	Refused int64 // by a rule, a list or the default
	Skipped int64 // lines that could not be read

	Rules []RuleReport // in document order
	Top   []Subject    // the subjects refused most, except by shadow rules

	ByList       int64         // refused by the deny list
	ByDefault    int64         // refused because no rule applied
	SkippedLines []SkippedLine // the first skipped lines
	First, Last  int64         // times of the first and the last record, Unix nanoseconds
	Untallied    int64         // checks whose subject is not counted, because MaxCounters subjects already are
	Against      *Comparison   // with other rules; nil if there are none
	Evicted      int64         // counters dropped early because the table was full
}

// RuleReport is what one rule would have done.
type RuleReport struct {
	Name     string
	Shadow   bool
	Checks   int64 // checks it applied to
	Refused  int64 // refused by this rule; for a shadow rule, those it would have refused
	Subjects int64 // number of distinct subjects
	// Headroom counts the subjects never refused, by the smallest headroom that
	// each had: ceil(10 × remaining ÷ capacity).
	Headroom [11]int64
}

// Subject is what a rule would have done to one subject.
type Subject struct {
	Rule    string `json:"rule"`
	Key     Key    `json:"key"`
	Refused int64  `json:"refused"`
	Checks  int64  `json:"checks"`
}

// Key holds the values of a subject's key. In JSON, one value is a string, and
// several are an array.
type Key []string

// MarshalJSON implements json.Marshaler.
func (k Key) MarshalJSON() ([]byte, error) {
	if len(k) == 1 {
		return json.Marshal(k[0])
	}
	return json.Marshal(append([]string{}, k...))
}

// String returns the key in a readable form.
func (k Key) String() string {
	parts := make([]string, len(k))
	for i := range k {
		parts[i] = Printable(k[i])
	}
	return cmp.Or(strings.Join(parts, ", "), "(all)")
}

// Printable quotes s if it is empty or has unprintable characters.
func Printable(s string) string {
	if quoted := strconv.Quote(s); s == "" || quoted[1:len(quoted)-1] != s {
		return quoted
	}
	return s
}

// SkippedLine is a line that could not be read.
type SkippedLine struct {
	Input  string
	Line   int64 // from 1
	Reason string
	Text   string // the beginning of the line, quoted
}

// String returns the position, the reason and the text.
func (s SkippedLine) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", s.Input, s.Line, s.Reason, s.Text)
}

// excerpt returns the beginning of a line, quoted.
func excerpt(line string) string {
	const most = 60
	if len(line) > most {
		return strconv.Quote(line[:most]) + "…"
	}
	return strconv.Quote(line)
}

// MarshalJSON implements json.Marshaler.
func (r *Report) MarshalJSON() ([]byte, error) {
	type ruleCounts struct {
		Checks   int64 `json:"checks"`
		Refused  int64 `json:"refused"`
		Subjects int64 `json:"subjects"`
	}
	out := struct {
		Checks  int64                 `json:"checks"`
		Refused int64                 `json:"refused"`
		Skipped int64                 `json:"skipped"`
		Rules   map[string]ruleCounts `json:"rules"`
		Top     []Subject             `json:"top"`
		Against *Comparison           `json:"against,omitempty"`
	}{r.Checks, r.Refused, r.Skipped, make(map[string]ruleCounts, len(r.Rules)), append([]Subject{},
		r.Top...), r.Against}
	for _, rule := range r.Rules {
		out.Rules[rule.Name] = ruleCounts{rule.Checks, rule.Refused, rule.Subjects}
	}

	return json.Marshal(out)
}

// Print writes the report in readable form.
func (r *Report) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s checks", withCommas(r.Checks))

	if r.Checks > 0 {
		fmt.Fprintf(&b, ", from %s to %s", formatTime(r.First), formatTime(r.Last))
	}

	fmt.Fprintf(&b, "\n%s refused (%s)", withCommas(r.Refused), percent(r.Refused, r.Checks))
	if r.ByList > 0 {
		fmt.Fprintf(&b, ", %s of them by the deny list", withCommas(r.ByList))
	}
	if r.ByDefault > 0 {
		fmt.Fprintf(&b, ", %s of them because no rule applied", withCommas(r.ByDefault))
	}

	fmt.Fprintf(&b, "\n%s lines skipped\n", withCommas(r.Skipped))
	r.printSkipped(&b)
	r.printRules(&b)
	r.printTop(&b)
	r.printHeadroom(&b)

	if r.Against != nil {
		r.Against.print(&b, r.Checks)
	}
	if r.Untallied > 0 {
		fmt.Fprintf(&b, "\nToo many subjects: %s checks are not counted by subject.\n", withCommas(r.Untallied))
	}
	if r.Evicted > 0 {
		fmt.Fprintf(&b,
			"\nThe table was full and evicted %s counters early: refusals may be too low.\n",
			withCommas(r.Evicted))
	}

	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) printSkipped(b *strings.Builder) {
	for _, s := range r.SkippedLines {
		fmt.Fprintf(b, "  %s\n", s)
	}
	if more := r.Skipped - int64(len(r.SkippedLines)); more > 0 {
		fmt.Fprintf(b, "  and %s more\n", withCommas(more))
	}
}

func (r *Report) printRules(b *strings.Builder) {
	if len(r.Rules) == 0 {
		return
	}

	table := tabwriter.NewWriter(b, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "\nCHECKS\tREFUSED\t\tSUBJECTS\t  RULE\n")

	for _, rule := range r.Rules {
		name := Printable(rule.Name)
		if rule.Shadow {
			name += " (shadow: would have refused)"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t  %s\n", withCommas(rule.Checks),
			withCommas(rule.Refused), percent(rule.Refused, rule.Checks),
			withCommas(rule.Subjects), name)
	}

	table.Flush() // a strings.Builder can't fail
}

func (r *Report) printTop(b *strings.Builder) {
	if len(r.Top) == 0 {
		return
	}
	fmt.Fprint(b, "\nSubjects refused most\n")
	table := tabwriter.NewWriter(b, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "REFUSED\tCHECKS\t  RULE AND SUBJECT\n")
	for _, s := range r.Top {
		fmt.Fprintf(table, "%s\t%s\t  %s: %s\n", withCommas(s.Refused), withCommas(s.Checks), Printable(s.Rule), s.Key)
	}
	table.Flush()
}

// printHeadroom shows how close the subjects never refused came to their limits.
func (r *Report) printHeadroom(b *strings.Builder) {
	const width = 40
	for _, rule := range r.Rules {
		var most, all int64
		for _, n := range rule.Headroom {
			most, all = max(most, n), all+n
		}

		if all == 0 {
			continue
		}

		fmt.Fprintf(b, "\n%s: the most that each of the %s subjects never refused used of its limit\n",
			Printable(rule.Name), withCommas(all))

		for i, n := range rule.Headroom {
			if n == 0 {
				continue
			}
			fmt.Fprintf(b, "  %-9s %12s  %s\n", usedText(i), withCommas(n),
				strings.Repeat("#", int(max(1, n*width/most))))
		}
	}
}

// usedText returns the range of use for a headroom in tenths, rounded up.
func usedText(headroom int) string {
	switch headroom {
	case 0:
		return "all"
	case 10:
		return "under 10%"
	}
	return fmt.Sprintf("%d-%d%%", 100-10*headroom, 109-10*headroom)
}

func formatTime(t int64) string { return time.Unix(0, t).UTC().Format("2006-01-02 15:04:05Z") }

func percent(part, whole int64) string {
	if whole == 0 {
		return "0%"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(whole))
}

// withCommas writes n with commas between thousands.
func withCommas(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
