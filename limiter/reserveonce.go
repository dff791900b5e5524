package limiter

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// homeTime is how long the owner of a reservation's first subject may take, so that it can be decided without if need be.
const homeTime = checkTime * 2 / 3

// reserveRequest is a reservation with an id on its way to the owner of its first subject, which decides all of it and keeps the
// answer.
type reserveRequest struct {
	query   *Query
	ttl     time.Duration
	ticket  *ticket
	version int64 // of the rules that the asker goes by
	hops    int
}

// reserveOnce has a reservation, which a is prepared for, decided by the owner of its first subject, be that this node. The error
// is ErrNoOwner where that could not be done, or ErrRequestBody.
func (l *Limiter) reserveOnce(ctx context.Context, r *reserveRequest, a *Answer) (id string, err error) {
	hi, ok := a.home()
	if !ok {
		return "", ErrNoOwner
	}
	err = l.do(ctx, &errand{hi: hi, hops: r.hops, standby: true, here: func() (err error) {
		id, err = l.reserveHere(ctx, r, hi, a)
		return err
	}, ask: func(to ring.NodeID, _ *trail) (err error) {
		id, err = l.askToReserve(ctx, to, r, a)
		return err
	}})
	return id, err
}

// home is the first subject of a check that has an owner: under local rules each node counts by itself.
func (a *Answer) home() (hi uint64, ok bool) {
	for i := range a.scratch.match.Hits {
		if h := &a.scratch.match.Hits[i]; h.Rule.Consistency != rules.Local {
			return h.Subject.Hi, true
		}
	}
	return 0, false
}

// reserveHere decides r here, where the counters of its first subject are, or answers it as the first time. The error is
// counters.ErrShut where that is not so any more.
func (l *Limiter) reserveHere(ctx context.Context, r *reserveRequest, hi uint64, a *Answer) (id string, err error) {
	memo := r.ticket.memo(hi, a.Now)
	done, ok := l.requests.alone(ctx, memo.Key)
	if !ok {
		return "", ErrNoOwner
	}
	defer done()
	a.Now = l.clock.Now()
	found, err := l.table.Recall(a.Now, memo)
	switch {
	case errors.Is(err, counters.ErrBody):
		return "", ErrRequestBody
	case err != nil:
		return "", err
	case found && memo.Answer != nil:
		if id, err = a.restore(memo.Answer); err == nil {
			l.requests.repeated.Add(1)
			return id, nil
		}
	}
	if id, err = l.reserve(r.query, r.ttl, a, false); err != nil {
		return "", err
	}
	return l.remember(ctx, r, hi, a, id)
}

// remember keeps the answer to r, which reserved id, at the owner of its subject: here, or where the partition has just gone, or
// come from. Where that has an answer already, r was decided twice: the first answer counts, and the second is taken back. So is one
// that can't be kept, with ErrNoOwner. If it may have been kept all the same, it stays charged: a retry may be answered by it.
func (l *Limiter) remember(ctx context.Context, r *reserveRequest, hi uint64, a *Answer, id string) (string, error) {
	answer := a.pack(id)
	var first []byte
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(time.Until(deadline), catchUpTime))
	defer cancel()
	perhaps := false // another node may have kept it, and its reply was lost
	err := l.do(ctx, &errand{hi: hi, standby: true, here: func() (err error) {
		first, err = l.rememberHere(r.ticket, hi, answer)
		return err
	}, ask: func(to ring.NodeID, _ *trail) (err error) {
		body := append(r.ticket.append(binary.LittleEndian.AppendUint64(nil, hi)), answer...)
		if first, err = l.member.call(ctx, to, MethodKeep, body); err != nil {
			var refused *peer.RemoteError
			perhaps = perhaps || !errors.As(err, &refused) && !errors.Is(err, peer.ErrNotSent)
			return ErrNoOwner
		}
		return nil
	}})
	if err == nil && len(first) == 0 {
		return id, nil
	}
	if id != "" && !perhaps {
		_, _ = l.Settle(id, nil) // where its owner is not there it stays charged
	}
	if err != nil {
		return "", err
	}
	if other, err := a.restore(first); err == nil {
		id = other
	}
	return id, nil
}

// rememberHere keeps an answer here, or tells the one that there is, if it is another one. It fails with counters.ErrShut where this
// node is not the owner.
func (l *Limiter) rememberHere(t *ticket, hi uint64, answer []byte) (first []byte, err error) {
	now := l.clock.Now()
	memo := t.memo(hi, now)
	found, err := l.table.Recall(now, memo)
	switch {
	case errors.Is(err, counters.ErrShut):
		return nil, err
	case found && err == nil && !bytes.Equal(memo.Answer, answer):
		return memo.Answer, nil
	case found || !l.enter(ofCheck, memo, now):
		return nil, nil
	}
	memo.Answer = answer
	if err := l.table.Remember(now, memo); errors.Is(err, counters.ErrShut) {
		return nil, err
	}
	return nil, nil
}

// serveKeep keeps an answer that another node made, and replies with the one that there is, if there is one.
func (l *Limiter) serveKeep(body []byte, to Answerer) {
	d := wire.NewDecoder(body)
	hi, t := d.Uint64(), decodeTicket(d)
	if d.Failed() || d.Len() > counters.MaxMemo {
		to.Fail(CodeMessage, "answer can't be read")
		return
	}
	if !l.member.Authority() {
		to.Fail(CodeBusy, "this node has no authority")
		return
	}
	first, err := l.rememberHere(t, hi, slices.Clone(d.Rest()))
	if err != nil {
		to.Fail(CodeBusy, "the subject is not here")
		return
	}
	to.Reply(first)
}

// answerForm begins an answer that is kept, or sent.
const answerForm = 1

// pack makes what restore reads of an answer and the id of what it reserved.
func (a *Answer) pack(id string) []byte {
	whole, print := a.asked()
	b := append(wire.AppendBool([]byte{answerForm}, a.Allowed), byte(a.DecidedBy))
	b = binary.LittleEndian.AppendUint32(b, print)
	b = binary.AppendVarint(b, int64(a.Tightest))
	b = binary.AppendUvarint(b, uint64(len(a.Limits)))
	for i := range a.Limits {
		la := &a.Limits[i]
		at := slices.IndexFunc(whole, func(w askedLimit) bool { return w.rule == la.Rule && w.limit == la.Limit })
		b = binary.AppendUvarint(b, uint64(max(0, at)))
		r := result{Decision: la.Decision, full: la.Full}
		if la.Blocked {
			r.used = 1
		}
		b = r.append(b)
	}
	raw, _ := base64.RawURLEncoding.DecodeString(id) // it was made here
	return append(b, raw...)
}

// askedLimit is a limit that a check may be about.
type askedLimit struct {
	rule  *rules.Rule
	limit *rules.Limit
}

// asked lists all limits of the check that a was prepared for; print tells them from others.
func (a *Answer) asked() (list []askedLimit, print uint32) {
	h := fnv.New32a()
	var id [8]byte
	for i := range a.scratch.match.Hits {
		hit := &a.scratch.match.Hits[i]
		for _, limit := range hit.Limits {
			list = append(list, askedLimit{hit.Rule, limit})
			binary.LittleEndian.PutUint64(id[:], limit.ID)
			_, _ = h.Write(id[:])
			_, _ = h.Write([]byte(hit.Rule.Name))
		}
	}
	return list, h.Sum32()
}

// restore makes a, which is prepared for the same check, the answer that was packed. Where the rules have changed in between, it
// tells no limits.
func (a *Answer) restore(b []byte) (id string, err error) {
	whole, print := a.asked()
	d := wire.NewDecoder(b)
	form, allowed, by, same := d.Byte(), d.Bool(), DecidedBy(d.Byte()), d.Uint32() == print
	tightest, n := int(d.Varint()), d.Count(len(b), 1+leastResult)
	if form != answerForm || by > ByNone || tightest < -1 || tightest >= n && n > 0 {
		d.Fail()
	}
	limits := make([]LimitAnswer, 0, n)
	for range n {
		at, r := int(d.UpTo(maxMessageOps)), decodeResult(d)
		if d.Failed() {
			break
		}
		if same && at < len(whole) {
			limits = append(limits, LimitAnswer{
				Rule: whole[at].rule, Limit: whole[at].limit, Decision: r.Decision, Full: r.full, Blocked: r.used == 1,
			})
		}
	}
	if d.Failed() {
		return "", d.Err()
	}
	a.Allowed, a.DecidedBy, a.Tightest = allowed, by, -1
	a.Limits = append(a.Limits[:0], limits...)
	if len(limits) == n {
		a.Tightest = tightest
	}
	return base64.RawURLEncoding.EncodeToString(d.Rest()), nil
}

// How a reservation with an id fared, in a reply.
const (
	onceDecided = iota
	onceNoOwner
	onceOtherBody
	onceBounds
)

// askToReserve asks another node to decide r. The error is ErrNoOwner where that could not be done.
func (l *Limiter) askToReserve(ctx context.Context, to ring.NodeID, r *reserveRequest, a *Answer) (id string, err error) {
	next := *r
	next.hops, next.version = r.hops+1, max(r.version, a.RulesVersion)
	reply, err := l.member.call(ctx, to, MethodReserve, next.append(nil))
	if err != nil {
		return "", ErrNoOwner
	}
	d := wire.NewDecoder(reply)
	switch how, version := d.Byte(), d.UpTo(1<<62); {
	case d.Failed() || how >= onceBounds || how == onceNoOwner:
		return "", ErrNoOwner
	case how == onceOtherBody:
		return "", ErrRequestBody
	case version > a.RulesVersion:
		l.catchUp(ctx, version)
		if over, err := l.prepare(l.clock.Now(), r.query, a); err != nil || over {
			return "", ErrNoOwner
		}
	}
	if id, err = a.restore(d.Rest()); err != nil {
		return "", ErrNoOwner
	}
	a.DecidedBy = min(a.DecidedBy, ByForward) // the weaker one
	return id, nil
}

// catchUp waits a moment for a version of the rules.
func (l *Limiter) catchUp(ctx context.Context, version int64) {
	ctx, cancel := context.WithTimeout(ctx, catchUpTime)
	defer cancel()
	l.member.Await(ctx, 0, version)
}

// serveReserve answers another node's reservation.
func (l *Limiter) serveReserve(body []byte, to Answerer) {
	r, err := readReserveRequest(body)
	if err != nil {
		to.Fail(CodeMessage, err.Error())
		return
	}
	l.member.answer(to, func() { to.Reply(l.reserveFor(r)) })
}

// reserveFor decides r for another node and makes the reply.
func (l *Limiter) reserveFor(r *reserveRequest) []byte {
	reply := func(how byte, a *Answer) []byte {
		return binary.AppendUvarint([]byte{how}, uint64(a.RulesVersion))
	}
	ctx, cancel := context.WithTimeout(l.member.ctx, homeTime)
	defer cancel()
	if l.version() < r.version {
		l.catchUp(ctx, r.version)
	}
	var a Answer
	if l.inForce.Load() == nil {
		return reply(onceNoOwner, &a)
	}
	over, err := l.prepare(l.clock.Now(), r.query, &a)
	if err != nil || over || len(a.scratch.ops) > MaxReserved {
		return reply(onceNoOwner, &a) // the asker goes by its own rules
	}
	a.scratch.until = time.Now().Add(homeTime)
	id, err := l.reserveOnce(ctx, r, &a)
	switch {
	case errors.Is(err, ErrRequestBody):
		return reply(onceOtherBody, &a)
	case err != nil:
		return reply(onceNoOwner, &a)
	}
	return append(reply(onceDecided, &a), a.pack(id)...)
}

const (
	maxText       = 1024 // bytes of a value or a name
	maxAttributes = 32
)

func (r *reserveRequest) append(b []byte) []byte {
	b = r.ticket.append(append(b, byte(r.hops)))
	b = binary.AppendUvarint(b, uint64(r.version))
	b = binary.AppendUvarint(b, uint64(r.ttl.Milliseconds()))
	q := r.query
	if b = wire.AppendBool(wire.AppendText(b, q.Rule), q.ByKey); q.ByKey {
		b = wire.AppendTexts(b, q.Key)
	} else {
		b = binary.AppendUvarint(b, uint64(len(q.Attributes)))
		for _, attribute := range q.Attributes {
			b = wire.AppendText(wire.AppendText(b, attribute.Name), attribute.Value)
		}
	}
	return appendCosts(b, q.Costs)
}

func readReserveRequest(body []byte) (*reserveRequest, error) {
	d := wire.NewDecoder(body)
	r := &reserveRequest{hops: int(d.Byte()), ticket: decodeTicket(d), query: &Query{}}
	r.version = d.UpTo(1 << 62)
	r.ttl = time.Duration(d.UpTo(MaxReservationTime.Milliseconds())) * time.Millisecond
	q := r.query
	if q.Rule, q.ByKey = d.Text(maxText), d.Bool(); q.ByKey {
		q.Key = d.Texts(maxAttributes, maxText)
	} else {
		for range d.Count(maxAttributes, 2) {
			q.Attributes = append(q.Attributes, rules.Attribute{Name: d.Text(maxText), Value: d.Text(maxText)})
		}
	}
	q.Costs = decodeCosts(d)
	if r.hops < 1 || r.hops > maxHops || r.ttl < time.Millisecond {
		d.Fail()
	}
	return r, d.Done("reservation")
}

// reserve decides a reservation that a was prepared for; over: no counter needs to be asked.
func (l *Limiter) reserve(q *Query, ttl time.Duration, a *Answer, over bool) (id string, err error) {
	a.scratch.reserving = true
	defer func() { a.scratch.reserving, a.scratch.until = false, time.Time{} }()
	if !over && !l.start(q, a) {
		if err := l.finish(q, a); err != nil {
			return "", err
		}
	} else {
		l.count(q, a)
	}
	if !a.Allowed {
		return "", nil
	}
	l.reservations.reserved.Add(1)
	key, _ := l.signingKey()
	return l.reservationOf(q, a, ttl).id(key), nil
}
