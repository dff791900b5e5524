package algorithms

import (
	"math/bits"
	"time"
)

// Drained returns how much of a bucket drains in d, in whole units, rounded up,
// at most MaxAmount. Tokens that move to another bucket lose that much on the
// way: the bucket that they came from may have refilled by as much meanwhile.
func (l *Limit) Drained(d time.Duration) int64 {
	if d <= 0 || l.Amount <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(d), uint64(l.Amount))
	return min(ceilDiv128(hi, lo, uint64(l.Window)), MaxAmount)
}

// Widen allows n more units in the current window, because another region has
// lent them. It is for fixed windows only.
func (l *Limit) Widen(s State, now Instant, n int64) State {
	s = l.Advance(s, now)
	s.Part = addClamped(s.Part, n)
	return s
}
