package httpd

import (
	"strings"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
)

// acquireSlot answers POST /v1/acquire.
func (h *handlers) acquireSlot(x *exchange) *api.Error {
	if e := x.token.NamespaceError(&x.check.Query); e != nil {
		return e
	}
	if e := x.check.RequireKey(h.Decider.Rules()); e != nil {
		return e
	}

	x.check.AwaitsLoan = !x.isPipelined
	if x.check.Who == "" {
		x.check.Who = api.HolderName(x.token, x.peer)
	}

	var err error
	x.check.Slot, err = h.Decider.Acquire(&x.check.Query, &x.answer)
	if err != nil {
		return h.explain(err)
	}
	if x.check.Slot.ID != "" && x.conn != nil && x.conn.HasHungUp() { // nobody would ever release it
		h.Decider.ReleaseUnanswered(x.check.Slot)
		return api.Errorf(api.TryAgain, "the caller hung up before the answer, so the slot was released")
	}

	x.compose(0, false, h.node)
	x.stripe.Observe(time.Since(x.began))
	return nil
}

// renewSlot answers POST /v1/renew.
func (h *handlers) renewSlot(x *exchange) *api.Error {
	expires, err := h.Decider.RenewSlot(strings.Clone(x.check.Slot.ID), x.check.TTL)
	if err != nil {
		return h.explain(err)
	}
	x.StartJSON(200)
	x.Body = append(codec.AppendInt(x.Body, `{"expires_ms":`, expires.Milliseconds()), '}')
	return nil
}

// releaseSlot answers POST /v1/release.
func (h *handlers) releaseSlot(x *exchange) *api.Error {
	held, err := h.Decider.ReleaseSlot(strings.Clone(x.check.Slot.ID))
	if err != nil {
		return h.explain(err)
	}
	x.StartJSON(200)
	x.Body = append(codec.AppendBool(x.Body, `{"released":`, held), '}')
	return nil
}
