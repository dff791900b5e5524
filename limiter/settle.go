package limiter

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

const (
	// strangeClock is how much the clocks of two nodes, or of a node before and after a restart, may seem to be apart.
	strangeClock = time.Second
	// chargeTime is how long a debt is tried to be told to its owner.
	chargeTime = 10 * time.Second
)

// Settlement is how a reservation was settled.
type Settlement struct {
	Costs     []UnitCost // of the units that the settling named; of all if it named none
	Remaining int64      // of the tightest of these limits at the reservation's home, just after; −1 without any
	Repeated  bool       // it had been settled before; the rest is what was answered then
}

// settling is a reservation and what it really used.
type settling struct {
	*reservation
	id    string
	costs []UnitCost
}

// Settle replaces what a reservation took by what was really used: more becomes a debt, less is given back. A unit that
// is not named stays as it was reserved; without any costs all of them are 0. Only the first settling of a reservation
// counts, wherever it was sent; a repeated one is answered as that was. The error wraps ErrUnknownReservation,
// ErrNoOwner or ErrFull.
func (l *Limiter) Settle(id string, costs []UnitCost) (*Settlement, error) {
	out, err := l.settle(context.Background(), id, costs, 0)
	if err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	return out, nil
}

func (l *Limiter) settle(ctx context.Context, id string, costs []UnitCost, hops int) (*Settlement, error) {
	key, known := l.signingKey()
	if !known {
		return nil, ErrNoOwner // nor is it known yet whether this is a reservation
	}
	r, err := parseReservation(id, key)
	if err != nil {
		l.reservations.unknown.Add(1)
		return nil, err
	}
	s := &settling{reservation: r, id: id, costs: costs}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	var out *Settlement
	err = l.do(ctx, &errand{hi: s.home().hi, hops: hops, here: func() (err error) {
		out, err = l.settleHere(s)
		return err
	}, ask: func(to ring.NodeID, _ *trail) (err error) { // a repeated question does no harm
		out, err = l.askToSettle(ctx, to, s, hops+1)
		return err
	}})
	return out, err
}

// settleHere settles s in the counters here, as their owner, and then tells the owners of its other subjects. The error
// is counters.ErrShut where this node is not the owner.
func (l *Limiter) settleHere(s *settling) (*Settlement, error) {
	now := l.clock.Now()
	f := &l.reservations
	// Without the life of the counters that it was made in, an earlier settling may have been forgotten: nothing is
	// given back then, here or elsewhere.
	sure := l.sameLife(s.home())
	c := s.atHome(l, now, sure)
	repeated, done, err := l.table.Settle(now, c)
	switch {
	case err != nil:
		return nil, err
	case l.member != nil && !l.member.Authority():
		return nil, ErrNoOwner
	case !done:
		f.unknown.Add(1)
		return nil, ErrUnknownReservation
	case repeated:
		f.repeated.Add(1)
		return s.settlement(c, true), nil
	}
	f.settled.Add(1)
	s.bill(l, now)
	if !sure {
		f.dropped.Add(s.refunds(s.subjects))
	}
	for i := range s.subjects[1:] {
		l.settleElsewhere(s, &s.subjects[1+i], now, sure)
	}
	return s.settlement(c, false), nil
}

// bill corrects what was billed when it was reserved.
func (s *settling) bill(l *Limiter, now algorithms.Now) {
	if l.meter == nil {
		return
	}
	for i := range s.subjects {
		of := &s.subjects[i]
		if of.rule == "" {
			continue
		}
		subject := rules.Hash{Hi: of.hi, Lo: of.lo}
		for j := range of.costs {
			rc := &of.costs[j]
			cost := s.used(rc) - rc.cost
			if cost == 0 || slices.ContainsFunc(of.costs[:j], func(c reservedCost) bool { return c.unit == rc.unit }) {
				continue
			}
			// In the month that it was billed in.
			if unit := s.units[rc.unit]; !l.meter.Add(s.made, subject, unit, cost, 0) {
				l.meter.Enter(s.made, subject, of.rule, of.key, unit, cost, 0)
			}
		}
	}
}

// sameLife reports whether the counters here are those that s was taken from.
func (l *Limiter) sameLife(s *reserved) bool {
	if l.member == nil {
		return true
	}
	return s.lineage != 0 && l.member.Ownership.Lineage(partitionOf(s.hi)) == s.lineage
}

// used is what c really cost.
func (s *settling) used(c *reservedCost) int64 {
	if len(s.costs) == 0 {
		return 0
	}
	if i := s.named(c.unit); i >= 0 {
		return s.costs[i].Cost
	}
	return c.cost
}

// named is the place of a unit among the costs that were named, −1 if it was not.
func (s *settling) named(unit int) int {
	return slices.IndexFunc(s.costs, func(c UnitCost) bool { return c.Unit == s.units[unit] })
}

// atHome is what becomes of the counters of the home, and what is noted there. Refunds are for those who are sure.
func (s *settling) atHome(l *Limiter, now algorithms.Now, sure bool) *counters.Settling {
	c := &counters.Settling{
		Until: (now.Steady+s.until-now.Wall+int64(keptSettling))/1e9 + 1,
		Late:  now.Wall > s.until,
	}
	for unit := range max(1, len(s.units)) {
		n := counters.Note{Key: s.note(unit)}
		if unit < len(s.units) && len(s.costs) > 0 {
			if i := s.named(unit); i >= 0 {
				n.Count, n.At = s.costs[i].Cost, noteNamed
			}
		} else if unit < len(s.units) {
			n.At = noteNamed
		}
		c.Notes = append(c.Notes, n)
	}
	home := s.home()
	for i := range home.costs {
		rc := &home.costs[i]
		cost := s.used(rc) - rc.cost
		if !sure {
			cost = max(0, cost)
		}
		c.Changes = append(c.Changes, counters.SettledCost{
			Key: counters.Key{Hi: home.hi, Lo: rc.lo}, Limit: rc.limit, Cost: cost,
			From: algorithms.Taken{Window: rc.when}, Rest: l.rest(s.reservation, home, rc, now),
			Told: len(s.costs) == 0 || s.named(rc.unit) >= 0,
		})
	}
	return c
}

// noteNamed is Note.At of a unit that the settling named.
const noteNamed = 1

// rest is how much longer what rc took is still in its counter, had nothing come after it.
func (l *Limiter) rest(r *reservation, s *reserved, rc *reservedCost, now algorithms.Now) time.Duration {
	if rc.limit.Kind.Windowed() {
		return 0
	}
	if s.process == l.process {
		return time.Duration(rc.when - (now.Steady - s.steady))
	}
	return time.Duration(rc.when - max(0, now.Wall-r.made) - int64(strangeClock))
}

// settlement is what c's notes say.
func (s *settling) settlement(c *counters.Settling, repeated bool) *Settlement {
	out := &Settlement{Remaining: c.Tightest, Repeated: repeated}
	for unit := range s.units {
		if n := &c.Notes[unit]; n.At == noteNamed {
			out.Costs = append(out.Costs, UnitCost{Unit: s.units[unit], Cost: n.Count})
		}
	}
	return out
}

// refunds is how many costs of subjects were more than was used.
func (s *settling) refunds(subjects []reserved) (n int64) {
	for i := range subjects {
		for j := range subjects[i].costs {
			if rc := &subjects[i].costs[j]; s.used(rc) < rc.cost {
				n++
			}
		}
	}
	return n
}

// settleElsewhere tells the owner of one of s's other subjects: what is given back once, since a repeated refund would
// make quota, and what is charged until it is acknowledged, since a repeated debt only costs.
func (l *Limiter) settleElsewhere(s *settling, of *reserved, now algorithms.Now, sure bool) {
	debt := &change{verb: verbAdjust}
	back := refund{made: s.made, reserved: *of}
	back.costs = nil
	for i := range of.costs {
		rc := of.costs[i]
		switch cost := s.used(&rc) - rc.cost; {
		case cost > 0:
			debt.ops = append(debt.ops, counters.Op{Key: counters.Key{Hi: of.hi, Lo: rc.lo}, Limit: rc.limit, Cost: cost})
		case cost < 0 && sure && of.lineage != 0:
			rc.cost = -cost
			back.costs = append(back.costs, rc)
		case cost < 0 && sure:
			l.reservations.dropped.Add(1)
		}
	}
	if len(back.costs) > 0 {
		l.sendRefund(&back)
	}
	if len(debt.ops) > 0 {
		debt.ticket = ticketOf("", 0, chargeTime)
		l.charge(debt)
	}
}

// charge debits c at its owner, and goes on to try where that can't be reached at once.
func (l *Limiter) charge(c *change) {
	if l.apply(c) == nil || l.member == nil {
		return
	}
	m := l.member
	ok := m.spawn(func() {
		ctx, cancel := context.WithTimeout(m.ctx, chargeTime)
		defer cancel()
		for pause := newsTime; ctx.Err() == nil; pause = min(2*pause, checkTime) {
			if l.apply(c) == nil {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
		m.figures.uncharged.Add(int64(len(c.ops)))
	})
	if !ok {
		m.figures.uncharged.Add(int64(len(c.ops)))
	}
}
