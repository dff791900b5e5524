package limiter

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

const (
	// maxClockSkew is the assumed maximum difference between the clocks of two
	// nodes, or of one node before and after a restart.
	maxClockSkew = time.Second
	// maxLateness is how long after its end a reservation may be settled, as long
	// as its room is not needed.
	maxLateness = notes.LateSettling * time.Second
	// chargeTimeout is how long a node keeps trying to report a debt to its owner.
	chargeTimeout = 10 * time.Second
	// maxDebtTasks bounds the debts that are tried again.
	maxDebtTasks = 4096
)

// Settlement says how a reservation was settled.
type Settlement struct {
	Costs     []UnitCost // in the units that the caller named; in all units if it named none
	Remaining int64      // of the tightest limit in those units at the home, just afterwards; −1 if there is none
	Late      bool       // the reservation's time was over
	Repeated  bool       // the reservation had been settled before; the other fields are as they were then

	isFinal bool // the reservation is settled; otherwise only its end was carried out
}

// Code implements wire.Message.
func (settled *Settlement) Code(c *wire.Coder) {
	c.Flags(&settled.Repeated, &settled.Late, &settled.isFinal)
	wire.Varint(c, &settled.Remaining)
	codeCosts(c, &settled.Costs)
	c.Require(settled.Remaining >= -1 && settled.Remaining <= algorithms.MaxAmount)
}

// settleVerb says what a settleRequest asks for.
type settleVerb uint8

const (
	settleVerbNow      settleVerb = iota
	settleVerbSchedule            // have the home remember to carry out the reservation's end
	settleVerbExpire              // carry out the end
	settleVerbs
)

// settleRequest asks the home to settle a reservation, or to remember or carry
// out its end. The message carries the reservation only as its signed id.
type settleRequest struct {
	*reservation
	verb     settleVerb
	signedID string
	costs    []UnitCost
	hops     int
	// hadEnded says that the end of the reservation had been carried out. The
	// real costs are then compared with the costs that the end has left charged.
	hadEnded bool
	late     bool // the reservation is settled after its end
}

// maxReservationID bounds an id, in bytes.
const maxReservationID = 64 << 10

// Code implements wire.Message.
func (req *settleRequest) Code(c *wire.Coder) {
	wire.Number(c, &req.verb, int64(settleVerbs-1))
	wire.Number(c, &req.hops, maxHops)
	c.Text(&req.signedID, maxReservationID)
	codeCosts(c, &req.costs)
	c.Require(req.hops > 0)
}

// Settle replaces a reservation's estimate with the real costs. It debits any
// excess and gives back what was not used. A unit that costs does not name
// stays as reserved; empty costs mean that nothing was used.
//
// Only the first settlement of a reservation counts, at whichever node. A
// repetition within a minute gets the same answer. A later one learns only that
// the reservation is settled. Up to ten minutes after its end, a reservation
// can still be settled, unless its room was needed. Such a late settlement
// replaces the costs that [Query.OnExpiry] has left charged, in windows that
// are not over yet and on the bill. The error wraps ErrUnknownReservation,
// ErrNoOwner or ErrTooManyReservations.
func (l *Limiter) Settle(id string, costs []UnitCost) (*Settlement, error) {
	out, err := l.reservations.settle(context.Background(), &settleRequest{signedID: id, costs: costs})
	if err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	return out, nil
}

// settle does what req asks for: first at the owner of the reservation's home,
// and then for those subjects that only this process can settle.
func (rs *reservations) settle(ctx context.Context, req *settleRequest) (*Settlement, error) {
	err := rs.readID(req)
	if err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()

	// The slots are always released, even if the reservation was settled before,
	// or can no longer be settled.
	if req.verb == settleVerbNow && req.slot != nil && req.hops == 0 {
		rs.limiter.release(ctx, req.slot)
	}

	out, err := rs.settleAtHome(ctx, req)
	if err != nil {
		return nil, err
	}

	if req.verb == settleVerbSchedule {
		rs.keepLocalExpiry(req)
	} else {
		rs.settleLocal(req, out)
	}
	return out, nil
}

// readID reads the reservation of req from its id.
func (rs *reservations) readID(req *settleRequest) (err error) {
	key, known := rs.signingKey("reservation")
	if !known {
		return ErrNoOwner // without the key this node can't tell whether id is a reservation
	}

	req.reservation, err = parseReservation(req.signedID, key)
	if err != nil {
		rs.unknown.Add(1)
		return err
	}

	// The signed id says what is charged at the end. The costs that the message
	// carries do not count.
	if req.verb != settleVerbNow {
		req.costs = req.onExpiry.costs()
	}
	return nil
}

// settleAtHome does what req asks for at the owner of its home, here or on
// another node. Asking twice does no harm.
func (rs *reservations) settleAtHome(ctx context.Context, req *settleRequest) (out *Settlement, err error) {
	here := func() (err error) {
		if req.verb == settleVerbSchedule {
			out = &Settlement{Remaining: -1}
			return rs.keepExpiry(rs.limiter.table, req.home(), req)
		}
		out, err = rs.settleHere(req)
		return err
	}

	forward := func(to ring.NodeID) error {
		next := *req
		next.hops++
		out = &Settlement{}
		return rs.limiter.cluster.request(ctx, to, MethodSettle, &next, out)
	}

	home := &ownerRequest{subject: req.home().subject, hops: req.hops, here: here, there: forward}
	err = rs.limiter.doAtOwner(ctx, home)
	return out, err
}

// settleLocal settles what `consistency: local` rules took from req's subjects,
// with the costs by which the home settled the rest (out). Only the
// process that made the reservation can do this. Places in the fallback table
// prevent a second settlement.
func (rs *reservations) settleLocal(req *settleRequest, out *Settlement) {
	actual := *req
	actual.costs = out.Costs
	if len(out.Costs) == 0 {
		return // the caller named none of the reservation's units, or the home has forgotten the costs
	}

	// If the reservation was settled before its end, settle these subjects with the
	// same costs, even if req is to carry out the end.
	if out.isFinal {
		actual.verb = settleVerbNow
	}

	for i := range req.subjects {
		subj := &req.subjects[i]
		if subj.life.Lineage != localLineage || subj.boot != rs.limiter.boot {
			continue
		}

		now := rs.limiter.clock.Now()
		plan := actual.plan(rs.limiter, subj, now)
		plan.Late = plan.Late || out.Late

		outcome, err := rs.limiter.cluster.Fallback.Settle(now, plan)
		switch {
		case err != nil || outcome == counters.NotMade:
			rs.countLost(&actual, subj)
		case i == 0: // the home's owner does not know what remains
			out.Remaining = actual.settlement(plan, outcome == counters.MadeBefore).Remaining
		}
	}
}

// countLost counts the limits of subj that should get cost back, but do not.
func (rs *reservations) countLost(req *settleRequest, subj *reservedSubject) {
	for i := range subj.ops {
		if req.delta(subj.cost(i)) < 0 {
			rs.dropped.Add(1)
		}
	}
}

// settleHere settles req's home in this node's counters, and then the other
// subjects at their owners. The error is counters.ErrShut if this node does not
// own the home, ErrNoOwner if it has no authority, ErrUnknownReservation, or
// ErrTooManyReservations if the reservation was made without a place and there
// is no room for one.
func (rs *reservations) settleHere(req *settleRequest) (*Settlement, error) {
	now := rs.limiter.clock.Now()
	plan := req.plan(rs.limiter, req.home(), now)
	if req.home().life.Lineage == localLineage { // its counters are not here; see settleLocal
		plan.Changes = nil
	}

	outcome, err := rs.limiter.table.Settle(now, plan)
	if errors.Is(err, notes.ErrReservations) {
		return nil, ErrTooManyReservations
	}
	if err != nil {
		return nil, err
	}

	req.hadEnded = plan.HadEnded
	req.late = plan.Late

	// A settlement that was made stays, even if authority has lapsed. A caller who
	// repeats the call finds it made.
	if outcome == counters.Made {
		if req.verb == settleVerbExpire {
			rs.expired.Add(1)
		} else {
			rs.settled.Add(1)
		}
		rs.dropped.Add(int64(plan.Dropped))
		rs.settleRest(req, plan.SameLineage)
	}

	switch {
	case rs.limiter.cluster != nil && !rs.limiter.cluster.Authority():
		return nil, ErrNoOwner
	case outcome == counters.NotMade:
		rs.unknown.Add(1)
		return nil, ErrUnknownReservation
	case outcome == counters.MadeBefore:
		rs.repeated.Add(1)
	}
	return req.settlement(plan, outcome == counters.MadeBefore), nil
}

// settleRest corrects the bill of a reservation that was settled at its home,
// and settles its other subjects at their owners. The home's standby must know
// of the settlement first: otherwise, if this node died, a second settlement
// would do all this again at its successor.
func (rs *reservations) settleRest(req *settleRequest, refundable bool) {
	// The node that got the settlement waits a little longer than this.
	deadline := time.Now().Add(ownerTimeout)

	if len(req.subjects) > 1 || req.isBilled(rs.limiter) {
		rs.confirmHome(req)
	}

	req.correctBill(rs.limiter)

	var debts []*change
	for i := 1; i < len(req.subjects); i++ {
		subj := &req.subjects[i]
		if subj.life.Lineage == localLineage {
			continue // see settleLocal
		}
		if !refundable {
			rs.countLost(req, subj)
		}

		debt, back := req.splitDifference(subj, refundable)
		if len(debt.ops) > 0 {
			debts = append(debts, debt)
		}

		if subj.life.Lineage == 0 { // decided by a standby, or by a node alone: nothing comes back
			rs.limiter.countLost(back, len(back.ops))
		} else {
			rs.limiter.sendRefunds([]refund{*back}) // once only: a repeated refund would create quota
		}
	}

	// The debts are charged even if nothing may come back: their tickets keep each
	// from being charged twice.
	if len(debts) > 0 {
		rs.charge(debts, deadline)
	}
}

// confirmHome waits until the node that would take over the home has the home's
// counters and notes as they are now. If that node does not answer in time, the
// rest is settled all the same. If this node then dies as well, the rest may be
// settled twice, which is better than never.
func (rs *reservations) confirmHome(req *settleRequest) {
	cp := rs.limiter.cluster
	if cp == nil || cp.Confirmer == nil {
		return
	}
	p := ring.PartitionOf(req.home().subject)
	if !cp.Confirmer.CanConfirm(p) {
		return
	}
	ctx, cancel := context.WithTimeout(cp.ctx, confirmTimeout)
	defer cancel()
	_ = cp.Confirmer.Confirm(ctx, p)
}

// isBilled reports whether settling req corrects a bill.
func (req *settleRequest) isBilled(l *Limiter) bool {
	hasRule := func(subj reservedSubject) bool { return subj.rule != "" }
	return l.meter != nil && slices.ContainsFunc(req.subjects, hasRule)
}

// correctBill bills the difference between the real and the reserved costs.
func (req *settleRequest) correctBill(l *Limiter) {
	if l.meter == nil {
		return
	}

	for i := range req.subjects {
		subj := &req.subjects[i]
		if subj.rule == "" {
			continue
		}

		subject := rules.Hash{Hi: subj.subject, Lo: subj.hashLo}
		for _, reserved := range subj.billedCosts() {
			cost := req.delta(reserved)
			if cost == 0 {
				continue
			}

			// The correction is for the month in which the reservation was billed.
			unit := req.units[reserved.unit]
			if !l.meter.Add(req.madeAt, subject, unit, cost, 0) {
				l.meter.AddNamed(req.madeAt, subject, subj.rule, subj.key, unit, cost, 0)
			}
		}
	}
}

// billedCosts returns the costs with which subj was billed. A unit was billed
// once, even if several limits have it.
func (subj *reservedSubject) billedCosts() (billed []reservedCost) {
	add := func(reserved reservedCost) {
		isOf := func(other reservedCost) bool { return other.unit == reserved.unit }
		if !slices.ContainsFunc(billed, isOf) {
			billed = append(billed, reserved)
		}
	}

	for i := range subj.ops {
		add(subj.cost(i))
	}
	for _, reserved := range subj.billedOnly {
		add(reserved)
	}
	return billed
}

// delta returns the real cost minus what is charged now. It is negative if cost
// comes back.
func (req *settleRequest) delta(reserved reservedCost) int64 {
	charged := reserved.cost
	if req.hadEnded {
		charged = req.atExpiry(reserved)
	}
	return req.used(reserved) - charged
}

// used returns the cost with which req settles the reserved one.
func (req *settleRequest) used(reserved reservedCost) int64 {
	if req.verb == settleVerbExpire {
		return req.atExpiry(reserved)
	}
	return costOfUnit(req.costs, req.units[reserved.unit], reserved.cost)
}

// atExpiry returns what the reservation's end leaves charged of a cost.
func (rv *reservation) atExpiry(reserved reservedCost) int64 {
	if rv.onExpiry == nil {
		return reserved.cost
	}
	return min(reserved.cost, costOfUnit(rv.onExpiry.Costs, rv.units[reserved.unit], reserved.cost))
}

// costOfUnit returns the cost that costs name for a unit. It returns all that
// was reserved if costs don't name the unit, and 0 if costs are empty.
func costOfUnit(costs []UnitCost, unit string, reserved int64) int64 {
	if len(costs) == 0 {
		return 0
	}
	for i := range costs {
		if costs[i].Unit == unit {
			return costs[i].Cost
		}
	}
	return reserved
}

// costIndex returns the index of a unit in the settlement's costs, or −1.
func (req *settleRequest) costIndex(unit int) int {
	return slices.IndexFunc(req.costs, func(cost UnitCost) bool { return cost.Unit == req.units[unit] })
}

// plan returns how req changes subj's counters, and the place there.
func (req *settleRequest) plan(l *Limiter, subj *reservedSubject, now algorithms.Instant) *counters.SettlePlan {
	local := subj.life.Lineage == localLineage
	isLate := req.verb == settleVerbNow && now.Wall > req.until
	plan := &counters.SettlePlan{
		Place:         *req.placeOf(subj.subject, now),
		HadPlace:      req.hasPlace || local,
		Late:          isLate,
		TooLate:       now.Wall > req.until+int64(maxLateness),
		CarriesOutEnd: req.verb == settleVerbExpire,
		Life:          subj.life,
		Answer:        req.encodeSettlement,
	}

	// localLineage is only a mark; the table compares real lineages.
	if local && l.cluster != nil {
		plan.Life.Lineage = l.cluster.Fallback.Lineage(ring.PartitionOf(subj.subject))
	}

	age := l.reservationAge(req.madeAt, subj.subject, now)
	for i := range subj.ops {
		plan.Changes = append(plan.Changes, req.settledCost(l, subj, i, age))
	}
	return plan
}

// settledCost returns how req settles subj's i-th cost. age is as for
// takeRecord.
func (req *settleRequest) settledCost(
	l *Limiter, subj *reservedSubject, i int, age time.Duration,
) counters.SettledCost {
	from := l.takeRecord(&subj.takenCosts, i, age)
	from.Reserved = true
	return counters.SettledCost{
		Key: subj.ops[i].Key, Limit: subj.ops[i].Limit,
		Reserved:   subj.ops[i].Cost,
		Used:       req.used(subj.cost(i)),
		AtExpiry:   req.atExpiry(subj.cost(i)),
		From:       from,
		InTightest: len(req.costs) == 0 || req.costIndex(subj.units[i]) >= 0,
	}
}

// placeOf returns the place of the reservation with a subject.
func (rv *reservation) placeOf(subject uint64, now algorithms.Instant) *counters.Place {
	pl := placeRequest{id: rv.placeID(), group: rv.group, inline: rv.inline, ttl: time.Duration(max(0, rv.until-now.Wall))}
	return pl.placeAt(subject, now)
}

// reservationAge returns how long ago a reservation was made, at most. It reads
// the wall clock of the subject's counters: the clock of an earlier owner may
// have been ahead of this node's.
func (l *Limiter) reservationAge(made int64, subject uint64, now algorithms.Instant) time.Duration {
	wall := l.table.WallIn(now, ring.PartitionOf(subject))
	age := max(0, wall-made)
	if wall > now.Wall {
		age += age / 63 // a clock that is ahead runs slower by a 64th, so more time may have passed
	}
	return time.Duration(age) + maxClockSkew
}

// encodeSettlement encodes what the home keeps of a settlement: first what is
// left of the tightest limit, then the settled cost in each unit. Each number is
// stored plus 1; 0 stands for none.
func (req *settleRequest) encodeSettlement(plan *counters.SettlePlan) []byte {
	b := binary.AppendUvarint(nil, uint64(plan.Tightest+1))
	for unit := range req.units {
		kept := uint64(0) // the caller did not name the unit
		if i := req.costIndex(unit); i >= 0 {
			kept = uint64(req.costs[i].Cost) + 1
		} else if len(req.costs) == 0 {
			kept = 1 // nothing was used
		}
		b = binary.AppendUvarint(b, kept)
	}
	return b
}

// settlement returns what plan has done, as a Settlement. If the home has
// forgotten the answer to an earlier settlement, the Settlement has no costs,
// and its Remaining is −1.
func (req *settleRequest) settlement(plan *counters.SettlePlan, repeated bool) *Settlement {
	kept := plan.Kept
	if !repeated {
		kept = req.encodeSettlement(plan)
	}
	out := &Settlement{Remaining: -1, Repeated: repeated, Late: plan.Late, isFinal: plan.IsFinal}
	if len(kept) == 0 {
		return out
	}

	d := wire.NewDecoder(kept)
	out.Remaining = d.UpTo(algorithms.MaxAmount+1) - 1
	for unit := range req.units {
		cost := d.UpTo(algorithms.MaxAmount + 1)
		if cost > 0 {
			out.Costs = append(out.Costs, UnitCost{Unit: req.units[unit], Cost: cost - 1})
		}
	}
	return out
}

// splitDifference returns what subj still owes and, if refundable, gets back.
func (req *settleRequest) splitDifference(
	subj *reservedSubject, refundable bool,
) (debt *change, back *refund) {
	when := subj.takenCosts // but for the costs themselves
	when.ops, when.marks = nil, nil
	back = &refund{takenCosts: when, reservedAt: req.madeAt, late: req.late}
	owed := when
	for i := range subj.ops {
		op := subj.ops[i]
		cost := req.delta(subj.cost(i))
		switch {
		case cost > 0:
			op.Cost = cost
			owed.ops, owed.marks = append(owed.ops, op), append(owed.marks, subj.marks[i])
		case cost < 0 && refundable:
			op.Cost = -cost
			back.ops, back.marks = append(back.ops, op), append(back.marks, subj.marks[i])
		}
	}

	// The debt of a late settlement says when its cost was taken, so that a new
	// window does not pay for an old one.
	debt = &change{verb: verbCharge, ticket: req.debtTicket(subj), madeAt: req.madeAt, ops: owed.ops}
	if req.late {
		debt.taken = &owed
	}
	return debt, back
}

// debtTicket returns the ticket of subj's debt. Every settlement of the
// reservation gives the debt the same ticket. So for maxRetryLife, the owner
// debits the debt once, even if the home has forgotten the first settlement.
func (req *settleRequest) debtTicket(subj *reservedSubject) *ticket {
	h := sha256.New()
	h.Write(req.nonce[:])
	h.Write(binary.LittleEndian.AppendUint64(nil, subj.subject))
	return &ticket{id: binary.LittleEndian.Uint64(h.Sum(nil)), keepFor: maxRetryLife}
}

// charge debits debts at their owners, all at the same time. A debt that no
// owner acknowledges before the deadline is sent again in the background, for
// chargeTimeout. If a debt is debited twice after all, that only costs quota.
func (rs *reservations) charge(debts []*change, deadline time.Time) {
	l := rs.limiter
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()

	var pending sync.WaitGroup
	for _, debt := range debts {
		pending.Go(func() {
			if debt.apply(ctx, l) != nil && l.cluster != nil {
				l.cluster.debtTasks.keep(debtTask{debt}, chargeTimeout)
			}
		})
	}
	pending.Wait()
}

// debtTask is what a settlement still owes to an owner.
type debtTask struct{ *change }

// try implements task.
func (task debtTask) try(ctx context.Context, l *Limiter, _ time.Duration) bool {
	return task.apply(ctx, l) == nil
}

// countLost implements task.
func (task debtTask) countLost(l *Limiter, _ bool) {
	l.cluster.counts.debtsDropped.Add(int64(len(task.ops)))
}
