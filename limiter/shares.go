package limiter

import (
	"cmp"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// This file is about limits that regions divide. Each region decides its share
// like a limit of its own. Loans move parts of shares between regions; see
// borrow.go and lend.go.

// recordShares sets a.hasGlobal and a.recordedVersion.
func (a *activeRules) recordShares() {
	division := a.set.Shares()
	if division == nil {
		return
	}
	for i := range division.Views {
		if v := &division.Views[i]; v.At != 0 && v.Set != nil {
			a.recordedVersion = max(a.recordedVersion, v.Set.Version)
		}
	}
	a.hasGlobal = slices.ContainsFunc(a.set.Rules, func(r *rules.Rule) bool { return r.Scope == rules.GlobalScope })
}

// adjustLimits replaces the limits of m's hits with those in force here at wall
// (Unix nanoseconds): this region's shares, lowered by the steps of adaptive
// rules.
func (a *activeRules) adjustLimits(m *rules.Match, wall int64) {
	if a.hasGlobal {
		a.set.Share(m, wall)
	}
	a.lowerLimits(m)
}

// isStale reports whether version is too old to decide by. If regions divide
// limits, a version is too old once the primary has recorded that all regions
// use a newer one, because other regions' shares may have grown under it.
func (l *Limiter) isStale(version int64) bool {
	active := l.inForce.Load()
	return active != nil && active.hasGlobal && version < active.recordedVersion
}

// isLoanable reports whether regions lend each other parts of their shares of a limit.
func isLoanable(r *rules.Rule, limit *rules.Limit) bool {
	return limit.WholeCapacity > 0 && limit.Kind.Divisible() && r.Consistency != rules.Local &&
		r.OnLimit != rules.DelayCheck
}

// needsLoan reports whether so little of a share is left that the region should borrow.
func needsLoan(r *rules.Rule, limit *rules.Limit, remaining int64) bool {
	return float64(remaining) < (1-r.Lease.Threshold)*float64(targetAmount(limit))
}

// targetAmount returns how much of a limit a region tries to have at hand. It
// may exceed the share for a fixed window, which loans can widen, but not for a
// bucket.
func targetAmount(limit *rules.Limit) int64 { return max(limit.BorrowTarget, limit.Capacity()) }

// dividedLimit is a subject's limit that regions divide, as in force here.
type dividedLimit struct {
	rule      *rules.Rule
	limit     *rules.Limit
	key       counters.Key
	active    *activeRules
	partition int
}

// dividedLimits returns a subject's limits that regions divide, by this node's rules.
func (ls *loans) dividedLimits(ref *subjectRef, now algorithms.Instant) (found []dividedLimit) {
	active := ls.limiter.inForce.Load()
	if active == nil || !active.hasGlobal {
		return nil
	}

	r := active.set.Rule(ref.Rule)
	var m rules.Match
	if r == nil || r.Scope != rules.GlobalScope || active.set.MatchKey(r, ref.Key, &m) != nil {
		return nil
	}

	active.adjustLimits(&m, now.Wall)

	for i := range m.Hits {
		h := &m.Hits[i]
		for _, limit := range h.Limits {
			if isLoanable(r, limit) {
				found = append(found, dividedLimit{
					rule: r, limit: limit, key: counterKey(h, limit), active: active,
					partition: ring.PartitionOf(h.Subject.Hi),
				})
			}
		}
	}

	return found
}

// dividedLimit returns the limit with the given ID among dividedLimits.
func (ls *loans) dividedLimit(ref *subjectRef, id uint64, now algorithms.Instant) (dividedLimit, bool) {
	for _, d := range ls.dividedLimits(ref, now) {
		if d.limit.ID == id {
			return d, true
		}
	}
	return dividedLimit{}, false
}

// reportLife returns how long a region's report about a limit's counter holds
// if no window ends: as long as a lease on the limit.
func (d *dividedLimit) reportLife() time.Duration {
	return cmp.Or(d.rule.Lease.TTL, localcache.DefaultTTL(d.limit.Limit.Window))
}
