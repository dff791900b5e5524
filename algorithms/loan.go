package algorithms

import (
	"math/bits"
	"time"
)

// Drained is how much of a bucket drains in a time, in whole units, rounded up; at most MaxAmount. Tokens that are moved
// to another bucket lose so much on their way: the bucket that they came from may have refilled by it meanwhile.
func (l *Limit) Drained(d time.Duration) int64 {
	if d <= 0 || l.Amount <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(d), uint64(l.Amount))
	return min(ceilDiv128(hi, lo, uint64(l.Window)), MaxAmount)
}

// Widen lets n units more be used in the present window, by what another region has lent: of a fixed window only.
func (l *Limit) Widen(s State, now Now, n int64) State {
	s = l.Advance(s, now)
	s.Part = addClamped(s.Part, n)
	return s
}
