package localcache

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

const (
	ledgerShards = 64
	// maxGrantsPerSubject bounds the outstanding grants of one subject.
	maxGrantsPerSubject = 4096
	// returnGrace is how long after its end a grant may still come back to the
	// process that made it: the holder ended it in time, and the return is on its
	// way. A holder tries for longer, because another owner may have taken over; see
	// returnTimeout in package limiter.
	returnGrace = 500 * time.Millisecond
)

// LeaseLedger records the grants that an owner has made and not got back. All
// methods may be called concurrently. Times are readings of a clock that keeps
// running while the machine is suspended.
type LeaseLedger struct {
	perShard    int // bounds the subjects of a shard, of which at most half may be inline
	ids         atomic.Uint64
	outstanding atomic.Int64
	shards      [ledgerShards]ledgerShard
}

type ledgerShard struct {
	mu        sync.Mutex // guards everything below
	subjects  map[uint64]*ledgerSubject
	inline    int           // inline ones in subjects
	nextSweep time.Duration // sweep has nothing to do before that
}

// ledgerSubject holds the outstanding grants of one subject.
type ledgerSubject struct {
	grants []ledgerGrant
	until  time.Duration // when the last of its grants is over
	inline bool
}

// ledgerGrant is an outstanding grant.
type ledgerGrant struct {
	id      uint64
	holder  ring.NodeID
	lineage uint64
	until   time.Duration // includes returnGrace: the holder has stopped spending, and nothing comes back afterwards
	parts   []ledgerPart
}

// ledgerPart is one limit's part of a grant.
type ledgerPart struct {
	counter     uint64 // Key.Counter
	outstanding int64  // units granted and not yet given back: Return gives back no more
	maySpend    int64  // the holder may still spend at most this many units
	// leastLeft is the least that the holder has reported as left; before its first
	// report, what was granted. That much may still come back, so a loan from
	// another region is not credited against it. A return does not lower it.
	leastLeft int64
}

// NewLeaseLedger returns a ledger for at most bound subjects, of which at most
// half may be inline. A bound below 1,024 counts as 1,024.
func NewLeaseLedger(bound int64) *LeaseLedger {
	led := &LeaseLedger{perShard: int(max(bound, minSubjects) / ledgerShards)}
	for i := range led.shards {
		led.shards[i].subjects = make(map[uint64]*ledgerSubject)
		led.shards[i].nextSweep = never
	}
	return led
}

// Outstanding returns the number of outstanding grants.
func (led *LeaseLedger) Outstanding() int64 { return led.outstanding.Load() }

// lock locks a subject's shard and returns the subject, or nil if it has no grants.
func (led *LeaseLedger) lock(subject uint64) (*ledgerShard, *ledgerSubject) {
	sh := &led.shards[subject%ledgerShards]
	sh.mu.Lock()
	return sh, sh.subjects[subject]
}

// GrantInput is what an owner decides a grant by: a holder's request about one
// subject, and what the owner knows of the subject.
type GrantInput struct {
	Holder   ring.NodeID
	Lineage  uint64 // of the partition's counters on this node
	SameBoot bool   // the report in Request refers to grants of this process
	Request  *LeaseRequest
	Nodes    int // the number of nodes that divide limits
	// Ops are the subject's limits. Their decisions say what remains; their costs are ignored.
	Ops []counters.Op
}

// Grant grants as much of req as is allowed. It calls take with the sizes as
// costs, and take must debit all of them or nothing. Grant holds the subject's
// shard meanwhile. The returned ID is zero if nothing is granted.
func (led *LeaseLedger) Grant(
	now time.Duration, in *GrantInput, take func(ops []counters.Op) bool,
) (id uint64, amounts []int64) {
	key := in.Ops[0].Key
	sh, sub := led.lock(key.Subject)
	defer sh.mu.Unlock()

	// A subject without grants may need room in the ledger, so subjects whose
	// grants have ended leave first.
	if sub != nil {
		led.acceptReport(sub, now, in)
	} else {
		led.sweep(sh, now)
	}

	switch {
	case sub == nil && (len(sh.subjects) >= led.perShard || key.IsInline() && sh.inline >= led.perShard/2):
		return 0, nil
	case sub != nil && len(sub.grants) >= maxGrantsPerSubject:
		return 0, nil
	}

	ops := sub.sizeGrant(in)
	if ops == nil || !take(ops) {
		return 0, nil
	}

	if sub == nil {
		sub = &ledgerSubject{inline: key.IsInline()}
		sh.subjects[key.Subject] = sub
		if sub.inline {
			sh.inline++
		}
	}

	lg := ledgerGrant{id: led.ids.Add(1), holder: in.Holder, lineage: in.Lineage,
		until: now + in.Request.Policy.TTL + returnGrace}
	for i := range ops {
		cost := ops[i].Cost
		lg.parts = append(lg.parts, ledgerPart{ops[i].Key.Counter, cost, cost, cost})
		amounts = append(amounts, cost)
	}

	sub.grants = append(sub.grants, lg)
	led.outstanding.Add(1)
	sub.until = max(sub.until, lg.until)
	sh.nextSweep = min(sh.nextSweep, sub.until)
	return lg.id, amounts
}

// acceptReport applies the holder's report about its grants, and forgets grants
// that are over. A grant that had reached the holder but is missing from the
// report is no longer being spent. Some of it may be on its way back.
func (led *LeaseLedger) acceptReport(sub *ledgerSubject, now time.Duration, in *GrantInput) {
	before := len(sub.grants)
	isOver := func(lg ledgerGrant) bool { return now >= lg.until || lg.lineage != in.Lineage }
	sub.grants = slices.DeleteFunc(sub.grants, isOver)
	led.outstanding.Add(int64(len(sub.grants) - before))

	for i := range sub.grants {
		lg := &sub.grants[i]

		// A grant with a higher ID may still be on its way to the holder, so its
		// absence says nothing. A report for an earlier process of the owner uses the
		// same IDs for other grants.
		if !in.SameBoot || lg.holder != in.Holder || lg.id > in.Request.LastGrant {
			continue
		}

		// A grant that the holder no longer reports is spent or on its way back. Or it
		// arrived out of order, and is returned unused.
		held := slices.IndexFunc(in.Request.Held, func(h HeldGrant) bool { return h.ID == lg.id })
		if held < 0 {
			lg.until = min(lg.until, now+returnGrace)
			for j := range lg.parts {
				lg.parts[j].maySpend = 0
			}
			continue
		}

		left := in.Request.Held[held].Left
		for j := range min(len(lg.parts), len(left)) {
			p := &lg.parts[j]
			p.maySpend = min(p.maySpend, left[j])
			p.leastLeft = min(p.leastLeft, left[j])
		}
	}
}

// sizeGrant returns req's ops with the amounts to grant as costs. It returns
// nil if the holder wants nothing, or if it would get nothing of a limit that
// it wants some of.
func (sub *ledgerSubject) sizeGrant(in *GrantInput) []counters.Op {
	ops := make([]counters.Op, 0, len(in.Ops))

	wanted := false
	policy := in.Request.Policy
	policy.Nodes = in.Nodes

	for i := range in.Ops {
		op := counters.Op{Key: in.Ops[i].Key, Limit: in.Ops[i].Limit}
		input := SizeInput{Limit: op.Limit, Want: in.Request.Want[i], Remaining: in.Ops[i].Decision.Remaining}

		sub.forEachPart(op.Key.Counter, func(lg *ledgerGrant, p *ledgerPart) {
			input.MaySpend = addCapped(input.MaySpend, p.maySpend)
			if lg.holder == in.Holder {
				input.HolderMaySpend = addCapped(input.HolderMaySpend, p.maySpend)
			}
		})

		if input.Want > 0 {
			op.Cost = Size(input, policy)

			// Without a part of this limit, no check could be decided from the grant.
			if op.Cost == 0 {
				return nil
			}
			wanted = true
		}
		ops = append(ops, op)
	}

	if !wanted {
		return nil
	}
	return ops
}

// forEachPart calls f for each outstanding part of the limit of counter.
func (sub *ledgerSubject) forEachPart(counter uint64, f func(lg *ledgerGrant, p *ledgerPart)) {
	if sub == nil {
		return
	}
	for i := range sub.grants {
		lg := &sub.grants[i]
		for j := range lg.parts {
			if lg.parts[j].counter == counter {
				f(lg, &lg.parts[j])
			}
		}
	}
}

// Return takes back a grant of this process, once. It calls give for each op
// with the cost to put back, while it holds the subject's shard. If give can't
// put back a cost, the grant stays, so that the rest may be returned later. If
// the grant is no longer outstanding, Return gives nothing, and returns false.
func (led *LeaseLedger) Return(
	now time.Duration, lineage, id uint64, ops []counters.Op, give func(i int, cost int64) bool,
) (found bool) {
	sh, sub := led.lock(ops[0].Key.Subject)
	defer sh.mu.Unlock()
	if sub == nil {
		return false
	}

	index := slices.IndexFunc(sub.grants, func(lg ledgerGrant) bool { return lg.id == id && lg.lineage == lineage })
	if index < 0 {
		return false
	}

	// The grant leaves the ledger, so a repeated return finds nothing. It comes
	// back below if some of it can't be given now.
	lg := sub.grants[index]
	sub.grants = slices.Delete(sub.grants, index, index+1)
	led.outstanding.Add(-1)
	if now >= lg.until {
		return false
	}

	kept := false
	for i := range ops {
		part := slices.IndexFunc(lg.parts, func(p ledgerPart) bool { return p.counter == ops[i].Key.Counter })
		if part < 0 {
			continue
		}

		// No more comes back than went out, whatever the holder says.
		cost := min(ops[i].Cost, lg.parts[part].outstanding)
		if cost <= 0 {
			continue
		}

		if give(i, cost) {
			lg.parts[part].outstanding -= cost
		} else {
			kept = true
		}
	}

	if kept {
		sub.grants = append(sub.grants, lg)
		led.outstanding.Add(1)
	}
	return true
}

// Returnable returns how many units of one limit may still come back from
// grants. When a loan from another region is credited, at least that much must
// stay used in the counter. Otherwise a returned grant would find no debit to
// cancel.
func (led *LeaseLedger) Returnable(now time.Duration, subject, counter uint64) (total int64) {
	sh, sub := led.lock(subject)
	defer sh.mu.Unlock()
	sub.forEachPart(counter, func(lg *ledgerGrant, p *ledgerPart) {
		if now < lg.until {
			total = addCapped(total, p.leastLeft)
		}
	})
	return total
}

// Sweep forgets subjects whose grants have ended.
func (led *LeaseLedger) Sweep(now time.Duration) {
	for i := range led.shards {
		sh := &led.shards[i]
		sh.mu.Lock()
		led.sweep(sh, now)
		sh.mu.Unlock()
	}
}

// sweep is Sweep for one shard, which the caller must hold. It reads the whole
// shard, so it runs at most once per returnGrace.
func (led *LeaseLedger) sweep(sh *ledgerShard, now time.Duration) {
	if now < sh.nextSweep {
		return
	}

	next := never
	for subject, sub := range sh.subjects {
		if sub.until <= now {
			led.outstanding.Add(int64(-len(sub.grants)))
			delete(sh.subjects, subject)
			if sub.inline {
				sh.inline--
			}
		} else {
			next = min(next, sub.until)
		}
	}

	sh.nextSweep = max(next, now+returnGrace)
}
