package api

import (
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/limiter"
)

// defaultTTL is how long a reservation may wait to be settled, unless it says otherwise.
const defaultTTL = time.Minute

// decide asks the decider about x's check, or reservation.
func (p *dataPlane) decide(x *exchange) (err error) {
	if !x.check.reserving {
		return p.decider.Check(&x.check.Query, &x.answer)
	}
	x.check.reservation, err = p.decider.Reserve(&x.check.Query, x.check.ttl, &x.answer)
	return err
}

// reserve answers POST /v1/reserve: a check whose cost is an estimate.
func (p *dataPlane) reserve(x *exchange) {
	x.check.reserving, x.check.ttl = true, defaultTTL
	p.check(x)
}

// readTTL reads how long a reservation may wait to be settled.
func (r *checkRequest) readTTL(s *scanner) {
	ms, ok := s.whole(0)
	if !ok || ms < 1 || ms > limiter.MaxReservationTime.Milliseconds() {
		s.mean(BadValue, "ttl_ms must be a whole number from 1 to %d", limiter.MaxReservationTime.Milliseconds())
		return
	}
	r.ttl = time.Duration(ms) * time.Millisecond
}

// settleRequest says what a reservation really used.
type settleRequest struct {
	reservation string
	costs       *checkRequest // only its costs
	given       [2]bool       // reservation, costs
}

// settle answers POST /v1/settle.
func (p *dataPlane) settle(x *exchange) {
	if e := p.readiness.checks(); e != nil {
		x.refuse(e)
		return
	}
	s := &x.scan
	r := settleRequest{costs: &x.check}
	if s.reset(x.request.body); s.object() {
		r.read(s)
		s.end()
	}
	if e := s.err(); e != nil {
		x.refuse(e)
		return
	}
	costs := slices.Clone(r.costs.costs)
	for i := range costs {
		costs[i].Unit = strings.Clone(costs[i].Unit) // may be sent on after this request is over
	}
	id := strings.Clone(r.reservation)
	out, err := p.decider.Settle(id, costs)
	if err != nil {
		x.refuse(p.explain(err))
		return
	}
	x.json(200)
	x.response.body = appendSettlement(x.response.body, id, out)
}

// read reads a settling, whose opening brace next has found.
func (r *settleRequest) read(s *scanner) {
	s.open()
	for n := 0; s.more(n, '}'); n++ {
		name := s.name()
		if s.syntax != nil {
			return
		}
		field := slices.Index([]string{"reservation", "costs"}, name)
		switch {
		case field < 0:
			s.unknown(name, "reservation, costs")
			continue
		case r.given[field]:
			s.fail(name + " is given twice, the second time")
		case field == 1:
			r.costs.readCosts(s)
		case s.next() == '"':
			r.reservation = s.text()
		default:
			s.skip()
			s.mean(BadValue, "reservation must be a string")
		}
		r.given[field] = true
	}
	if s.err() != nil {
		return
	}
	switch {
	case !r.given[0]:
		s.mean(MissingKey, "reservation is missing: the id that /v1/reserve answered")
	case !r.given[1]:
		s.mean(MissingKey, "costs is missing: what was used, by unit; {} cancels all")
	}
}

func appendSettlement(b []byte, id string, out *limiter.Settlement) []byte {
	b = append(b, `{"reservation":`...)
	b = appendString(b, id)
	b = append(b, `,"settled":true,"costs":{`...)
	for i := range out.Costs {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, out.Costs[i].Unit)
		b = appendInt(b, ":", out.Costs[i].Cost)
	}
	b = append(b, '}')
	if out.Remaining >= 0 {
		b = appendInt(b, `,"remaining":`, out.Remaining)
	}
	b = appendBool(append(b, ','), `"repeated":`, out.Repeated)
	return append(b, '}')
}
