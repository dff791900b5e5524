package rules

import (
	"math"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/rlnode/rlnode/algorithms"
)

type (
	atomicSole   = atomic.Pointer[soleLimits]
	atomicMoving = atomic.Pointer[movingLimits]
)

// heldShares holds what one version gives each region of one limit.
type heldShares struct{ amounts, bursts []int64 }

// divide returns what each of regions gets of a limit of rule. Only those in
// committed get anything.
func divide(regions, committed []string, rule *Rule, l *Limit) heldShares {
	v := heldShares{amounts: splitAmong(regions, committed, rule.Regions, l.Amount)}
	v.bursts = v.amounts
	if l.Kind.IsBucket() && l.Burst != l.Amount {
		v.bursts = splitAmong(regions, committed, rule.Regions, l.Burst)
	}
	return v
}

func splitAmong(regions, committed []string, parts []Region, amount int64) []int64 {
	shares := Split(amount, committed, parts)
	out := make([]int64, len(regions))
	for i, name := range regions {
		if j := slices.Index(committed, name); j >= 0 {
			out[i] = shares[j]
		}
	}
	return out
}

// unboundedShares returns what a version without the limit gives.
func unboundedShares(regions int) heldShares {
	all := make([]int64, regions)
	for i := range all {
		all[i] = math.MaxInt64
	}
	return heldShares{all, all}
}

func (v heldShares) of(region int) room { return room{v.amounts[region], v.bursts[region]} }

// fillTime returns the time that the slowest region's bucket takes to fill, in ns,
// or 0 for other limits.
func (v heldShares) fillTime(l *Limit) int64 {
	if !l.Kind.IsBucket() {
		return 0
	}

	longest := int64(0)
	for i, amount := range v.amounts {
		if amount == 0 {
			continue // it refuses everything
		}
		hi, lo := bits.Mul64(uint64(v.bursts[i]), uint64(l.Limit.Window))
		// The quotient has no room in 64 bits: Div64 would panic.
		if hi >= uint64(amount) {
			return int64(algorithms.Forever)
		}
		fill, _ := bits.Div64(hi, lo, uint64(amount))
		// The time is rounded up: with a shorter one, an earlier version would stop
		// counting too soon.
		longest = max(longest, int64(min(fill, uint64(algorithms.Forever)-1))+1)
	}

	return longest
}

// weigher computes how much of one limit the versions leave to one region.
type weigher struct {
	region   int // index of the region; −1 if it is in no version
	recorded int // number of recorded versions; they come first
	doubtful []bool
	bucket   bool
	fillTime int64 // that a bucket takes, ns

	held []heldShares
	// The fields below have one element for each version, and are used for fixed
	// windows only.

	// split returns the region's part of an amount by this version's division; it
	// is nil if the version has no such limit.
	split         []func(amount int64) int64
	amounts       []int64 // the limit's amount
	nextWithLimit []int   // the first version from this one on that has the limit
	// leastShare is the least that this version's division gives the region, of
	// its own amount or of any later one.
	leastShare []int64
}

// add adds a version's limit, which is nil if the version has none.
func (w *weigher) add(rule *Rule, l *Limit, committed, regions []string) {
	if l == nil {
		w.held = append(w.held, unboundedShares(len(regions)))
		w.split = append(w.split, nil)
		w.amounts = append(w.amounts, 0)
		return
	}

	v := divide(regions, committed, rule, l)
	w.held = append(w.held, v)
	w.fillTime = max(w.fillTime, v.fillTime(l))
	index := -1
	if w.region >= 0 {
		index = slices.Index(committed, regions[w.region])
	}

	w.amounts = append(w.amounts, l.Amount)
	w.split = append(w.split, func(amount int64) int64 {
		if index < 0 {
			return 0
		}
		return Split(amount, committed, rule.Regions)[index]
	})
}

// prepare computes nextWithLimit and leastShare. The last version always has the limit.
func (w *weigher) prepare() {
	if w.bucket || w.region < 0 {
		return
	}

	n := len(w.held)
	w.nextWithLimit, w.leastShare = make([]int, n), make([]int64, n)

	var later []int64 // distinct amounts of versions from i on
	for i := n - 1; i >= 0; i-- {
		w.nextWithLimit[i] = i
		if w.split[i] == nil {
			w.nextWithLimit[i] = w.nextWithLimit[i+1]
			continue
		}

		if !slices.Contains(later, w.amounts[i]) {
			later = append(later, w.amounts[i])
		}

		w.leastShare[i] = math.MaxInt64

		// Each amount counts, and not only the smallest: because of rounding, a
		// region may get less of a larger one.
		for _, amount := range later {
			share := w.held[i].amounts[w.region]
			if amount == w.amounts[i] {
				w.leastShare[i] = min(w.leastShare[i], share)
			} else {
				w.leastShare[i] = min(w.leastShare[i], w.split[i](amount))
			}
		}
	}
}

// roomAt returns what the versions leave to the region in a phase.
func (w *weigher) roomAt(p phase) room {
	out := room{math.MaxInt64, math.MaxInt64}
	if w.region < 0 {
		return room{}
	}

	if !w.bucket {
		// By the clock of the owner, the window may have begun a second earlier
		// or later. Only the least of these amounts is safe.
		for before := p.before; before <= p.after; before++ {
			out.amount = min(out.amount, w.windowRoom(before, p.maybeHonoured))
		}
		return room{amount: out.amount}
	}

	unknown := unboundedShares(len(w.held[0].amounts)) // use before the first record is unknown
	amounts, bursts := [][]int64{unknown.amounts}, [][]int64{unknown.bursts}
	for _, v := range w.held {
		amounts, bursts = append(amounts, v.amounts), append(bursts, v.bursts)
	}

	doubtful := append([]bool{false}, w.doubtful...)
	// The bucket may have been filling since any of these records. Each leaves
	// another amount, and only the least is safe.
	for first := int(p.before); first <= w.recorded; first++ {
		out.amount = min(out.amount, leastInBucket(amounts[first:], doubtful[first:], w.recorded-first, w.region))
		out.burst = min(out.burst, leastInBucket(bursts[first:], doubtful[first:], w.recorded-first, w.region))
	}

	return out
}

// windowRoom returns what the versions leave of a fixed window. before is the
// number of versions recorded before it began; honoured is the number of
// versions that this region may have honoured.
func (w *weigher) windowRoom(before, honoured uint8) int64 {
	base := w.baseVersion(before)
	out := w.leastShare[w.nextWithLimit[base]]
	for i := base + 1; i < int(honoured); i++ {
		// In other regions the version may have been recorded before the window
		// began, and others may rely on it.
		if i >= w.recorded || w.doubtful[i] {
			out = min(out, w.leastShare[w.nextWithLimit[i]])
		}
	}
	return out
}

// baseVersion returns the version whose division applies to a fixed window that
// began after before versions were recorded: the last of those, or a later
// recorded version that is nowhere smaller. If none was recorded before,
// baseVersion returns the first version: what was used earlier is unknown, but
// only the first version's regions can have used it.
func (w *weigher) baseVersion(before uint8) int {
	if before == 0 {
		return 0
	}
	first := int(before) - 1
	amounts := make([][]int64, 0, len(w.held))
	for _, v := range w.held[first:w.recorded] {
		amounts = append(amounts, v.amounts)
	}
	return first + baseShare(amounts, w.doubtful[first:])
}

// newestRoom returns what the version in force gives the region.
func (w *weigher) newestRoom() room {
	if w.region < 0 {
		return room{}
	}
	return w.held[len(w.held)-1].of(w.region)
}

// baseDivision returns each region's part of a fixed window, or nil for other limits.
func (w *weigher) baseDivision(p phase) []int64 {
	if w.bucket || w.region < 0 {
		return nil
	}
	return w.held[w.nextWithLimit[w.baseVersion(p.after)]].amounts
}

// leastInBucket returns what shares leave to a region of a bucket that may have
// been filling since shares[0] held. recorded is the number of later shares
// that have been recorded since.
func leastInBucket(shares [][]int64, doubtful []bool, recorded, region int) int64 {
	out := int64(math.MaxInt64)
	for _, v := range shares[baseShare(shares[:recorded+1], doubtful):] {
		out = min(out, v[region])
	}
	return out
}

// baseShare returns the index of the recorded share that counts since shares[0]
// held: the last that was nowhere smaller than what each region may have used
// by then. A region may have used all that a doubtful share gives it.
func baseShare(shares [][]int64, doubtful []bool) (at int) {
	most := shares[0]
	for i, v := range shares[1:] {
		switch {
		case covers(v, most):
			most, at = v, i+1
		case doubtful[i+1]:
			most = slices.Clone(most)
			for r := range most {
				most[r] = max(most[r], v[r])
			}
		}
	}

	return at
}

// covers reports whether a is nowhere smaller than b.
func covers(a, b []int64) bool {
	for i := range a {
		if a[i] < b[i] {
			return false
		}
	}
	return true
}
