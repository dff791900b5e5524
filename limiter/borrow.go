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
// owner. A node that sees that little of a share is left tells the owner; see
// shortage.go. The owner borrows in the background, ahead of need: one loan per
// counter at a time, from the region that it believes has the most unused
// quota. The lender debits a loan before it sends it. The borrower credits it
// to the counter at most once, and only in the window and the lineage that it
// requested the loan for. A loan lost in transit is lost quota.

const (
	// loanTimeout bounds how long the borrower waits for a loan.
	loanTimeout = time.Second
	// maxBorrowers bounds the counters whose lenders this node remembers; maxLoans
	// bounds the loans in flight.
	maxBorrowers = 16_384
	maxLoans     = 1024
	// borrowerLife is how long this node remembers a counter's lenders after it
	// last looked for a loan.
	borrowerLife = time.Minute
	// laterPause is how long to wait before asking again a region that had nothing
	// to lend; unknownPause is the same for a region that does not know the limit.
	laterPause, unknownPause = 200 * time.Millisecond, time.Second
	// noLenderPause is how long to wait before looking for a lender again if no
	// region had anything to lend.
	noLenderPause = 250 * time.Millisecond
	// awayPause is how long to wait before asking again a region that did not answer.
	awayPause = 2 * time.Second
	// maxBorrowWaiters bounds the questions that wait for one loan. Each node has
	// one at a time, but may give up and ask again.
	maxBorrowWaiters = 1024
)

// loans tracks what this node, as an owner, borrows from other regions and
// lends to them. Times are readings of the steady clock.
type loans struct {
	limiter *Limiter
	askers  loanAskers
	lending atomic.Int64 // requests from other regions that this node is answering

	mu        sync.Mutex // guards the fields below
	borrowers map[counters.Key]*borrower
	inFlight  int
	// regions that did not answer, and until when not to ask them; at most the regions with shares
	silentUntil map[string]int64
}

// borrower is a counter that borrows.
type borrower struct {
	window      int64
	lastUsed    int64 // when it last looked for a lender
	inFlight    bool  // whether a loan is in flight
	pausedUntil int64 // don't look for a lender before then
	lenders     map[string]*lender
	waiters     borrowWaiters // for the loan in flight; at most maxBorrowWaiters
	patience    patience
}

// lender is what this node knows about a region as a lender to one counter in one window.
type lender struct {
	unused    int64 // units left of its share, as last reported
	notBefore int64 // don't ask it before then
}

func (ls *loans) init(l *Limiter) {
	ls.limiter = l
	ls.borrowers = make(map[counters.Key]*borrower)
	ls.silentUntil = make(map[string]int64)
	ls.askers.subjects = make(map[uint64]*shortage)
}

// borrow requests loans for the limits of an owned subject that are short. It
// does not wait for them: it calls done once they are answered, or at once if
// nothing is under way.
func (ls *loans) borrow(r *borrowRequest, done func(borrowReply)) {
	m := ls.limiter.membership

	// One for this function, so that a loan which is answered at once does not
	// end the wait for those after it.
	w := &borrowWaiter{pending: 1, done: done}
	if m.OtherRegions != nil {
		now := ls.limiter.clock.Now()
		for _, d := range ls.dividedLimits(&r.subjectRef, now) {
			if at := m.Ownership.Route(d.partition); at.Place == partitions.Here && m.Authority() {
				l := &loan{request: LoanRequest{subjectRef: r.subjectRef}, to: d,
					need: r.needOf(d.limit.ID), begun: now.Steady}
				if l.need.cost > 0 {
					ls.borrowFor(l, now, w)
				} else {
					ls.borrowFor(l, now, nil) // nobody waits: it is ahead of need
				}
			}
		}
	}

	ls.finish(w)
}

// borrowWaiter is a node that waits for the loans which it has asked for. The
// fields but done are guarded by loans.mu.
type borrowWaiter struct {
	pending int // loans under way, and borrow itself
	reply   borrowReply
	done    func(borrowReply)
}

// borrowWaiters are those that wait for one loan.
type borrowWaiters []*borrowWaiter

// note adds a result to the waiters' replies.
func (ws borrowWaiters) note(ls *loans, r borrowReply) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, w := range ws {
		w.reply.add(r)
	}
}

// finish notes that one of the things that w waits for is over, and answers w if it was the last.
func (ls *loans) finish(w *borrowWaiter) {
	ls.mu.Lock()
	w.pending--
	over, reply := w.pending == 0, w.reply
	ls.mu.Unlock()

	// Not under the mutex: done takes others, or sends a message.
	if over {
		w.done(reply)
	}
}

// loan is a requested loan to a counter on this node.
type loan struct {
	request  LoanRequest
	region   string
	to       dividedLimit
	need     loanNeed
	begun    int64 // when the need was reported, on the steady clock
	life     counters.Life
	sent     int64 // on the steady clock
	borrower *borrower
	answered atomic.Bool
}

// borrowFor requests a loan for one limit, if it is short and a region may have
// something to lend. w, which may be nil, waits for the loan that is then under
// way.
func (ls *loans) borrowFor(l *loan, now algorithms.Instant, w *borrowWaiter) {
	m := ls.limiter.membership
	d := &l.to

	// Read before the request leaves: what is lent for one life must not be
	// credited in the next.
	l.life = ls.limiter.table.Life(d.partition)
	l.sent = now.Steady

	balance := ls.limiter.table.Loans(now, d.key, &d.limit.Limit)
	if !l.need.isShort(d.rule, d.limit, balance.Remaining) {
		if w != nil {
			// Enough is there by now, so the check is worth another attempt.
			borrowWaiters{w}.note(ls, borrowReply{brought: true})
		}
		return
	}

	// A bucket must have room for the loan, and for what nodes may still give back.
	want := balance.Room(m.leases.granted.Returnable(m.Boottime(), d.key.Subject, d.key.Counter))
	if d.limit.Kind == algorithms.FixedWindow {
		want = max(targetAmount(d.limit), l.need.cost, l.need.ahead) - balance.Remaining
	}
	if want < 1 {
		return
	}

	l.region, l.borrower = ls.chooseLender(d, balance.Window, now.Steady, m.OtherRegions, w)
	if l.borrower == nil {
		return
	}

	l.request.limit = d.limit.ID
	l.request.Window = balance.Window
	l.request.Want = min(want, algorithms.MaxAmount)
	l.request.version = d.active.set.Version
	m.OtherRegions.Go(l.region, MethodLend, wire.Encode(nil, &l.request), loanTimeout,
		func(body []byte, err error) { ls.handleReply(l, body, err) })
}

// chooseLender picks the region believed to have the most unused quota, and
// marks a loan as in flight. A region that has not reported yet is assumed to
// have its whole share unused. A region with no share of a fixed window comes
// last: it may have borrowed more than it needs. It returns a nil borrower if
// there is no region to ask, if a loan to the counter is already in flight, or
// if too many loans are. w waits for the loan that is then in flight, or learns
// that there is none.
func (ls *loans) chooseLender(
	d *dividedLimit, window, steady int64, far OtherRegions, w *borrowWaiter,
) (region string, _ *borrower) {
	shares := d.active.set.Division(d.rule, d.limit)
	delete(shares, d.active.set.Shares().Region)
	maps.DeleteFunc(shares, func(name string, share int64) bool {
		if d.limit.Kind == algorithms.FixedWindow {
			share = max(1, share)
			shares[name] = share
		}
		return share < 1 || !far.Reachable(name)
	})
	ls.mu.Lock()
	defer ls.mu.Unlock()

	b := ls.borrowerOf(d.key, window, steady)
	switch {
	case b.inFlight:
		b.await(w)
		return "", nil
	case ls.inFlight >= maxLoans || steady < b.pausedUntil:
		b.tellVain(w, steady)
		return "", nil
	}

	most := int64(0)

	// In order, so that equals are not chosen by the order of a map.
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		unused, after := shares[name], int64(0)
		if heard := b.lenders[name]; heard != nil {
			unused, after = heard.unused, heard.notBefore
		}
		if max(after, ls.silentUntil[name]) <= steady && unused > most {
			region, most = name, unused
		}
	}

	if most == 0 {
		b.pausedUntil = steady + int64(noLenderPause)
		b.tellVain(w, steady)
		return "", nil
	}

	b.inFlight = true
	ls.inFlight++
	b.await(w)
	return region, b
}

// await adds w, which may be nil, to those that wait for b's loan. The caller holds loans.mu.
func (b *borrower) await(w *borrowWaiter) {
	if w != nil && len(b.waiters) < maxBorrowWaiters {
		w.pending++
		b.waiters = append(b.waiters, w)
	}
}

// tellVain tells w, which may be nil, that there is nothing to borrow. The caller holds loans.mu.
func (b *borrower) tellVain(w *borrowWaiter, steady int64) {
	b.patience.noteVain(steady)
	if w != nil {
		w.reply.add(borrowReply{vain: true, stay: b.patience.stay})
	}
}

// borrowerOf returns the borrower for a counter in a window, creating it if
// needed, and forgets the lenders of any other window. The caller holds mu.
func (ls *loans) borrowerOf(k counters.Key, window, steady int64) *borrower {
	b := ls.borrowers[k]
	if b == nil {
		if len(ls.borrowers) >= maxBorrowers {
			ls.dropIdleBorrower()
		}
		b = &borrower{window: window}
		ls.borrowers[k] = b
	}

	if b.window != window {
		b.window = window
		b.lenders = nil
		b.pausedUntil = 0
		b.patience = patience{}
	}

	b.lastUsed = steady
	return b
}

// dropIdleBorrower drops an arbitrary borrower without a loan in flight. One
// exists, because maxLoans is less than maxBorrowers. The caller holds mu.
func (ls *loans) dropIdleBorrower() {
	for k, b := range ls.borrowers {
		if !b.inFlight {
			delete(ls.borrowers, k)
			return
		}
	}
}

// sweep drops the borrowers that no longer look for loans, and the regions that may be asked again.
func (ls *loans) sweep(steady int64) {
	ls.askers.sweep(steady)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	maps.DeleteFunc(ls.borrowers,
		func(_ counters.Key, b *borrower) bool { return !b.inFlight && steady-b.lastUsed > int64(borrowerLife) })
	maps.DeleteFunc(ls.silentUntil, func(_ string, until int64) bool { return steady > until })
}

// handleReply handles the first answer to a loan request and ignores any other.
func (ls *loans) handleReply(l *loan, body []byte, err error) {
	if !l.answered.CompareAndSwap(false, true) {
		return
	}

	m, now := ls.limiter.membership, ls.limiter.clock.Now()
	var r LoanReply
	if err == nil {
		err = wire.Decode(body, &r, "reply to a request for a loan")
	}

	brought := int64(0)
	if err != nil {
		m.counts.loansFailed.Add(1)
	} else if r.status == loanMade {
		brought = ls.creditLoan(l, &r, now)
	}

	// Only after the credit: once the loan counts as over, another one may
	// begin, and must see what this one has brought.
	waiters := ls.recordAnswer(l, &r, err != nil, brought > 0, now.Steady)

	next := l.again(ls, now)
	switch {
	case brought > 0:
		// Only for aheadSpan: by then the need must have been reported anew.
		if next != nil && next.need.ahead > 0 && now.Steady-next.begun < int64(aheadSpan) {
			ls.borrowFor(next, now, nil)
		}
		waiters.note(ls, borrowReply{brought: true})

	case next != nil && (err != nil || r.status != loanMade):
		ls.borrowFromNext(next, now, waiters)
	}

	// Last: a waiter that has joined the next loan must not be answered between
	// the two.
	for _, w := range waiters {
		ls.finish(w)
	}
}

// again returns another request for the same need, if this node still owns the
// counter; nil otherwise.
func (l *loan) again(ls *loans, now algorithms.Instant) *loan {
	d, ok := ls.dividedLimit(&l.request.subjectRef, l.to.limit.ID, now)
	if !ok || d.key != l.to.key || !ls.limiter.membership.Authority() {
		return nil
	}
	return &loan{request: LoanRequest{subjectRef: l.request.subjectRef}, to: d, need: l.need, begun: l.begun}
}

// borrowFromNext asks the next region, after one that lent nothing. The waiters wait for it, too.
func (ls *loans) borrowFromNext(l *loan, now algorithms.Instant, waiters borrowWaiters) {
	ls.borrowFor(l, now, nil)
	for _, w := range waiters {
		if next := l.again(ls, now); next != nil {
			ls.borrowFor(next, now, w) // joins the loan that has just begun, or learns that there is none
		}
	}
}

// recordAnswer records for the next choice what a region answered, or that it
// did not. It returns those that wait for the answer.
func (ls *loans) recordAnswer(loan *loan, r *LoanReply, failed, brought bool, steady int64) borrowWaiters {
	ls.mu.Lock()
	defer ls.mu.Unlock()

	b := loan.borrower
	waiters := b.waiters
	ls.inFlight--
	b.inFlight, b.waiters = false, nil

	if brought {
		b.patience = patience{}
	}

	if failed {
		ls.silentUntil[loan.region] = steady + int64(awayPause)
		return waiters
	}

	delete(ls.silentUntil, loan.region)

	// What a region had in another window says nothing about this one.
	if b.window == loan.request.Window {
		b.noteLender(loan, r, steady)
	}

	return waiters
}

// noteLender records what a region answered in b's window. The caller holds loans.mu.
func (b *borrower) noteLender(loan *loan, r *LoanReply, steady int64) {
	heard := &lender{unused: r.unused}
	switch {
	case r.status == loanLater:
		// At least 1 unused, or chooseLender would never ask it again.
		heard.notBefore = steady + int64(laterPause)
		heard.unused = max(1, r.unused)
	case r.status == loanUnknown:
		heard.notBefore = steady + int64(unknownPause)
		heard.unused = 1
	case loan.to.limit.Kind == algorithms.TokenBucket:
		heard.unused = max(1, r.unused) // it refills
		if r.status == loanNothing {
			heard.notBefore = steady + int64(loan.to.reportLife())
		}
	case r.status == loanNothing:
		heard.unused = 0 // and will stay so until the window ends
	}

	if b.lenders == nil {
		b.lenders = make(map[string]*lender)
	}

	b.lenders[loan.region] = heard
}

// creditLoan credits a loan to its counter, if that is still the counter that
// requested it. It credits no more than was requested. For a token bucket it
// also leaves out what may have refilled at the lender since. It returns what
// it credited.
func (ls *loans) creditLoan(loan *loan, r *LoanReply, now algorithms.Instant) int64 {
	m := ls.limiter.membership
	amount := min(r.Amount, loan.request.Want)

	// The rules may have changed while the loan was on its way.
	d, ok := ls.dividedLimit(&loan.request.subjectRef, loan.request.limit, now)
	if !ok || d.key != loan.to.key || !m.Authority() {
		m.counts.unitsLost.Add(amount)
		return 0
	}

	credit := amount
	if d.limit.Kind == algorithms.TokenBucket {
		lender := algorithms.Limit{Amount: r.rate, Window: d.limit.Limit.Window}
		credit = max(0, amount-lender.Drained(time.Duration(now.Steady-loan.sent)))
	}

	leasedOut := m.leases.granted.Returnable(m.Boottime(), d.key.Subject, d.key.Counter)
	n, err := ls.limiter.table.Borrow(now, d.key, &d.limit.Limit, loan.request.Window, credit, leasedOut, loan.life)
	if err != nil {
		n = 0
	}

	m.counts.unitsLost.Add(amount - n)

	if n > 0 {
		m.counts.borrowed.Add(1)
		m.counts.borrowedUnits.Add(n)

		// Otherwise nodes would go on refusing by what the owner said before
		// the loan.
		m.leases.forgetEverywhere(forgetMessage{subject: d.key.Subject, refusalsOnly: true})
	}

	return n
}
