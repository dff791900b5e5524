package limiter

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

// verb says what a change does.
type verb uint8

const (
	verbUsage       verb = iota // read the usage
	verbAdjust                  // debit costs, which may be negative
	verbReset                   // make the counters fresh
	verbList                    // list the inline counters
	verbClear                   // make all inline counters fresh
	verbGiveBack                // as verbAdjust with costs below zero; leases stay
	verbCharge                  // debit what a settlement takes beyond its reservation
	verbResetLimits             // make the counters of some limits fresh; blocks stay
	verbUnblock                 // lift the blocks that refusals began; the limits stay
	verbs
)

var verbNames = [verbs]string{"usage of", "adjust", "reset", "list", "reset", "give back to", "charge", "reset", "unblock"}

// reset returns which counters of a change with this verb become fresh.
func (v verb) reset() counters.Reset {
	switch v {
	case verbReset:
		return counters.ResetSubject
	case verbResetLimits:
		return counters.ResetLimits
	case verbUnblock:
		return counters.ResetBlocks
	}
	return counters.NoReset
}

// maxListed bounds the counters of one subject that a change lists, or clears at a time.
const maxListed = 1024

// change is a request of an operator, a caller or a settlement to read or change
// one subject's counters, and the result: the usage of each limit. A change that
// modifies counters begins with a ticket; apply drops a ticket that is not needed.
type change struct {
	verb   verb
	hops   int
	ticket *ticket
	ops    []counters.Op // their decisions are part of the result
	// limitOps, blockOps and loanOps are parts of ops, on the node where newChange
	// made the change. loanOps has two ops for each loanable limit: what it has lent
	// and what it has borrowed.
	limitOps, blockOps, loanOps []counters.Op

	madeAt int64        // for verbCharge: when the reservation was made, in Unix nanoseconds; its limits are as old
	leased []leasedPart // by op; part of the result
	// slotHolders, by op, is part of the result of verbUsage.
	slotHolders []heldSlots
	// applied, by op, is part of the result of an adjustment.
	applied []int64
	bill    *billCorrection // of an adjustment: the bill to correct by what was applied; may be nil
	taken   *takenCosts     // for verbCharge by a late settlement: what the reservation took; has ops
	local   bool            // of a `consistency: local` rule: concerns only this node's counters; never sent
	// inlineSubject is for verbList and verbClear, in place of ops: an inline
	// subject whose limits are not known.
	inlineSubject uint64
	counters      counterIDs // the result of verbList
}

// counterIDs holds the Key.Counter of a subject's counters.
type counterIDs []uint64

// Code implements wire.Message.
func (ids *counterIDs) Code(c *wire.Coder) {
	wire.List(c, (*[]uint64)(ids), maxListed, 8, func(counter *uint64) { wire.Fixed(c, counter) })
}

// coversAllCounters reports whether the change applies to all inline counters of its subject.
func (ch *change) coversAllCounters() bool { return ch.verb == verbList || ch.verb == verbClear }

// subject returns the Key.Subject of the change's subject.
func (ch *change) subject() uint64 {
	if ch.coversAllCounters() {
		return ch.inlineSubject
	}
	return ch.ops[0].Key.Subject
}

// anyCounter returns the Key.Counter of one of the counters of the change's subject.
func (ch *change) anyCounter() uint64 {
	if ch.coversAllCounters() {
		return counters.InlineCounter(0)
	}
	return ch.ops[0].Key.Counter
}

// Code implements wire.Message.
func (ch *change) Code(w *wire.Coder) {
	wire.Number(w, &ch.verb, int64(verbs-1))
	wire.Number(w, &ch.hops, maxHops)
	wire.Optional(w, &ch.ticket, func(tk *ticket) { tk.Code(w) })
	w.Require(ch.hops > 0 && (ch.ticket == nil || ch.verb != verbUsage && ch.verb != verbList))
	if ch.coversAllCounters() {
		wire.Fixed(w, &ch.inlineSubject)
		return
	}
	if ch.verb == verbCharge && ch.codeCharge(w) {
		return
	}

	if ch.verb == verbAdjust {
		wire.Optional(w, &ch.bill, func(bi *billCorrection) { bi.code(w) })
	}

	codeOps(w, &ch.ops, nil, ch.verb == verbAdjust || ch.verb == verbGiveBack || ch.verb == verbCharge)
	w.Require(len(ch.ops) > 0 && countSubjectOps(ch.ops) == len(ch.ops))
	w.Require(ch.bill == nil || len(ch.bill.units) <= len(ch.ops))
}

// codeCharge codes the fields that only a charge has. If the charge is of a late
// settlement, it codes the ops, too, as part of taken.
func (ch *change) codeCharge(w *wire.Coder) (isLate bool) {
	wire.Fixed(w, &ch.madeAt)
	wire.Optional(w, &ch.taken, func(t *takenCosts) { t.code(w) })
	if ch.taken == nil {
		return false
	}
	ch.ops = ch.taken.ops
	w.Require(len(ch.ops) > 0)
	return true
}

// apply carries out the change at the owner of its counters, which may be this
// node, or here if the change is local. It may ask an owner that has already
// carried out the change: the ticket prevents a second one. The error wraps
// ErrNoOwner, ErrNoRoom, ErrRequestIDReused or ErrTooManyRequestIDs.
func (ch *change) apply(ctx context.Context, l *Limiter) error {
	ch.leased = make([]leasedPart, len(ch.ops))
	ch.applied = make([]int64, len(ch.ops))
	ch.slotHolders = make([]heldSlots, len(ch.ops))

	if ch.local && l.cluster != nil {
		return ch.applyLocal(l)
	}

	tk := ch.ticket
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()

	here := func() error {
		// An earlier attempt here may have dropped the ticket.
		ch.ticket = tk

		// If no other node can have carried out the change, and no caller repeats it,
		// the change needs no ticket, and no room for the answer.
		if ch.hops == 0 && tk.isUnneeded() {
			ch.ticket = nil
		}
		return ch.applyHere(ctx, l)
	}
	forward := func(to ring.NodeID) error { return ch.forwardTo(ctx, l, to, tk) }

	return l.doAtOwner(ctx, &ownerRequest{subject: ch.subject(), hops: ch.hops, here: here, there: forward})
}

// forwardTo has another node carry out the change, with the ticket tk: an
// attempt here may have dropped the ticket from the change.
func (ch *change) forwardTo(ctx context.Context, l *Limiter, to ring.NodeID, tk *ticket) error {
	next := *ch
	next.hops++
	next.ticket = tk

	// The ticket counts as sent even if the call fails: the other node may have
	// carried out the change.
	if tk != nil {
		tk.sent = true
	}

	if ch.verb == verbList {
		return l.cluster.request(ctx, to, MethodChange, &next, &ch.counters)
	}

	var list results
	if err := l.cluster.request(ctx, to, MethodChange, &next, &list); err != nil {
		return err
	}
	if !ch.acceptResults(list) {
		return ErrNoOwner
	}
	return nil
}

// applyLocal carries out the change, which is local, on the fallback counters,
// under this node's shares. Afterwards, the ops have the undivided limits again.
func (ch *change) applyLocal(l *Limiter) error {
	if ch.ticket.isUnneeded() {
		ch.ticket = nil
	}

	undivided := slices.Clone(ch.ops)

	for i := range ch.ops {
		if op := &ch.ops[i]; !op.Block {
			op.Limit = l.cluster.shareOf(op.Limit)
		}
	}

	defer func() {
		for i := range ch.ops {
			ch.ops[i].Limit = undivided[i].Limit
		}
	}()

	if ch.verb == verbUsage {
		return ch.readUsage(l, l.clock.Now())
	}

	return ch.amend(l, l.clock.Now())
}

func (ch *change) table(l *Limiter) *counters.Table {
	if ch.local && l.cluster != nil {
		return l.cluster.Fallback
	}
	return l.table
}

// reply returns the reply to the node that requested the change. The change must have been applied.
func (ch *change) reply() wire.Message {
	if ch.verb == verbList {
		return &ch.counters
	}
	return resultsOf(ch)
}

// applyHere carries out the change on the counters here, as their owner or as a
// standalone node. The error is or wraps counters.ErrShut or one of the errors
// of apply.
func (ch *change) applyHere(ctx context.Context, l *Limiter) (err error) {
	switch ch.verb {
	case verbUsage:
		err = ch.withLedgerLocked(l, func() error { return ch.readUsage(l, l.clock.Now()) })
	case verbList:
		err = ch.list(l)
	case verbClear:
		err = ch.clear(ctx, l)
	default:
		err = ch.withLedgerLocked(l, func() error { return ch.amend(l, l.clock.Now()) })
	}

	switch {
	case errors.Is(err, counters.ErrShut):
		return err
	case err == nil:
		ch.broadcastForget(l) // even if authority has ended meanwhile: the change stands
	}

	if l.cluster != nil && !l.cluster.Authority() {
		return ErrNoOwner
	}

	return err
}

// readUsage reads the usage into the change. It fails with counters.ErrShut if
// a counter is not on this node.
func (ch *change) readUsage(l *Limiter, now algorithms.Instant) error {
	for i := range ch.ops {
		op := &ch.ops[i]
		if !ch.table(l).IsOpen(op.Key.Partition()) {
			return counters.ErrShut
		}
		ch.table(l).ReadUsage(now, op)
		ch.slotHolders[i] = l.holdersOf(op, now)
	}
	return nil
}

// list lists the inline counters of the change's subject. It fails with
// counters.ErrShut if they are not on this node.
func (ch *change) list(l *Limiter) error {
	ch.counters = ch.counters[:0]
	for _, op := range l.table.InlineOps(ch.inlineSubject, maxListed) {
		ch.counters = append(ch.counters, op.Key.Counter)
	}

	// Check the gate after listing: if the partition is not open by then, the list
	// may lack counters.
	if !l.table.IsOpen(ring.PartitionOf(ch.inlineSubject)) {
		return counters.ErrShut
	}
	return nil
}

// broadcastForget makes all nodes forget the subject's leases and refusals if
// the change has freed quota: they no longer agree with the counters. After
// verbGiveBack, nodes forget the refusals only.
func (ch *change) broadcastForget(l *Limiter) {
	givesBack := slices.ContainsFunc(ch.ops, func(op counters.Op) bool { return op.Cost < 0 })
	isReset := ch.verb.reset() != counters.NoReset || ch.verb == verbClear
	freesQuota := isReset || (ch.verb == verbAdjust || ch.verb == verbGiveBack) && givesBack
	if l.cluster == nil || !freesQuota {
		return
	}

	subject := ch.subject()
	if ch.verb == verbGiveBack {
		l.cluster.leases.forgetSoon(&l.cluster.leases.forgetNotices,
			forgetMessage{subject: subject, refusalsOnly: true})
		return
	}
	l.cluster.leases.broadcastForget(forgetMessage{subject: subject})
}

// newChange returns a change of every counter of u. The ops are those of its
// limits, of its blocks, and of what its limits have lent and borrowed, in this
// order. Each cost applies to the limits in its unit.
func newChange(v verb, u *Usage, costs []UnitCost) *change {
	ch := &change{verb: v, local: u.Rule.Consistency == rules.Local}
	h := rules.Hit{Rule: u.Rule, Subject: u.Hash}
	for i := range u.Limits {
		limit := u.Limits[i].Limit
		op := counters.Op{Key: counterKey(&h, limit), Limit: &limit.Limit, Lends: isLoanable(u.Rule, limit)}
		for _, cost := range costs {
			if cost.Unit == limit.Unit && limit.Kind != algorithms.Concurrency {
				u.Limits[i].isAdjusted = true
				op.Cost = cost.Cost
			}
		}

		if limit.RefusesAll() {
			op.Cost = 0 // it has no counter
		}

		ch.ops = append(ch.ops, op)
	}

	numLimits := len(ch.ops)

	if numLimits > 0 {
		for _, block := range u.blocks {
			ch.ops = append(ch.ops, counters.Op{Key: counterKey(&h, block), Limit: &block.Limit, Block: true})
		}
	}
	endOfBlocks := len(ch.ops)

	for i := range u.Limits {
		if limit := u.Limits[i].Limit; isLoanable(u.Rule, limit) {
			key := counterKey(&h, limit)
			ch.ops = append(ch.ops, counters.Op{Key: key.LentKey(), Limit: &limit.Limit})
			ch.ops = append(ch.ops, counters.Op{Key: key.BorrowedKey(), Limit: &limit.Limit})
		}
	}

	ch.limitOps = ch.ops[:numLimits]
	ch.blockOps = ch.ops[numLimits:endOfBlocks]
	ch.loanOps = ch.ops[endOfBlocks:]
	return ch
}

// applyChange applies the change, which newChange made from u, and writes the result into u.
func (l *Limiter) applyChange(ch *change, u *Usage) error {
	if len(ch.ops) == 0 && !ch.coversAllCounters() {
		u.At = l.clock.Now()
		return nil
	}
	if err := ch.apply(context.Background(), l); err != nil {
		return fmt.Errorf("%s %q: %w", verbNames[ch.verb], u.Rule.Name, err)
	}
	l.fillUsage(u, ch)
	return nil
}

// fillUsage writes the result of the change, which newChange made from u, into
// u. Every answer about a subject's usage is made here.
func (l *Limiter) fillUsage(u *Usage, ch *change) {
	u.At = l.clock.Now()
	for i := range ch.blockOps {
		u.Blocked = max(u.Blocked, ch.blockOps[i].BlockLeft())
	}
	if u.Blocked > 0 {
		const millisecond = int64(time.Millisecond)
		u.BlockedUntil = (u.At.Wall + int64(u.Blocked) + millisecond - 1) / millisecond
	}
	l.addHandBlock(u)

	loans := ch.loanOps
	for i := range u.Limits {
		lu := &u.Limits[i]
		op := &ch.limitOps[i]
		lu.Decision = op.Decision
		if isLoanable(u.Rule, lu.Limit) {
			lent, borrowed := &loans[0], &loans[1]
			loans = loans[2:]
			lu.Lent = lent.Decision.Used
			lu.Borrowed = borrowed.Decision.Used
		}

		lu.Share = max(0, l.capacityHere(u.Rule, lu.Limit)+lu.NetBorrowed)
		lu.setUsed(&op.Decision, &ch.leased[i])
		lu.Applied = ch.applied[i]
		lu.Holders, lu.NumHolders = ch.slotHolders[i].list, ch.slotHolders[i].all

		if u.Blocked > 0 {
			lu.Decision = whileBlocked(lu.Decision, u.Blocked)
		}
		if u.BlockedUntil == entries.Forever {
			lu.MoreAfter = 0 // there will never be more
		}
	}
}

// capacityHere returns the capacity of a limit where its counter is. For a
// local rule, this is the capacity of this node's share.
func (l *Limiter) capacityHere(rule *rules.Rule, limit *rules.Limit) int64 {
	if rule.Consistency == rules.Local && l.cluster != nil {
		return l.cluster.shareOf(&limit.Limit).Capacity()
	}
	return limit.Capacity()
}

// setUsed divides decision.Used into what checks have used and what is leased.
func (usage *LimitUsage) setUsed(decision *algorithms.Decision, leased *leasedPart) {
	usage.Leased, usage.Estimated = min(leased.units, decision.Used), leased.estimated
	usage.Used = decision.Used - usage.Leased
	usage.Remaining = min(decision.Remaining, max(0, usage.Share-decision.Used))
}

// correctBill bills what the change has applied. Only the node that has carried
// out the change may call it, and not for a repetition: each call bills anew.
func (ch *change) correctBill(l *Limiter, wall int64) {
	bi := ch.bill
	if bi == nil || l.meter == nil {
		return
	}

	key := bi.key
	if key == nil {
		key = []string{} // the rule has no key attributes; nil would mean an unknown key
	}

	subject := rules.Hash{Hi: ch.subject(), Lo: bi.hashLo}
	list := slices.Clone(bi.billedOnly)
	for i, unit := range bi.units {
		if !slices.Contains(bi.units[:i], unit) {
			list = append(list, UnitCost{unit, ch.mostApplied(unit)})
		}
	}

	for _, cost := range list {
		if cost.Cost != 0 && !l.meter.Add(wall, subject, cost.Unit, cost.Cost, 0) {
			l.meter.AddNamed(wall, subject, bi.rule, key, cost.Unit, cost.Cost, 0)
		}
	}
}

// mostApplied returns the most applied to a limit in a unit, up or down.
func (ch *change) mostApplied(unit string) (most int64) {
	for i := range ch.bill.units {
		if ch.bill.units[i] == unit {
			most = furtherFromZero(most, ch.applied[i])
		}
	}
	return most
}

// hashChange hashes what ch asks for, to recognise a request id that is reused
// for something else. ch changes u by costs, whose order does not matter.
func hashChange(ch *change, u *Usage, costs []UnitCost) uint64 {
	n := int64(0)
	unitCosts := []UnitCost(nil)
	for _, cost := range costs {
		if cost.Unit == document.Requests {
			n = cost.Cost
		} else {
			unitCosts = append(unitCosts, cost)
		}
	}

	slices.SortFunc(unitCosts, func(x, y UnitCost) int { return cmp.Compare(x.Unit, y.Unit) })

	b := binary.AppendVarint(nil, int64(ch.verb))
	b = wire.AppendText(b, u.Rule.Name)
	b = wire.AppendText(b, u.limitName)
	b = wire.AppendBool(b, ch.bill != nil)
	b = wire.AppendTexts(b, u.Key)
	b = binary.AppendVarint(b, n)
	for _, cost := range unitCosts {
		b = wire.AppendText(b, cost.Unit)
		b = binary.AppendVarint(b, cost.Cost)
	}

	if u.Namespace != "" {
		b = wire.AppendText(b, u.Namespace)
		for i := range u.Limits {
			limit := u.Limits[i].Limit
			b = binary.LittleEndian.AppendUint64(b, limit.ID)
			b = limit.Append(b, 0)
		}
	}

	return hashContent(b)
}

// withLedgerLocked finds what is leased of each of the change's counters, and
// then calls apply, which reads or changes them. No grant is made and none
// comes back in between, so the grants agree with the counters. The holders'
// reports of what they have left may be up to unspentAge old. Only verbUsage
// and verbAdjust report what is leased; for any other verb, withLedgerLocked
// just calls apply.
func (ch *change) withLedgerLocked(l *Limiter, apply func() error) (err error) {
	cp := l.cluster
	if cp == nil || ch.verb != verbUsage && ch.verb != verbAdjust {
		return apply()
	}

	subject := ch.subject()
	lineage := l.table.Life(ch.ops[0].Key.Partition()).Lineage
	round := cp.leases.askHolders(lineage, subject)
	cp.leases.granted.View(cp.Boottime(), lineage, subject, func(outstanding []localcache.OutstandingGrant) {
		for i := range ch.ops {
			ch.leased[i] = round.leasedOf(outstanding, ch.ops[i].Key.Counter)
		}
		err = apply()
	})
	return err
}
