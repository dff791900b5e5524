package limiter

import (
	"cmp"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/rules"
)

// Limits that regions divide: each region decides its share of them as a limit of its own, and shares move by loans; see
// borrow.go and lend.go.

// divide notes what of b's set regions divide.
func (b *book) divide() {
	x := b.set.Shares()
	if x == nil {
		return
	}
	for i := range x.Views {
		if v := &x.Views[i]; v.At != 0 && v.Set != nil {
			b.recorded = max(b.recorded, v.Set.Version)
		}
	}
	b.global = slices.ContainsFunc(b.set.Rules, func(r *rules.Rule) bool { return r.Scope == rules.GlobalScope })
}

// enforce makes the limits of m's hits those that are in force here at wall: this region's shares, lowered by the steps
// of adaptive rules.
func (b *book) enforce(m *rules.Match, wall int64) {
	if b.global {
		b.set.Share(m, wall)
	}
	b.lower(m)
}

// stale reports whether rules of that version must not be gone by any more where regions divide limits: all regions have
// been recorded to go by newer ones, under which shares may have grown elsewhere.
func (l *Limiter) stale(version int64) bool {
	b := l.inForce.Load()
	return b != nil && b.global && version < b.recorded
}

// loanable reports whether shares of a limit are moved by loans.
func loanable(r *rules.Rule, limit *rules.Limit) bool {
	kind := limit.Kind.Shared()
	return limit.Whole > 0 && kind && r.Consistency != rules.Local && r.OnLimit != rules.DelayCheck
}

// short reports whether so little is left of a share that more should be borrowed.
func short(r *rules.Rule, limit *rules.Limit, remaining int64) bool {
	return float64(remaining) < (1-r.Lease.Threshold)*float64(aim(limit))
}

// aim is how much a region tries to have at hand of a share. What it borrows can widen a fixed window, and no bucket.
func aim(limit *rules.Limit) int64 { return max(limit.Aim, limit.Capacity()) }

// divided is a limit of a subject that regions divide, as it is in force here.
type divided struct {
	rule      *rules.Rule
	limit     *rules.Limit
	key       counters.Key
	book      *book
	partition int
}

// dividedLimits finds what regions divide of a subject, by this node's rules; nothing where these say otherwise.
func (x *loans) dividedLimits(n *named, now algorithms.Now) (found []divided) {
	b := x.l.inForce.Load()
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
					rule: r, limit: limit, key: counterKey(h, limit), book: b, partition: partitionOf(h.Subject.Hi),
				})
			}
		}
	}
	return found
}

// dividedLimit is the one of dividedLimits with that ID.
func (x *loans) dividedLimit(n *named, id uint64, now algorithms.Now) (divided, bool) {
	for _, d := range x.dividedLimits(n, now) {
		if d.limit.ID == id {
			return d, true
		}
	}
	return divided{}, false
}

// life is how long something said of a limit's counter holds where no window ends it: as long as a lease of it.
func (d *divided) life() time.Duration {
	return cmp.Or(d.rule.Lease.TTL, localcache.DefaultTTL(d.limit.Limit.Window))
}
