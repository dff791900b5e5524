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
)

// This file is the borrower's side of loans between regions, at the subject's
// owner. When little of a share is left, the node that notices tells the owner;
// see shortage.go. The owner borrows in the background, ahead of need: one loan
// per counter at a time, from the region that it believes has the most unused
// quota.
//
// The lender debits a loan before it answers. The borrower credits the loan to
// the counter at most once, and only in the window and the life for which it
// requested the loan. If a loan is lost on the way, its quota is lost.

const (
	// loanTimeout bounds how long the borrower waits for a loan.
	loanTimeout = time.Second
	// maxBorrowers bounds the counters whose lenders this node remembers; maxLoans
	// bounds the loans in flight.
	maxBorrowers = 16_384
	maxLoans     = 1024
	// borrowerLife is how long this node remembers a counter's lenders after the
	// counter last needed a loan.
	borrowerLife = time.Minute
	// laterPause is how long to wait before asking again a region that can't lend
	// yet; unknownPause is the same for a region that does not know the limit.
	laterPause, unknownPause = 200 * time.Millisecond, time.Second
	// noLenderPause is how long to wait before looking for a lender again if no
	// region could be asked.
	noLenderPause = 250 * time.Millisecond
	// silentPause is how long to wait before asking again a region that did not answer.
	silentPause = 2 * time.Second
	// maxBorrowWaiters bounds the questions that wait for one loan. Each node asks
	// one question at a time, but may give up and ask again.
	maxBorrowWaiters = 1024
)

// loans tracks what this node, as an owner, borrows from other regions and
// lends to them. Times are readings of the steady clock.
type loans struct {
	limiter   *Limiter
	shortages shortages
	lending   atomic.Int64 // requests from other regions that this node is answering

	mu        sync.Mutex // guards the fields below
	borrowers map[counters.Key]*borrower
	inFlight  int
	// silentUntil says, for each region that did not answer, until when not to ask
	// it. Only regions that divide limits are in it.
	silentUntil map[string]int64
}

// borrower is a counter that borrows.
type borrower struct {
	window        int64
	lastUsed      int64 // when it last looked for a lender
	inFlight      bool  // whether a loan is in flight
	pausedUntil   int64 // don't look for a lender before then
	lenders       map[string]*lender
	waiters       borrowWaiters // for the loan in flight; at most maxBorrowWaiters
	callerBackoff backoff       // how long callers should stay away, as long as no region lends
}

// lender is what this node knows about a region as a lender to one counter in one window.
type lender struct {
	unused    int64 // units left of its share, as last reported
	notBefore int64 // don't ask it before then
}

func (lo *loans) init(l *Limiter) {
	lo.limiter = l
	lo.borrowers = make(map[counters.Key]*borrower)
	lo.silentUntil = make(map[string]int64)
	lo.shortages.subjects = make(map[uint64]*shortage)
}

// borrow requests loans for those limits of a subject that are short, and whose
// counters are here. It does not wait for the loans. It calls done once, when
// the loans that a check needs are answered, or at once if there are none.
func (lo *loans) borrow(req *borrowRequest, done func(borrowReply)) {
	cp := lo.limiter.cluster

	// pending starts at 1, for this function. Otherwise a loan that is answered at
	// once would end the wait before the other loans have begun.
	bw := &borrowWaiter{pending: 1, done: done}

	if cp.OtherRegions != nil {
		now := lo.limiter.clock.Now()
		for _, d := range lo.dividedLimits(&req.subjectRef, now) {
			at := cp.Ownership.Route(d.partition)
			if at.Location == partitions.Here && cp.Authority() {
				ln := &loan{request: LoanRequest{subjectRef: req.subjectRef}, target: d,
					need: req.needOf(d.limit.ID), neededSince: now.Steady}

				if ln.need.cost > 0 {
					lo.borrowFor(ln, now, bw)
				} else {
					lo.borrowFor(ln, now, nil) // nobody waits: it is ahead of need
				}
			}
		}
	}

	lo.finishOne(bw)
}

// borrowWaiter is a question of a node that waits for loans. loans.mu guards all
// fields but done.
type borrowWaiter struct {
	pending int // how many loans are under way, plus 1 while borrow runs
	reply   borrowReply
	done    func(borrowReply)
}

// borrowWaiters are those that wait for one loan.
type borrowWaiters []*borrowWaiter

// addResult adds a result to the waiters' replies.
func (ws borrowWaiters) addResult(lo *loans, r borrowReply) {
	lo.mu.Lock()
	defer lo.mu.Unlock()
	for _, bw := range ws {
		bw.reply.add(r)
	}
}

// finishOne records that one of what bw waits for is over: a loan, or borrow
// itself. After the last, it answers bw.
func (lo *loans) finishOne(bw *borrowWaiter) {
	lo.mu.Lock()
	bw.pending--
	over := bw.pending == 0
	reply := bw.reply
	lo.mu.Unlock()

	// Answer without the mutex: done takes other mutexes, or sends a message.
	if over {
		bw.done(reply)
	}
}

// loan is a requested loan to a counter on this node.
type loan struct {
	request     LoanRequest
	region      string
	target      dividedLimit
	need        loanNeed
	neededSince int64 // when the need was reported, on the steady clock
	life        counters.Life
	sent        int64 // on the steady clock
	borrower    *borrower
	answered    atomic.Bool
}

// borrowFor requests a loan for one limit, if the limit is short and a region may
// have something to lend. bw then waits for that loan, or for one that is under
// way to the same limit already. bw may be nil.
func (lo *loans) borrowFor(ln *loan, now algorithms.Instant, bw *borrowWaiter) {
	cp := lo.limiter.cluster
	d := &ln.target

	// Read the life before the request leaves: what is lent for one life must not
	// be credited in the next.
	ln.life = lo.limiter.table.Life(d.partition)
	ln.sent = now.Steady

	balance := lo.limiter.table.Loans(now, d.key, &d.limit.Limit)
	if !ln.need.isShort(d.rule, d.limit, balance.Remaining) {
		if bw != nil {
			// The counter has enough by now, so the check is worth another attempt.
			borrowWaiters{bw}.addResult(lo, borrowReply{gotMore: true})
		}
		return
	}

	// A bucket is filled up, but must keep room for what nodes may still give back.
	// A fixed window has no such bound, because loans widen it.
	want := balance.Room(cp.leases.granted.Returnable(cp.Boottime(), d.key.Subject, d.key.Counter))
	if d.limit.Kind == algorithms.FixedWindow {
		want = max(targetAmount(d.limit), ln.need.cost, ln.need.expectedUse) - balance.Remaining
	}
	if want < 1 {
		return // the counter has no room; bw learns nothing, and its check stays refused
	}

	if !lo.beginLoan(ln, balance.Window, bw) {
		return
	}

	ln.request.limit = d.limit.ID
	ln.request.Window = balance.Window
	ln.request.Want = min(want, algorithms.MaxAmount)
	ln.request.version = d.active.set.Version
	cp.OtherRegions.Go(ln.region, MethodLend, wire.Encode(nil, &ln.request), loanTimeout,
		func(body []byte, err error) { lo.handleLoanReply(ln, body, err) })
}

// beginLoan chooses the region to ask for ln, and marks the loan as in flight.
// It returns false if there is no region to ask now, if a loan to the counter is
// in flight already, or if too many loans are. If a loan to the counter is in
// flight when beginLoan returns, bw waits for it, unless too many wait already
// (see addWaiter). Otherwise bw learns that there is none.
func (lo *loans) beginLoan(ln *loan, window int64, bw *borrowWaiter) bool {
	shares := lo.lendingShares(&ln.target)
	steady := ln.sent

	lo.mu.Lock()
	defer lo.mu.Unlock()

	br := lo.borrowerOf(ln.target.key, window, steady)
	if br.inFlight {
		br.addWaiter(bw)
		return false
	}
	if lo.inFlight >= maxLoans || steady < br.pausedUntil {
		br.tellNoneToLend(bw, steady)
		return false
	}

	ln.region = lo.lenderWithMost(br, shares, steady)
	if ln.region == "" {
		br.pausedUntil = steady + int64(noLenderPause)
		br.tellNoneToLend(bw, steady)
		return false
	}

	ln.borrower = br
	br.inFlight = true
	lo.inFlight++
	br.addWaiter(bw)
	return true
}

// lendingShares returns, by name, the shares of the regions that can be asked
// for a loan to d. For a fixed window, a region without a share counts as having
// 1: it may have borrowed more than it needs, but is asked last.
func (lo *loans) lendingShares(d *dividedLimit) map[string]int64 {
	shares := d.active.set.WindowShares(d.rule, d.limit)
	delete(shares, d.active.set.DividingVersions().Region)
	for name, share := range shares {
		if d.limit.Kind == algorithms.FixedWindow {
			share = max(1, share)
			shares[name] = share
		}
		if share < 1 || !lo.limiter.cluster.OtherRegions.Reachable(name) {
			delete(shares, name)
		}
	}
	return shares
}

// lenderWithMost returns the region of shares that is believed to have the most
// unused quota, or "" if none may be asked now. A region that has not reported
// yet is assumed to have its whole share unused. The caller must hold mu.
func (lo *loans) lenderWithMost(br *borrower, shares map[string]int64, steady int64) (region string) {
	most := int64(0)

	// Go by name: the order of a map must not choose between equals.
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		unused := shares[name]
		notBefore := lo.silentUntil[name]
		known := br.lenders[name]
		if known != nil {
			unused = known.unused
			notBefore = max(notBefore, known.notBefore)
		}

		if notBefore <= steady && unused > most {
			region = name
			most = unused
		}
	}
	return region
}

// addWaiter adds bw, which may be nil, to those that wait for the borrower's
// loan. If maxBorrowWaiters wait already, bw does not wait. It learns nothing,
// and its check stays refused. The caller must hold loans.mu.
func (br *borrower) addWaiter(bw *borrowWaiter) {
	if bw != nil && len(br.waiters) < maxBorrowWaiters {
		bw.pending++
		br.waiters = append(br.waiters, bw)
	}
}

// tellNoneToLend records that there is nothing to borrow, and tells bw, which
// may be nil. The caller must hold loans.mu.
func (br *borrower) tellNoneToLend(bw *borrowWaiter, steady int64) {
	br.callerBackoff.recordFailure(steady)
	if bw != nil {
		bw.reply.add(borrowReply{noneToLend: true, callerBackoff: br.callerBackoff.wait})
	}
}

// borrowerOf returns the borrower for a counter in a window, creating it if
// needed. In a new window, the borrower forgets what it knew of lenders, its
// pause, and how long callers should stay away. The caller must hold mu.
func (lo *loans) borrowerOf(k counters.Key, window, steady int64) *borrower {
	br := lo.borrowers[k]
	if br == nil {
		if len(lo.borrowers) >= maxBorrowers {
			lo.dropSomeBorrower()
		}
		br = &borrower{window: window}
		lo.borrowers[k] = br
	}

	if br.window != window {
		br.window = window
		br.lenders = nil
		br.pausedUntil = 0
		br.callerBackoff = backoff{}
	}

	br.lastUsed = steady
	return br
}

// dropSomeBorrower drops an arbitrary borrower without a loan in flight. One
// exists, because maxLoans is less than maxBorrowers. The caller must hold mu.
func (lo *loans) dropSomeBorrower() {
	for k, br := range lo.borrowers {
		if !br.inFlight {
			delete(lo.borrowers, k)
			return
		}
	}
}

// sweep forgets idle borrowers, and the silence of regions that may be asked again.
func (lo *loans) sweep(steady int64) {
	lo.shortages.sweep(steady)
	lo.mu.Lock()
	defer lo.mu.Unlock()
	maps.DeleteFunc(lo.borrowers,
		func(_ counters.Key, br *borrower) bool {
			return !br.inFlight && steady-br.lastUsed > int64(borrowerLife)
		})
	maps.DeleteFunc(lo.silentUntil, func(_ string, until int64) bool { return steady > until })
}

// handleLoanReply handles the first answer to a loan request and ignores any other.
func (lo *loans) handleLoanReply(ln *loan, body []byte, err error) {
	if !ln.answered.CompareAndSwap(false, true) {
		return
	}

	cp := lo.limiter.cluster
	now := lo.limiter.clock.Now()
	answer := &LoanReply{}
	if err == nil {
		err = wire.Decode(body, answer, "reply to a request for a loan")
	}

	credited := int64(0)
	if err != nil {
		answer = nil
		cp.counts.loansFailed.Add(1)
	} else if answer.status == loanMade {
		credited = lo.creditLoan(ln, answer, now)
	}

	// End the loan only after the credit: the next loan may begin then, and must
	// see what this one has brought.
	waiters := lo.endLoan(ln, answer, credited, now.Steady)

	next := ln.nextRequest(lo, now)

	if credited > 0 {
		// Follow up an expected need for borrowHorizon only. If it lasts longer, it is
		// reported anew.
		if next != nil && next.need.expectedUse > 0 && now.Steady-next.neededSince < int64(borrowHorizon) {
			lo.borrowFor(next, now, nil)
		}
		waiters.addResult(lo, borrowReply{gotMore: true})
	}

	// If a loan was made, but could not be credited, no other region is asked. The
	// waiters learn nothing, and their checks stay refused.
	lentNothing := answer == nil || answer.status != loanMade
	if lentNothing && next != nil {
		lo.borrowFromNext(next, now, waiters)
	}

	// Waiters are answered last, because one that has joined the next loan must
	// wait for that loan, too.
	for _, bw := range waiters {
		lo.finishOne(bw)
	}
}

// nextRequest returns another request for the same need, if this node still
// owns the counter; nil otherwise.
func (ln *loan) nextRequest(lo *loans, now algorithms.Instant) *loan {
	d, ok := lo.dividedLimit(&ln.request.subjectRef, ln.target.limit.ID, now)
	if !ok || d.key != ln.target.key || !lo.limiter.cluster.Authority() {
		return nil
	}
	return &loan{request: LoanRequest{subjectRef: ln.request.subjectRef}, target: d,
		need: ln.need, neededSince: ln.neededSince}
}

// borrowFromNext asks the next region, after one that lent nothing. The first
// borrowFor begins the loan. With the others, the waiters join this loan, or
// learn that there is none.
func (lo *loans) borrowFromNext(ln *loan, now algorithms.Instant, waiters borrowWaiters) {
	lo.borrowFor(ln, now, nil)
	for _, bw := range waiters {
		next := ln.nextRequest(lo, now)
		if next != nil {
			lo.borrowFor(next, now, bw)
		}
	}
}

// endLoan ends the loan, and records the region's answer for the next choice
// of a lender. answer is nil if the region was silent; credited is what the loan
// brought. endLoan returns those that wait for the answer.
func (lo *loans) endLoan(ln *loan, answer *LoanReply, credited, steady int64) borrowWaiters {
	lo.mu.Lock()
	defer lo.mu.Unlock()

	br := ln.borrower
	waiters := br.waiters
	lo.inFlight--
	br.inFlight = false
	br.waiters = nil

	if credited > 0 {
		br.callerBackoff = backoff{}
	}

	if answer == nil {
		lo.silentUntil[ln.region] = steady + int64(silentPause)
		return waiters
	}

	delete(lo.silentUntil, ln.region)

	// What a region had in another window says nothing about this one.
	if br.window == ln.request.Window {
		br.recordLender(ln, answer, steady)
	}

	return waiters
}

// recordLender records what a region answered in the borrower's window. The
// caller must hold loans.mu.
func (br *borrower) recordLender(ln *loan, r *LoanReply, steady int64) {
	known := &lender{unused: r.unused}
	switch {
	case r.status == loanLater:
		// The region counts as having at least 1 unused, or lenderWithMost would
		// never ask it again.
		known.notBefore = steady + int64(laterPause)
		known.unused = max(1, r.unused)
	case r.status == loanUnknown:
		known.notBefore = steady + int64(unknownPause)
		known.unused = 1
	case ln.target.limit.Kind == algorithms.TokenBucket:
		known.unused = max(1, r.unused) // it refills
		if r.status == loanNothing {
			known.notBefore = steady + int64(ln.target.reportLife())
		}
	case ln.target.limit.ValidUntil != 0 && r.unused == 0:
		// An older version still divides the limit, so the region's share may rise
		// within the window.
		known.notBefore = steady + int64(unknownPause)
		known.unused = 1
	case r.status == loanNothing:
		known.unused = 0 // and will stay so until the window ends
	}

	if br.lenders == nil {
		br.lenders = make(map[string]*lender)
	}

	br.lenders[ln.region] = known
}

// creditLoan credits a loan to the counter that requested it, if the rules still
// have the counter and this node still owns it. It credits no more than was
// requested. For a token bucket, it leaves out what may have refilled at the
// lender since the request: otherwise both regions would have that. It returns
// what it credited.
func (lo *loans) creditLoan(ln *loan, r *LoanReply, now algorithms.Instant) int64 {
	cp := lo.limiter.cluster
	amount := min(r.Amount, ln.request.Want)

	// The rules may have changed while the loan was on its way.
	d, ok := lo.dividedLimit(&ln.request.subjectRef, ln.request.limit, now)
	if !ok || d.key != ln.target.key || !cp.Authority() {
		cp.counts.unitsLost.Add(amount)
		return 0
	}

	credit := amount
	if d.limit.Kind == algorithms.TokenBucket {
		lender := algorithms.Limit{Amount: r.rate, Window: d.limit.Limit.Window}
		credit = max(0, amount-lender.Drained(time.Duration(now.Steady-ln.sent)))
	}

	leasedOut := cp.leases.granted.Returnable(cp.Boottime(), d.key.Subject, d.key.Counter)
	credited, err := lo.limiter.table.CreditLoan(now, d.key, &d.limit.Limit, ln.request.Window, credit, leasedOut, ln.life)
	if err != nil {
		credited = 0
	}

	cp.counts.unitsLost.Add(amount - credited)

	if credited > 0 {
		cp.counts.borrowed.Add(1)
		cp.counts.borrowedUnits.Add(credited)

		// Nodes must forget the owner's refusals from before the loan, or they would
		// go on refusing.
		cp.leases.broadcastForget(forgetMessage{subject: d.key.Subject, refusalsOnly: true})
	}

	return credited
}
