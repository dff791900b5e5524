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

// This file is about limits that regions divide. Each region decides its share like a limit of its own. Loans move parts of
// shares between regions; see borrow.go and lend.go.

// noteShares sets a.global and a.recorded.
func (a *activeRules) noteShares() {
	x := a.set.Shares()
	if x == nil {
		return
	}
	for i := range x.Views {
		if v := &x.Views[i]; v.At != 0 && v.Set != nil {
			a.recorded = max(a.recorded, v.Set.Version)
		}
	}
	a.global = slices.ContainsFunc(a.set.Rules, func(r *rules.Rule) bool { return r.Scope == rules.GlobalScope })
}

// enforce replaces the limits of m's hits with those in force here at wall (Unix nanoseconds): this region's shares, lowered by
// the steps of adaptive rules.
func (a *activeRules) enforce(m *rules.Match, wall int64) {
	if a.global {
		a.set.Share(m, wall)
	}
	a.lowerLimits(m)
}

// stale reports whether version is too old to decide by. If regions divide limits, a version is too old once the primary has
// recorded that all regions use a newer one, because other regions' shares may have grown under it.
func (l *Limiter) stale(version int64) bool {
	b := l.inForce.Load()
	return b != nil && b.global && version < b.recorded
}

// loanable reports whether regions lend each other parts of their shares of a limit.
func loanable(r *rules.Rule, limit *rules.Limit) bool {
	kind := limit.Kind.Divisible()
	return limit.Whole > 0 && kind && r.Consistency != rules.Local && r.OnLimit != rules.DelayCheck
}

// short reports whether so little of a share is left that the region should borrow.
func short(r *rules.Rule, limit *rules.Limit, remaining int64) bool {
	return float64(remaining) < (1-r.Lease.Threshold)*float64(aim(limit))
}

// aim returns how much of a limit a region tries to have at hand. It may exceed the share for a fixed window, which loans can
// widen, but not for a bucket.
func aim(limit *rules.Limit) int64 { return max(limit.Aim, limit.Capacity()) }

// divided is a subject's limit that regions divide, as in force here.
type divided struct {
	rule      *rules.Rule
	limit     *rules.Limit
	key       counters.Key
	active    *activeRules
	partition int
}

// dividedLimits returns a subject's limits that regions divide, by this node's rules.
func (ls *loans) dividedLimits(n *subjectRef, now algorithms.Now) (found []divided) {
	b := ls.l.inForce.Load()
	if b == nil || !b.global {
		return nil
	}
	r := b.set.Rule(n.Rule)
	var m rules.Match
	if r == nil || r.Scope != rules.GlobalScope || b.set.MatchKey(r, n.Key, &m) != nil {
		return nil
	}
	b.enforce(&m, now.Wall)
	for i := range m.Hits {
		h := &m.Hits[i]
		for _, limit := range h.Limits {
			if loanable(r, limit) {
				found = append(found, divided{
					rule: r, limit: limit, key: counterKey(h, limit), active: b, partition: ring.PartitionOf(h.Subject.Hi),
				})
			}
		}
	}
	return found
}

// dividedLimit returns the limit with the given ID among dividedLimits.
func (ls *loans) dividedLimit(n *subjectRef, id uint64, now algorithms.Now) (divided, bool) {
	for _, d := range ls.dividedLimits(n, now) {
		if d.limit.ID == id {
			return d, true
		}
	}
	return divided{}, false
}

// life returns how long a region's report about a limit's counter holds if no window ends: as long as a lease on the limit.
func (d *divided) life() time.Duration {
	return cmp.Or(d.rule.Lease.TTL, localcache.DefaultTTL(d.limit.Limit.Window))
}
