package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
)

// goal is a bound on a ratio, or on a figure without a counterpart.
type goal struct {
	text    string // as printed in the table
	bound   float64
	atLeast bool // otherwise at most
	none    bool // no bound: the row is informative only
}

func atLeast(bound float64, text string) goal { return goal{text: text, bound: bound, atLeast: true} }
func atMost(bound float64, text string) goal  { return goal{text: text, bound: bound} }
func noGoal() goal                            { return goal{text: "–", none: true} }

// met reports whether v is within the goal. NaN is not.
func (g goal) met(v float64) bool {
	if g.atLeast {
		return v >= g.bound
	}
	return v <= g.bound
}

// row is one line of the table.
type row struct {
	ID       string `json:"id"`
	What     string `json:"what"`
	Goal     string `json:"goal"`
	Measured *ratio `json:"measured,omitempty"` // nil: not measured, for the reason in Note
	Met      string `json:"met"`
	Note     string `json:"note,omitempty"`
}

// figure is an absolute value, meaningful only beside others of the same run.
type figure struct {
	ID     string    `json:"id"`
	What   string    `json:"what"`
	Kind   string    `json:"kind,omitempty"` // such as p50; "" is the one used in the ratio
	Unit   string    `json:"unit"`
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Rounds []float64 `json:"rounds"`
}

// report collects rows and figures.
type report struct {
	mu       sync.Mutex // guards the fields below
	rows     []row
	figures  []figure
	notes    []string
	failures []string
}

// add adds a row to the table. note may be empty.
func (r *report) add(id, what string, g goal, measured ratio, note string) {
	if math.IsNaN(measured.Median) || math.IsInf(measured.Median, 0) {
		r.missing(id, what, g, "too little was measured")
		return
	}

	met := "no"
	switch {
	case g.none:
		met = "–"
	case g.met(measured.Median):
		met = "yes"
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	r.rows = append(r.rows, row{ID: id, What: what, Goal: g.text, Measured: &measured, Met: met, Note: note})
}

// derived marks the last row as computed from others rather than measured.
func (r *report) derived() {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := &r.rows[len(r.rows)-1]
	last.Met += " (derived)"
}

// missing adds a row without a figure to the table.
func (r *report) missing(id, what string, g goal, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, row{ID: id, What: what, Goal: g.text, Met: "not measured", Note: why})
}

// figure records an absolute value of each round.
func (r *report) figure(id, what, kind, unit string, values series) {
	if len(values) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.figures = append(r.figures, figure{
		ID: id, What: what, Kind: kind, Unit: unit, Median: values.median(), Min: values.min(),
		Max: values.max(), Rounds: values,
	})
}

// note adds a sentence below the table.
func (r *report) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// fail records that rows could not be measured.
func (r *report) fail(rows []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf("%s: %v", strings.Join(rows, ", "), err))
}

// sort sorts rows and figures by number, and keeps the order within a number.
func (r *report) sort() {
	slices.SortStableFunc(r.rows, func(a, b row) int { return strings.Compare(a.ID, b.ID) })
	slices.SortStableFunc(r.figures, func(a, b figure) int { return strings.Compare(a.ID, b.ID) })
}

// markdown prints everything.
func (r *report) markdown(w io.Writer, m machine, how string) error {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.sort()
	var b strings.Builder
	r.writeRows(&b)
	r.writeFigures(&b)

	for i, n := range r.notes {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "- %s\n", n)
	}

	for _, f := range r.failures {
		fmt.Fprintf(&b, "\n**Not measured**: %s\n", f)
	}

	fmt.Fprintf(&b, "\n%s %s\n", m.sentence(), how)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *report) writeRows(b *strings.Builder) {
	if len(r.rows) == 0 {
		return
	}

	b.WriteString("| # | figure | goal | measured | over the rounds | met |\n|---|---|---|---|---|---|\n")

	for _, row := range r.rows {
		measured, spread := "–", "–"
		if row.Measured != nil {
			measured = short(row.Measured.Median)
			spread = short(row.Measured.Min) + " … " + short(row.Measured.Max)
		}

		what := row.What
		if row.Note != "" {
			what += " (" + row.Note + ")"
		}

		met := row.Met
		if rest, no := strings.CutPrefix(met, "no"); no && (rest == "" || rest[0] == ' ') {
			met = "**no**" + rest
		}

		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s |\n", row.ID, what, row.Goal, measured, spread, met)
	}
}

// writeFigures writes a line for each contender, with all its measurements.
func (r *report) writeFigures(b *strings.Builder) {
	if len(r.figures) == 0 {
		return
	}

	b.WriteString("\nThe absolute figures, which are only meaningful relative to each other:\n\n| # | of | median (over the rounds) |\n|---|---|---|")

	for i, f := range r.figures {
		if i == 0 || f.ID != r.figures[i-1].ID || f.What != r.figures[i-1].What {
			if i > 0 {
				b.WriteString(" |")
			}
			fmt.Fprintf(b, "\n| %s | %s |", f.ID, f.What)
		} else {
			b.WriteByte(';')
		}

		if f.Kind != "" {
			b.WriteString(" " + f.Kind)
		}

		fmt.Fprintf(b, " %s %s", short(f.Median), f.Unit)
		if f.Kind == "" {
			fmt.Fprintf(b, " (%s … %s)", short(f.Min), short(f.Max))
		}
	}

	b.WriteString(" |\n")
}

// short formats a number with three significant digits, and commas between thousands.
func short(v float64) string {
	switch size := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case size < 0.0005:
		return "0"
	case size < 0.995:
		return fmt.Sprintf("%.3f", v)
	case size < 9.995:
		return fmt.Sprintf("%.2f", v)
	case size < 99.95:
		return fmt.Sprintf("%.1f", v)
	case size < 10_000:
		return thousands(int64(math.Round(v)))
	default: // the last digits of large figures are noise
		unit := math.Pow(10, math.Floor(math.Log10(size))-2)
		return thousands(int64(math.Round(v/unit) * unit))
	}
}

// thousands writes n with commas.
func thousands(n int64) string {
	digits := fmt.Sprint(n)
	first := len(digits)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (first-i)%3 == 0 && digits[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// writeJSON writes everything to a file, for programs.
func (r *report) writeJSON(path string, m machine, s settings) error {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.sort()
	all := struct {
		Machine  machine  `json:"machine"`
		Time     string   `json:"time_per_measurement"`
		Rounds   int      `json:"rounds"`
		Rows     []row    `json:"rows"`
		Figures  []figure `json:"figures"`
		Notes    []string `json:"notes"`
		Failures []string `json:"failures"`
	}{m, s.time.String(), s.rounds, r.rows, r.figures, r.notes, r.failures}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the figures: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}

	return nil
}
