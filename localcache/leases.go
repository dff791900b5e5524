package localcache

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// Leases holds this node's leases and the recent refusals by owners, by
// subject. All methods may be called concurrently. Times are readings of a
// clock that keeps running while the machine is suspended.
//
// A subject has one lease. Callers of an inline subject may use different
// limits. The lease has the limits of the caller that took it, and callers with
// other limits ask the owner. For a configured subject, a check with other
// limits ends the lease's grants and its refusal.
//
// The owner has debited in advance everything that is spent here. When a grant
// ends, DrainEnded hands out what is left of it, once, to be given back. The
// methods touch no counters and send no messages: the caller does.
type Leases struct {
	perShard   int // bounds the leases of a shard; inline subjects have at most half of them
	shards     [leaseShards]leaseShard
	wake       chan struct{} // capacity 1: something is due earlier than NextDrain said
	alarm      atomic.Int64  // when DrainEnded must be called next
	disabled   atomic.Bool   // no leases may begin
	grantCount atomic.Int64  // number of grants
}

const (
	// minSubjects is the smallest bound on the subjects of Leases and of a LeaseLedger.
	minSubjects = 1024
	// keepTTLs is how long a lease is remembered after its last use, in TTLs, but
	// at least minKeepFor.
	keepTTLs   = 4
	minKeepFor = time.Second
)

// NewLeases returns an empty Leases for at most bound subjects, of which at
// most half may be inline. A bound below 1,024 counts as 1,024.
func NewLeases(bound int64) *Leases {
	s := &Leases{wake: make(chan struct{}, 1), perShard: int(max(bound, minSubjects) / leaseShards)}
	s.alarm.Store(int64(never))
	for i := range s.shards {
		s.shards[i].leases = make(map[uint64]*lease)
	}
	return s
}

// Outcome is the result of a Spend.
type Outcome uint8

const (
	AskOwner Outcome = iota // only the owner can decide
	Spent                   // the whole cost was spent from a lease
	Refused                 // the owner recently refused the same cost or less
)

// Receipt records what a Spend took, for Unspend.
type Receipt struct {
	Until  time.Duration // the caller must act on the Spend by then, or it is void
	Renew  bool          // the caller should fetch the next grant; see Request
	source Source
	grant  uint64
}

// Spend takes ops, all of one subject, from its lease, all or nothing. Ops in
// PeekMode take nothing: Spend reports whether they could. owner is the node
// that presumably decides the subject now. If another node granted the lease,
// Spend ends its grants and its refusal.
func (ls *Leases) Spend(now time.Duration, owner ring.NodeID, ops []counters.Op) (Outcome, Receipt) {
	sh, le := ls.lockLease(ops)
	defer sh.mu.Unlock()
	if le == nil {
		return AskOwner, Receipt{}
	}

	// This lease can't answer the check, and its grants are of no more use here.
	if le.source.Owner != owner || !le.matches(ops) {
		ls.endAll(sh, le, now)
		le.lastRefusal = refusal{}
		return AskOwner, Receipt{}
	}

	for i := range ops {
		le.limits[i].limit = ops[i].Limit // so that older rules can be freed
	}
	le.recordModes(ops)

	// The second grant takes the place of the first if that one's time is over, or
	// if it is too small for this cost and the second is not. What is left of the
	// first goes back.
	if len(le.grants) > 0 && (now >= le.grants[0].until || !le.covers(0, ops) && le.covers(1, ops)) {
		ls.endFirst(sh, le, now)
	}

	if le.covers(0, ops) && now < le.grants[0].until {
		le.spend(now, ops)
		receipt := Receipt{Until: le.grants[0].until, source: le.source, grant: le.grants[0].id}

		// The renewal is recorded under the lock. So of all checks that find the grant
		// half spent, only one asks for the next.
		if le.needsRenewal(now) {
			le.renewingUntil = now + le.keepFor/keepTTLs // after a TTL, but at least minKeepFor/keepTTLs
			receipt.Renew = true
		}
		return Spent, receipt
	}

	if le.lastRefusal.applyTo(now, ops) {
		for i := range ops {
			le.limits[i].demand.add(ops[i].Cost)
		}
		le.addUnspent(ops, func(*grant) bool { return true })
		le.lastUsed = now
		le.pressure.addRefusal(now, le.lastPolicy.TTL)
		return Refused, Receipt{Until: le.lastRefusal.until}
	}

	return AskOwner, Receipt{}
}

// Unspend puts the cost that a Spend took back into its grant or, if the grant
// has ended, adds it to what DrainEnded will hand out. If DrainEnded has
// already handed out the grant, the cost is lost. After a look, which took
// nothing, Unspend does nothing.
func (ls *Leases) Unspend(receipt Receipt, ops []counters.Op) {
	if ops[0].Mode == counters.PeekMode {
		return
	}
	sh, le := ls.lockLease(ops)
	defer sh.mu.Unlock()
	switch {
	case le == nil || receipt.grant == 0:
	case len(le.grants) > 0 && le.grants[0].id == receipt.grant &&
		le.source == receipt.source && len(ops) == len(le.limits):
		le.grants[0].unspend(ops)
	default:
		sh.unspendEnded(receipt, ops)
	}
}

// unspendEnded adds what a Spend took to what is left of an ended grant.
func (sh *leaseShard) unspendEnded(receipt Receipt, ops []counters.Op) {
	for i := range sh.ended {
		eg := &sh.ended[i]
		if eg.Grant != receipt.grant || eg.Source != receipt.source ||
			len(eg.Ops) != len(ops) || eg.Ops[0].Key != ops[0].Key {
			continue
		}
		for j := range ops {
			eg.Ops[j].Cost += ops[j].Cost
		}
	}
}

// HeldGrant reports what is left of a grant at its holder.
type HeldGrant struct {
	ID   uint64
	Left []int64 // by limit
}

// LeaseRequest accompanies a question to the owner about a subject. It asks for
// a grant, and reports what is left of earlier ones.
type LeaseRequest struct {
	Policy    Policy
	Boot      uint64      // the owner's process that LastGrant and Held refer to
	LastGrant uint64      // ID of the last grant that arrived
	Held      []HeldGrant // grants that this node holds, with IDs up to LastGrant; at most two
	Want      []int64
}

// Request returns the request to send with a question about ops, all of one
// subject, on behalf of that many checks. It returns false if no lease is
// wanted or possible: leases are disabled, policy allows none, there is no room
// for the subject, callers with other limits hold its lease, traffic is too
// slow, or ops are looks that no lease can answer.
func (ls *Leases) Request(
	now time.Duration, owner ring.NodeID, policy Policy, ops []counters.Op, checks int,
) (LeaseRequest, bool) {
	if ls.disabled.Load() || policy.None() {
		return LeaseRequest{}, false
	}

	sh, le := ls.lockLease(ops)
	defer sh.mu.Unlock()

	if le == nil {
		le = sh.addLease(ops, ls.perShard)
		if le == nil {
			return LeaseRequest{}, false
		}
	}
	ls.prepareRequest(now, sh, le, owner, policy, ops)

	// The lease stays without grants: it remembers refusals.
	if policy.TooSmall || ops[0].Mode == counters.PeekMode && !le.canAnswerLooks() {
		ls.schedule(sh, le)
		return LeaseRequest{}, false
	}

	request, wanted := le.request(now, policy, ops, checks)
	ls.schedule(sh, le)
	return request, wanted
}

// prepareRequest makes le ready for a question to owner about ops.
func (ls *Leases) prepareRequest(
	now time.Duration, sh *leaseShard, le *lease, owner ring.NodeID, policy Policy, ops []counters.Op,
) {
	if !le.matches(ops) {
		ls.endAll(sh, le, now)
		le.reset(ops)
	}

	le.recordModes(ops)
	le.lastUsed = now
	le.lastPolicy = policy
	le.keepFor = max(keepTTLs*policy.TTL, minKeepFor)

	// A new owner's process and lineage are unknown before its first answer. It
	// knows nothing of the old owner's grants and their IDs.
	if le.source.Owner != owner {
		ls.endAll(sh, le, now)
		le.source = Source{Owner: owner}
		le.lastGrant = 0
	}
}

// request returns the request of a lease that prepareRequest has prepared. It
// returns false if nothing is wanted.
func (le *lease) request(
	now time.Duration, policy Policy, ops []counters.Op, checks int,
) (request LeaseRequest, wanted bool) {
	request = LeaseRequest{Policy: policy, Boot: le.source.Boot, LastGrant: le.lastGrant,
		Want: make([]int64, len(ops))}
	for i := range ops {
		d := &le.limits[i].demand
		d.since = cmp.Or(d.since, now)
		d.add(multiplyCapped(ops[i].Cost, int64(checks)))
		request.Want[i] = d.estimate(now, policy.TTL, ops[i].Cost)
		wanted = wanted || request.Want[i] > 0
	}

	request.Held = le.reportHeld()
	return request, wanted
}

// reportHeld returns what is left of the grants. The caller must hold the
// shard.
func (le *lease) reportHeld() (out []HeldGrant) {
	for _, gr := range le.grants {
		h := HeldGrant{ID: gr.id, Left: make([]int64, len(gr.parts))}
		for i := range gr.parts {
			h.Left[i] = gr.parts[i].left
		}
		out = append(out, h)
	}
	return out
}

// Grant is a debit at the owner, as sent to the node that may spend it.
type Grant struct {
	ID        uint64
	EndsIn    time.Duration         // counted from when the question was sent
	Amounts   []int64               // by limit
	Marks     []algorithms.TakeMark // by limit: when the owner debited it
	Life      counters.Life         // of the counters that it was debited from
	DebitedAt int64                 // when it was debited, at the earliest, on the owner's steady clock
}

// AcceptAnswer processes the owner's answer to a question about ops, which hold
// the owner's decisions. g is the grant that came with the answer; none if its
// ID is zero. sent is when the question was sent; renewal says whether it was a
// renewal.
func (ls *Leases) AcceptAnswer(sent, now time.Duration, from Source, ops []counters.Op, g Grant, renewal bool) {
	sh, le := ls.lockLease(ops)
	defer sh.mu.Unlock()
	if le != nil && renewal {
		le.renewingUntil = 0
	}

	// No lease can take the grant, so it goes back unused.
	if le == nil || le.source.Owner != from.Owner || !le.matches(ops) || ls.disabled.Load() {
		if g.ID != 0 {
			ls.returnUnused(sh, sent, now, from, ops, &g)
		}
		return
	}

	if le.source != from {
		ls.endAll(sh, le, now) // its grants are from another process or lineage
		le.source = from
		le.lastGrant = 0
	}

	le.decisionAt = now
	for i := range ops {
		// The owner decides before it debits the grant, so the grant is still part of
		// what remains in its decision.
		ll := &le.limits[i]
		ll.lastDecision = ops[i].Decision
		if g.ID != 0 {
			ll.lastDecision.Remaining = max(0, ll.lastDecision.Remaining-g.Amounts[i])
			ll.lastDecision.Used += g.Amounts[i]
		}
	}

	le.setRefusal(sent, le.predictRefusal(sent, ops))

	if g.ID != 0 {
		ls.addGrant(sh, le, sent, now, from, ops, &g)
	} else if renewal && len(le.grants) > 0 {
		le.nextRenewal = now + (le.grants[0].until-now)/4 // the owner has nothing to grant now
	}

	ls.schedule(sh, le)
}

// addGrant adds a grant to le.
func (ls *Leases) addGrant(
	sh *leaseShard, le *lease, sent, now time.Duration, from Source, ops []counters.Op, g *Grant,
) {
	// The grant's time counts from the question, so that it ends here no later than
	// at the owner, however long the answer took.
	until := sent + min(g.EndsIn, MaxTTL)
	// A grant that arrives out of order goes back unused: the holder may since have
	// reported a higher LastGrant, which says that nothing is left of this one. So
	// does a grant for which there is no room, or no time left.
	if len(le.grants) == MaxGrants || until <= now || g.ID <= le.lastGrant {
		le.lastGrant = max(le.lastGrant, g.ID)
		ls.returnUnused(sh, sent, now, from, ops, g)
		return
	}

	le.lastGrant = g.ID
	ls.grantCount.Add(1)

	gr := grant{id: g.ID, until: until, life: g.Life, debitedAt: g.DebitedAt, parts: make([]balance, len(le.limits))}
	for i, amount := range g.Amounts {
		gr.parts[i] = balance{left: amount, size: amount, mark: g.Marks[i]}
	}
	le.grants = append(le.grants, gr)
}

// returnUnused makes DrainEnded hand out g in full.
func (ls *Leases) returnUnused(sh *leaseShard, sent, now time.Duration, from Source, ops []counters.Op, g *Grant) {
	out := EndedGrant{Source: from, Grant: g.ID, Life: g.Life, DebitedAt: g.DebitedAt,
		Until: sent + min(g.EndsIn, MaxTTL), due: now}
	for i := range ops {
		out.Ops = append(out.Ops, counters.Op{Key: ops[i].Key, Limit: ops[i].Limit, Cost: g.Amounts[i]})
		out.Marks = append(out.Marks, g.Marks[i])
	}
	sh.ended = append(sh.ended, out)
	ls.wakeBy(now)
}

// RememberRefusal remembers an owner's refusal of ops, whose decisions say
// which limits refused. The refusal applies until there is room again, or a
// little longer if many checks are refused, but at most for ttl. It is not
// remembered if no op was refused, or if one was refused for another reason
// than its limit: see [counters.Op.NoRoom]. Nor is it if the subject was
// forgotten since sent, when the question was sent.
func (ls *Leases) RememberRefusal(sent time.Duration, ops []counters.Op, ttl time.Duration) {
	sh, le := ls.lockLease(ops)
	defer sh.mu.Unlock()
	if le == nil || !le.matches(ops) || ls.disabled.Load() {
		return
	}

	le.pressure.addRefusal(sent, ttl)

	rf := le.refusalOf(sent, ops, ttl)
	if rf.until > sent {
		le.setRefusal(sent, rf)
	}
}

// refusalOf returns the refusal that the owner's decisions on ops make, as
// RememberRefusal remembers it; an empty one if there is none to remember.
func (le *lease) refusalOf(sent time.Duration, ops []counters.Op, ttl time.Duration) refusal {
	rf := refusal{at: sent, ops: make([]refusedOp, len(ops))}
	for i := range ops {
		decision := ops[i].Decision
		rf.ops[i] = refusedOp{cost: ops[i].Cost, decision: decision}
		if decision.Allowed {
			continue
		}

		if ops[i].NoRoom {
			return refusal{}
		}

		wait := ttl
		if decision.RetryAfter != algorithms.Never {
			pause := le.pressure.backOff(sent, le.lastPolicy, ops[i].Limit, ops[i].Cost)
			decision.RetryAfter = max(decision.RetryAfter, pause)
			wait = min(wait, decision.RetryAfter)
		}

		rf.ops[i].decision = decision
		rf.ops[i].until = sent + wait
		rf.until = max(rf.until, sent+wait)
	}
	return rf
}

// AbandonRenewal records that the owner did not decide the renewal of ops'
// lease.
func (ls *Leases) AbandonRenewal(now time.Duration, ops []counters.Op) {
	sh, le := ls.lockLease(ops)
	defer sh.mu.Unlock()
	if le != nil {
		le.renewingUntil = 0
		if len(le.grants) > 0 {
			le.nextRenewal = now + max(0, le.grants[0].until-now)/4
		}
	}
}

// Forget drops the remembered refusal of a subject, and those that are still on
// their way. With refusalsOnly, the subject merely has room again, and its
// grants continue. Otherwise its counters were changed, and its grants end.
func (ls *Leases) Forget(now time.Duration, subject uint64, refusalsOnly bool) {
	sh, le := ls.lockSubject(subject)
	defer sh.mu.Unlock()
	if le == nil {
		return
	}
	le.lastRefusal = refusal{}
	le.forgottenAt = now
	if !refusalsOnly {
		ls.endAll(sh, le, now)
	}
}

// GrantCount returns the number of grants held.
func (ls *Leases) GrantCount() int64 { return ls.grantCount.Load() }
