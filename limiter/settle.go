package limiter

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

const (
	// maxClockSkew is the assumed maximum difference between the clocks of two nodes, or of one node before and after a
	// restart.
	maxClockSkew = time.Second
	// chargeTimeout is how long a node keeps trying to report a debt to its owner.
	chargeTimeout = 10 * time.Second
)

// Settlement says how a reservation was settled.
type Settlement struct {
	Costs     []UnitCost // in the units that the caller named; in all units if it named none
	Remaining int64      // of the tightest limit in those units at the home, just afterwards; −1 if there is none
	Repeated  bool       // the reservation was settled before; the other fields are as they were then
}

// Code implements wire.Message.
func (s *Settlement) Code(c *wire.Coder) {
	c.Bool(&s.Repeated)
	wire.Varint(c, &s.Remaining)
	codeCosts(c, &s.Costs)
	c.Require(s.Remaining >= -1 && s.Remaining <= algorithms.MaxAmount)
}

// settleRequest asks to settle a reservation with its real costs. The message carries the reservation only as its id.
type settleRequest struct {
	*reservation
	id    string
	costs []UnitCost
	hops  int
}

// maxReservationID bounds an id, in bytes.
const maxReservationID = 64 << 10

// Code implements wire.Message.
func (s *settleRequest) Code(c *wire.Coder) {
	wire.Number(c, &s.hops, maxHops)
	c.Text(&s.id, maxReservationID)
	codeCosts(c, &s.costs)
	c.Require(s.hops > 0)
}

func codeCosts(c *wire.Coder, costs *[]UnitCost) {
	wire.List(c, costs, MaxReserved, 2, func(u *UnitCost) {
		c.Text(&u.Unit, maxUnitBytes)
		wire.Number(c, &u.Cost, algorithms.MaxAmount)
	})
}

// Settle replaces a reservation's estimate with the real costs. It debits any excess and gives back what was not used. A unit
// that costs does not name stays as reserved; empty costs mean that nothing was used. Only the first settlement of a
// reservation counts, on whichever node; a repeated one gets the same answer. The error wraps ErrUnknownReservation, ErrNoOwner
// or ErrFull.
func (l *Limiter) Settle(id string, costs []UnitCost) (*Settlement, error) {
	out, err := l.reservations.settle(context.Background(), &settleRequest{id: id, costs: costs})
	if err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	return out, nil
}

func (rs *reservations) settle(ctx context.Context, s *settleRequest) (out *Settlement, err error) {
	key, known := rs.signingKey()
	if !known {
		return nil, ErrNoOwner // without the key this node can't tell whether id is a reservation
	}
	if s.reservation, err = parseReservation(s.id, key); err != nil {
		rs.unknown.Add(1)
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err = rs.limiter.doAtOwner(ctx, &ownerRequest{subject: s.home().subject, hops: s.hops, here: func() (err error) {
		out, err = rs.settleHere(s)
		return err
	}, forward: func(to ring.NodeID) error { // asking twice does no harm
		next := *s
		next.hops++
		out = &Settlement{}
		return rs.limiter.membership.forward(ctx, to, MethodSettle, &next, out)
	}})
	if err == nil {
		rs.settleLocal(s, out)
	}
	return out, err
}

// settleLocal settles those of s's subjects that `consistency: local` rules debited, as the home has settled s. Only the process
// that made the reservation can do so; its notes in the fallback counters prevent a second time.
func (rs *reservations) settleLocal(s *settleRequest, out *Settlement) {
	actual := *s
	if actual.costs = out.Costs; len(out.Costs) == 0 {
		return // it named none of the reservation's units
	}
	for i := range s.subjects {
		subj := &s.subjects[i]
		if subj.lineage != localLineage || subj.incarnation != rs.limiter.incarnation {
			continue
		}
		now := rs.limiter.clock.Now()
		c := actual.changes(rs.limiter, subj, now)
		if _, done, err := rs.limiter.membership.Fallback.Settle(now, c); err != nil || !done {
			rs.countDropped(&actual, subj)
		} else if i == 0 {
			out.Remaining = c.Tightest // the home's owner does not know it
		}
	}
}

// countDropped counts what subj does not get back.
func (rs *reservations) countDropped(s *settleRequest, subj *reservedSubject) {
	for i := range subj.ops {
		if s.excess(subj, i) < 0 {
			rs.dropped.Add(1)
		}
	}
}

// settleHere settles s in this node's counters, as the owner of its home, and then at the owners of its other subjects. The
// error is counters.ErrShut if this node is not the owner.
func (rs *reservations) settleHere(s *settleRequest) (*Settlement, error) {
	now := rs.limiter.clock.Now()
	c := s.changes(rs.limiter, s.home(), now)
	if s.home().lineage == localLineage { // its counters are not here; see settleLocal
		c.Changes, c.SameLineage = nil, func() bool { return false }
	}
	repeated, done, err := rs.limiter.table.Settle(now, c)
	if err != nil {
		return nil, err
	}
	if done && !repeated { // even if authority has lapsed: a caller who repeats it finds it done
		rs.settled.Add(1)
		rs.settleRest(s, now, c.Refundable)
	}
	switch {
	case rs.limiter.membership != nil && !rs.limiter.membership.Authority():
		return nil, ErrNoOwner
	case !done:
		rs.unknown.Add(1)
		return nil, ErrUnknownReservation
	case repeated:
		rs.repeated.Add(1)
	}
	return s.settlement(c, repeated), nil
}

// settleRest corrects the bill of a reservation that was settled at its home, and settles it at the owners of its other
// subjects.
func (rs *reservations) settleRest(s *settleRequest, now algorithms.Instant, refundable bool) {
	s.correctBill(rs.limiter, now)
	var debts []*change
	for i := range s.subjects {
		subj := &s.subjects[i]
		if subj.lineage == localLineage {
			continue // see settleLocal
		}
		if !refundable {
			rs.countDropped(s, subj)
		}
		if i == 0 {
			continue
		}
		debt, back := s.splitExcess(subj, refundable)
		if len(debt.ops) > 0 {
			debts = append(debts, debt)
		}
		switch {
		case len(back.ops) == 0:
		case subj.lineage == 0:
			rs.limiter.countLost(back)
		default:
			rs.limiter.sendRefunds([]refund{*back}) // only once, because a repeated refund would create quota
		}
	}
	if len(debts) > 0 {
		rs.charge(debts)
	}
}

// correctBill bills the difference between the real and the reserved costs.
func (s *settleRequest) correctBill(l *Limiter, now algorithms.Instant) {
	if l.meter == nil {
		return
	}
	for i := range s.subjects {
		subj := &s.subjects[i]
		if subj.rule == "" {
			continue
		}
		subject := rules.Hash{Hi: subj.subject, Lo: subj.hashLo}
		for j := range subj.ops {
			cost := s.excess(subj, j)
			if cost == 0 || slices.Contains(subj.units[:j], subj.units[j]) {
				continue
			}
			// Correct the month that it was billed in.
			if unit := s.units[subj.units[j]]; !l.meter.Add(s.made, subject, unit, cost, 0) {
				l.meter.AddNamed(s.made, subject, subj.rule, subj.key, unit, cost, 0)
			}
		}
	}
}

// sameLineage reports whether the subject's counters on this node have the given lineage.
func (l *Limiter) sameLineage(subject, lineage uint64) bool {
	return l.membership == nil || lineage != 0 && l.membership.Ownership.Lineage(ring.PartitionOf(subject)) == lineage
}

// excess returns by how much the real cost of a subject's i-th op exceeds the reserved cost; negative if it was less.
func (s *settleRequest) excess(subj *reservedSubject, i int) int64 {
	if len(s.costs) == 0 {
		return -subj.ops[i].Cost
	}
	if at := s.costIndex(subj.units[i]); at >= 0 {
		return s.costs[at].Cost - subj.ops[i].Cost
	}
	return 0
}

// costIndex returns the index of a unit in the settlement's costs, or −1 if they don't name it.
func (s *settleRequest) costIndex(unit int) int {
	return slices.IndexFunc(s.costs, func(c UnitCost) bool { return c.Unit == s.units[unit] })
}

// changes returns the changes to subj's counters, and the notes to record there.
func (s *settleRequest) changes(l *Limiter, subj *reservedSubject, now algorithms.Instant) *counters.Settlement {
	c := &counters.Settlement{
		Until:   (now.Steady+s.until-now.Wall+int64(settlementMemory))/1e9 + 1,
		TooLate: now.Wall > s.until,
	}
	for unit := range max(1, len(s.units)) {
		n := counters.Note{Key: s.settlementKey(subj.subject, unit)}
		if unit < len(s.units) {
			if i := s.costIndex(unit); i >= 0 {
				n.Count, n.At = s.costs[i].Cost, noteNamed
			} else if len(s.costs) == 0 {
				n.At = noteNamed
			}
		}
		c.Notes = append(c.Notes, n)
	}
	if subj.lineage != localLineage {
		// If the home's lineage has changed since the reservation was made, an earlier settlement may have been forgotten. Then
		// nothing is given back, here or elsewhere.
		c.SameLineage = func() bool { return l.sameLineage(subj.subject, subj.lineage) }
	}
	for i := range subj.ops {
		limit := subj.ops[i].Limit
		if subj.lineage == localLineage {
			limit = l.membership.shareOf(limit)
		}
		c.Changes = append(c.Changes, counters.SettledCost{
			Key: subj.ops[i].Key, Limit: limit, Cost: s.excess(subj, i),
			From: algorithms.TakeRecord{Window: subj.when[i]}, Rest: l.remainingLife(&subj.debit, i, s.made, now),
			InTightest: len(s.costs) == 0 || s.costIndex(subj.units[i]) >= 0,
		})
	}
	return c
}

// noteNamed is the Note.At of a unit that the settlement named.
const noteNamed = 1

// remainingLife returns how much longer the cost of a reservation's i-th op would stay in its counter if nothing had been added
// since. If another process made the reservation, it allows for maxClockSkew.
func (l *Limiter) remainingLife(d *debit, i int, made int64, now algorithms.Instant) time.Duration {
	switch {
	case d.ops[i].Limit.Kind.Windowed():
		return 0
	case d.incarnation == l.incarnation:
		return time.Duration(d.when[i] - (now.Steady - d.steady))
	}
	return time.Duration(d.when[i] - max(0, now.Wall-made) - int64(maxClockSkew))
}

// settlement returns the Settlement that c's notes record.
func (s *settleRequest) settlement(c *counters.Settlement, repeated bool) *Settlement {
	out := &Settlement{Remaining: c.Tightest, Repeated: repeated}
	for unit := range s.units {
		if n := &c.Notes[unit]; n.At == noteNamed {
			out.Costs = append(out.Costs, UnitCost{Unit: s.units[unit], Cost: n.Count})
		}
	}
	return out
}

// splitExcess returns what one of s's subjects still owes, and what it gets back.
func (s *settleRequest) splitExcess(subj *reservedSubject, refundable bool) (debt *change, back *refund) {
	debt = &change{verb: verbAdjust, ticket: ticketOf("", 0, chargeTimeout)}
	back = &refund{debit: subj.debit, made: s.made}
	back.ops, back.when = nil, nil
	for i := range subj.ops {
		op := subj.ops[i]
		switch cost := s.excess(subj, i); {
		case cost > 0:
			op.Cost = cost
			debt.ops = append(debt.ops, op)
		case cost < 0 && refundable:
			op.Cost = -cost
			back.ops, back.when = append(back.ops, op), append(back.when, subj.when[i])
		}
	}
	return debt, back
}

// charge debits debts at their owners, all at the same time. It sends each until the owner acknowledges it, because a repeated
// debt only costs quota. After homeTimeout it goes on in the background, for chargeTimeout in all.
func (rs *reservations) charge(debts []*change) {
	m, done := rs.limiter.membership, make(chan struct{}, len(debts))
	for _, debt := range debts {
		if m != nil && m.spawn(func() {
			m.keepCharging(rs.limiter, debt)
			done <- struct{}{}
		}) {
			continue
		}
		if debt.apply(rs.limiter) != nil && m != nil {
			m.counts.debtsDropped.Add(int64(len(debt.ops)))
		}
		done <- struct{}{}
	}
	timeout := time.After(homeTimeout)
	for range debts {
		select {
		case <-done:
		case <-timeout:
			return
		}
	}
}

// keepCharging debits debt at its owner. It tries for chargeTimeout.
func (m *membership) keepCharging(l *Limiter, debt *change) {
	ctx, cancel := context.WithTimeout(m.ctx, chargeTimeout)
	defer cancel()
	for pause := retryPause; debt.apply(l) != nil; pause = min(2*pause, checkTimeout) {
		select {
		case <-ctx.Done():
			m.counts.debtsDropped.Add(int64(len(debt.ops)))
			return
		case <-time.After(pause):
		}
	}
}
