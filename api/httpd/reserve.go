package httpd

import (
	"slices"
	"strings"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/limiter"
)

// checkOrReserve asks the decider for x's check or reservation.
func (h *handlers) checkOrReserve(x *exchange) (err error) {
	if !x.check.Reserving {
		return h.Decider.Check(&x.check.Query, &x.answer)
	}
	x.check.Reservation, err = h.Decider.Reserve(&x.check.Query, x.check.TTL, &x.answer)
	if err == nil && x.check.Reservation != "" {
		x.check.Slot, _ = h.Decider.SlotOf(x.check.Reservation)
	}
	return err
}

// settleReservation answers POST /v1/settle.
func (h *handlers) settleReservation(x *exchange) *api.Error {
	costs := slices.Clone(x.check.Costs)
	for i := range costs {
		costs[i].Unit = strings.Clone(costs[i].Unit) // the decider may use it after this request has ended
	}
	id := strings.Clone(x.check.Reservation)
	out, err := h.Decider.Settle(id, costs)
	if err != nil {
		return h.explain(err)
	}
	x.StartJSON(200)
	x.Body = appendSettlement(x.Body, id, out)
	return nil
}

func appendSettlement(b []byte, id string, out *limiter.Settlement) []byte {
	b = append(b, `{"reservation":`...)
	b = codec.AppendString(b, id)
	b = codec.AppendCosts(append(b, `,"settled":true,"costs":`...), out.Costs)
	if out.Remaining >= 0 {
		b = codec.AppendInt(b, `,"remaining":`, out.Remaining)
	}
	if out.Late {
		b = append(b, `,"expired":true`...)
	}
	b = codec.AppendBool(append(b, ','), `"repeated":`, out.Repeated)
	return append(b, '}')
}
