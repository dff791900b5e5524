package limiter

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// This file is about shares that run short, at the node that a caller has
// asked. The node tells the subject's owner to borrow in good time. It lets a
// few checks wait for a loan that is under way. If only a share refuses a
// check, the node tells the caller when to come back.

const (
	// ownerNoticePause is the minimum time between two notices to the owner about
	// one limit of a subject.
	ownerNoticePause = 20 * time.Millisecond
	// paceCells is the number of cells that record how fast limits are used. Limits
	// that share a cell share its pause and what it has measured.
	paceCells = 4096
	// borrowHorizon is the time for which an owner borrows ahead: a few times as
	// long as a loan from another continent takes.
	borrowHorizon = 250 * time.Millisecond
	// loanWait bounds how long a check waits for a loan.
	loanWait = 200 * time.Millisecond
	// maxLoanRounds bounds how often a check that waits for loans is decided
	// again.
	maxLoanRounds = 16
	// maxLoanWaiters bounds the checks at this node that wait for loans to one
	// subject, and maxAllLoanWaiters those that wait for loans to any.
	maxLoanWaiters, maxAllLoanWaiters = 16, 4096
	// noWaitPause is how long checks do not wait for loans to a subject after the
	// regions had nothing to lend.
	noWaitPause = time.Second
	// minCallerBackoff and maxCallerBackoff bound how long callers are asked to
	// stay away.
	minCallerBackoff, maxCallerBackoff = time.Second, time.Minute
	// maxShortages bounds the subjects that this node remembers as short of share.
	maxShortages = 16_384
)

// backoff says how long answers ask callers to stay away from a subject while
// attempts to get more for the subject bring nothing.
type backoff struct {
	wait  time.Duration // zero if the last attempt brought something, or if there was none
	until int64         // on the steady clock; a failed attempt before it changes nothing
}

// recordFailure records an attempt that brought nothing. If the last wait is
// over, the next one is twice as long; if it is long over, minCallerBackoff.
func (p *backoff) recordFailure(steady int64) {
	passed := steady - p.until
	switch {
	case p.wait == 0 || passed > int64(maxCallerBackoff+2*p.wait): // the last attempt is long ago
		p.wait = minCallerBackoff
	case passed >= 0:
		p.wait = min(2*p.wait, maxCallerBackoff)
	default:
		return
	}
	p.until = steady + int64(p.wait)
}

// shortage is a subject that is short of share.
type shortage struct {
	backoff
	question    *loanQuestion // under way; nil if there is none
	waiters     int
	noWaitUntil int64 // no check waits before then: the regions had nothing to lend
}

// loanQuestion asks an owner to borrow. answer is valid once done is closed.
type loanQuestion struct {
	done       chan struct{}
	checkWaits bool // a check was refused: the owner answers once the loan is there
	answer     borrowReply
}

// shortages is what this node knows of subjects that are short of share. Times
// are readings of the steady clock.
type shortages struct {
	paces [paceCells]pace

	mu       sync.Mutex           // guards the rest
	subjects map[uint64]*shortage // by Key.Subject
	waiting  int                  // checks that wait for loans
}

// pace records how fast a limit is used: when this node last looked at how much
// of the limit remains, and how much that was.
type pace struct {
	looked, remaining atomic.Int64
	ownerToldAt       atomic.Int64 // when the owner was last told
}

// claimTurn returns how long ago the time in last is. due means that it is at
// least ownerNoticePause ago, or in the future: steady times of two checks may
// come in the wrong order. claimTurn then sets last to steady. Of several
// callers at the same time, only one finds that it is due.
func claimTurn(last *atomic.Int64, steady int64) (passed time.Duration, due bool) {
	before := last.Load()
	passed = time.Duration(steady - before)
	if passed >= 0 && passed < ownerNoticePause {
		return passed, false
	}

	due = last.CompareAndSwap(before, steady)
	return passed, due
}

// expectedUse returns how much of the limit may be needed within borrowHorizon,
// judging by how fast the limit was used since the last look. It returns 0 if
// the last look was a moment ago, or if the pace is unknown.
func (p *pace) expectedUse(steady, remaining int64) int64 {
	passed, due := claimTurn(&p.looked, steady)
	if !due {
		return 0
	}

	// The pace is unknown if the last look was long ago, or if no less of the limit
	// is left now than then.
	used := p.remaining.Swap(remaining) - remaining
	if passed <= 0 || passed > time.Second || used <= 0 {
		return 0
	}
	return int64(float64(used) * float64(borrowHorizon) / float64(passed))
}

// notifyOwners tells the owners of a's subjects which shares run short.
func (lo *loans) notifyOwners(q *Query, a *Answer) {
	cp := lo.limiter.cluster
	if cp.OtherRegions == nil || a.DecidedBy == ByFallback {
		return
	}

	first := 0
	for i := range a.scratch.match.Hits {
		h := &a.scratch.match.Hits[i]
		if h.Rule.Scope == rules.GlobalScope {
			needs := lo.needsAhead(a, h, first)
			if needs != nil {
				lo.requestBorrow(q, h, needs)
			}
		}
		first += len(h.Limits)
	}
}

// needsAhead returns what is needed of those of h's limits that are short,
// unless the owner was told a moment ago. Their answers begin at index first.
func (lo *loans) needsAhead(a *Answer, h *rules.Hit, first int) (needs []loanNeed) {
	for i := range h.Limits {
		la := &a.Limits[first+i]
		if la.NoRoom || targetAmount(la.Limit) < 1 || !isLoanable(la.Rule, la.Limit) {
			continue
		}

		p := &lo.shortages.paces[(h.Subject.Lo^la.Limit.ID)%paceCells]
		expected := min(p.expectedUse(a.Now.Steady, la.Remaining), la.Limit.WholeCapacity)
		need := loanNeed{limit: la.Limit.ID, expectedUse: expected}
		if !la.Allowed {
			need.cost = a.scratch.ops[first+i].Cost
		}

		if !need.isShort(la.Rule, la.Limit, la.Remaining) {
			continue
		}

		// Claim the turn last, so that only a limit that is short takes it.
		_, due := claimTurn(&p.ownerToldAt, a.Now.Steady)
		if due {
			needs = append(needs, need)
		}
	}

	return needs
}

// decideWithLoan decides q with decide. If q awaits loans and is refused, it
// is decided again whenever a loan has come, for at most loanWait. began is the
// check's steady time: all attempts together take no longer than any other
// check.
func (l *Limiter) decideWithLoan(began int64, q *Query, a *Answer, decide func() error) error {
	err := decide()
	if err != nil || a.Allowed || !q.AwaitsLoan {
		return err
	}
	return l.decideAfterLoan(began, q, a, decide)
}

// decideAfterLoan is the part of decideWithLoan that follows a refusal. It is
// a function of its own because its frame is large, and other checks must fit
// in the small stack of a connection that waits.
func (l *Limiter) decideAfterLoan(began int64, q *Query, a *Answer, decide func() error) error {
	now := time.Now()
	deadline := now.Add(loanWait)

	if a.scratch.deadline.IsZero() {
		passed := time.Duration(l.clock.Now().Steady - began)
		restore := a.addOptions(func(o *options) { o.deadline = now.Add(checkTimeout - replySlack - passed) })
		defer restore()
	}

	for range maxLoanRounds {
		if a.Allowed {
			break
		}
		if !l.awaitLoan(q, a, deadline) {
			a.refreshShareRefusals(l)
			break
		}

		// Time has passed while the check waited, and the rules may have changed.
		if done, err := l.prepare(l.clock.Now(), q, a); err != nil || done {
			return err
		}
		if err := decide(); err != nil {
			return err
		}
	}
	return nil
}

// awaitLoan asks the owner for a loan to the share that has refused the check,
// and waits for that loan. It reports whether to decide the check again. It
// does not wait if another limit refused the check, too.
func (l *Limiter) awaitLoan(q *Query, a *Answer, deadline time.Time) bool {
	cp := l.cluster
	if q.Mode != counters.CheckMode || len(q.Subjects) > 0 || cp == nil ||
		cp.OtherRegions == nil || a.DecidedBy < ByForward {
		return false
	}
	h, needs := a.refusedByShare()
	if h == nil {
		return false
	}
	return cp.loans.await(q, h, needs, a.Now.Steady, deadline)
}

// refusedByShare returns a hit that refused the check, and what the hit needs.
// It returns nil unless only shares of regions have refused the check.
func (a *Answer) refusedByShare() (refused *rules.Hit, needs []loanNeed) {
	first := 0
	for i := range a.scratch.match.Hits {
		h := &a.scratch.match.Hits[i]
		hitLimits := a.Limits[first : first+len(h.Limits)]
		for j := range hitLimits {
			la := &hitLimits[j]
			switch {
			case la.Allowed || la.Rule.Shadow:
			case la.shortShare != regionShare || la.isRegionIsolated:
				return nil, nil
			case refused == nil || refused == h:
				// The check waits for one subject at a time: if another is short, too, the
				// next round waits for it.
				refused = h
				needs = append(needs, loanNeed{limit: la.Limit.ID, cost: a.scratch.ops[first+j].Cost})
			}
		}

		first += len(h.Limits)
	}

	return refused, needs
}

// await waits for a loan of what h's subject needs, until the deadline, and
// reports whether a loan has come. It does not wait if too many checks wait
// already, or if the regions had nothing to lend a moment ago.
func (lo *loans) await(q *Query, h *rules.Hit, needs []loanNeed, steady int64, deadline time.Time) bool {
	ss := &lo.shortages
	sh, ok := ss.join(h.Subject.Hi, steady)
	if !ok {
		return false
	}
	defer ss.leave(sh)

	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		question := lo.requestBorrow(q, h, needs)
		if question == nil {
			return false
		}
		select {
		case <-question.done:
		case <-timer.C:
			return false
		}
		// Only for a question with checkWaits does the owner wait for the loan before
		// it answers. After any other answer, ask again.
		if question.checkWaits {
			return question.answer.gotMore && !question.answer.noneToLend
		}
	}
}

// join counts a check that waits for a loan to the subject, if one more may.
func (ss *shortages) join(subject uint64, steady int64) (*shortage, bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	sh := ss.shortageOf(subject)
	if sh == nil || steady < sh.noWaitUntil || sh.waiters >= maxLoanWaiters || ss.waiting >= maxAllLoanWaiters {
		return nil, false
	}
	sh.waiters++
	ss.waiting++
	return sh, true
}

// leave ends what join began.
func (ss *shortages) leave(sh *shortage) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	sh.waiters--
	ss.waiting--
}

// shortageOf returns the subject's shortage, and adds one if there is none. It
// returns nil if there is no room. The caller must hold mu.
func (ss *shortages) shortageOf(subject uint64) *shortage {
	sh := ss.subjects[subject]
	if sh != nil {
		return sh
	}

	if len(ss.subjects) >= maxShortages {
		for other, sh := range ss.subjects {
			if !sh.isBusy() {
				delete(ss.subjects, other)
				break
			}
		}
	}

	if len(ss.subjects) >= maxShortages {
		return nil
	}

	sh = &shortage{}
	ss.subjects[subject] = sh
	return sh
}

// isBusy reports whether a question is under way, or a check waits.
func (sh *shortage) isBusy() bool { return sh.question != nil || sh.waiters > 0 }

// requestBorrow tells the owner of h's subject what is needed, unless a question about
// it is under way. It returns the question; nil if there is no owner or no room.
func (lo *loans) requestBorrow(q *Query, h *rules.Hit, needs []loanNeed) *loanQuestion {
	cp := lo.limiter.cluster
	ss := &lo.shortages
	subject := h.Subject.Hi // h is valid only until its check ends
	route := cp.Ownership.Route(ring.PartitionOf(subject))
	here := route.Location == partitions.Here
	if !here && (route.Location != partitions.Elsewhere || route.Owner.IsZero() || route.Owner == cp.Self) {
		return nil
	}

	isWaiting := func(need loanNeed) bool { return need.cost > 0 }
	sh, question, isNew := ss.beginQuestion(subject, slices.ContainsFunc(needs, isWaiting))
	if !isNew {
		return question
	}

	body := borrowRequest{subjectRef: subjectRef{version: lo.limiter.version(), Rule: h.Rule.Name,
		Key: subjectKey(h, q)}, needs: needs}
	if here {
		lo.borrow(&body, func(answer borrowReply) { lo.acceptLoanAnswer(subject, sh, answer) })
		return question
	}
	cp.Peers.Go(route.Owner, MethodBorrow, wire.Encode(nil, &body), loanWait, func(reply []byte, err error) {
		var answer borrowReply
		if err == nil {
			err = wire.Decode(reply, &answer, "answer about a loan")
		}
		if err != nil {
			// The checks that wait are woken all the same, and stay refused.
			answer = borrowReply{}
		}
		lo.acceptLoanAnswer(subject, sh, answer)
	})
	return question
}

// beginQuestion returns the question about a subject that is under way, or adds
// one. If isNew, the caller must ask the owner. Without room, the question is nil.
func (ss *shortages) beginQuestion(
	subject uint64, checkWaits bool,
) (sh *shortage, question *loanQuestion, isNew bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	sh = ss.shortageOf(subject)
	if sh == nil || sh.question != nil {
		if sh != nil {
			question = sh.question
		}
		return sh, question, false
	}
	sh.question = &loanQuestion{done: make(chan struct{}), checkWaits: checkWaits}
	return sh, sh.question, true
}

// acceptLoanAnswer records the answer to the question about the subject, and wakes
// the checks that wait for it.
func (lo *loans) acceptLoanAnswer(subject uint64, sh *shortage, answer borrowReply) {
	cp := lo.limiter.cluster
	now := lo.limiter.clock.Now().Steady
	if answer.gotMore {
		// Forget the remembered refusals before the checks wake: they would refuse the
		// checks again. The owner's own message to forget them may be late.
		cp.leases.held.Forget(cp.Boottime(), subject, true)
	}

	lo.shortages.mu.Lock()
	defer lo.shortages.mu.Unlock()
	question := sh.question
	sh.question = nil
	question.answer = answer
	switch {
	case answer.noneToLend:
		sh.noWaitUntil = now + int64(noWaitPause)
		sh.backoff = backoff{wait: answer.callerBackoff, until: now + int64(answer.callerBackoff)}
	case answer.gotMore:
		sh.backoff = backoff{}
	}
	close(question.done)
}

// backoffAfterRefusal returns how long callers should stay away from a subject
// that a share refuses. A failed request for a loan lengthens the back-off. If
// no loan is requested, lengthens is set, and this refusal lengthens it.
func (ss *shortages) backoffAfterRefusal(subject uint64, steady int64, lengthens bool) time.Duration {
	ss.mu.Lock()
	defer ss.mu.Unlock()

	sh := ss.subjects[subject]

	// If the owner can be asked, requestBorrow adds the subject.
	if sh == nil && lengthens {
		sh = ss.shortageOf(subject)
	}

	if sh == nil {
		return minCallerBackoff
	}

	if lengthens {
		sh.recordFailure(steady)
	}

	return max(minCallerBackoff, sh.wait)
}

// sweep forgets the subjects that have not been short for a while.
func (ss *shortages) sweep(steady int64) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	maps.DeleteFunc(ss.subjects, func(_ uint64, sh *shortage) bool {
		return !sh.isBusy() && steady > sh.noWaitUntil && steady-sh.until > int64(maxCallerBackoff+2*sh.wait)
	})
}

// findShortShare returns whose share is too small, if la refuses.
func (la *LimitAnswer) findShortShare() shortShare {
	switch {
	case la.Allowed || la.NoRoom || la.Blocked || la.Cost > la.Limit.UndividedCapacity():
		return notShort
	case la.byNodeShare:
		return nodeShare
	case !isLoanable(la.Rule, la.Limit):
		return notShort
	case la.Limit.Kind != algorithms.FixedWindow && la.Cost > la.Limit.Capacity():
		return regionBurst
	}
	return regionShare
}

// boundShareRefusal sets whose share refuses op. If only a share does, it counts
// the refusal (backoffAfterRefusal), and bounds RetryAfter: shares may grow.
func (l *Limiter) boundShareRefusal(a *Answer, la *LimitAnswer, op *counters.Op) {
	cp := l.cluster
	la.shortShare = la.findShortShare()
	la.isRegionIsolated = false
	if cp == nil || la.shortShare == notShort {
		return
	}

	la.isRegionIsolated = la.shortShare != nodeShare && !cp.reachesOtherRegion(a.Set)
	lengthens := la.shortShare == nodeShare || la.shortShare == regionBurst || cp.OtherRegions == nil
	if op.Mode == counters.PeekMode || la.Rule.Shadow {
		lengthens = false // nobody was turned away, so the back-off stays as it is
	}
	wait := cp.loans.shortages.backoffAfterRefusal(op.Key.Subject, a.Now.Steady, lengthens)
	if la.RetryAfter == algorithms.Never || la.RetryAfter > wait {
		la.RetryAfter = wait
	}
}

// refreshShareRefusals does what boundShareRefusal does once more, by what the
// owner has answered since, and finds the tightest limit again.
func (a *Answer) refreshShareRefusals(l *Limiter) {
	a.TightestIndex = -1
	for i := range a.Limits {
		la := &a.Limits[i]
		op := &a.scratch.ops[i]
		if la.shortShare != notShort {
			la.RetryAfter = op.Decision.RetryAfter
			l.boundShareRefusal(a, la, op)
		}
		if a.isTightestSoFar(la) {
			a.TightestIndex = i
		}
	}
}

// reachesOtherRegion reports whether this node reaches another of the regions
// that divide the limits of set.
func (cp *clusterPart) reachesOtherRegion(set *rules.Set) bool {
	versions := set.DividingVersions()
	if versions == nil || cp.OtherRegions == nil {
		return false
	}
	return slices.ContainsFunc(versions.Held[len(versions.Held)-1].Regions, func(name string) bool {
		return name != versions.Region && cp.OtherRegions.Reachable(name)
	})
}

// borrowRequest tells an owner what is needed of a subject's limits. It is the
// body of MethodBorrow.
type borrowRequest struct {
	subjectRef
	needs []loanNeed
}

// loanNeed is what is needed of one limit.
type loanNeed struct {
	limit       uint64 // rules.Limit.ID
	cost        int64  // of a refused check: the owner answers once the loan is there; 0 if none was refused
	expectedUse int64  // what may be needed within borrowHorizon
}

// needOf returns what is needed of the limit with that ID.
func (req *borrowRequest) needOf(limit uint64) loanNeed {
	for _, need := range req.needs {
		if need.limit == limit {
			return need
		}
	}
	return loanNeed{limit: limit}
}

// isShort reports whether the remaining units are too few.
func (need *loanNeed) isShort(rule *rules.Rule, limit *rules.Limit, remaining int64) bool {
	return remaining < max(need.cost, need.expectedUse) || needsLoan(rule, limit, remaining)
}

// Code implements wire.Message.
func (req *borrowRequest) Code(c *wire.Coder) {
	req.subjectRef.Code(c)
	wire.List(c, &req.needs, maxShares, 10, func(need *loanNeed) {
		wire.Fixed(c, &need.limit)
		wire.Number(c, &need.cost, algorithms.MaxAmount)
		wire.Number(c, &need.expectedUse, algorithms.MaxAmount)
	})
}

// borrowReply answers a borrowRequest, after the loans that a check awaits.
type borrowReply struct {
	gotMore       bool          // there is more now
	noneToLend    bool          // no region has anything to lend for a need with a cost
	callerBackoff time.Duration // with noneToLend: how long callers should stay away
}

// add adds the reply for another limit.
func (r *borrowReply) add(other borrowReply) {
	r.gotMore = r.gotMore || other.gotMore
	r.noneToLend = r.noneToLend || other.noneToLend
	r.callerBackoff = max(r.callerBackoff, other.callerBackoff)
}

// Code implements wire.Message.
func (r *borrowReply) Code(c *wire.Coder) {
	c.Flags(&r.gotMore, &r.noneToLend)
	c.Millis(&r.callerBackoff, maxCallerBackoff)
}
