package limiter

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

// exchange is a question from another node and the answer to it, with buffers
// for both. Exchanges are pooled. dispatch, sendQuestion and handleReply borrow
// one for its buffers only.
type exchange struct {
	from     ring.NodeID
	question question
	reply    reply
	out, key []byte
}

// maxPooledOps and maxPooledBytes bound the buffers of an exchange that goes back to the pool.
const maxPooledOps, maxPooledBytes = 1024, 64 << 10

func (cp *clusterPart) getExchange() *exchange {
	if x, ok := cp.exchangePool.Get().(*exchange); ok {
		return x
	}
	return &exchange{}
}

func (cp *clusterPart) putExchange(x *exchange) {
	if cap(x.question.ops) <= maxPooledOps && cap(x.reply.results) <= maxPooledOps &&
		cap(x.out)+cap(x.key) <= maxPooledBytes {
		cp.exchangePool.Put(x)
	}
}

// serveQuestion answers a question at once if it can, and otherwise in a goroutine of its own.
func (l *Limiter) serveQuestion(from ring.NodeID, body []byte, to Responder) {
	cp := l.cluster
	x := cp.getExchange()
	x.from = from

	if err := x.question.read(body); err != nil {
		cp.putExchange(x)
		to.Fail(CodeMalformed, err.Error())
		return
	}

	qn := &x.question
	x.reply.reset()
	x.reply.version = l.version()
	x.reply.revision = cp.Ownership.Route(ring.PartitionOf(qn.ops[0].Key.Subject)).Revision

	// This goroutine reads a connection, so it must not block. Slots wait until they
	// are confirmed, a lagging node waits to catch up, and long questions take long.
	mustWait := qn.acquiring != nil || x.reply.version < qn.version || x.reply.revision < qn.revision ||
		qn.count*len(qn.ops) > maxResultsByReader

	// The question brings limits of the asker's rules, which differ from this node's
	// rules. So buckets may drain at other rates from now on.
	if qn.version != 0 && qn.version != x.reply.version {
		l.markRatesChanging()
	}

	isReady := x.refuseOldRules(l)
	if !isReady && !mustWait {
		isReady = x.decideAsOwner(l)
	}

	if isReady {
		x.sendReply(to)
		cp.putExchange(x)
		return
	}

	if !cp.serveInBackground(to, func() { x.waitAndAnswer(l, to) }) {
		cp.putExchange(x)
	}
}

func (x *exchange) sendReply(to Responder) {
	x.out = x.reply.append(x.out[:0])
	to.Reply(x.out)
}

// refuseOldRules turns away an asker whose rules are older than this node's, and
// reports whether it did. An asker with authority is turned away once: when it
// asks again, it sets flagDespiteOldRules (newAsk) and is served. An asker
// without authority is turned away until it has newer rules. So is every asker
// if other regions' shares may have grown since. Version zero stands for limits
// that came with the call, which don't depend on the rules.
func (x *exchange) refuseOldRules(l *Limiter) bool {
	qn := &x.question
	if qn.version == 0 {
		return false
	}

	isOlder := qn.version < x.reply.version
	asksAgain := qn.flags&flagDespiteOldRules != 0
	if !l.isStale(qn.version) && (!isOlder || asksAgain) {
		return false
	}

	x.reply.status = statusAskerBehind
	return true
}

// waitAndAnswer answers a question that must wait, or that another node must
// decide. It need not check the asker's rules again: a version counts as
// recorded only one second after every node without it has lost authority (see
// docs/design/regions.md), and no question waits for a second.
func (x *exchange) waitAndAnswer(l *Limiter, to Responder) {
	cp := l.cluster
	qn := &x.question
	defer cp.putExchange(x)

	ctx, cancel := context.WithTimeout(cp.ctx, qn.patience)
	defer cancel()

	// Let this node catch up with the asker. If it still lags afterwards, it decides
	// anyway: the question brings the limits.
	if x.reply.version < qn.version || x.reply.revision < qn.revision {
		l.catchUp(ctx, qn.revision, qn.version)
		x.reply.version = l.version()
	}

	pendingCtx, cancel := context.WithTimeout(ctx, pendingTimeout)
	defer cancel()

	for attempt := 0; ; attempt++ {
		if x.decideAsOwner(l) {
			x.sendReply(to)
			return
		}

		route, p := cp.decisiveRoute(qn.ops)
		if route.Location == partitions.Here && cp.Authority() && attempt < maxAttempts {
			continue // the partition has just been handed over to this node
		}

		// Only a node with authority waits: without it, this node could not decide even
		// once the partition has arrived.
		if route.Location != partitions.Pending || pendingCtx.Err() != nil || !cp.Authority() {
			if !x.forwardOrActAsStandby(ctx, l, route, to) {
				x.sendReply(to)
			}
			return
		}

		cp.Ownership.WaitWhilePending(pendingCtx, p)
	}
}

// decisiveRoute returns the partition that decides what to do with ops, and its
// route: a pending partition if there is one, otherwise one that is not here, if
// there is one.
func (cp *clusterPart) decisiveRoute(ops []counters.Op) (route partitions.Route, p int) {
	p = ring.PartitionOf(ops[0].Key.Subject)
	route = cp.Ownership.Route(p)

	for i := range ops {
		n := ring.PartitionOf(ops[i].Key.Subject)
		if n == p || route.Location == partitions.Pending {
			continue
		}
		next := cp.Ownership.Route(n)
		if route.Location == partitions.Here || next.Location == partitions.Pending {
			route, p = next, n
		}
	}

	return route, p
}

// forwardOrActAsStandby answers a question about subjects that this node does
// not own. It asks the owner. If the owner does not decide, and the asker asked
// this node as the standby, this node acts for the owner. If
// forwardOrActAsStandby returns false, it has not answered, and x's reply says
// why.
func (x *exchange) forwardOrActAsStandby(ctx context.Context, l *Limiter, route partitions.Route, to Responder) bool {
	cp := l.cluster
	qn := &x.question
	x.reply.reset()
	x.reply.revision = route.Revision
	x.reply.version = l.version()
	x.reply.status = statusNotOwner

	if route.Location != partitions.Elsewhere {
		if route.Location == partitions.Here || !cp.Authority() {
			x.reply.status = statusNoAuthority
		}
		return false
	}

	x.reply.hint = route.Owner

	if !cp.isSoleOwner(route.Owner, qn.ops) {
		return false // the asker splits the question
	}

	next, ownerAsks := x.nextOwner(route)
	if !next.IsZero() && next != cp.Self && qn.hops < maxHops {
		answered := x.forwardTo(ctx, l, next, to)
		if answered {
			return true
		}
	}

	problem := partitions.Unreachable
	if x.reply.status == statusNoAuthority || ownerAsks {
		problem = partitions.WithoutAuthority
	}

	if qn.flags&flagStandby != 0 {
		isDecided := x.decideAsStandby(l, problem)
		if isDecided {
			x.sendReply(to)
			return true
		}
	}

	if ownerAsks && !cp.Authority() {
		x.reply.status = statusNoAuthority // neither node has authority: asking again won't help
	}

	return false
}

// isSoleOwner reports whether owner owns all subjects of ops.
func (cp *clusterPart) isSoleOwner(owner ring.NodeID, ops []counters.Op) bool {
	for i := range ops {
		if cp.Ownership.Route(ring.PartitionOf(ops[i].Key.Subject)).Owner != owner {
			return false
		}
	}
	return true
}

// nextOwner returns the node to which x's question goes next. If the owner
// itself asks, it has no authority or has handed the partition over. The
// question then does not go back, but to the other side.
func (x *exchange) nextOwner(route partitions.Route) (next ring.NodeID, ownerAsks bool) {
	if route.Owner == x.from {
		return route.OtherSide, true
	}
	return route.Owner, false
}

// forwardTo sends x's question to owner, and the answer back. If it returns
// false, it has not answered, and x's reply says why.
func (x *exchange) forwardTo(ctx context.Context, l *Limiter, owner ring.NodeID, to Responder) bool {
	cp := l.cluster
	next := x.question
	next.hops++

	// Only the node that was asked as the standby may act as one.
	next.flags &^= flagStandby

	deadline, _ := ctx.Deadline()
	send := func() ([]byte, error) {
		next.patience = time.Until(deadline)
		return cp.call(ctx, owner, MethodAsk, next.appendBody(next.appendHead(nil)))
	}

	cp.counts.relayed.Add(1)
	outcome := statusUnreachable
	body, err := send()

	if errors.Is(err, peer.ErrUnreachable) {
		// A lost connection is no reason to act for the owner if there is another path
		// to it. Ask again. The owner may have decided the first question and lost the
		// reply; what that debited stays debited.
		cp.Peers.AwaitPath(ctx, owner)
		if cp.Peers.Reachable(owner) {
			body, err = send()
		}
	}

	if err == nil && len(body) > 0 {
		outcome = status(body[0])
	}

	switch outcome {
	case statusDecided, statusAskerBehind, statusTooManyReservations, statusRequestIDReused:
		to.Reply(body)
		return true
	}

	x.reply.status = outcome
	return false
}

// decideAsOwner decides x's question as the owner. It returns true once x's
// reply is ready to send, and false if this node does not own all of the
// question's subjects, or has no authority. A cost that was debited before
// authority ended stays debited: this node may no longer own the counters.
//
// The guarantees need these steps in this order:
//
//  1. look at the gates and at authority;
//  2. read the lives;
//  3. note the reservation's place;
//  4. take the costs, which looks at the gates again, under the locks;
//  5. debit the grants;
//  6. confirm the slots, which may wait;
//  7. look at authority again. It then covers all of the above.
func (x *exchange) decideAsOwner(l *Limiter) bool {
	cp := l.cluster
	qn := &x.question
	r := &x.reply
	generation, authorized := cp.ReadAuthority()
	if !authorized || !l.table.AllOpen(qn.ops) {
		return false
	}

	now := l.clock.Now()
	began := cp.recorderClock()
	r.clearDecisions()

	// Read the lives before the Take. If a life ends in between, the cost can't be
	// given back in the next one.
	x.readLives(l)

	if !x.recordPlace(l, now) {
		r.status = statusTooManyReservations
		return true
	}

	r.status = statusDecided

	take := func(now algorithms.Instant, ops []counters.Op) counters.Verdict {
		return l.takeFromTable(now, ops, qn.flags&flagPeek != 0, qn.acquiring)
	}
	decidedAny := x.decideEach(now, take)
	if qn.place != nil && !(decidedAny && r.admitted[0]) {
		qn.place.forgetIn(l.table, now, qn.ops)
	}

	if !decidedAny {
		return false
	}
	if qn.acquiring != nil && qn.acquiring.isIDReused {
		r.status = statusRequestIDReused
		return true
	}

	// Make the grants before the last look at authority, which must cover them, too.
	cp.leases.makeGrants(x, now)
	r.unconfirmed = qn.acquiring != nil && r.admitted[0] && !x.confirmSlots(l)

	// Nothing may wait from here on: authority must cover the answer.
	if !cp.hasKeptAuthority(generation) {
		return false
	}

	cp.recordDecision(ByOwner, qn.ops, began, len(r.admitted))
	cp.counts.served.Add(int64(len(r.admitted)))
	r.setDecider(l, now, false)
	return true
}

// readLives reads the lives of the counters of each of the question's subjects.
func (x *exchange) readLives(l *Limiter) {
	ops := x.question.ops
	for i := range ops {
		if i == 0 || ops[i].Key.Subject != ops[i-1].Key.Subject {
			x.reply.lives = append(x.reply.lives, l.table.Life(ops[i].Key.Partition()))
		}
	}
}

// recordPlace records the question's reservation, if it has one, before the Take.
// It returns false if there is no room for it.
func (x *exchange) recordPlace(l *Limiter, now algorithms.Instant) (hasRoom bool) {
	qn := &x.question
	if qn.place == nil {
		return true
	}

	// After any other error, a gate has shut, and the Take finds it shut, too.
	err := qn.place.recordIn(l.table, now, qn.ops)
	return !errors.Is(err, ErrTooManyReservations)
}

// confirmSlots waits until the slots that x's question has acquired here would
// outlive this node. It returns false if they would not.
func (x *exchange) confirmSlots(l *Limiter) bool {
	var stored []storedAt
	for so := range bySubject(x.question.ops) {
		if hasSlots(so.ops) {
			stored = append(stored, storedAt{ring.PartitionOf(so.subject()), x.reply.lives[so.index].Lineage})
		}
	}
	return l.confirmSlots(stored)
}

// decideEach decides the question's identical checks one after another, until
// one is refused or a gate shuts. If a gate shuts, the asker asks again about the
// remaining checks. decideEach returns false if it decided none.
func (x *exchange) decideEach(
	now algorithms.Instant, decide func(algorithms.Instant, []counters.Op) counters.Verdict,
) bool {
	qn, r := &x.question, &x.reply
	for range qn.count {
		verdict := decide(now, qn.ops)
		if verdict == counters.Undecided {
			return len(r.admitted) > 0
		}

		r.admitted = append(r.admitted, verdict == counters.Admitted)

		for i := range qn.ops {
			op := &qn.ops[i]
			r.results = append(r.results, result{Decision: op.Decision, noRoom: op.NoRoom, mark: markOf(op, now)})
		}

		if verdict != counters.Admitted {
			break
		}
	}

	return true
}

// decideAsStandby decides x's question within this node's share, in place of an
// owner that can't; see Ownership.DecideAsStandby.
func (x *exchange) decideAsStandby(l *Limiter, problem partitions.OwnerProblem) bool {
	qn := &x.question
	r := &x.reply
	now := l.clock.Now()
	r.clearDecisions()
	act := func(now algorithms.Instant, ops []counters.Op) counters.Verdict {
		return l.takeAsStandby(now, ops, qn.flags&flagPeek != 0, problem)
	}
	if !x.decideEach(now, act) {
		return false
	}

	// A standby's decision belongs to no life. Its cost is a debt, and does not
	// come back.
	for range countSubjects(qn.ops) {
		r.lives = append(r.lives, counters.Life{})
	}

	r.status = statusDecided
	r.setDecider(l, now, true)
	return true
}

// takeAsStandby decides ops in place of their owner; see
// Ownership.DecideAsStandby. An admitted cost becomes a debt, so takeAsStandby
// decides a peek with a cost of 0.
func (l *Limiter) takeAsStandby(
	now algorithms.Instant, ops []counters.Op, peek bool, problem partitions.OwnerProblem,
) counters.Verdict {
	if hasSlots(ops) {
		return counters.Undecided // only an owner grants slots
	}

	cp := l.cluster
	nodes, rank := cp.rankInRing()

	shares := sharesOf(ops, nodes, rank)

	asked := ops
	if peek {
		asked = withoutCosts(ops)
	}

	generation, authorized := cp.ReadAuthority()
	if !authorized {
		return counters.Undecided
	}

	began := cp.recorderClock()
	verdict := cp.Ownership.DecideAsStandby(now, asked, shares, problem)

	// If authority has ended since, what was admitted stays a debt. The debt may
	// cost quota, but never creates any.
	if verdict == counters.Undecided || !cp.hasKeptAuthority(generation) {
		return counters.Undecided
	}

	cp.recordDecision(ByStandby, ops, began, 1)
	cp.counts.standbyDecisions.Add(1)

	for i := range ops {
		op := &ops[i]
		op.Decision = asked[i].Decision
		op.NoRoom = asked[i].NoRoom

		if peek && op.Cost > 0 && !judgePeek(op, now) {
			verdict = counters.Refused
		}
	}

	return verdict
}

// sharesOf returns a node's shares of the limits of ops, by op.
func sharesOf(ops []counters.Op, nodes, rank int) []algorithms.Limit {
	shares := make([]algorithms.Limit, len(ops))
	for i := range ops {
		if ops[i].Block {
			shares[i] = *ops[i].Limit // nodes don't divide a block
		} else {
			// Without a share the amount is 0, which DecideAsStandby expects.
			shares[i], _ = localcache.ShareOf(ops[i].Limit, nodes, rank)
		}
	}
	return shares
}

// withoutCosts returns a copy of ops with costs of 0.
func withoutCosts(ops []counters.Op) []counters.Op {
	free := slices.Clone(ops)
	for i := range free {
		free[i].Cost = 0
	}
	return free
}

// judgePeek turns op's decision, which a standby made for a cost of 0, into that
// for op.Cost. It returns false if op makes the check fail.
func judgePeek(op *counters.Op, now algorithms.Instant) bool {
	if op.Decision.Remaining >= op.Cost {
		op.Decision.AddRemaining(op.Limit, -op.Cost)
		return true
	}
	op.Decision.Allowed = false
	op.Decision.RetryAfter = localcache.RefuseWithoutCounter(op.Limit, now, op.Cost).RetryAfter
	return op.Shadow
}

// makeGrants makes the grants that x's question requests, as far as the limits
// allow. It debits each grant before it adds the grant to the reply.
func (ls *leases) makeGrants(x *exchange, now algorithms.Instant) {
	qn := &x.question
	r := &x.reply
	cp := ls.limiter.cluster
	last := len(r.admitted) - 1
	if len(qn.requests) == 0 || qn.flags&flagPeek != 0 || !r.admitted[last] {
		return
	}

	nodes, _ := cp.rankInRing()
	results := r.results[last*len(qn.ops):]
	for i := range qn.requests {
		request := &qn.requests[i]
		first, index := findSubject(qn.ops, request.subject)
		ops := qn.ops[first : first+len(request.Want)]
		for j := range ops {
			// Take the decisions from the reply: if a gate shut after the last check, the
			// ops hold none.
			ops[j].Decision = results[first+j].Decision
		}

		if g, ok := ls.grant(now, request, ops, r.lives[index].Lineage, nodes); ok {
			r.grants = append(r.grants, g)
		} else {
			cp.counts.grantsRefused.Add(1)
		}
	}
}
