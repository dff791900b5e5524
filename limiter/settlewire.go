package limiter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// maxReservationID bounds an id, in bytes.
const maxReservationID = 64 << 10

// refund is what is given back of one subject of a reservation: costs are what was not used.
type refund struct {
	made int64 // when it was reserved, in Unix nanoseconds
	reserved
}

func (r *refund) append(b []byte) []byte {
	return r.reserved.append(binary.LittleEndian.AppendUint64(b, uint64(r.made)))
}

// readRefund takes a refund from a message.
func readRefund(body []byte) (*refund, error) {
	d := wire.NewDecoder(body)
	// Units are numbers of a list that the one who settles has.
	r := reservation{limits: make([]algorithms.Limit, 0, maxSubjectOps), units: make([]string, MaxReserved)}
	out := &refund{made: int64(d.Uint64())}
	out.reserved = r.readSubject(d)
	return out, d.Done("refund")
}

// sendRefund sends r to the owner of its subject, once.
func (l *Limiter) sendRefund(r *refund) {
	if l.member == nil {
		l.refund(r)
		return
	}
	m := l.member
	owner := m.Ownership.Route(partitionOf(r.hi)).Owner
	switch {
	case owner == m.Self:
		l.refund(r)
	case owner.IsZero() || m.Peers.Send(owner, MethodRefund, r.append(nil)) != nil:
		l.reservations.dropped.Add(int64(len(r.costs)))
	}
}

// refund puts r back into the counters here, if they are still those that it came from.
func (l *Limiter) refund(r *refund) {
	if !l.sameLife(&r.reserved) {
		l.reservations.dropped.Add(int64(len(r.costs)))
		return
	}
	now := l.clock.Now()
	of := reservation{made: r.made}
	for i := range r.costs {
		rc := &r.costs[i]
		key := counters.Key{Hi: r.hi, Lo: rc.lo}
		if err := l.table.Refund(now, key, rc.limit, algorithms.Taken{Window: rc.when}, l.rest(&of, &r.reserved, rc, now), rc.cost); err != nil {
			l.reservations.dropped.Add(1) // it has just been handed over
		}
	}
}

// How a settling fared, in a reply.
const (
	settled = iota
	settledUnknown
	settledFull
	settledNoOwner
	settledBounds
)

// askToSettle asks another node to settle s. The error is ErrNoOwner where that could not be done.
func (l *Limiter) askToSettle(ctx context.Context, to ring.NodeID, s *settling, hops int) (*Settlement, error) {
	body := wire.AppendText([]byte{byte(hops)}, s.id)
	reply, err := l.member.call(ctx, to, MethodSettle, appendCosts(body, s.costs))
	if err != nil {
		return nil, ErrNoOwner
	}
	return readSettlement(reply)
}

// serveSettle answers another node's settling.
func (l *Limiter) serveSettle(body []byte, to Answerer) {
	d := wire.NewDecoder(body)
	hops := int(d.Byte())
	id := d.Text(maxReservationID)
	costs := decodeCosts(d)
	if d.Done("settling") != nil || hops < 1 || hops > maxHops {
		to.Fail(CodeMessage, "settling can't be read")
		return
	}
	l.member.answer(to, func() { to.Reply(appendSettlement(l.settle(l.member.ctx, id, costs, hops))) })
}

func appendSettlement(out *Settlement, err error) []byte {
	switch {
	case errors.Is(err, ErrUnknownReservation):
		return []byte{settledUnknown}
	case errors.Is(err, ErrFull):
		return []byte{settledFull}
	case err != nil:
		return []byte{settledNoOwner}
	}
	b := wire.AppendBool([]byte{settled}, out.Repeated)
	return appendCosts(binary.AppendUvarint(b, uint64(out.Remaining+1)), out.Costs)
}

func readSettlement(b []byte) (*Settlement, error) {
	d := wire.NewDecoder(b)
	switch how := d.Byte(); {
	case d.Failed() || how >= settledBounds:
		return nil, ErrNoOwner
	case how == settledUnknown:
		return nil, ErrUnknownReservation
	case how == settledFull:
		return nil, ErrFull
	case how == settledNoOwner:
		return nil, ErrNoOwner
	}
	out := &Settlement{Repeated: d.Bool()}
	out.Remaining = d.UpTo(algorithms.MaxAmount+1) - 1
	out.Costs = decodeCosts(d)
	if err := d.Done("settlement"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoOwner, err)
	}
	return out, nil
}

func appendCosts(b []byte, costs []UnitCost) []byte {
	b = binary.AppendUvarint(b, uint64(len(costs)))
	for i := range costs {
		b = binary.AppendUvarint(wire.AppendText(b, costs[i].Unit), uint64(costs[i].Cost))
	}
	return b
}

func decodeCosts(d *wire.Decoder) (costs []UnitCost) {
	for range d.Count(MaxReserved, 2) {
		costs = append(costs, UnitCost{Unit: d.Text(maxUnitBytes), Cost: d.UpTo(algorithms.MaxAmount)})
	}
	return costs
}
