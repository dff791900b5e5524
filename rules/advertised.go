package rules

import (
	"math/bits"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// AdvertisedLimit is what answers say of a limit, whatever is used of it: no
// more than Capacity at once, and over time Amount per Per. A caller that takes
// Capacity in each Window keeps to that rate.
type AdvertisedLimit struct {
	Capacity int64
	Window   time.Duration // of a bucket, the time in which all of it refills, rounded up
	Amount   int64
	Per      time.Duration
	// Slots means that Capacity slots may be held at once, each for Window
	// unless it is renewed. Amount and Per then mean nothing.
	Slots bool
}

// AdvertisedAt returns what answers at now say of l. If regions divide l, the
// answers are about all regions together.
func (l *Limit) AdvertisedAt(now algorithms.Instant) AdvertisedLimit {
	s := AdvertisedLimit{Capacity: l.UndividedCapacity(), Amount: l.UndividedAmount(), Per: l.WindowLength(now)}
	s.Window = s.Per
	s.Slots = l.Kind == algorithms.Concurrency
	if l.Kind.IsBucket() && s.Capacity != s.Amount && s.Amount > 0 {
		s.Window = refillTime(s.Capacity, s.Amount, s.Per)
	}
	return s
}

// refillTime returns the time in which n units come back, rounded up, and at
// most algorithms.Forever.
func refillTime(n, amount int64, per time.Duration) time.Duration {
	hi, lo := bits.Mul64(uint64(n), uint64(per))
	lo, carry := bits.Add64(lo, uint64(amount)-1, 0)
	hi += carry
	// The quotient has no room in 64 bits: Div64 would panic.
	if hi >= uint64(amount) {
		return algorithms.Forever
	}
	t, _ := bits.Div64(hi, lo, uint64(amount))
	return time.Duration(min(t, uint64(algorithms.Forever)))
}

// Quota returns the pair of RateLimit-Policy: q units per w seconds. It is
// Capacity in Window, or, where that is under a second, what comes back in a
// second: the header has no fractions.
func (s *AdvertisedLimit) Quota() (q, w int64) {
	if s.Window >= time.Second || s.Slots {
		return s.Capacity, int64((s.Window + time.Second - 1) / time.Second)
	}
	hi, lo := bits.Mul64(uint64(s.Amount), uint64(time.Second))
	if hi >= uint64(s.Per) {
		return algorithms.MaxAmount, 1
	}
	perSecond, _ := bits.Div64(hi, lo, uint64(s.Per))
	return int64(min(perSecond, algorithms.MaxAmount)), 1
}
