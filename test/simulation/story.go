package simulation

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// WriteStory writes everything that happened to a subject, in order of time, to
// explain a violation. The subject is given by rule and key.
func (l *Ledger) WriteStory(w io.Writer, rule, key string) error {
	if len(l.Regions) > 0 {
		return l.writeStories(w, rule, key)
	}

	subject := slices.IndexFunc(l.Subjects, func(s Subject) bool { return s.Rule == rule && s.Key == key })
	if subject < 0 {
		return fmt.Errorf("simulation: no subject %s %s", rule, key)
	}

	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	add := func(at time.Duration, format string, args ...any) {
		lines = append(lines, line{at, fmt.Sprintf("%-14v ", at) + fmt.Sprintf(format, args...)})
	}

	of := l.index()[subject]
	for _, c := range of.checks {
		word := "refused"
		if c.Admitted {
			word = "admitted"
		}
		add(c.Began, "node %d: %d %s by %v after %v (share %d)", c.Node, c.Cost, word, c.By, c.Ended-c.Began, c.Share)
	}

	for _, a := range of.acts {
		add(a.At, "standby %d admits %d (share %d)", a.Node, a.Cost, a.Share)
	}

	for _, x := range of.losses {
		add(x.At, "the new owner lacks %d (without a copy: %v)", x.Amount, x.Anew)
	}

	for _, o := range l.Owners {
		if o.Partition == l.Subjects[subject].Partition {
			add(o.At, "node %d owns partition %d", o.Node, o.Partition)
		}
	}

	for _, c := range l.Cuts {
		add(c.From, "node %d is cut off until %v", c.Node, c.Until)
	}

	for _, t := range l.Troubles {
		nodes := []int{}
		for n := range t.Nodes {
			nodes = append(nodes, n)
		}
		slices.Sort(nodes)
		add(t.From, "trouble until %v: nodes %v", t.Until, nodes)
	}

	slices.SortStableFunc(lines, func(a, b line) int { return int(a.at - b.at) })
	var b strings.Builder
	for _, x := range lines {
		b.WriteString(x.text + "\n")
	}

	_, err := io.WriteString(w, b.String())
	return err
}

// writeStories is WriteStory for several regions, one after another, preceded
// by versions and loans.
func (l *Ledger) writeStories(w io.Writer, rule, key string) error {
	var b strings.Builder
	for i := range l.Versions {
		v := &l.Versions[i]
		fmt.Fprintf(&b, "%-14v version %d, recorded at %v for %d: %+v\n", v.Written, v.Number,
			v.Recorded, v.From, v.Limits[rule])
	}

	for i := range l.Loans {
		if x := &l.Loans[i]; l.Subjects[x.Subject].Rule == rule && l.Subjects[x.Subject].Key == key {
			fmt.Fprintf(&b, "%-14v region %s lends %d in window %d\n", x.At, RegionName(x.From), x.Amount, x.Window)
		}
	}

	for r, region := range l.Regions {
		fmt.Fprintf(&b, "region %s, clock %v ahead\n", RegionName(r), region.Start.Sub(l.Start))
		for _, h := range region.Holds {
			fmt.Fprintf(&b, "%-14v holds versions", h.At)
			for _, place := range h.Versions {
				fmt.Fprintf(&b, " %d", l.Versions[place].Number)
			}
			fmt.Fprintln(&b)
		}

		if err := region.WriteStory(&b, rule, key); err != nil {
			return err
		}
	}

	_, err := io.WriteString(w, b.String())
	return err
}
