package httpd

import (
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/internal/latency"
	"github.com/rlnode/rlnode/internal/metrics"
)

// maxDeskBody bounds a body, in bytes: one call of an operator, with its limits.
const maxDeskBody = 64 << 10

// Desk answers checks, usage, adjustments and resets on the admin plane, by the
// handlers of the data plane, so that an operator needs only one address. It is
// no door for gateways: its calls are few, and none waits for its turn.
type Desk struct{ handlers *handlers }

// NewDesk returns a Desk of the node that doors belong to.
func NewDesk(doors *api.Doors) *Desk { return &Desk{newHandlers(doors, nil)} }

// Metrics reports the desk's metrics.
func (d *Desk) Metrics(sink metrics.Sink) {
	d.handlers.latency.Metrics(sink, "admin", "admin_check_seconds",
		"Time from a check's body to its answer, on the admin plane.")
}

// Latency returns how many checks there were, by how long they took.
func (d *Desk) Latency() latency.Counts { return d.handlers.latency.Counts() }

// Answer answers a POST to one of the paths of the data plane. The caller has
// checked where the request comes from.
func (d *Desk) Answer(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxDeskBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return api.Errorf(api.TooLarge, "the body must not have more than %d bytes on the admin plane", maxDeskBody)
	}
	if err != nil {
		return api.Errorf(api.BadRequest, "the body can't be read")
	}

	x := d.handlers.getExchange()
	defer d.handlers.putExchange(x)
	x.method = r.Method
	x.path = r.URL.Path
	x.authorization = r.Header.Get("Authorization")
	x.authorizations = len(r.Header["Authorization"])
	x.request.body = body
	x.isDesk = true
	route, e := d.handlers.admit(x)
	if e != nil {
		return e
	}
	d.handlers.serve(route, x)

	h := w.Header()
	h.Set("Content-Type", x.ContentType)
	h.Set("Content-Length", strconv.Itoa(len(x.Body)))
	for i := range x.Headers {
		h.Set(x.Headers[i].Name, string(x.Headers[i].Value))
	}
	w.WriteHeader(x.Status)
	_, _ = w.Write(x.Body) // a caller that has gone misses its answer
	return nil
}
