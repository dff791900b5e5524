package limiter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/rules"
)

// A reservation may say what becomes of it if nobody settles it in time. The
// home then keeps the reservation's id with its place. At the end, the home
// settles the reservation as the id says. Callers can still settle it until the
// place is gone.

// ErrOnExpiry means that a rule forbids what a reservation asks for at its end,
// or that it asks to be charged more than it reserves.
var ErrOnExpiry = errors.New("on_expiry is not allowed")

// validateOnExpiry returns an error if a rule forbids what q asks for at its
// end, or if that is more than q reserves. a must be prepared for q.
func (a *Answer) validateOnExpiry(q *Query) error {
	if q.OnExpiry == nil {
		return nil
	}

	for _, hits := range [...][]rules.Hit{a.scratch.match.Hits, a.Unlimited()} {
		for i := range hits {
			if rule := hits[i].Rule; rule.ChargesExpired {
				return fmt.Errorf("%w: rule %q allows only charge", ErrOnExpiry, rule.Name)
			}
		}
	}

	for _, cost := range q.OnExpiry.Costs {
		most := a.reservedIn(q, cost.Unit)
		if cost.Cost > most {
			return fmt.Errorf("%w: costs.%s is %d, more than the %d that are reserved",
				ErrOnExpiry, cost.Unit, cost.Cost, most)
		}
	}

	return nil
}

// reservedIn returns the most that q, for which a is prepared, reserves in a unit.
func (a *Answer) reservedIn(q *Query, unit string) (most int64) {
	for i := range a.scratch.ops {
		op := &a.scratch.ops[i]
		if i < len(a.Limits) && a.Limits[i].Limit.Unit == unit && !op.Block {
			most = max(most, op.Cost)
		}
	}

	lists := append([][]UnitCost{q.Costs}, subjectCosts(q.Subjects)...)
	for i := range a.Unlimited() {
		lists = append(lists, a.uncountedCosts(q, &a.Unlimited()[i]))
	}

	for _, costs := range lists {
		for _, cost := range costs {
			if cost.Unit == unit {
				most = max(most, cost.Cost) // there may be no limit in the unit
			}
		}
	}

	return most
}

// scheduleExpiry asks the home of a reservation that was just made to keep the
// reservation's id and carry out its end. If the home has no room,
// scheduleExpiry settles the reservation with nothing used, and the error is
// ErrTooManyReservations. If the home can't be reached, the error is nil: the
// reservation stays charged unless somebody settles it.
func (rs *reservations) scheduleExpiry(id string) error {
	_, err := rs.settle(context.Background(), &settleRequest{signedID: id, verb: settleVerbSchedule})
	if errors.Is(err, ErrTooManyReservations) {
		// If this fails, the cost stays charged. Quota is lost, but none is created.
		_, _ = rs.limiter.Settle(id, nil)
		return err
	}
	if err != nil {
		rs.unscheduled.Add(1)
	}
	return nil
}

// keepExpiry keeps the id of req with its place at subj, in a table of this
// node, so that carryOutEnds finds it at the end. The error is counters.ErrShut,
// ErrUnknownReservation if the place is gone, or ErrTooManyReservations.
func (rs *reservations) keepExpiry(table *counters.Table, subj *reservedSubject, req *settleRequest) error {
	now := rs.limiter.clock.Now()
	place := req.placeOf(subj.subject, now)

	// If the home took no cost from this table, it has no place here yet: make it
	// now. Its counters are then in the fallback table, or there are none.
	create := table == rs.limiter.table && (subj.life.Lineage == localLineage || len(subj.ops) == 0)
	err := table.SetExpiry(now, place, req.signedID, create)

	switch {
	case errors.Is(err, notes.ErrReservations):
		return ErrTooManyReservations
	case errors.Is(err, counters.ErrGone):
		return ErrUnknownReservation
	}
	return err
}

// keepLocalExpiry is keepExpiry for those of req's subjects that this process
// has debited by `consistency: local` rules: only this process can settle them.
func (rs *reservations) keepLocalExpiry(req *settleRequest) {
	for i := range req.subjects {
		subj := &req.subjects[i]
		if subj.life.Lineage != localLineage || subj.boot != rs.limiter.boot {
			continue
		}
		if rs.keepExpiry(rs.limiter.cluster.Fallback, subj, req) != nil {
			rs.unscheduled.Add(1)
		}
	}
}

const (
	// maxExpiring bounds the reservations whose ends a node carries out at once,
	// for each of its tables.
	maxExpiring = 256
	// expiryRetryPause is how long a node waits after it could not carry out an end,
	// before it tries again.
	expiryRetryPause = time.Second
)

// carryOutEnds carries out the ends of the reservations in table, until the
// limiter is closed. It sleeps while none is due.
func (l *Limiter) carryOutEnds(table *counters.Table) {
	cp := l.cluster
	all := table.Notes()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-all.DueChanged():
		case <-cp.ctx.Done():
			return
		}

		l.carryOutDue(table)
		timer.Stop()
		due, found := all.NextDue()
		if found {
			timer.Reset(time.Duration(max(0, due-l.clock.Now().Steady)))
		}
	}
}

// carryOutDue carries out the ends that are due in table.
func (l *Limiter) carryOutDue(table *counters.Table) {
	for {
		now := l.clock.Now()
		list := table.Notes().TakeDue(now.Steady, maxExpiring)

		var pending sync.WaitGroup
		for i := range list {
			pending.Go(func() {
				if !l.reservations.carryOutEnd(table, &list[i]) {
					table.Notes().PutOff(list[i].Key, now.Steady+int64(expiryRetryPause))
				}
			})
		}

		pending.Wait()
		if len(list) < maxExpiring {
			return
		}
	}
}

// carryOutEnd carries out the end of a reservation; note is its place in table.
// It returns false if the end must be tried again: because this node does not
// own the home or, for a place in the fallback table, can't reach its owner.
func (rs *reservations) carryOutEnd(table *counters.Table, note *notes.Note) bool {
	l := rs.limiter
	isOwn := table == l.table
	if isOwn && (!table.IsOpen(note.Partition()) || !l.cluster.Authority()) {
		return false
	}
	_, err := rs.settle(l.cluster.ctx, &settleRequest{signedID: note.Body, verb: settleVerbExpire})
	// In this node's own table, an unknown reservation means that the place has gone
	// in the meantime: there is nothing left to do. The place at another node may
	// only not be due yet, by that node's clock.
	return err == nil || isOwn && errors.Is(err, ErrUnknownReservation)
}
