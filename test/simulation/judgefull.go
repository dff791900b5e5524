package simulation

import (
	"time"
)

// judgeFull is G3: while demand lasts and exceeds the limit, each window admits
// nearly all of it. This also holds from five seconds after an owner is killed
// (G5).
func (l *Ledger) judgeFull(subject int, history *subjectHistory) (broken []Violation) {
	s := &l.Subjects[subject]
	for from := 0; from < len(history.checks); {
		w := l.windowOf(s, history.checks[from].Began)
		to := from + 1
		for to < len(history.checks) && l.windowOf(s, history.checks[to].Began) == w {
			to++
		}

		if v := l.judgeWindow(subject, w, s.Limit.Amount, history); v != nil {
			broken = append(broken, *v)
		}

		for from = to; from < len(history.checks) && l.windowOf(s, history.checks[from].Began) <= w; {
			from++
		}
	}

	return broken
}

// judgeWindow judges one window of which amount may be admitted. It returns nil
// if demand did not last or a fault excuses the window.
func (l *Ledger) judgeWindow(subject int, w, amount int64, history *subjectHistory) *Violation {
	s := &l.Subjects[subject]
	begins, ends := l.windowStart(s, w), l.windowStart(s, w+1)
	parts := min(max(int(s.Limit.Window/time.Second), 2), 10)
	demand := make([]int64, parts)
	var asked, admitted, largest, inTime int64

	nodes := map[int]bool{}
	for _, c := range history.checks {
		if c.Ended < begins || c.Began >= ends {
			continue
		}

		if c.Admitted {
			admitted += c.Cost // even if the window is in doubt
		}

		if c.Joint || c.Began < begins || c.Ended >= ends { // another subject may have refused a joint check
			continue
		}

		nodes[c.Node] = true
		largest = max(largest, c.Cost)
		asked += c.Cost
		demand[int(int64(c.Began-begins)*int64(parts)/int64(ends-begins))] += c.Cost

		if c.Ended < ends-3*max(s.TTL, 50*time.Millisecond) {
			inTime += c.Cost
		}
	}

	// Judge only if demand exceeds what is admitted before the last leases are
	// returned, and lasts until the end.
	if inTime < amount+largest || demand[parts-1] < amount/int64(parts) {
		return nil
	}

	for _, d := range demand {
		if d < amount/int64(2*parts) {
			return nil
		}
	}

	if ends > l.End || l.troubled(s, nodes, begins, ends) {
		return nil
	}

	l.Counts.Judged.Full++
	if admitted*100 >= amount*minAdmittedPercent-(largest-1)*100 {
		return nil
	}

	v := l.violation("G3", subject,
		"in the window from %v, only %d of the %d asked for were admitted", begins, admitted, asked)
	return &v
}

// troubled reports whether a fault may have affected the nodes that checked a
// subject, or its owner.
func (l *Ledger) troubled(s *Subject, nodes map[int]bool, begins, ends time.Duration) bool {
	owners := map[int]bool{}
	last := -1
	for _, o := range l.Owners {
		switch {
		case o.Partition != s.Partition || o.At >= ends:
		case o.At < begins:
			last = o.Node
		default:
			owners[o.Node] = true
		}
	}

	owners[last] = true

	for _, t := range l.Troubles {
		until := t.Until
		if until != forever {
			until += aftermath
		}

		if t.From >= ends || until <= begins {
			continue
		}
		if t.Nodes == nil {
			return true
		}

		for n := range t.Nodes {
			if nodes[n] || owners[n] {
				return true
			}
		}
	}

	return false
}
