package limiter

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// begin routes a check, decides what needs no other node, and asks the other
// nodes without waiting for replies. unauthorized means that this node has just
// found that it has no authority.
//
// finish calls begin again after it has matched the check by newer rules. By
// then, finish has changed c.active, c.now and c.ignoreNewer. All else that
// reset has set stays.
func (c *clusterCheck) begin(unauthorized bool) {
	a := c.answer
	c.subjects = c.subjects[:0]
	c.asks = c.asks[:0]
	c.fallbackOps = c.fallbackOps[:0]
	c.byCounter = c.byCounter[:0]
	c.shares = c.shares[:0]
	c.newerVersion = 0
	c.refusedOrFailed = false
	c.askSeparately = false
	c.decided = 0
	c.weakest = ByOwner
	c.selected = c.selected[:0]

	first := 0
	for i := range a.scratch.match.Hits {
		h := &a.scratch.match.Hits[i]
		s := c.addSubject()
		s.keySubject = h.Subject.Hi
		s.firstOp = first
		s.numOps = countHitOps(h)
		first += s.numOps

		// The gate of the subject's partition may still be open. Without the mark, the
		// subject would be routed to this node again.
		if unauthorized {
			s.markTried(c.limiter.cluster.Self)
		}
		if h.Rule.Consistency == rules.Local {
			c.selected = append(c.selected, i)
		}
	}

	if len(c.selected) > 0 {
		c.decideAlone(c.selected, ByOwner)
	}
	if !c.refusedOrFailed {
		c.advance()
	}
}

// advance routes the open subjects, decides those that need no other node, and
// sends questions about the rest. If there is nothing to ask, it decides as a
// standby. It stops at the first refusal, because routing another subject could
// spend its lease, or wait.
func (c *clusterCheck) advance() {
	for {
		for i := range c.subjects {
			s := &c.subjects[i]
			if s.state == stateOpen && !c.mustWait(i) {
				c.routeSubject(s, &c.answer.scratch.match.Hits[i])
			}
			if c.refusedOrFailed {
				return
			}
		}

		someHere := c.selectSubjects(stateHere)
		if !someHere {
			break
		}

		// takeHere may end the wait of subjects with blocks. If a gate has just shut,
		// its subjects are open again. So look at all subjects once more.
		c.takeHere(c.selected)
	}

	if c.decided == len(c.subjects) {
		return
	}

	// This node decides before others are asked. So a refusal here costs no
	// message, and leaves nothing to give back elsewhere.
	someAlone := c.selectSubjects(stateAlone)
	if someAlone {
		c.decideAlone(c.selected, ByFallback)
		if c.refusedOrFailed {
			return
		}
	}

	// What a standby admits is a debt, which can't be taken back. So this node acts
	// as a standby last: only when no answer that could refuse the check is
	// outstanding.
	asked := c.askOthers()
	if !asked {
		c.actAsStandby()
	}
}

// routeSubject routes an open subject, or decides it from its lease. It may wait
// first: while the subject's partition is pending (awaitHandOver), until it is
// known which nodes can be reached (awaitPath), or while the owner moves
// (awaitOwner). Each time that it looks again counts as an attempt.
func (c *clusterCheck) routeSubject(s *subject, h *rules.Hit) {
	isRouted := c.tryRoute(s, h)
	for !isRouted {
		s.attempts++
		isRouted = c.tryRoute(s, h)
	}
}

// tryRoute is one attempt of routeSubject. It returns false if s must be located
// again, because tryRoute has waited or knows more of a node.
func (c *clusterCheck) tryRoute(s *subject, h *rules.Hit) (isRouted bool) {
	location := s.locate(c.limiter)
	if location == partitions.Here {
		s.state = stateHere
		return true
	}

	if location == partitions.Elsewhere {
		isDecided := c.spendLease(s, h)
		if isDecided {
			return true
		}
	}

	// The clock is read only now, because a check that a lease decides needs no
	// deadline.
	now := time.Now()
	c.setDeadlines(now)
	mayWait := now.Before(c.pendingDeadline)

	// Without authority, waiting is of no use: this node could not decide then.
	if location == partitions.Pending && mayWait && c.limiter.cluster.Authority() {
		c.awaitHandOver(s)
		return false
	}

	again := c.chooseNode(s, now)
	if again {
		return false
	}

	isMoving := len(s.redirected) > 0 // nodes that can be reached have named each other
	if s.state == stateAlone && isMoving && mayWait {
		c.awaitOwner(s, now)
		return false
	}

	return true
}

// awaitHandOver waits while s's partition is pending.
func (c *clusterCheck) awaitHandOver(s *subject) {
	c.wait(c.pendingDeadline, func(ctx context.Context) {
		c.limiter.cluster.Ownership.WaitWhilePending(ctx, ring.PartitionOf(s.keySubject))
	})
}

// chooseNode sets how, and by which node, s is decided next. It returns true if
// s must be located again: a lost node is back, or more is known of a path.
func (c *clusterCheck) chooseNode(s *subject, now time.Time) (again bool) {
	s.state = stateAlone
	if s.attempts >= maxAttempts || !now.Before(c.deadline) {
		return false
	}
	cp := c.limiter.cluster
	s.state, s.to = s.chooseNext(cp)
	if s.state == stateAskOwner {
		return false
	}

	isBack := s.recheckUnreached(cp)
	if isBack {
		return true
	}
	return c.awaitPath(s)
}

// awaitOwner waits for a newer ring, but no longer than a pause. Then the nodes
// that named each other as s's owner may be asked again. They can be reached,
// so the partition is moving from one to another. If this node counted alone
// now, a healthy cluster would admit more than the limit.
func (c *clusterCheck) awaitOwner(s *subject, now time.Time) {
	s.redirected = s.redirected[:0]
	s.hint = ring.NodeID{}
	c.wait(now.Add(min(retryPause<<min(s.attempts, 6), maxRetryPause)), func(ctx context.Context) {
		// AwaitRevision returns at once on a node that applies no more entries. The
		// pause is due all the same.
		if !c.limiter.cluster.AwaitRevision(ctx, s.route.Revision+1, 0) {
			<-ctx.Done()
		}
	})
}

// awaitPath waits if this node does not know yet which of s's nodes it can
// reach, because it did not run for a while or has just lost a connection. That
// alone is no reason to decide in the owner's place. awaitPath returns when the
// node knows more, and reports whether to route s again.
func (c *clusterCheck) awaitPath(s *subject) bool {
	cp := c.limiter.cluster
	unsure := s.unsureNode(cp)
	if unsure.IsZero() {
		return false
	}
	c.wait(c.deadline, func(ctx context.Context) { cp.Peers.AwaitPath(ctx, unsure) })
	return true
}

// setDeadlines sets the check's deadlines once.
func (c *clusterCheck) setDeadlines(now time.Time) {
	if !c.pendingDeadline.IsZero() {
		return
	}

	c.deadline = now.Add(checkTimeout - replySlack)
	u := c.answer.scratch.deadline
	if !u.IsZero() && u.Before(c.deadline) {
		c.deadline = u
	}

	c.pendingDeadline = now.Add(pendingTimeout)
	if c.deadline.Before(c.pendingDeadline) {
		c.pendingDeadline = c.deadline
	}
}

// wait runs waitFor, whose context ends at until, and reads the clock again.
func (c *clusterCheck) wait(until time.Time, waitFor func(ctx context.Context)) {
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	waitFor(ctx)
	c.now = c.limiter.clock.Now()
}

// mustWait reports whether subject i, whose rule has blocks, must wait until
// every subject without blocks is decided. Otherwise another rule could refuse
// the check after i's cost was taken. Until that cost is given back, it looks
// used, and a refusal would begin a block.
func (c *clusterCheck) mustWait(i int) bool {
	hits := c.answer.scratch.match.Hits
	if !c.answer.scratch.hasBlockOps || hits[i].Rule.Blocks == nil {
		return false
	}
	for j := range hits {
		if c.subjects[j].state != stateDecided && hits[j].Rule.Blocks == nil {
			return true
		}
	}
	return false
}

// takeHere decides the listed subjects from this node's counters, all or
// nothing. If a gate is shut, or this node lacks authority, the subjects become
// open again, and are routed anew.
func (c *clusterCheck) takeHere(list []int) {
	cp := c.limiter.cluster
	c.gatheredOps = c.gatheredOps[:0]
	for _, i := range list {
		s := &c.subjects[i]
		s.life = c.limiter.table.Life(ring.PartitionOf(s.keySubject)) // before the Take: see exchange.decideAsOwner
		c.gatheredOps = append(c.gatheredOps, c.ops(s)...)
	}

	if !c.recordPlace(c.gatheredOps) {
		return
	}

	verdict, authorized := c.limiter.takeAsOwner(c.now, c.gatheredOps, c.peek, c.answer.scratch.acquiring)

	// The slots may be stored even if the verdict is Undecided: authority may have
	// ended after the Take.
	if verdict != counters.Refused {
		c.answer.scratch.acquiring.markStored(c.gatheredOps)
	}

	c.keepOrForgetPlace(list, c.gatheredOps, verdict == counters.Admitted)
	rest := c.gatheredOps
	for _, i := range list {
		s := &c.subjects[i]
		if verdict != counters.Undecided {
			copy(c.ops(s), rest)
			rest = rest[s.numOps:]
			s.decidedAt = c.now
			c.markDecided(s, ByOwner, verdict == counters.Admitted, undoHere)
			continue
		}

		s.attempts++
		s.state = stateOpen
		if !authorized {
			s.markTried(cp.Self)
		}
	}

	c.refusedOrFailed = c.refusedOrFailed || verdict == counters.Refused

	// As in markDecidedHere, but not after a refusal: dropUndecided then rewrites
	// the ops, so the next check must not reuse them.
	c.answer.scratch.opsAsListed = verdict == counters.Admitted && len(list) == len(c.subjects)
}

// spendLease decides s from its lease or from a remembered refusal. It returns
// false if neither can answer the check.
func (c *clusterCheck) spendLease(s *subject, h *rules.Hit) bool {
	ops := c.ops(s)

	// A check that bypasses leases must know when, and in which life of a counter,
	// its cost was taken. A lease's receipt does not say so. A peek asks what the
	// owner has left.
	if c.answer.scratch.bypassLeases || ops[0].Mode == counters.PeekMode && !c.peeksAreLooks {
		return false
	}

	outcome := c.limiter.cluster.leases.spend(s.route.Owner, h.Rule, h.Limits, ops, &s.receipt)
	switch outcome {
	case localcache.Spent:
		c.markDecided(s, ByLease, true, undoLease)
	case localcache.Refused:
		c.markDecided(s, ByLease, h.Rule.Shadow, undoNothing)
		c.refusedOrFailed = c.refusedOrFailed || !h.Rule.Shadow
	}

	return outcome != localcache.AskOwner
}

// askOthers sends the questions to other nodes, and reports whether there were
// any. In the first round, each node gets one question about all its subjects.
// Later, each subject has a question of its own.
func (c *clusterCheck) askOthers() bool {
	c.selected = c.selected[:0]
	for i := range c.subjects {
		if state := c.subjects[i].state; state == stateAskOwner || state == stateAskStandby {
			c.selected = append(c.selected, i)
		}
	}

	// Sorting puts the subjects for one node side by side. It also orders the ops
	// of a question by subject, as questions require.
	slices.SortFunc(c.selected, func(i, j int) int {
		x, y := &c.subjects[i], &c.subjects[j]
		return cmp.Or(cmp.Compare(x.state, y.state), x.to.Compare(y.to), cmp.Compare(x.keySubject, y.keySubject))
	})
	var last *pendingAsk
	for _, i := range c.selected {
		s := &c.subjects[i]

		// A standby acts for one owner at a time, so it is asked about each
		// subject by itself.
		if last == nil || c.askSeparately || s.state == stateAskStandby || s.to != last.to {
			last = c.newAsk(s)
			c.asks = append(c.asks, last)
		}
		c.addToAsk(last, s, &c.answer.scratch.match.Hits[i])
	}

	mayShare := !c.askSeparately && len(c.asks) == 1 && last.question.flags&flagStandby == 0

	// If a node can't decide its group, the subjects may have several owners by
	// now, and no node would decide them together. So the next round asks about
	// each by itself.
	c.askSeparately = c.askSeparately || last != nil
	for _, ak := range c.asks {
		// A place and slots bring random numbers, so no other question can be
		// identical.
		ak.dispatch(c.limiter, mayShare && ak.question.place == nil && ak.question.acquiring == nil)
	}

	return last != nil
}

// newAsk returns a question without ops to the node that s is routed to.
func (c *clusterCheck) newAsk(s *subject) *pendingAsk {
	ak := &pendingAsk{to: s.to, owner: s.to, deadline: c.deadline, done: make(chan struct{}, 1)}
	ak.question.version = c.version()
	ak.question.revision = s.route.Revision
	ak.question.place = c.answer.scratch.place
	ak.question.acquiring = c.answer.scratch.acquiring

	if c.peek {
		ak.question.flags |= flagPeek
	}
	// Without authority, this node's rules may be too old for owners to decide by.
	if ak.question.version == 0 || c.ignoreNewer && c.limiter.cluster.Authority() {
		ak.question.flags |= flagDespiteOldRules
	}

	if s.state == stateAskStandby {
		// The standby first forwards the question to the owner, so the answer may
		// bring the owner's leases.
		ak.question.flags |= flagStandby
		ak.owner = s.route.Owner
	}

	return ak
}

// version returns the version of the rules that the check was matched by, or
// zero if any version will do.
func (c *clusterCheck) version() int64 {
	if c.anyVersion {
		return 0
	}
	return c.active.set.Version
}

// addToAsk adds s to the question ak, and marks s as waiting for the reply.
func (c *clusterCheck) addToAsk(ak *pendingAsk, s *subject, h *rules.Hit) {
	s.markTried(s.to)
	s.attempts++
	s.standbyAsked = s.standbyAsked || s.state == stateAskStandby
	s.state = stateAwaitReply
	s.ask = ak

	// Once one of the subjects may be leased, policies has an element for each.
	var policy localcache.Policy
	if (c.ops(s)[0].Mode != counters.PeekMode || c.peeksAreLooks) && !c.answer.scratch.bypassLeases {
		policy = c.limiter.cluster.policyOf(h.Rule, h.Limits)
	}
	if !policy.None() && ak.policies == nil {
		ak.policies = make([]localcache.Policy, countSubjects(ak.question.ops))
	}
	if ak.policies != nil {
		ak.policies = append(ak.policies, policy)
	}

	ak.rule, ak.limits = h.Rule, h.Limits
	ak.question.ops = append(ak.question.ops, c.ops(s)...)

	// The owner may have stored the slots even if it does not answer.
	acq := c.answer.scratch.acquiring
	s.mayHoldSlots = acq.mayHold(s.keySubject)
	acq.markStored(c.ops(s))
}

// actAsStandby decides subjects in place of their owners: as their standby, or
// as the node that handed their partition over.
func (c *clusterCheck) actAsStandby() {
	for i := range c.subjects {
		s := &c.subjects[i]
		if s.state != stateActAsStandby || c.refusedOrFailed {
			continue
		}
		s.state = stateOpen
		s.triedAsStandby = true
		v := c.limiter.takeAsStandby(c.now, c.ops(s), c.peek, s.problem)
		if v != counters.Undecided {
			c.markDecided(s, ByStandby, v == counters.Admitted, undoNothing)
			c.refusedOrFailed = v == counters.Refused
		}
	}
}

// collectReplies waits for the replies to the questions in flight.
func (c *clusterCheck) collectReplies() {
	for _, ak := range c.asks {
		arrived := ak.wait() // until it returns, another goroutine may write the answer
		answered := arrived && ak.err == nil
		if answered && ak.status == statusAskerBehind {
			c.newerVersion = max(c.newerVersion, ak.version)
		}

		for i := range c.subjects {
			s := &c.subjects[i]
			if s.state == stateAwaitReply && s.ask == ak {
				c.acceptAnswer(s, ak, arrived)
			}
		}

		c.refusedOrFailed = c.refusedOrFailed || answered && ak.status == statusDecided && !ak.admitted
	}

	c.asks = c.asks[:0]
	c.now = c.limiter.clock.Now() // time has passed
}

// acceptAnswer applies the answer to s. arrived is false if it came too late.
func (c *clusterCheck) acceptAnswer(s *subject, ak *pendingAsk, arrived bool) {
	s.state = stateOpen

	switch {
	case !arrived: // the check's deadline has passed: routeSubject decides the subject alone
	case ak.err != nil:
		if errors.Is(ak.err, peer.ErrUnreachable) {
			s.markUnreached(ak.to) // it may be asked again: if it had decided the question, that cost is lost
		}
	case ak.status == statusDecided:
		c.acceptDecision(s, ak)
	case ak.status == statusTooManyReservations && c.answer.scratch.place != nil:
		c.failWith(ErrTooManyReservations)
	case ak.status == statusRequestIDReused && c.answer.scratch.acquiring != nil:
		c.failWith(ErrRequestIDReused)
	case ak.status == statusNoAuthority:
		// The node stays marked as tried: asking it again would not help this check.
		s.problem = partitions.WithoutAuthority
	case ak.status == statusUnreachable:
		c.limiter.cluster.Ownership.LearnOwner(ring.PartitionOf(s.keySubject), ak.revision, ak.hint)
	case ak.status == statusUndecided: // a gate shut before this check's turn: the same node may be asked again
		s.unmarkTried(ak.to)
	case ak.status == statusNotOwner:
		// The node can be reached, and may own the subject in a moment. awaitOwner lets
		// nodes in redirected be asked again, but not those in tried.
		s.unmarkTried(ak.to)
		s.redirected = append(s.redirected, ak.to)
		s.hint = ak.hint
		if !ak.hint.IsZero() {
			c.limiter.cluster.Ownership.LearnOwner(ring.PartitionOf(s.keySubject), ak.revision, ak.hint)
		}
	}
}

// acceptDecision takes over what another node decided about s.
func (c *clusterCheck) acceptDecision(s *subject, ak *pendingAsk) {
	by := ByForward
	switch {
	case ak.standby:
		by = ByStandby
	case ak.fromLease:
		by = ByLease
	}

	at, _ := findSubject(ak.question.ops, s.keySubject)
	answered := ak.question.ops[at : at+s.numOps]

	// An at-most check only peeks first; then it takes what remains. It must not
	// count what is leased here: the owner can't give that.
	if !c.answer.scratch.isAtMost {
		c.limiter.cluster.leases.addUnspent(ak, answered)
	}

	copy(c.ops(s), answered)
	s.answeredBy = ak

	// A standby makes no place.
	pl := c.answer.scratch.place
	if pl != nil && pl.home == s.keySubject {
		pl.made = ak.admitted && !ak.standby
	}

	c.acceptSlots(s, ak, at)
	c.markDecided(s, by, ak.admitted, undoAsked)
}

// acceptSlots records what the answer says of s's slots. s's ops begin at index
// at of the question's ops.
func (c *clusterCheck) acceptSlots(s *subject, ak *pendingAsk, at int) {
	acq := c.answer.scratch.acquiring
	if acq == nil {
		return
	}

	// The owner decides all or nothing, so a refusal means that it has stored no
	// slots for this question. It may still have those of an earlier one.
	if !ak.admitted && !s.mayHoldSlots {
		acq.forget(s.keySubject)
	}

	ops := c.ops(s)
	for i := range ops {
		// For slots, the owner answers how much longer they are held.
		slotLeft := time.Duration(ak.marks[at+i])
		ops[i].SetSlotLeft(slotLeft)
	}

	if ak.unconfirmed {
		c.failWith(errUnconfirmed)
	}
}
