package limiter

import (
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

const (
	// renewTimeout bounds how long this node waits for the answer to a renewal.
	renewTimeout = 2 * localcache.MaxTTL
	// minSearchPause is the minimum time between two searches for ended grants, so
	// that grants that end at nearly the same time share a message.
	minSearchPause = time.Millisecond
	// maxSweepPause is the maximum time between two sweeps of the ledger of grants
	// that other nodes hold.
	maxSweepPause = 10 * time.Second
)

// leases has this node's part in leases, as a holder and as an owner.
type leases struct {
	limiter       *Limiter
	held          *localcache.Leases      // leases that this node holds, and refusals that it remembers
	granted       *localcache.LeaseLedger // grants that this node has made as an owner
	forgetNotices notices                 // broadcasts about subjects that got quota back
	unspent       unspentRounds           // what other holders have reported
}

// policyOf returns the lease policy for a subject of rule; no policy if it can't be leased.
func (cp *clusterPart) policyOf(rule *rules.Rule, limits []*rules.Limit) localcache.Policy {
	table := cp.Ring()
	if table == nil || rule.Consistency != rules.Hybrid {
		return localcache.Policy{}
	}
	return localcache.PolicyOf(rule, limits, len(table.Members()))
}

// spend decides ops, all of one subject, from the subject's lease or from a
// remembered refusal. It writes to receipt what was spent. If the lease needs
// another grant soon, spend requests one in the background.
func (ls *leases) spend(
	owner ring.NodeID, rule *rules.Rule, limits []*rules.Limit, ops []counters.Op, receipt *localcache.Receipt,
) localcache.Outcome {
	cp := ls.limiter.cluster

	// Blocks and delays depend on the owner's counters at the moment of the check. A
	// grant can't stand for them.
	if rule.Consistency != rules.Hybrid || rule.Blocks != nil || rule.OnLimit == rules.DelayCheck || owner == cp.Self {
		return localcache.AskOwner
	}

	var outcome localcache.Outcome
	outcome, *receipt = ls.held.Spend(cp.Boottime(), owner, ops)
	if outcome == localcache.AskOwner {
		return outcome
	}
	if outcome == localcache.Refused && ops[0].Mode == counters.CountMode {
		return localcache.AskOwner // a count must reach the owner
	}

	// The process may have been suspended since Spend. What was spent after the end
	// of the grant goes back to the owner with the rest of the grant.
	if cp.Boottime() >= receipt.Until {
		ls.held.Unspend(*receipt, ops)
		return localcache.AskOwner
	}

	if receipt.Renew {
		ls.renew(owner, cp.policyOf(rule, limits), ops)
	}

	if outcome == localcache.Spent {
		cp.counts.leaseSpends.Add(1)
	} else {
		cp.counts.cachedRefusals.Add(1)
	}

	return outcome
}

// renew requests the next grant in the background, with a question that costs nothing.
func (ls *leases) renew(owner ring.NodeID, policy localcache.Policy, ops []counters.Op) {
	cp := ls.limiter.cluster
	if policy.None() {
		return
	}

	// The owner debits the grant before it answers. If the answer is lost, the quota
	// is lost, but it is never spent twice.
	ak := &pendingAsk{to: owner, owner: owner, deadline: time.Now().Add(renewTimeout),
		done: make(chan struct{}, 1), renewal: true}
	ak.policies = []localcache.Policy{policy}

	// No check waits for a renewal, so none could be matched again by newer rules.
	ak.question.flags = flagDespiteOldRules

	// Inline limits come with the call, so any version of the rules will do.
	if !ops[0].Key.IsInline() {
		ak.question.version = ls.limiter.version()
	}

	ak.question.revision = cp.Ownership.Route(ring.PartitionOf(ops[0].Key.Subject)).Revision

	for i := range ops {
		ak.question.ops = append(ak.question.ops,
			counters.Op{Key: ops[i].Key, Limit: ops[i].Limit, Shadow: ops[i].Shadow, Lends: ops[i].Lends})
	}

	cp.counts.renewals.Add(1)
	ak.dispatch(ls.limiter, false)
}

// addRequests adds to a message's head the requests for grants to the subjects of asks.
func (ls *leases) addRequests(head *question, asks []*pendingAsk) {
	ak := asks[0]
	if ak.policies == nil {
		return
	}

	cp := ls.limiter.cluster
	now := cp.Boottime()
	for so := range bySubject(ak.question.ops) {
		request, ok := ls.held.Request(now, ak.owner, ak.policies[so.index], so.ops, len(asks))
		if ok {
			head.requests = append(head.requests,
				leaseRequest{subject: so.subject(), holder: cp.Self, LeaseRequest: request})
		}
	}
}

// acceptReply stores the grants in the reply to asks, and remembers the refusals.
func (ls *leases) acceptReply(asks []*pendingAsk, sent time.Duration, r *reply, err error) {
	ak := asks[0]
	cp := ls.limiter.cluster
	if ak.policies == nil {
		return
	}

	now := cp.Boottime()
	if err != nil || r.status != statusDecided || r.standby {
		if ak.renewal {
			// The next renewal need not wait until this one counts as lost.
			ls.held.AbandonRenewal(now, ak.question.ops)
		}
		return
	}

	for so := range bySubject(ak.question.ops) {
		if !ak.policies[so.index].None() {
			ls.acceptSubject(ak, &so, sent, now, r)
		}
	}
}

// acceptSubject stores the grant to so, one of ak's subjects, and remembers a
// refusal.
func (ls *leases) acceptSubject(ak *pendingAsk, so *subjectOps, sent, now time.Duration, r *reply) {
	// The owner makes grants after the last check, so the results of the last check
	// say what is left.
	lastCheck := len(r.admitted) - 1
	ops, refused := decidedOps(so.ops, r.results[lastCheck*len(ak.question.ops)+so.first:])
	life := r.lives[so.index]
	from := localcache.Source{Owner: r.decider, Boot: r.boot, Lineage: life.Lineage}

	grant := r.grantOf(ops)
	if grant.ID != 0 {
		grant.Life = life
		grant.DebitedAt = r.steady
	}

	// Three answers say what the owner has left: one with a grant (which may come
	// although a shadow rule refused), one to a renewal, and one that refused
	// nothing.
	if grant.ID != 0 || ak.renewal || r.admitted[lastCheck] && !refused {
		ls.held.AcceptAnswer(sent, now, from, ops, grant, ak.renewal)
	}

	// A refusal lasts from when the question was sent: a slow answer must not make
	// it longer than the owner said.
	if refused {
		ls.held.RememberRefusal(sent, ops, ak.policies[so.index].TTL)
	}
}

// decidedOps returns asked as the owner has decided them, and whether it refused
// one of them.
func decidedOps(asked []counters.Op, results []result) (ops []counters.Op, refused bool) {
	ops = make([]counters.Op, len(asked))
	for i := range asked {
		res := &results[i]
		op := &ops[i]
		*op = counters.Op{Key: asked[i].Key, Limit: asked[i].Limit, Cost: asked[i].Cost, Shadow: asked[i].Shadow}
		op.Decision = res.Decision
		op.NoRoom = res.noRoom

		// A peek reports Remaining as if it took the cost.
		if asked[i].Mode == counters.PeekMode && res.Allowed {
			op.Decision.AddRemaining(op.Limit, op.Cost)
		}

		refused = refused || !res.Allowed
	}

	return ops, refused
}

// grantOf returns the grant to the subject of ops, without its Life and DebitedAt.
// Its ID is zero if there is none.
func (r *reply) grantOf(ops []counters.Op) (grant localcache.Grant) {
	for i := range r.grants {
		// reply.read accepts grants of any length. One that does not fit ops would
		// make AcceptAnswer panic.
		if r.grants[i].subject == ops[0].Key.Subject && len(r.grants[i].Amounts) == len(ops) {
			grant = r.grants[i].Grant
		}
	}
	return grant
}

// decideQueued answers queued asks from a grant that has just arrived. It returns the others.
func (ls *leases) decideQueued(asks []*pendingAsk) []*pendingAsk {
	left := asks[:0]
	for i, ak := range asks {
		if ak.policies == nil || len(ak.policies) != 1 || ak.rule == nil || ak.question.flags&flagPeek != 0 {
			return append(left, asks[i:]...)
		}

		outcome := ls.spend(ak.owner, ak.rule, ak.limits, ak.question.ops, &ak.receipt)
		if outcome == localcache.AskOwner {
			left = append(left, ak)
			continue
		}

		ak.fromLease = true
		ak.status = statusDecided
		ak.admitted = outcome == localcache.Spent || ak.rule.Shadow

		if !ak.state.CompareAndSwap(askOpen, askAnswered) {
			// The check has given up meanwhile, and uses nothing of what was spent.
			ls.held.Unspend(ak.receipt, ak.question.ops)
			continue
		}

		ak.done <- struct{}{}
	}

	return left
}

// maintain runs until the limiter is closed. When grants end, it gives back
// what is left of them. It forgets ended grants that other nodes held, and what
// loans no longer need.
func (ls *leases) maintain() {
	cp := ls.limiter.cluster
	var ended []localcache.EndedGrant
	for {
		now := cp.Boottime()
		ended = ls.held.DrainEnded(now, ended[:0])
		ls.returnEnded(now, ended)
		ls.granted.Sweep(now)
		cp.loans.sweep(ls.limiter.clock.Now().Steady)

		timer := time.NewTimer(min(max(ls.held.NextDrain()-cp.Boottime(), minSearchPause), maxSweepPause))
		select {
		case <-ls.held.Wake():
		case <-timer.C:
		case <-cp.ctx.Done():
			timer.Stop()
			return
		}

		timer.Stop()
	}
}

// returnEnded gives back what is left of the ended grants. If this process did
// not run for a while, some grants ended long ago. returnEnded drops these: the
// owner assumes that what comes back is not so old.
func (ls *leases) returnEnded(now time.Duration, ended []localcache.EndedGrant) {
	var list []refund
	for i := range ended {
		e := &ended[i]
		if now >= e.Until+returnTimeout {
			ls.limiter.cluster.counts.lost.Add(int64(len(e.Ops)))
			continue
		}
		t := takenCosts{subject: e.Ops[0].Key.Subject, boot: e.Source.Boot, life: e.Life,
			steady: e.DebitedAt, ops: e.Ops, marks: e.Marks}
		list = append(list, refund{takenCosts: t, grant: e.Grant})
	}
	ls.limiter.sendRefunds(list)
}

// UseLeases sets whether this node takes leases from other nodes.
// UseLeases(false), for a node that is leaving, returns all its leases at once.
func (l *Limiter) UseLeases(enabled bool) {
	cp := l.cluster
	if cp == nil {
		return
	}
	now := cp.Boottime()
	cp.leases.held.SetEnabled(now, enabled)
	cp.leases.returnEnded(now, cp.leases.held.DrainEnded(now, nil))
}
