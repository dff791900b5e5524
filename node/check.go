package node

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

var errNotReady = fmt.Errorf("%w: the node is not ready", client.ErrUnavailable)

// Check asks whether q is allowed now. If so, it takes the cost from all limits
// of all rules that apply; if not, from none. The decision is made here or by
// the node that owns the subject, within 900 ms.
//
// It works as client.Client's Check does, without the network between.
//
// The Decision can always be followed, even with an error. The error wraps
// client.ErrUnavailable before the node is ready, client.ErrClosed after Close,
// or client.ErrRequest; or it is a *client.Error that a node would answer, or
// the context's cause. If no node could decide, Config.OnError does, unless the
// request may be at fault: then Check refuses.
//
// If the context ends while a check with q.Wait waits for its turn, the checks
// behind it move up. Check then returns the context's cause with the Decision
// that was made.
func (n *Node) Check(ctx context.Context, q client.Request) (client.Decision, error) {
	o, err := n.decide(ctx, &q, take, 0)
	if err == nil && q.Wait && o.Allowed {
		err = o.awaitTurn(ctx)
	}
	return o.Decision, err
}

// awaitTurn waits until o's caller may go on. If the context ends first, the
// callers behind it move up, and awaitTurn returns an error.
func (o *outcome) awaitTurn(ctx context.Context) error {
	if o.place == nil {
		return sleep(ctx, o.Delay)
	}

	timer := time.NewTimer(o.Delay)
	defer timer.Stop()

	// ProceedAt is set before Wait: from then on the limiter reads it.
	o.place.ProceedAt = time.Now().Add(o.Delay)
	waiter := o.place.Wait(func(proceedAt time.Time) { timer.Reset(time.Until(proceedAt)) })

	select {
	case <-timer.C:
		waiter.Proceed()
		return nil
	case <-ctx.Done():
		waiter.Leave()
		return context.Cause(ctx)
	}
}

// Peek returns the decision that Check would make, and takes nothing.
func (n *Node) Peek(ctx context.Context, q client.Request) (client.Decision, error) {
	o, err := n.decide(ctx, &q, peek, 0)
	return o.Decision, err
}

// Reserve takes q's costs as an estimate, which Settle corrects; see
// client.Client. ttl is at most an hour; 0 is a minute. If ctx ends while a
// reservation with q.Wait waits, and q has no RequestID, it is given back.
func (n *Node) Reserve(ctx context.Context, q client.Request, ttl time.Duration) (client.Reservation, error) {
	sent := time.Now()
	o, err := n.decide(ctx, &q, reserve, cmp.Or(ttl, limiter.DefaultReservationTime))
	reserved := client.Reservation{Decision: o.Decision, ID: o.id}
	slot, hasSlot := n.limiter.SlotOf(o.id)

	if o.id != "" && hasSlot {
		// The slot outlives this call, and so it must not end with ctx: Settle ends it.
		// It is renewed from now on, also during the delay below.
		var slotErr error
		reserved.Slot, slotErr = client.NewSlot(context.WithoutCancel(ctx), n, o.Decision, slot.ID,
			sent.Add(slot.Expires))
		if slotErr != nil {
			return client.Reservation{Decision: client.Decision{DecidedBy: client.ByError}}, slotErr
		}
		n.slots.Reserve(o.id, reserved.Slot)
	}

	if err == nil && q.Wait && o.Allowed {
		err = sleep(ctx, o.Delay)
		// A caller with a request id may ask again, and goes on with what it has.
		if err != nil && o.id != "" && q.RequestID == "" {
			n.giveBack(o.id)
			reserved = client.Reservation{Decision: o.Decision}
		}
	}

	return reserved, err
}

// giveBack gives back what a reservation has taken, whose caller has given up.
func (n *Node) giveBack(id string) {
	n.slots.Settle(id)
	_, err := n.limiter.Settle(id, nil)
	if err != nil {
		n.log.Debug("a reservation can't be given back", "error", err)
	}
}

// Settle replaces a reservation's estimate with the actual use, by unit; see
// client.Client. Any node may have made the reservation.
func (n *Node) Settle(ctx context.Context, id string, costs map[string]int64) (client.Settlement, error) {
	if id == "" {
		return client.Settlement{}, nil
	}
	if err := n.ensureOpen(ctx); err != nil {
		return client.Settlement{}, err
	}

	list, err := appendUnitCosts(nil, costs)
	if err != nil {
		return client.Settlement{}, err
	}

	n.slots.Settle(id)
	settled, err := n.limiter.Settle(id, list)
	if err != nil {
		return client.Settlement{}, n.toClientError(err)
	}

	s := client.Settlement{Settled: true, Costs: make(map[string]int64, len(settled.Costs)),
		Remaining: max(0, settled.Remaining), Expired: settled.Late}
	for _, c := range settled.Costs {
		s.Costs[c.Unit] = c.Cost
	}

	return s, nil
}

// Adjust adds cost to a subject's use of a rule's limits in requests, without
// making a decision; see client.Client.
func (n *Node) Adjust(ctx context.Context, rule string, key []string, cost int64) (client.Usage, error) {
	return n.AdjustOnce(ctx, "", rule, key, cost)
}

// AdjustOnce is Adjust for callers that may retry. It adjusts a subject once
// for all calls with the same id within a minute. An id has at most 64 bytes.
func (n *Node) AdjustOnce(ctx context.Context, id, rule string, key []string, cost int64) (client.Usage, error) {
	return n.AdjustCosts(ctx, client.Request{Rule: rule, Key: key, RequestID: id},
		map[string]int64{document.Requests: cost})
}

// AdjustCosts is Adjust for costs by unit, and for subjects that bring their
// limits; see client.Client.
func (n *Node) AdjustCosts(ctx context.Context, q client.Request, costs map[string]int64) (client.Usage, error) {
	if len(costs) == 0 || len(costs) > limiter.MaxCosts {
		return client.Usage{}, fmt.Errorf("%w: costs has %d units; it must have 1 to %d",
			client.ErrRequest, len(costs), limiter.MaxCosts)
	}

	list := make([]limiter.UnitCost, 0, len(costs))
	for unit, cost := range costs {
		if cost == 0 || cost > algorithms.MaxAmount || cost < -algorithms.MaxAmount {
			return client.Usage{},
				fmt.Errorf("%w: costs[%.80q] is %d; it must be within ±%d and not 0",
					client.ErrRequest, unit, cost, int64(algorithms.MaxAmount))
		}
		if err := checkUnit(unit); err != nil {
			return client.Usage{}, err
		}
		list = append(list, limiter.UnitCost{Unit: unit, Cost: cost})
	}

	return n.withSubject(ctx, &q, list, (*limiter.Limiter).Adjust)
}

// Usage returns what a subject has used, and takes nothing; see client.Client.
func (n *Node) Usage(ctx context.Context, q client.Request) (client.Usage, error) {
	return n.withSubject(ctx, &q, nil, (*limiter.Limiter).Usage)
}

// Reset makes the counters of a subject fresh, and returns its usage after that; see client.Client.
func (n *Node) Reset(ctx context.Context, q client.Request) (client.Usage, error) {
	return n.withSubject(ctx, &q, nil, (*limiter.Limiter).Reset)
}

// withSubject applies operation to the subject that q names by rule and key, or
// by namespace, key and limits.
func (n *Node) withSubject(
	ctx context.Context, q *client.Request, costs []limiter.UnitCost,
	operation func(*limiter.Limiter, *limiter.Query) (*limiter.Usage, error),
) (client.Usage, error) {
	inline := q.Namespace != "" || q.Limits != nil
	switch {
	case inline && q.Rule != "":
		return client.Usage{}, fmt.Errorf("%w: set either Rule, or Namespace and Limits", client.ErrRequest)
	case !inline && q.Rule == "":
		return client.Usage{}, fmt.Errorf("%w: Rule is missing; set it, or Namespace and Limits", client.ErrRequest)
	case q.LimitName != "" && inline && q.Limits == nil:
		return client.Usage{},
			fmt.Errorf("%w: LimitName is %.80q, but there are no Limits; it must name one of them",
				client.ErrRequest, q.LimitName)
	case len(q.Limits) > rules.MaxInlineLimits:
		return client.Usage{}, fmt.Errorf("%w: Limits has %d limits; it must not have more than %d",
			client.ErrRequest, len(q.Limits), rules.MaxInlineLimits)
	}

	if err := checkRequestID(q); err != nil {
		return client.Usage{}, err
	}
	if err := n.ensureOpen(ctx); err != nil {
		return client.Usage{}, err
	}

	var i inquiry
	err := i.addSubject(&client.Subject{Namespace: q.Namespace, Key: q.Key, Limits: q.Limits, Exact: q.Exact})
	if err != nil {
		return client.Usage{}, err
	}

	subject := &i.subjects[0]
	query := limiter.Query{Rule: q.Rule, Key: subject.Key, Costs: costs, RequestID: q.RequestID}
	if inline {
		subject.Costs = costs
		query = limiter.Query{Subjects: i.subjects, RequestID: q.RequestID}
	}
	query.LimitName = q.LimitName
	query.Bill = q.Bill

	u, err := operation(n.limiter, &query)
	if err != nil {
		return client.Usage{}, n.toClientError(err)
	}
	return toUsage(u, inline), nil
}

// ensureOpen returns an error if the node can't decide anything now.
func (n *Node) ensureOpen(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if n.closed.Load() {
		return client.ErrClosed
	}
	select {
	case <-n.opened:
		return nil
	default:
		return errNotReady
	}
}

// purpose says what decide does with a request's costs.
type purpose int

const (
	take purpose = iota
	peek
	reserve // take the costs until ttl ends or Settle corrects them
)

// outcome is a decision with what it has taken.
type outcome struct {
	client.Decision
	id    string              // of the reservation; empty: none was made
	place *limiter.QueuePlace // nil: none could be given back
}

// decide decides q. If purpose is reserve, it makes a reservation for ttl.
func (n *Node) decide(
	ctx context.Context, q *client.Request, purpose purpose, ttl time.Duration,
) (o outcome, err error) {
	if err := n.ensureOpen(ctx); err != nil {
		return outcome{Decision: n.decisionOnError(q, err)}, err
	}

	i, ok := n.inquiries.Get().(*inquiry)
	if !ok {
		i = &inquiry{}
	}

	err = i.read(q)
	if purpose == peek {
		i.setPeekMode()
	}
	if err == nil && (purpose == reserve || i.hasCountMode()) {
		err = checkRequestID(q)
	}
	i.AwaitsLoan = true
	i.Waits = q.Wait && purpose == take
	i.AtMost = purpose == take && q.TakesAtMost()

	switch {
	case err != nil:
	case purpose == reserve:
		o.id, err = n.reserve(q, i, ttl)
	default:
		// client.Request says that other checks ignore the id. With one, they would
		// also have to be decided by the subject's owner.
		if i.hasCountMode() {
			i.RequestID = q.RequestID
		}
		err = n.limiter.Check(&i.Query, &i.answer)
	}

	if err != nil {
		err = n.toClientError(err)
		o.Decision = n.decisionOnError(q, err)
	} else {
		n.setDecision(&o.Decision, q, &i.answer)
		o.place = i.answer.QueuePlace()
	}

	i.forget()
	n.inquiries.Put(i)
	return o, err
}

// reserve makes a reservation for ttl of what i has read from q. It returns the
// reservation's id.
func (n *Node) reserve(q *client.Request, i *inquiry, ttl time.Duration) (id string, err error) {
	if i.hasModeBesidesCheck() || q.TakesAtMost() {
		return "", api.Errorf(api.BadValue, "mode must be check in a reservation")
	}
	if ttl < 0 || ttl > limiter.MaxReservationTime {
		return "", fmt.Errorf("%w: ttl is %v; it must be 0 to %v", client.ErrRequest, ttl, limiter.MaxReservationTime)
	}

	i.RequestID = q.RequestID
	if q.OnExpiry.Refund {
		i.OnExpiry = &limiter.OnExpiry{}
		i.OnExpiry.Costs, err = appendUnitCosts(nil, q.OnExpiry.Costs)
		if err != nil {
			return "", err
		}
	}
	return n.limiter.Reserve(&i.Query, ttl, &i.answer)
}

// sleep waits for d. It returns an error if the context ends first.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
