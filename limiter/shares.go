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

// recordShares sets hasDividedLimits and recordedVersion.
func (active *activeRules) recordShares() {
	versions := active.set.DividingVersions()
	if versions == nil {
		return
	}
	for i := range versions.Held {
		if v := &versions.Held[i]; v.RecordedAt != 0 && v.Set != nil {
			active.recordedVersion = max(active.recordedVersion, v.Set.Version)
		}
	}
	isGlobal := func(rule *rules.Rule) bool { return rule.Scope == rules.GlobalScope }
	active.hasDividedLimits = slices.ContainsFunc(active.set.Rules, isGlobal)
}

// adjustLimits replaces the limits of match's hits with those in force here at
// wall (Unix nanoseconds): this region's shares, lowered by the steps of
// adaptive rules.
func (active *activeRules) adjustLimits(match *rules.Match, wall int64) {
	if active.hasDividedLimits {
		active.set.ApplyShares(match, wall)
	}
	active.lowerLimits(match)
}

// isStale reports whether version is too old to decide by. If regions divide
// limits, a version is too old once the primary has recorded that all regions
// use a newer one: under that one, other regions' shares may have grown.
func (l *Limiter) isStale(version int64) bool {
	active := l.active.Load()
	return active != nil && active.hasDividedLimits && version < active.recordedVersion
}

// isLoanable reports whether regions lend each other parts of a limit.
func isLoanable(rule *rules.Rule, limit *rules.Limit) bool {
	return limit.WholeCapacity > 0 && limit.Kind.Divisible() && rule.Consistency != rules.Local &&
		rule.OnLimit != rules.DelayCheck
}

// needsLoan reports whether a region should borrow, because too little remains.
func needsLoan(rule *rules.Rule, limit *rules.Limit, remaining int64) bool {
	return float64(remaining) < (1-rule.Lease.Threshold)*float64(targetAmount(limit))
}

// targetAmount returns how much of a limit a region tries to have at hand. This
// may exceed the region's share of a fixed window, which loans can widen, but
// not its share of a bucket.
func targetAmount(limit *rules.Limit) int64 { return max(limit.BorrowTarget, limit.Capacity()) }

// dividedLimit is a subject's limit that regions divide, as in force here.
type dividedLimit struct {
	rule      *rules.Rule
	limit     *rules.Limit
	key       counters.Key
	active    *activeRules
	partition int
}

// dividedLimits returns a subject's loanable limits, by this node's rules.
func (lo *loans) dividedLimits(ref *subjectRef, now algorithms.Instant) (found []dividedLimit) {
	active := lo.limiter.active.Load()
	if active == nil || !active.hasDividedLimits {
		return nil
	}

	rule := active.set.Rule(ref.Rule)
	var match rules.Match
	if rule == nil || rule.Scope != rules.GlobalScope || active.set.MatchKey(rule, ref.Key, &match) != nil {
		return nil
	}

	active.adjustLimits(&match, now.Wall)

	for i := range match.Hits {
		h := &match.Hits[i]
		for _, limit := range h.Limits {
			if isLoanable(rule, limit) {
				found = append(found, dividedLimit{
					rule: rule, limit: limit, key: counterKey(h, limit), active: active,
					partition: ring.PartitionOf(h.Subject.Hi),
				})
			}
		}
	}

	return found
}

// dividedLimit returns the limit with the given ID among dividedLimits.
func (lo *loans) dividedLimit(ref *subjectRef, id uint64, now algorithms.Instant) (dividedLimit, bool) {
	for _, d := range lo.dividedLimits(ref, now) {
		if d.limit.ID == id {
			return d, true
		}
	}
	return dividedLimit{}, false
}

// reportLife returns how long a region's report about a limit's counter holds,
// unless the window ends first: as long as a lease on the limit.
func (d *dividedLimit) reportLife() time.Duration {
	return cmp.Or(d.rule.Lease.TTL, localcache.DefaultTTL(d.limit.Limit.Window))
}
