package api

import (
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/limiter"
)

// defaultTTL is how long a reservation may stay unsettled, unless it says otherwise.
const defaultTTL = time.Minute

// checkOrReserve asks the decider about x's check or reservation.
func (p *dataPlane) checkOrReserve(x *exchange) (err error) {
	if !x.check.reserving {
		return p.decider.Check(&x.check.Query, &x.answer)
	}
	x.check.reservation, err = p.decider.Reserve(&x.check.Query, x.check.ttl, &x.answer)
	return err
}

// settleReservation answers POST /v1/settle.
func (p *dataPlane) settleReservation(x *exchange) *Error {
	costs := slices.Clone(x.check.Costs)
	for i := range costs {
		costs[i].Unit = strings.Clone(costs[i].Unit) // it may be sent on after this request is over
	}
	id := strings.Clone(x.check.reservation)
	out, err := p.decider.Settle(id, costs)
	if err != nil {
		return p.explain(err)
	}
	x.JSON(200)
	x.Body = appendSettlement(x.Body, id, out)
	return nil
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
