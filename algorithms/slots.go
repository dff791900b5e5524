package algorithms

import "time"

// A slot of a Concurrency limit is held until it is released, or until it ends
// by itself because nobody has renewed it. So the slots of a holder that dies
// become free.

// describeSlots describes a check of cost slots.
func (l *Limit) describeSlots(d *Decision, s State, cost int64) {
	d.Used, d.Remaining = s.Count, max(0, l.Amount-s.Count)
	d.ResetAfter = time.Duration(s.At)
	switch {
	case d.Allowed:
	case cost > l.Amount:
		d.RetryAfter = Never
	default:
		d.RetryAfter = time.Duration(s.Part)
	}
}

// CountsInShadow reports whether a shadow limit in state s, which refuses cost
// slots, still counts them. It counts up to twice the limit.
func (l *Limit) CountsInShadow(s State, cost int64) bool { return s.Count <= 2*l.Amount-cost }
