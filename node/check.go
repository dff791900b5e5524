package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

var errNotReady = fmt.Errorf("%w: the node is not ready", client.ErrUnavailable)

// inquiry holds the query and the answer of a call, and the slices they use. It is pooled.
type inquiry struct {
	limiter.Query
	answer     limiter.Answer
	key        []string
	attributes []rules.Attribute
	costs      []limiter.UnitCost
	subjects   []limiter.Subject
}

// Check asks whether q is allowed now. If so, it takes the cost from all limits
// of all rules that apply; if not, from none. The decision is made here or by
// the node that owns the subject, within 900 ms.
//
// It works as client.Client's Check does, without the network between. The
// Decision can always be followed, even with an error. The error is
// client.ErrUnavailable before the node is ready, or client.ErrClosed after
// Close (Config.OnError decides in both cases); or client.ErrRequest, a
// *client.Error that a node would answer, or the context's cause.
//
// If the context ends while a check with q.Wait waits for its turn, those that
// wait behind it move up.
func (n *Node) Check(ctx context.Context, q client.Request) (client.Decision, error) {
	o, err := n.decide(ctx, &q, take, 0)
	if err == nil && q.Wait && o.Allowed {
		err = o.awaitTurn(ctx)
	}
	return o.Decision, err
}

// awaitTurn waits until o's caller may go on. If the context ends first, those
// behind it move up, and it returns an error.
func (o *outcome) awaitTurn(ctx context.Context) error {
	if o.place == nil {
		return sleep(ctx, o.Delay)
	}

	timer := time.NewTimer(o.Delay)
	defer timer.Stop()

	// GoesOn is set before Wait: from then on the limiter reads it.
	o.place.GoesOn = time.Now().Add(o.Delay)
	waiter := o.place.Wait(func(goesOn time.Time) { timer.Reset(time.Until(goesOn)) })

	select {
	case <-timer.C:
		waiter.GoOn()
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
// client.Client. ttl is at most an hour; 0 is a minute.
func (n *Node) Reserve(ctx context.Context, q client.Request, ttl time.Duration) (client.Reservation, error) {
	sent := time.Now()
	o, err := n.decide(ctx, &q, reserve, cmp.Or(ttl, limiter.DefaultReservationTime))
	if err == nil && q.Wait && o.Allowed {
		err = sleep(ctx, o.Delay)
	}

	reserved := client.Reservation{Decision: o.Decision, ID: o.id}
	slot, hasSlot := n.limiter.SlotOf(o.id)
	if o.id == "" || !hasSlot {
		return reserved, err
	}

	// The slot outlives this call: Settle ends it.
	var slotErr error
	reserved.Slot, slotErr = client.NewSlot(context.WithoutCancel(ctx), n, o.Decision, slot.ID,
		sent.Add(slot.Expires))
	if slotErr != nil {
		return client.Reservation{Decision: client.Decision{DecidedBy: client.ByError}}, slotErr
	}
	n.slots.Reserve(o.id, reserved.Slot)
	return reserved, err
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

	n.slots.Settle(id)
	list, err := appendUnitCosts(nil, costs)
	if err != nil {
		return client.Settlement{}, err
	}

	settled, err := n.limiter.Settle(id, list)
	if err != nil {
		return client.Settlement{}, n.toClientError(err)
	}

	s := client.Settlement{Settled: true, Costs: make(map[string]int64, len(settled.Costs)),
		Remaining: max(0, settled.Remaining), Expired: settled.Expired}
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
		map[string]int64{rules.Requests: cost})
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

// toUsage converts the usage of a subject; inline, its limits came with the call.
func toUsage(u *limiter.Usage, inline bool) client.Usage {
	usage := client.Usage{Namespace: u.Namespace, Key: u.Key, Unknown: u.Unknown}
	if !inline {
		usage.Rule = u.Rule.Name
	}
	if u.Blocked > 0 {
		usage.BlockedUntil = time.Unix(0, u.At.Wall).Add(ceilMillis(u.Blocked))
	}

	for _, l := range u.Limits {
		shown := l.Limit.ShownAt(u.At)
		usage.Limits = append(usage.Limits, client.LimitUsage{
			Name: l.Limit.Name, Algorithm: l.Limit.Kind.String(), Unit: l.Limit.Unit,
			Limit: shown.Capacity, Window: windowOf(&shown), TTL: ttlOf(&shown),
			Rate: rateOf(&shown), Holders: l.NumHolders, Held: holdersOf(l.Holders), Share: l.Share,
			Used: l.Used, Leased: l.Leased, Estimated: l.Estimated, Remaining: l.Remaining,
			ResetAfter: ceilMillis(l.ResetAfter), MoreAfter: ceilMillis(l.MoreAfter), Applied: l.Applied,
		})
	}

	for _, c := range u.Applied() {
		if usage.Applied == nil {
			usage.Applied = map[string]int64{}
		}
		usage.Applied[c.Unit] = c.Cost
	}

	for _, l := range u.Unlimited {
		usage.Limits = append(usage.Limits, client.LimitUsage{Name: l.Name, Unit: l.Unit, Unlimited: true})
	}

	return usage
}

// checkRequestID bounds q's id.
func checkRequestID(q *client.Request) error {
	if n := len(q.RequestID); n > limiter.MaxRequestID {
		return fmt.Errorf("%w: RequestID has %d bytes; it must not have more than %d",
			client.ErrRequest, n, limiter.MaxRequestID)
	}
	return nil
}

// checkUnit bounds the name of a unit in Costs.
func checkUnit(unit string) error {
	if len(unit) > rules.MaxValueBytes {
		return fmt.Errorf("%w: Costs: a unit has %d bytes; it must not have more than %d",
			client.ErrRequest, len(unit), rules.MaxValueBytes)
	}
	return nil
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

// decide decides q. If what is reserve, it makes a reservation for ttl.
func (n *Node) decide(ctx context.Context, q *client.Request, what purpose, ttl time.Duration) (o outcome, err error) {
	if err := n.ensureOpen(ctx); err != nil {
		return outcome{Decision: n.decisionOnError(q, err)}, err
	}

	i, ok := n.inquiries.Get().(*inquiry)
	if !ok {
		i = &inquiry{}
	}

	err = i.read(q)
	if what == peek {
		i.setPeekMode()
	}
	if err == nil && (what == reserve || i.hasCountMode()) {
		err = checkRequestID(q)
	}
	i.AwaitsLoan = true
	i.Waits = q.Wait && what == take
	i.AtMost = what == take && q.TakesAtMost()

	switch {
	case err != nil:
	case what == reserve:
		o.id, err = n.reserve(q, i, ttl)
	default:
		// Answers to other checks are not kept, so that an id would do nothing.
		if i.hasCountMode() {
			i.RequestID = q.RequestID
		}
		err = n.limiter.Check(&i.Query, &i.answer)
	}

	if err != nil {
		err = n.toClientError(err)
		o.Decision = n.decisionOnError(q, err)
	} else {
		o.Decision = n.toDecision(q, &i.answer)
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

// forget clears what i has read: the pool must not keep the caller's strings alive.
func (i *inquiry) forget() {
	clear(i.key)
	clear(i.attributes)
	clear(i.costs)
	for j := range i.subjects {
		s := &i.subjects[j]
		clear(s.Key)
		clear(s.Limits)
		clear(s.Costs)
	}
	i.Query = limiter.Query{}
}

// read fills i's query from q.
func (i *inquiry) read(q *client.Request) (err error) {
	if err := q.Validate(); err != nil {
		return err
	}

	i.key = i.key[:0]
	i.attributes = i.attributes[:0]
	if q.Limits != nil || q.Subjects != nil {
		return i.readSubjects(q)
	}

	if err := checkKey(q.Key); err != nil {
		return err
	}
	for _, v := range q.Key {
		i.key = append(i.key, client.Fit(v))
	}

	if n := len(q.Attributes); n > rules.MaxAttributes {
		return fmt.Errorf("%w: Attributes has %d attributes; it must not have more than %d",
			client.ErrRequest, n, rules.MaxAttributes)
	}
	for name, value := range q.Attributes {
		if len(name) > rules.MaxValueBytes {
			return fmt.Errorf("%w: Attributes: a name has %d bytes; it must not have more than %d",
				client.ErrRequest, len(name), rules.MaxValueBytes)
		}
		i.attributes = append(i.attributes, rules.Attribute{Name: name, Value: client.Fit(value)})
	}

	i.costs, err = appendAllCosts(i.costs[:0], q.Cost, q.Costs)
	if err != nil {
		return err
	}

	i.Query = limiter.Query{
		Rule: q.Rule, Key: i.key, ByKey: q.Attributes == nil, Attributes: i.attributes,
		Costs: i.costs, Mode: modeOf(q.Mode),
	}
	return nil
}

// readSubjects reads a valid request whose subjects bring their limits.
func (i *inquiry) readSubjects(q *client.Request) error {
	i.subjects = i.subjects[:0]

	if q.Subjects == nil {
		subject := client.Subject{Namespace: q.Namespace, Key: q.Key, Limits: q.Limits, Exact: q.Exact,
			Shadow: q.Shadow, Mode: q.Mode, Cost: q.Cost, Costs: q.Costs}
		if err := i.addSubject(&subject); err != nil {
			return err
		}
	}

	for j := range q.Subjects {
		if err := i.addSubject(&q.Subjects[j]); err != nil {
			return err
		}
	}

	i.Query = limiter.Query{ByKey: true, Subjects: i.subjects}
	return nil
}

// checkKey bounds the values of a key.
func checkKey(key []string) error {
	if len(key) > rules.MaxAttributes {
		return fmt.Errorf("%w: Key has %d values; it must not have more than %d", client.ErrRequest,
			len(key), rules.MaxAttributes)
	}
	return nil
}

// addSubject appends s, reusing the slices of the subject that had its place.
func (i *inquiry) addSubject(s *client.Subject) (err error) {
	if err := checkKey(s.Key); err != nil {
		return err
	}

	n := len(i.subjects)
	i.subjects = slices.Grow(i.subjects, 1)[:n+1]
	subject := &i.subjects[n]
	subject.Namespace = client.Fit(s.Namespace)
	subject.Exact = s.Exact
	subject.Shadow = s.Shadow
	subject.Mode = modeOf(s.Mode)

	subject.Key = subject.Key[:0]
	for _, v := range s.Key {
		subject.Key = append(subject.Key, client.Fit(v))
	}

	subject.Limits = subject.Limits[:0]
	for j := range s.Limits {
		l := &s.Limits[j]
		from := ""
		if l.FromFirst {
			from = "first"
		}
		subject.Limits = append(subject.Limits, rules.InlineLimit{
			Limit: l.Limit, Per: l.Per, Algorithm: l.Algorithm, Burst: l.Burst, Unit: l.Unit,
			Name: l.Name, TZ: l.TZ, From: from, TTL: l.TTL,
		})
	}

	subject.Costs, err = appendAllCosts(subject.Costs[:0], s.Cost, s.Costs)
	return err
}

func modeOf(m client.Mode) counters.Mode {
	switch m {
	case client.PeekMode:
		return counters.PeekMode
	case client.CountMode:
		return counters.CountMode
	}
	return counters.CheckMode
}

// setPeekMode sets the mode of all subjects to peek, which takes nothing.
func (i *inquiry) setPeekMode() {
	i.Mode = counters.PeekMode
	for j := range i.Subjects {
		i.Subjects[j].Mode = counters.PeekMode
	}
}

// hasModeBesidesCheck reports whether any mode is not check, the only one that
// a reservation allows.
func (i *inquiry) hasModeBesidesCheck() bool {
	return i.Mode != counters.CheckMode ||
		slices.ContainsFunc(i.Subjects, func(s limiter.Subject) bool { return s.Mode != counters.CheckMode })
}

// hasCountMode reports whether any mode is count.
func (i *inquiry) hasCountMode() bool {
	return i.Mode == counters.CountMode ||
		slices.ContainsFunc(i.Subjects, func(s limiter.Subject) bool { return s.Mode == counters.CountMode })
}

// appendAllCosts appends costs to list, and cost, which is in requests.
func appendAllCosts(list []limiter.UnitCost, cost int64, costs map[string]int64) ([]limiter.UnitCost, error) {
	list, err := appendUnitCosts(list, costs)
	if err != nil || cost == 0 {
		return list, err
	}
	if _, hasRequests := costs[rules.Requests]; hasRequests {
		return list, fmt.Errorf("%w: Cost and Costs[%q] exclude each other", client.ErrRequest, rules.Requests)
	}
	return append(list, limiter.UnitCost{Unit: rules.Requests, Cost: min(cost, algorithms.MaxAmount)}), nil
}

// appendUnitCosts appends costs to list, sorted by unit.
func appendUnitCosts(list []limiter.UnitCost, costs map[string]int64) ([]limiter.UnitCost, error) {
	if len(costs) == 0 {
		return list, nil
	}
	if len(costs) > limiter.MaxCosts {
		return nil, fmt.Errorf("%w: Costs has %d units; it must not have more than %d",
			client.ErrRequest, len(costs), limiter.MaxCosts)
	}

	// The units are sorted, so that of several mistakes the same is always reported.
	for _, unit := range slices.Sorted(maps.Keys(costs)) {
		if costs[unit] < 0 {
			return nil, fmt.Errorf("%w: Costs[%.80q] is %d; it must not be negative",
				client.ErrRequest, unit, costs[unit])
		}
		if err := checkUnit(unit); err != nil {
			return nil, err
		}
		list = append(list, limiter.UnitCost{Unit: unit, Cost: min(costs[unit], algorithms.MaxAmount)})
	}

	return list, nil
}

// toClientError converts err to the error that a client would get.
func (n *Node) toClientError(err error) error {
	if errors.Is(err, client.ErrRequest) {
		return err
	}
	e := api.AsError(err)
	if e.Code == api.Internal {
		n.log.Error("check not decided", "error", err)
	}
	return &client.Error{Status: e.Status(), Code: string(e.Code), Title: e.Title(),
		Detail: e.Detail, Node: n.config.Name}
}

// decisionOnError returns the decision for a check q that failed with err. If
// the request may be at fault, it refuses regardless of OnError: otherwise an
// attacker could pass with a malformed request.
func (n *Node) decisionOnError(q *client.Request, err error) client.Decision {
	d := client.Decision{DecidedBy: client.ByError}
	var answered *client.Error
	switch {
	case errors.As(err, &answered) && answered.IsRejection():
		d.Reason = "The rate limiter rejects this server."
	case errors.Is(err, client.ErrRequest), answered != nil && answered.Status < 500:
		d.Reason = "The rate limiter can't decide this."
	case n.config.OnError == client.Open:
		d.Allowed = true
		d.Granted = q.GrantedUnasked()
	default:
		d.Reason = "Nothing passes while the rate limiter does not answer."
	}

	return d
}

// toDecision converts the answer to q into a Decision.
func (n *Node) toDecision(q *client.Request, a *limiter.Answer) client.Decision {
	d := client.Decision{
		Allowed: a.Allowed, Counted: a.Counted, Granted: a.Granted,
		DecidedBy: client.DecidedBy(a.DecidedBy.String()), Node: n.config.Name,
		RulesVersion: a.RulesVersion,
	}
	tightest := a.TightestLimit()
	if tightest != nil {
		setTightest(&d, tightest, a)
	} else if !a.Allowed {
		d.RetryAfter = client.Never
	} else if rule := a.UnlimitedRule(); rule != nil {
		d.Rule = rule.Name
		d.Unlimited = true
	}

	if !a.Allowed {
		d.Reason = string(a.AppendReason(nil))
		d.Refusal = toRefusal(a)

		switch {
		case a.Denied():
			d.Code = string(api.Denied)
		case !a.Counted:
			d.Code = string(tightest.Cause())
		}

		for i := range a.Limits {
			l := &a.Limits[i]
			if !l.Allowed && !l.Rule.Shadow {
				d.Violated = append(d.Violated, l.Limit.Name)
			}
		}
	}

	// The headers are made from the limits.
	if q.Detail || q.Headers {
		d.Limits = toLimitDecisions(a)
	}
	if q.Headers {
		d.MakeHeaders(a.Set.Headers.IETF, a.Set.Headers.XRateLimit, a.Set.Headers.ResetDelta)
	}
	if !q.Detail {
		d.Limits = nil
	}

	return d
}

// setTightest sets what d says of the tightest limit of a.
func setTightest(d *client.Decision, tightest *limiter.LimitAnswer, a *limiter.Answer) {
	d.Rule = tightest.Rule.Name
	d.Unit = tightest.Limit.Unit
	d.Limit = tightest.Limit.UndividedCapacity()
	d.Used = tightest.Used
	d.Remaining = tightest.Remaining

	shown := tightest.Limit.ShownAt(a.Now)
	d.Window = windowOf(&shown)
	d.TTL = ttlOf(&shown)
	d.Rate = rateOf(&shown)

	d.ResetAfter = ceilMillis(tightest.ResetAfter)
	d.RetryAfter = ceilMillis(tightest.RetryAfter)
	d.MoreAfter = ceilMillis(tightest.MoreAfter)
	d.Delay = ceilMillis(a.Delay())
}

// toLimitDecisions returns what a says of each limit.
func toLimitDecisions(a *limiter.Answer) []client.LimitDecision {
	list := make([]client.LimitDecision, len(a.Limits))
	for i := range a.Limits {
		l := &a.Limits[i]
		shown := l.Limit.ShownAt(a.Now)
		list[i] = client.LimitDecision{
			Rule: l.Rule.Name, Name: l.Limit.Name, Algorithm: l.Limit.Kind.String(),
			Unit: l.Limit.Unit, Limit: shown.Capacity,
			Window: windowOf(&shown), TTL: ttlOf(&shown), Rate: rateOf(&shown), Used: l.Used,
			Remaining: l.Remaining, ResetAfter: ceilMillis(l.ResetAfter),
			RetryAfter: ceilMillis(l.RetryAfter),
			MoreAfter:  ceilMillis(l.MoreAfter), Allowed: l.Allowed, Shadow: l.Rule.Shadow,
		}
	}

	for _, h := range a.Unlimited() {
		for _, l := range h.Limits {
			list = append(list, client.LimitDecision{Rule: h.Rule.Name, Name: l.Name, Unit: l.Unit,
				Unlimited: true, Allowed: true, Shadow: h.Rule.Shadow})
		}
	}

	return list
}

// windowOf returns the window of a limit; 0 if it is of slots.
func windowOf(s *rules.Shown) time.Duration {
	if s.Slots {
		return 0
	}
	return ceilMillis(s.Window)
}

// ttlOf returns how long a slot lasts unless it is renewed; 0 for other limits.
func ttlOf(s *rules.Shown) time.Duration {
	if !s.Slots {
		return 0
	}
	return ceilMillis(s.Window)
}

// rateOf returns what a limit allows over time. Slots have no rate.
func rateOf(s *rules.Shown) client.Rate {
	if s.Slots {
		return client.Rate{}
	}
	return client.Rate{Limit: s.Amount, Per: ceilMillis(s.Per)}
}

// ceilMillis rounds d up to whole milliseconds, as answers over HTTP do. It
// leaves client.Never unchanged.
func ceilMillis(d time.Duration) time.Duration {
	if d <= 0 {
		return d
	}
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
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

// toRefusal returns what the rule that refused says to the end user; nil if nothing.
func toRefusal(a *limiter.Answer) *client.Refusal {
	text := codec.Refusal(a)
	if text == nil {
		return nil
	}
	var r client.Refusal
	if err := json.Unmarshal(text, &r); err != nil {
		return nil // can't happen: the text is made from a valid document
	}
	return &r
}
