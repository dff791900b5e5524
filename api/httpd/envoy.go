package httpd

import (
	"fmt"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/rls"
)

// envoy answers POST /json: Envoy's rate limit service for callers without
// gRPC, compatible with the reference server. It is not optimised.
func (h *handlers) envoy(x *exchange) *api.Error {
	// The translation holds several copies of the body.
	n := int64(len(x.request.body)) * jsonFactor
	if n > api.UnchargedBytes {
		if !h.Budget.Wait(func() bool { return h.Budget.Take(n) }) {
			return h.Budget.FullError()
		}
		defer h.Budget.Give(n)
	}

	request, e := rls.FromJSON(x.request.body)
	if e != nil {
		return e
	}

	var c rls.Call
	if e := c.Read(request); e != nil {
		return e
	}
	if e := c.Decide(h.Doors, x.token); e != nil {
		return e
	}

	x.StartJSON(200)
	if c.Over() {
		x.Status = 429
	}

	var err error
	x.Body, err = rls.AppendJSON(x.Body, c.Append(nil))
	if err != nil {
		return h.explain(fmt.Errorf("answer POST /json: %w", err))
	}

	took := time.Since(x.began)
	x.stripe.Observe(took)
	c.CountLatency(took)
	return nil
}

// jsonFactor is roughly how many times its own size a body of POST /json takes
// in memory while it is answered.
const jsonFactor = 8
