package resp

import (
	"net/http"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/internal/tracing"
)

// trace records a command that was executed, if it is sampled and does not just
// set up the connection. q is the check that it asked for, nil for none. err is
// the limiter's error, nil for none. failed means that the reply is an error.
func (c *session) trace(one *spec, q *check, err error, failed bool) {
	tracer := c.server.tracer
	if tracer == nil || one.isSetup() || !tracer.Sampled("") {
		return
	}

	t := tracing.Request{Name: strings.ToUpper(one.name), Status: http.StatusOK,
		Began: c.execution.began, Ended: time.Now()}
	if c.token != nil {
		t.Token = c.token.Name
	}

	switch {
	case err != nil:
		t.Status = api.AsError(err).Status()
	case failed:
		t.Status = http.StatusBadRequest
	case q != nil:
		t.Decision = api.TracedDecision(&q.answer)
	}

	tracer.Record(&t)
}
