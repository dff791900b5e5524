package rules

import (
	"math"
	"slices"
)

// division holds what a set needs to divide limits. It must not refer to a set:
// cached limits refer to their division, and would keep old versions in memory.
type division struct {
	region string
	// lastSufficesFrom is a wall time in Unix ns. Windows that begin at or after it
	// depend only on the last version.
	lastSufficesFrom int64
	// maxFill bounds the time that any bucket of any version takes to fill, in ns.
	maxFill       int64
	recordedAt    []int64  // for each recorded version: its RecordedAt, but in Unix ns
	notHonouredAt []int64  // for each version: HeldVersion.NotHonouredAt, but no later than that of any later version
	doubtful      []bool   // for each version
	names         []string // the regions of all versions, each once
	soleRegion    bool     // no version has any other region
}

// countRecorded returns the number of versions recorded by start, in Unix ns.
func (d *division) countRecorded(start int64) uint8 {
	n := len(d.recordedAt)
	for n > 0 && d.recordedAt[n-1] > start {
		n--
	}
	return uint8(n)
}

// phase determines which versions count for one limit at one moment.
type phase struct {
	// When the window began, at least fewestRecorded and at most mostRecorded
	// versions had been recorded: the fewest if the clock of the counter's owner is a second behind, the most
	// if it is a second ahead. For a bucket, mostRecorded is 0.
	fewestRecorded, mostRecorded uint8
	// mostHonoured is the number of versions that this region may have honoured by
	// then.
	mostHonoured uint8
}

// bound is the amount and burst that a share may have.
type bound struct{ amount, burst int64 }

// windowDivision is how regions divide a limit in the current window.
type windowDivision struct {
	names   []string
	amounts []int64
}

// versionShares holds what one version gives each region of one limit.
type versionShares struct{ amounts, bursts []int64 }

// unboundedShares returns what a version without the limit gives.
func unboundedShares(regions int) versionShares {
	all := make([]int64, regions)
	for i := range all {
		all[i] = math.MaxInt64
	}
	return versionShares{all, all}
}

func (v versionShares) of(region int) bound { return bound{v.amounts[region], v.bursts[region]} }

// shareBounder computes how much of one limit the versions leave to one region.
type shareBounder struct {
	region   int // index of the region; −1 if it is in no version
	recorded int // number of recorded versions; they come first
	doubtful []bool
	bucket   bool
	fillTime int64 // that a bucket takes, ns

	versions []versionShares // one for each version, oldest first
	// The fields below have one element for each version, and are used for fixed
	// windows only.

	// split returns the region's part of an amount by this version's division; it
	// is nil if the version has no such limit.
	split         []func(amount int64) int64
	amounts       []int64 // the limit's amount
	nextWithLimit []int   // the first version from this one on that has the limit
	// leastShare is the least that this version's division gives the region, of the
	// amount of this version or of any later one.
	leastShare []int64
}

// prepare computes nextWithLimit and leastShare. The last version always has the limit.
func (sb *shareBounder) prepare() {
	if sb.bucket || sb.region < 0 {
		return
	}

	n := len(sb.versions)
	sb.nextWithLimit, sb.leastShare = make([]int, n), make([]int64, n)

	var later []int64 // distinct amounts of versions from i on
	for i := n - 1; i >= 0; i-- {
		sb.nextWithLimit[i] = i
		if sb.split[i] == nil {
			sb.nextWithLimit[i] = sb.nextWithLimit[i+1]
			continue
		}

		if !slices.Contains(later, sb.amounts[i]) {
			later = append(later, sb.amounts[i])
		}

		sb.leastShare[i] = math.MaxInt64

		// Each amount counts, and not only the smallest: because of rounding, a
		// region may get less of a larger one.
		for _, amount := range later {
			share := sb.versions[i].amounts[sb.region]
			if amount == sb.amounts[i] {
				sb.leastShare[i] = min(sb.leastShare[i], share)
			} else {
				sb.leastShare[i] = min(sb.leastShare[i], sb.split[i](amount))
			}
		}
	}
}

// boundAt returns what the versions leave to the region in a phase.
func (sb *shareBounder) boundAt(p phase) bound {
	out := bound{math.MaxInt64, math.MaxInt64}
	if sb.region < 0 {
		return bound{}
	}

	if !sb.bucket {
		// By the clock of the owner, the window may have begun a second earlier
		// or later. Only the least of these amounts is safe.
		for before := int(p.fewestRecorded); before <= int(p.mostRecorded); before++ {
			out.amount = min(out.amount, sb.windowBound(uint8(before), p.mostHonoured))
		}
		return bound{amount: out.amount}
	}

	unknown := unboundedShares(len(sb.versions[0].amounts)) // use before the first record is unknown
	amounts, bursts := [][]int64{unknown.amounts}, [][]int64{unknown.bursts}
	for _, v := range sb.versions {
		amounts, bursts = append(amounts, v.amounts), append(bursts, v.bursts)
	}

	doubtful := append([]bool{false}, sb.doubtful...)
	// The bucket may have been filling since any of these records. Each leaves
	// another amount, and only the least is safe.
	for first := int(p.fewestRecorded); first <= sb.recorded; first++ {
		out.amount = min(out.amount, leastInBucket(amounts[first:], doubtful[first:], sb.recorded-first, sb.region))
		out.burst = min(out.burst, leastInBucket(bursts[first:], doubtful[first:], sb.recorded-first, sb.region))
	}

	return out
}

// windowBound returns what the versions leave of a fixed window. before is the
// number of versions recorded before it began; honoured is the number of
// versions that this region may have honoured.
func (sb *shareBounder) windowBound(before, honoured uint8) int64 {
	base := sb.baseVersion(before)
	out := sb.leastShare[sb.nextWithLimit[base]]
	for i := base + 1; i < int(honoured); i++ {
		// This region does not know for certain when the version was recorded. Other
		// regions may know that it was before the window began, and rely on it.
		if i >= sb.recorded || sb.doubtful[i] {
			out = min(out, sb.leastShare[sb.nextWithLimit[i]])
		}
	}
	return out
}

// baseVersion returns the version whose division applies to a fixed window that
// began once so many versions were recorded: the last of those, or a later
// recorded version that gives no region less. If none was recorded by then,
// baseVersion returns the first version: what was used earlier is unknown, but
// only the first version's regions can have used it.
func (sb *shareBounder) baseVersion(recorded uint8) int {
	if recorded == 0 {
		return 0
	}
	first := int(recorded) - 1
	amounts := make([][]int64, 0, len(sb.versions))
	for _, v := range sb.versions[first:sb.recorded] {
		amounts = append(amounts, v.amounts)
	}
	return first + baseShare(amounts, sb.doubtful[first:])
}

// newestBound returns what the version in force gives the region.
func (sb *shareBounder) newestBound() bound {
	if sb.region < 0 {
		return bound{}
	}
	return sb.versions[len(sb.versions)-1].of(sb.region)
}

// baseDivision returns each region's part of a fixed window, or nil for other limits.
func (sb *shareBounder) baseDivision(p phase) []int64 {
	if sb.bucket || sb.region < 0 {
		return nil
	}
	return sb.versions[sb.nextWithLimit[sb.baseVersion(p.mostRecorded)]].amounts
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

// baseShare returns the index of the recorded share that counts. shares[0] held
// first. Each later one takes its place if it gives every region at least what
// that region may have used by then. A region may have used all that a doubtful
// share gives it.
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
