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

// This file is the borrower's side of loans between regions. A node that sees little left of a share notifies the subject's
// owner. The owner borrows in the background, ahead of need: one loan per counter at a time, from the region believed to have
// the most unused. The lender debits a loan before it sends it. The borrower puts it into the counter at most once, and only in
// the window and the lineage it was requested for. A loan lost on the way is lost quota.

const (
	// noticePause is the least time between two notifications about one subject.
	noticePause = 20 * time.Millisecond
	// noticeSlots is how many slots record those times. Subjects that share a slot share its pause.
	noticeSlots = 4096
	// loanTime bounds how long a loan is waited for.
	loanTime = time.Second
	// maxBorrowers bounds the counters whose lenders are remembered; maxLoans bounds the loans under way.
	maxBorrowers = 16_384
	maxLoans     = 1024
	// borrowerLife is how long the lenders of a counter are remembered after it last looked for a loan.
	borrowerLife = time.Minute
	// laterPause is how long to wait before asking again a region that could not lend just now; unknownPause, one that knows no
	// such limit.
	laterPause, unknownPause = 200 * time.Millisecond, time.Second
	// noLenderPause is how long to wait before looking for a lender again.
	noLenderPause = 250 * time.Millisecond
	// awayPause is how long to wait before asking again a region that did not answer.
	awayPause = 2 * time.Second
)

// loans is what this node, as an owner, borrows from other regions and lends to them. Times are readings of the steady clock.
type loans struct {
	l        *Limiter
	notified [noticeSlots]atomic.Int64 // when an owner was last notified
	lending  atomic.Int64              // requests from other regions being answered

	mu       sync.Mutex // guards known, inFlight and away
	known    map[counters.Key]*borrower
	inFlight int
	away     map[string]int64 // regions that did not answer, and until when to leave them alone; at most those with shares
}

// borrower is a counter that borrows.
type borrower struct {
	window    int64
	used      int64 // when it last looked for a lender
	inFlight  bool  // whether a loan is under way
	restUntil int64 // no region is worth asking until then
	from      map[string]*lender
}

// lender is what is known of a region as a lender of one counter in one window.
type lender struct {
	unused int64 // units of its share, when last heard
	after  int64 // it is not asked until then
}

func (ls *loans) init(l *Limiter) {
	ls.l, ls.known, ls.away = l, make(map[counters.Key]*borrower), make(map[string]int64)
}

// noticeDue reports whether to notify the owner of a subject now.
func (ls *loans) noticeDue(subject rules.Hash, steady int64) bool {
	slot := &ls.notified[subject.Lo%noticeSlots]
	last := slot.Load()
	return (steady-last >= int64(noticePause) || steady < last) && slot.CompareAndSwap(last, steady)
}

// notifyOwners notifies the owners of subjects whose share is nearly used.
func (ls *loans) notifyOwners(q *Query, a *Answer) {
	m := ls.l.member
	if m.Far == nil || a.DecidedBy == ByFallback {
		return
	}
	limits := a.Limits
	for i := range a.scratch.match.Hits {
		h := &a.scratch.match.Hits[i]
		own := limits[:len(h.Limits)]
		limits = limits[len(h.Limits):]
		if h.Rule.Scope == rules.GlobalScope && anyShort(own) && ls.noticeDue(h.Subject, a.Now.Steady) {
			ls.notifyOwner(q, h)
		}
	}
}

// anyShort reports whether one of a rule's limits needs a loan.
func anyShort(limits []LimitAnswer) bool {
	for i := range limits {
		la := &limits[i]
		if !la.Full && aim(la.Limit) > 0 && loanable(la.Rule, la.Limit) && (!la.Allowed || short(la.Rule, la.Limit, la.Remaining)) {
			return true
		}
	}
	return false
}

// notifyOwner notifies the owner of h's subject that a share is nearly used. If the message is lost, a later check sends
// another.
func (ls *loans) notifyOwner(q *Query, h *rules.Hit) {
	m := ls.l.member
	r := m.Ownership.Route(ring.PartitionOf(h.Subject.Hi))
	here := r.Place == partitions.Here
	if !here && (r.Place != partitions.Elsewhere || r.Owner.IsZero() || r.Owner == m.Self) {
		return
	}
	n := subjectRef{version: ls.l.version(), Rule: h.Rule.Name, Key: subjectText(h, q)}
	if here {
		ls.borrow(&n)
	} else {
		_ = m.Peers.Send(r.Owner, MethodBorrow, wire.Encode(nil, &n))
	}
}

// borrow requests loans for those limits of an owned subject that are short. It does not wait for them.
func (ls *loans) borrow(n *subjectRef) {
	m := ls.l.member
	if m.Far == nil {
		return
	}
	now := ls.l.clock.Now()
	for _, d := range ls.dividedLimits(n, now) {
		if r := m.Ownership.Route(d.partition); r.Place == partitions.Here && m.Authority() {
			ls.borrowFor(n, &d, now)
		}
	}
}

// loan is a loan under way to a counter here.
type loan struct {
	request  LoanRequest
	region   string
	to       divided
	lineage  uint64
	sent     int64 // on the steady clock
	borrower *borrower
	answered atomic.Bool
}

// borrowFor requests a loan for one limit, unless one is under way or no region has anything to lend.
func (ls *loans) borrowFor(n *subjectRef, d *divided, now algorithms.Now) {
	m := ls.l.member
	f := &loan{to: *d, lineage: m.Ownership.Lineage(d.partition), sent: now.Steady}
	stand := ls.l.table.Loans(now, d.key, &d.limit.Limit)
	if !short(d.rule, d.limit, stand.Remaining) {
		return
	}
	want := stand.Room(m.leases.granted.Returnable(m.Boottime(), d.key.Hi, d.key.Lo))
	if d.limit.Kind == algorithms.FixedWindow {
		want = aim(d.limit) - stand.Remaining
	}
	if want < 1 {
		return
	}
	if f.region, f.borrower = ls.choose(d, stand.Window, now.Steady, m.Far); f.borrower == nil {
		return
	}
	f.request = LoanRequest{subjectRef: *n, limit: d.limit.ID, Window: stand.Window, Want: min(want, algorithms.MaxAmount)}
	f.request.version = d.active.set.Version
	m.Far.Go(f.region, MethodLend, wire.Encode(nil, &f.request), loanTime, func(body []byte, err error) { ls.handleReply(f, body, err) })
}

// choose picks the region believed to have the most unused, and marks a loan as under way. A region not heard from counts as
// having its whole share unused. A region with no share of a fixed window comes last: it may have borrowed more than it needs.
// choose returns no borrower if there is no region to ask, if a loan to the counter is already under way, or if too many loans
// are.
func (ls *loans) choose(d *divided, window, steady int64, far Far) (region string, _ *borrower) {
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
	c := ls.borrower(d.key, window, steady)
	if c.inFlight || ls.inFlight >= maxLoans || steady < c.restUntil {
		return "", nil
	}
	most := int64(0)
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		unused, after := shares[name], int64(0)
		if heard := c.from[name]; heard != nil {
			unused, after = heard.unused, heard.after
		}
		if max(after, ls.away[name]) <= steady && unused > most {
			region, most = name, unused
		}
	}
	if most == 0 {
		c.restUntil = steady + int64(noLenderPause)
		return "", nil
	}
	c.inFlight = true
	ls.inFlight++
	return region, c
}

// borrower returns what is known of a counter in a window, and forgets what it knew of any other window. The caller holds mu.
func (ls *loans) borrower(k counters.Key, window, steady int64) *borrower {
	c := ls.known[k]
	if c == nil {
		if len(ls.known) >= maxBorrowers {
			ls.dropOne()
		}
		c = &borrower{window: window}
		ls.known[k] = c
	}
	if c.window != window {
		c.window, c.from, c.restUntil = window, nil, 0
	}
	c.used = steady
	return c
}

// dropOne forgets some counter without a loan under way. There is one, because maxLoans is less than maxBorrowers. The caller
// holds mu.
func (ls *loans) dropOne() {
	for k, c := range ls.known {
		if !c.inFlight {
			delete(ls.known, k)
			return
		}
	}
}

// sweep forgets counters that no longer ask for loans.
func (ls *loans) sweep(steady int64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	maps.DeleteFunc(ls.known, func(_ counters.Key, c *borrower) bool { return !c.inFlight && steady-c.used > int64(borrowerLife) })
	maps.DeleteFunc(ls.away, func(_ string, until int64) bool { return steady > until })
}

// handleReply handles the answer to a request for a loan, once.
func (ls *loans) handleReply(f *loan, body []byte, err error) {
	if !f.answered.CompareAndSwap(false, true) {
		return
	}
	m, now := ls.l.member, ls.l.clock.Now()
	var r LoanReply
	if err == nil {
		err = wire.Decode(body, &r, "reply to a request for a loan")
	}
	if err != nil {
		m.figures.loansFailed.Add(1)
	} else if r.status == loanMade {
		ls.creditLoan(f, &r, now)
	}
	ls.recordAnswer(f, &r, err != nil, now.Steady)
}

// recordAnswer records what a region's answer, or its silence, means for the next choice.
func (ls *loans) recordAnswer(f *loan, r *LoanReply, failed bool, steady int64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.inFlight--
	f.borrower.inFlight = false
	if failed {
		ls.away[f.region] = steady + int64(awayPause)
		return
	}
	delete(ls.away, f.region)
	if f.borrower.window != f.request.Window {
		return
	}
	heard := &lender{unused: r.unused}
	switch {
	case r.status == loanLater:
		heard.after = steady + int64(laterPause)
		heard.unused = max(1, r.unused)
	case r.status == loanUnknown:
		heard.after = steady + int64(unknownPause)
		heard.unused = 1
	case f.to.limit.Kind == algorithms.TokenBucket:
		heard.unused = max(1, r.unused) // it refills
		if r.status == loanNothing {
			heard.after = steady + int64(f.to.life())
		}
	case r.status == loanNothing:
		heard.unused = 0 // nor will there be any in this window
	}
	if f.borrower.from == nil {
		f.borrower.from = make(map[string]*lender)
	}
	f.borrower.from[f.region] = heard
}

// creditLoan puts a loan into its counter if that is still the counter the loan was requested for. It takes no more than it
// requested. For a token bucket it also leaves out what may have refilled at the lender since.
func (ls *loans) creditLoan(f *loan, r *LoanReply, now algorithms.Now) {
	m := ls.l.member
	amount := min(r.Amount, f.request.Want)
	d, ok := ls.dividedLimit(&f.request.subjectRef, f.request.limit, now)
	if !ok || d.key != f.to.key || !m.Authority() {
		m.figures.lost.Add(amount)
		return
	}
	put := amount
	if d.limit.Kind == algorithms.TokenBucket {
		lender := algorithms.Limit{Amount: r.rate, Window: d.limit.Limit.Window}
		put = max(0, amount-lender.Drained(time.Duration(now.Steady-f.sent)))
	}
	same := func() bool { return m.Ownership.Lineage(d.partition) == f.lineage && f.lineage != 0 }
	out := m.leases.granted.Returnable(m.Boottime(), d.key.Hi, d.key.Lo)
	n, err := ls.l.table.Borrow(now, d.key, &d.limit.Limit, f.request.Window, put, out, same)
	if err != nil {
		n = 0
	}
	m.figures.lost.Add(amount - n)
	if n > 0 {
		m.figures.borrowed.Add(1)
		m.figures.borrowedUnits.Add(n)
		m.leases.forgetEverywhere(forgetMessage{hi: d.key.Hi, room: true})
	}
}
