package counters

import (
	"math"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// refusedFullness is the Record.Fullness of a counter whose last check was refused.
const refusedFullness = math.MaxUint8

// kindFullness packs a counter's kind (3 bits) and fullness (5 bits).
type kindFullness uint8

const packedRefusedFullness = 31 // the packed refusedFullness: the last check was refused

func packKindFullness(kind algorithms.Kind, fullness uint8) kindFullness {
	if fullness == refusedFullness {
		return kindFullness(kind) | packedRefusedFullness<<3
	}
	return kindFullness(kind) | kindFullness(uint16(fullness)*(packedRefusedFullness-1)/(refusedFullness-1))<<3
}

func (k kindFullness) kind() algorithms.Kind { return algorithms.Kind(k & 7) }
func (k kindFullness) packedFullness() uint8 { return uint8(k >> 3) }

// recordFullness returns the fullness as in a Record, 0…255: the lowest one
// that packs to the same value.
func (k kindFullness) recordFullness() uint8 {
	if k.packedFullness() == packedRefusedFullness {
		return refusedFullness
	}
	return uint8((uint16(k.packedFullness())*(refusedFullness-1) + packedRefusedFullness - 2) / (packedRefusedFullness - 1))
}

// fullnessAfterCheck returns a counter's fullness after an allowed check. A
// counter that delays checks counts as refusing. A window widened by loans
// counts as almost full: if it were evicted, what other regions lent to it
// would be lost.
func fullnessAfterCheck(l *algorithms.Limit, d *algorithms.Decision) uint8 {
	if d.Delay > 0 && l.MaxDelay > 0 {
		return refusedFullness
	}
	if l.Kind == algorithms.FixedWindow && d.Remaining > l.Capacity() {
		return refusedFullness - 1
	}
	return min(algorithms.Fullness(d.Remaining, l.Capacity()), refusedFullness-1)
}

// fullnessAfterChange returns a counter's fullness after a change other than a
// check. If nothing is left, the counter counts as refusing.
func fullnessAfterChange(l *algorithms.Limit, d *algorithms.Decision) uint8 {
	if d.Remaining == 0 {
		return refusedFullness
	}
	return fullnessAfterCheck(l, d)
}

// expiryAfter returns when a counter that resets after resetAfter equals a fresh
// one, in whole steady-clock seconds, rounded up. One extra second keeps the
// counter for clock readings that arrive late.
//
// Windows that follow the wall clock are kept a 63rd longer. While that clock
// is being slewed, it loses up to a 64th of its pace, and the windows end that
// much later. Logs are kept longer, too, though they don't need it.
func expiryAfter(now algorithms.Instant, l *algorithms.Limit, resetAfter time.Duration) uint32 {
	if !l.Kind.OnSteadyClock() {
		resetAfter = min(resetAfter, math.MaxInt64/2) // the addition can't overflow
		resetAfter += resetAfter / 63
	}
	return steadyExpiryAfter(now.Steady, resetAfter)
}

// steadyExpiryAfter is expiryAfter for a time that passes on the steady clock,
// of which steady is the reading.
func steadyExpiryAfter(steady int64, resetAfter time.Duration) uint32 {
	return uint32(min((uint64(max(steady, 0))+uint64(resetAfter)+1e9-1)/1e9+1, math.MaxUint32))
}
