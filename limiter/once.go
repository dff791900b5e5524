package limiter

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// reserveRequest is a reservation, or a check in count mode, with a request id.
// A check is sent as a reservation with a ttl of 0. The request goes to the
// owner of the first subject that has one. That owner decides the whole request
// and keeps the answer.
type reserveRequest struct {
	query   *Query
	ttl     time.Duration // zero for a check
	ticket  *ticket
	version int64 // of the asker's rules
	hops    int
}

// isOnceOrAtMost reports whether q is more than a plain check: it has a
// RequestID, or takes at most its cost.
func (q *Query) isOnceOrAtMost() bool { return q.RequestID != "" || q.AtMost }

// checkOnceOrAtMost is Check for a q with a RequestID or AtMost. A check with a
// RequestID is a reservation with a ttl of 0: nobody settles it.
func (l *Limiter) checkOnceOrAtMost(q *Query, a *Answer) error {
	if q.RequestID == "" {
		return l.checkAtMost(q, a)
	}
	_, err := l.reserve(q, 0, a)
	return err
}

// reserveOnce is makeReservation for a q with a RequestID: a repetition of q
// gets the same answer. a must be prepared for q. The home decides q. If
// it can't be reached, this node does, and keeps no answer. If it then turns out
// that owners could be reached, q is taken back, and the home decides it.
func (rs *reservations) reserveOnce(q *Query, ttl time.Duration, a *Answer) (id string, err error) {
	req := &reserveRequest{query: q, ttl: ttl}
	req.ticket = ticketOf(q.RequestID, req.hashContent(), 0)
	until := time.Now().Add(checkTimeout - replySlack)
	restore := a.addOptions(func(o *options) { o.deadline = until })
	defer restore()

	id, err = rs.reserveAtHomeBy(until, req, a)
	if !errors.Is(err, ErrNoOwner) {
		return id, err
	}

	// Decide q as if it had no id. The failed attempt may have written into a.
	done, err := rs.limiter.prepare(rs.limiter.clock.Now(), q, a)
	if err != nil {
		return "", err
	}
	id, err = rs.makeReservation(q, ttl, a, done)
	if err != nil || done || a.DecidedBy < ByForward {
		return id, err
	}

	// Owners have just become reachable, and have decided q. But none of them keeps
	// the answer, so take q back.
	if err := rs.cancelReservation(until, id, q, a); err != nil {
		return "", err
	}

	// Ask the owner of the first subject again, even if the time is up: it has just
	// become reachable.
	return rs.reserveAtHomeBy(until, req, a)
}

// reserveAtHomeBy is reserveAtHome with a timeout: ownerTimeout, or less if the
// deadline is near.
func (rs *reservations) reserveAtHomeBy(
	deadline time.Time, req *reserveRequest, a *Answer,
) (id string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), min(ownerTimeout, timeLeft(deadline)))
	defer cancel()
	return rs.reserveAtHome(ctx, req, a)
}

// timeLeft returns how much time is left until the deadline, but at least
// catchUpTimeout: an owner that answers at once is asked even if the time is up.
func timeLeft(deadline time.Time) time.Duration {
	return max(time.Until(deadline), catchUpTimeout)
}

// cancelReservation takes back a reservation that the caller will never learn
// of, and prepares a for another attempt. What it can't give back by the
// deadline stays charged.
func (rs *reservations) cancelReservation(deadline time.Time, id string, q *Query, a *Answer) error {
	if id != "" {
		ctx, cancel := context.WithTimeout(context.Background(), timeLeft(deadline))
		defer cancel()
		_, _ = rs.settle(ctx, &settleRequest{signedID: id})
	}
	_, err := rs.limiter.prepare(rs.limiter.clock.Now(), q, a)
	return err
}

// reserveAtHome has the owner of the first subject, which may be this node,
// decide req. a must be prepared for req. The error is ErrNoOwner if no owner
// could decide req; otherwise it is one of Reserve's.
func (rs *reservations) reserveAtHome(ctx context.Context, req *reserveRequest, a *Answer) (id string, err error) {
	home, ok := a.homeSubject()
	if !ok {
		return "", ErrNoOwner
	}
	err = rs.limiter.doAtOwner(ctx, &ownerRequest{subject: home.Subject, hops: req.hops, here: func() (err error) {
		id, err = rs.reserveHere(ctx, req, home, a)
		return err
	}, there: func(to ring.NodeID) (err error) {
		id, err = rs.askToReserve(ctx, to, req, a)
		return err
	}})
	return id, err
}

// homeHitIndex returns the index of a check's first hit that has an owner, or
// -1. Subjects of `consistency: local` rules have none: each node counts by
// itself.
func (a *Answer) homeHitIndex() int {
	return slices.IndexFunc(a.scratch.match.Hits, func(h rules.Hit) bool { return h.Rule.Consistency != rules.Local })
}

// homeSubject returns the first subject of a check that has an owner.
func (a *Answer) homeSubject() (home counters.Key, ok bool) {
	i := a.homeHitIndex()
	if i < 0 {
		return home, false
	}
	h := &a.scratch.match.Hits[i]
	return counters.Key{Subject: h.Subject.Hi, Counter: h.Subject.Lo}, true
}

// reserveHere decides req on this node, which has the counters of home, the
// first subject. If req was decided before, reserveHere returns the answer that
// was kept. The error is counters.ErrShut if the counters have moved away, or
// one of Reserve's.
func (rs *reservations) reserveHere(
	ctx context.Context, req *reserveRequest, home counters.Key, a *Answer,
) (id string, err error) {
	memo := req.ticket.memo(home, notes.Answer, a.Now)
	if i := a.homeHitIndex(); i >= 0 {
		memo.Group = groupOf(req.query, i, &a.scratch.match.Hits[i])
	}

	// A repetition that comes while the first request is being decided waits for
	// its answer.
	unlock, ok := rs.limiter.requests.lock(ctx, memo.Key)
	if !ok {
		return "", ErrNoOwner
	}

	defer unlock()

	// Waiting for another request may have taken time.
	a.Now = rs.limiter.clock.Now()
	found, err := rs.limiter.table.Recall(a.Now, memo)
	if errors.Is(err, counters.ErrRequestIDReused) {
		return "", ErrRequestIDReused
	}
	if err != nil {
		return "", err
	}

	if found {
		kept, ok := recallAnswer(memo)
		if ok {
			rs.limiter.requests.repeated.Add(1)
			id = a.restore(kept)
			return id, rs.limiter.renewSlotOf(id)
		}
	}

	id, err = rs.makeReservation(req.query, req.ttl, a, false)
	if err != nil || found { // a memo that can't be read is not overwritten
		return id, err
	}

	memo.Answer = wire.Encode(nil, a.pack(id))
	err = rs.limiter.table.Remember(a.Now, memo)
	if !errors.Is(err, counters.ErrShut) { // after any other error, the answer is not kept
		return id, nil
	}

	// The subject has just moved to a node that does not have the answer. Let that
	// node decide again.
	deadline, _ := ctx.Deadline()
	if rs.cancelReservation(deadline, id, req.query, a) != nil {
		return "", ErrNoOwner
	}

	return "", counters.ErrShut
}

// recallAnswer returns the answer that memo has kept, if it can be read.
func recallAnswer(memo *counters.Memo) (kept *keptAnswer, ok bool) {
	if memo.Answer == nil {
		return nil, false
	}
	kept = &keptAnswer{}
	return kept, wire.Decode(memo.Answer, kept, "answer") == nil
}

// answerFormat is the first number of a keptAnswer: the format of the rest.
const answerFormat = 2

// keptAnswer is an Answer as an owner keeps it, or as nodes send it.
type keptAnswer struct {
	version   int64 // of the rules
	allowed   bool
	decidedBy DecidedBy
	tightest  int
	limits    []keptLimit
	id        []byte // of the reservation
}

// keptLimit is one limit's part of a keptAnswer. counter is the Key.Counter of
// the limit's counter.
type keptLimit struct {
	counter uint64
	blocked bool
	result
}

// Code implements wire.Message.
func (ka *keptAnswer) Code(c *wire.Coder) {
	form := answerFormat
	wire.Number(c, &form, answerFormat)
	c.Require(form == answerFormat)
	wire.Number(c, &ka.version, maxVersion)
	c.Bool(&ka.allowed)
	wire.Number(c, &ka.decidedBy, int64(ByNone))
	wire.Varint(c, &ka.tightest)
	wire.List(c, &ka.limits, maxMessageOps, 9+minResultBytes, func(l *keptLimit) {
		wire.Fixed(c, &l.counter)
		c.Bool(&l.blocked)
		l.code(c)
	})
	c.Rest(&ka.id)
	c.Require(ka.tightest >= -1 && ka.tightest < max(1, len(ka.limits)))
}

// pack returns a and the id of its reservation in the form that restore takes.
func (a *Answer) pack(id string) *keptAnswer {
	ka := &keptAnswer{version: a.RulesVersion, allowed: a.Allowed, decidedBy: a.DecidedBy, tightest: a.TightestIndex}
	ka.id, _ = base64.RawURLEncoding.DecodeString(id) // id was encoded here
	for i := range a.Limits {
		la := &a.Limits[i]
		ka.limits = append(ka.limits,
			keptLimit{a.scratch.ops[i].Key.Counter, la.Blocked, result{Decision: la.Decision, noRoom: la.NoRoom}})
	}
	return ka
}

// restore fills a from a packed answer, and returns the id of its reservation.
// a must be prepared for the same check. If the rules have changed since, and
// the answer has a limit that is gone, a lists no limits.
func (a *Answer) restore(ka *keptAnswer) (id string) {
	limits := a.restoreLimits(ka)
	a.dropUnansweredHits(ka)
	a.scratch.opsAsListed = false // an attempt here may have failed before
	a.Allowed = ka.allowed
	a.DecidedBy = ka.decidedBy
	a.TightestIndex = -1
	a.Counted = !ka.allowed && len(ka.id) > 0 // only a check that took something has an id

	a.Limits = a.Limits[:0]
	if len(limits) == len(ka.limits) {
		a.Limits = append(a.Limits, limits...)
		a.TightestIndex = ka.tightest
	}

	return base64.RawURLEncoding.EncodeToString(ka.id)
}

// restoreLimits returns those limits of a packed answer that a's check has.
func (a *Answer) restoreLimits(ka *keptAnswer) []LimitAnswer {
	limits := make([]LimitAnswer, 0, len(ka.limits))
	for i := range ka.limits {
		kept := &ka.limits[i]
		for j := range a.scratch.ops {
			la := &a.Limits[j]
			if a.scratch.ops[j].Key.Counter == kept.counter {
				limits = append(limits, LimitAnswer{
					Rule: la.Rule, Limit: la.Limit, Cost: la.Cost, Decision: kept.Decision,
					NoRoom: kept.noRoom, Blocked: kept.blocked,
				})
			}
		}
	}
	return limits
}

// dropUnansweredHits removes from a's check the inline subjects that a packed
// answer lacks: a refusal may cover only some of the subjects.
func (a *Answer) dropUnansweredHits(ka *keptAnswer) {
	hits := a.scratch.match.Hits[:0] // this overwrites only what the loop has read
	for _, h := range a.scratch.match.Hits {
		if !h.Rule.Inline || ka.hasCounter(counterKey(&h, h.Limits[0]).Counter) {
			hits = append(hits, h)
		}
	}
	a.scratch.match.Hits = hits
}

// hasCounter reports whether the answer has a limit with that Key.Counter.
func (ka *keptAnswer) hasCounter(counter uint64) bool {
	return slices.ContainsFunc(ka.limits, func(kept keptLimit) bool { return kept.counter == counter })
}

// versionToAsk returns the version of the rules by which another node must
// decide q, for which a is prepared. asker is the version that came with q; 0
// if q came from a caller.
func (a *Answer) versionToAsk(q *Query, asker int64) int64 {
	if len(q.Subjects) > 0 {
		return asker // subjects that come with limits don't depend on the rules
	}
	return max(asker, a.RulesVersion)
}

// askToReserve has another node decide req. The error is ErrNoOwner if it could
// not.
func (rs *reservations) askToReserve(
	ctx context.Context, to ring.NodeID, req *reserveRequest, a *Answer,
) (id string, err error) {
	next := *req
	reply := keptAnswer{}
	next.hops = req.hops + 1
	next.version = a.versionToAsk(req.query, req.version)

	if err := rs.limiter.cluster.request(ctx, to, MethodReserve, &next, &reply); err != nil {
		return "", err
	}

	return rs.limiter.restoreReply(ctx, req.query, a, &reply)
}

// restoreReply fills a, which is prepared for q, from another node's answer,
// and returns the id in the answer.
func (l *Limiter) restoreReply(ctx context.Context, q *Query, a *Answer, reply *keptAnswer) (id string, err error) {
	// The answer names limits of newer rules. By the older rules, restore could
	// not find those limits.
	if reply.version > a.RulesVersion && len(q.Subjects) == 0 {
		l.catchUp(ctx, 0, reply.version)
		if done, err := l.prepare(l.clock.Now(), q, a); err != nil || done {
			return "", ErrNoOwner
		}
	}

	id = a.restore(reply)
	a.DecidedBy = min(a.DecidedBy, ByForward) // the weaker one
	return id, nil
}

// serveReserve decides req for another node.
func (rs *reservations) serveReserve(req *reserveRequest) (*keptAnswer, error) {
	ctx, cancel := context.WithTimeout(rs.limiter.cluster.ctx, ownerTimeout)
	defer cancel()

	a, err := rs.limiter.prepareForAsker(ctx, req.query, req.version, req.ttl > 0)
	if err != nil {
		return nil, err
	}

	id, err := rs.reserveAtHome(ctx, req, a)
	if err != nil {
		return nil, err
	}

	return a.pack(id), nil
}

// prepareForAsker prepares q, which another node has sent, for a decision here
// within ownerTimeout. version is the version of that node's rules. The error is
// ErrNoOwner: the asker then goes on without this node.
func (l *Limiter) prepareForAsker(ctx context.Context, q *Query, version int64, takesSlots bool) (*Answer, error) {
	if l.version() < version {
		l.catchUp(ctx, 0, version)
	}
	if l.active.Load() == nil {
		return nil, ErrNoOwner
	}

	a := &Answer{}
	a.scratch.takesSlots = takesSlots
	done, err := l.prepare(l.clock.Now(), q, a)
	if err != nil || done || len(a.scratch.ops) > MaxReserved {
		return nil, ErrNoOwner
	}

	a.scratch.deadline = time.Now().Add(ownerTimeout)
	return a, nil
}

// maxText bounds a value or a name, in bytes.
const maxText = document.MaxValueBytes

// hashContent hashes what the request asks for, without Who. The order of its
// parts is ignored.
func (req *reserveRequest) hashContent() uint64 {
	sorted := req.query.sorted()
	sorted.Who = ""
	return hashContent(wire.Encode(nil, &reserveRequest{query: sorted, ttl: req.ttl, ticket: &ticket{}}))
}

// sorted returns a copy of what q asks for, with attributes and costs in order.
func (q *Query) sorted() *Query {
	r := *q

	// Whether q awaits a loan does not change what it asks for.
	r.AwaitsLoan = false
	r.Attributes, r.Costs, r.Subjects = slices.Clone(r.Attributes), sortedCosts(r.Costs), slices.Clone(r.Subjects)
	slices.SortFunc(r.Attributes, func(x, y rules.Attribute) int { return cmp.Compare(x.Name, y.Name) })
	for i := range r.Subjects {
		r.Subjects[i].Costs = sortedCosts(r.Subjects[i].Costs)
	}
	return &r
}

func sortedCosts(costs []UnitCost) []UnitCost {
	costs = slices.Clone(costs)
	slices.SortFunc(costs, func(x, y UnitCost) int { return cmp.Compare(x.Unit, y.Unit) })
	return costs
}

// Code implements wire.Message.
func (req *reserveRequest) Code(c *wire.Coder) {
	if c.Reads() {
		req.ticket = &ticket{}
		req.query = &Query{}
	}

	req.ticket.Code(c)
	wire.Number(c, &req.hops, maxHops)
	wire.Number(c, &req.version, maxVersion)
	c.Millis(&req.ttl, MaxReservationTime)
	req.query.codeSlots(c)
	req.query.code(c)
	c.Require(req.hops > 0 && (req.ttl >= time.Millisecond || req.query.hasCounts()))
}

// codeSlots codes which slots q takes.
func (q *Query) codeSlots(c *wire.Coder) {
	wire.Number(c, &q.Slots, MaxSlots)
	c.Millis(&q.SlotTTL, MaxSlotTTL)
	c.Text(&q.Who, MaxWho)
}

// code codes what q asks for, except for the slots.
func (q *Query) code(c *wire.Coder) {
	c.Text(&q.Rule, maxText)
	c.Flags(&q.ByKey, &q.AwaitsLoan)
	c.Texts(&q.Key, document.MaxAttributes, maxText)
	wire.List(c, &q.Attributes, document.MaxAttributes, 2, func(a *rules.Attribute) {
		c.Text(&a.Name, maxText)
		c.Text(&a.Value, maxText)
	})
	codeCosts(c, &q.Costs)
	codeOnExpiry(c, &q.OnExpiry)

	// The other fields exist since feature level 2, and only if one of them is set.
	hasMore := len(q.Subjects) > 0 || q.Mode != counters.CheckMode
	if c.Reads() {
		hasMore = c.In.More()
	}
	if !hasMore {
		return
	}

	wire.Number(c, &q.Mode, int64(counters.NumModes-1))
	wire.List(c, &q.Subjects, rules.MaxInlineSubjects, 6, func(subj *Subject) { subj.code(c) })
	c.Require(len(q.Subjects) > 0 || q.Mode != counters.CheckMode)
}

func (subj *Subject) code(c *wire.Coder) {
	c.Text(&subj.Namespace, maxText)
	c.Texts(&subj.Key, document.MaxAttributes, maxText)
	c.Flags(&subj.Exact, &subj.Shadow)
	wire.Number(c, &subj.Mode, int64(counters.NumModes-1))
	codeCosts(c, &subj.Costs)
	wire.List(c, &subj.Limits, rules.MaxInlineLimits, 11, func(limit *document.InlineLimit) {
		for _, n := range [...]*int64{&limit.Limit, &limit.PerMS, &limit.TTLMS, &limit.Burst} {
			wire.Number(c, n, algorithms.MaxAmount)
		}
		for _, text := range [...]*string{&limit.Per, &limit.TTL, &limit.Algorithm, &limit.Unit, &limit.Name, &limit.TZ, &limit.From} {
			c.Text(text, maxText)
		}
	})
}
