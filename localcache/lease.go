package localcache

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// lease is what this node may spend, or knows to be refused, of one subject without asking its owner.
type lease struct {
	hi      uint64
	source  Source
	limits  []leased
	grants  []grant // at most maxGrants; the first one is spent
	seen    uint64  // the last grant that came
	refused refusal
	pressed pressure
	asking  time.Duration // until then the answer to a renewal is waited for
	renew   time.Duration // no renewal before
	toldAt  time.Duration // when the owner said what limits tell
	touched time.Duration // when it was last of use
	terms   Terms         // of its grants
	keep    time.Duration // how long it is remembered after it was touched

	due   time.Duration // when it has to be looked at again
	index int           // in its shard's queue
}

// Source is who granted, and in which life of the partition's counters.
type Source struct {
	Owner   ring.NodeID
	Process uint64 // of the owner
	Lineage uint64
}

// leased is one limit's part of a lease.
type leased struct {
	lo     uint64
	limit  *algorithms.Limit
	demand demand
	told   algorithms.Decision // what the owner said last, less what it granted then
}

// maxGrants is how many grants of a subject are held: the one that is spent, and the next.
const maxGrants = 2

// grant is one debit at the owner that is spent here.
type grant struct {
	id    uint64
	until time.Duration // it is not spent from then on
	parts []held        // by limit
}

// held is what is left of a grant, of one limit.
type held struct {
	left, size int64
	told       int64 // what was left when the owner was told last
	window     int64 // that it was taken in
}

// refusal is an owner's answer that stands for a while.
type refusal struct {
	until time.Duration
	at    time.Duration
	ops   []refusedOp
}

// refusedOp is what one limit said.
type refusedOp struct {
	cost     int64
	until    time.Duration // it refuses no longer
	decision algorithms.Decision
}

// matches reports whether ops ask about the limits that the lease is of, as they are.
func (e *lease) matches(ops []counters.Op) bool {
	if len(ops) != len(e.limits) {
		return false
	}
	for i := range ops {
		l := &e.limits[i]
		if l.lo != ops[i].Key.Lo || !l.limit.Equal(ops[i].Limit) {
			return false
		}
		l.limit = ops[i].Limit // the newest rules': the others may go
	}
	return true
}

// begin makes the lease one of other limits, with nothing in it.
func (e *lease) begin(ops []counters.Op) {
	e.limits = e.limits[:0]
	for i := range ops {
		e.limits = append(e.limits, leased{lo: ops[i].Key.Lo, limit: ops[i].Limit})
	}
	e.grants, e.refused, e.pressed = e.grants[:0], refusal{}, pressure{}
}

// putBack puts into a grant what was spent of it. Of a bucket no more than the owner was told to be left: it
// goes by that when it takes back what others did not spend.
func (g *grant) putBack(ops []counters.Op) {
	for i := range ops {
		h, most := &g.parts[i], g.parts[i].size
		if ops[i].Limit.Kind.Bucket() {
			most = max(h.left, h.told)
		}
		h.left = min(most, h.left+ops[i].Cost)
	}
}

// covers reports whether the i-th grant is enough for ops.
func (e *lease) covers(i int, ops []counters.Op) bool {
	if i >= len(e.grants) {
		return false
	}
	for j := range ops {
		if e.grants[i].parts[j].left < ops[j].Cost {
			return false
		}
	}
	return true
}

// spend debits ops from the first grant, which covers them, and tells what the owner would have.
func (e *lease) spend(at time.Duration, ops []counters.Op) {
	for i := range ops {
		l, op := &e.limits[i], &ops[i]
		e.grants[0].parts[i].left -= op.Cost
		l.demand.note(op.Cost)
		d := later(l.told, at-e.toldAt)
		d.Allowed, d.RetryAfter, d.Delay = true, 0, 0
		for j := range e.grants {
			d.Remaining += e.grants[j].parts[i].left
		}
		d.Remaining = min(d.Remaining, op.Limit.Capacity())
		op.Decision, op.Full = d, false
	}
	e.touched = at
}

// later is what a decision says after some time in which nothing happened.
func later(d algorithms.Decision, passed time.Duration) algorithms.Decision {
	passed = max(0, passed)
	d.ResetAfter = max(0, d.ResetAfter-passed)
	if d.RetryAfter > 0 {
		d.RetryAfter = max(time.Nanosecond, d.RetryAfter-passed)
	}
	return d
}

// low reports whether the first grant is so far spent that the next one is to be fetched.
func (e *lease) low(at time.Duration) bool {
	if len(e.grants) == maxGrants || at < e.asking || at < e.renew || at < e.refused.until {
		return false
	}
	// Holders of one subject should not all ask at once, so each has its own idea of half.
	g := &e.grants[0]
	eighths := 3 + int64(g.id&1) + int64(e.hi>>5&1)
	for i := range g.parts {
		if h := &g.parts[i]; h.size > 0 && h.left <= h.size/8*eighths {
			return true
		}
	}
	return false
}

// refuses reports whether the i-th limit still refuses a cost.
func (r *refusal) refuses(i int, at time.Duration, cost int64) bool {
	o := &r.ops[i]
	return !o.decision.Allowed && cost >= o.cost && at < o.until
}

// stands reports whether a refusal still answers ops, and copies its decisions into them. It stands for the same costs or more; for a
// shadow rule, which makes no check fail, only if every limit refused.
func (r *refusal) stands(at time.Duration, ops []counters.Op) bool {
	if at >= r.until || len(r.ops) != len(ops) {
		return false
	}
	shadow, one := len(ops) > 0 && ops[0].Shadow, false
	for i := range ops {
		no := r.refuses(i, at, ops[i].Cost)
		if shadow && !no && ops[i].Cost > 0 {
			return false
		}
		one = one || no
	}
	if !one {
		return false
	}
	for i := range ops {
		d := later(r.ops[i].decision, at-r.at)
		switch {
		case ops[i].Limit.Capacity() > 0 && ops[i].Cost > ops[i].Limit.Capacity():
			d.RetryAfter = algorithms.Never
		case !r.refuses(i, at, ops[i].Cost):
			d.Allowed, d.RetryAfter = true, 0
		}
		ops[i].Decision, ops[i].Full = d, false
	}
	return true
}
