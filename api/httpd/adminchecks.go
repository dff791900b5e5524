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

// maxAdminBody bounds a body, in bytes: one call of an operator, with its limits.
const maxAdminBody = 64 << 10

// AdminChecks answers checks, usage, adjustments and resets on the admin plane,
// by the handlers of the data plane, so that an operator needs only one
// address. It is no door for gateways: its calls are few, and none waits for
// its turn.
type AdminChecks struct{ handlers *handlers }

// NewAdminChecks returns AdminChecks of the node that doors belong to.
func NewAdminChecks(doors *api.Doors) *AdminChecks { return &AdminChecks{newHandlers(doors, nil)} }

// Metrics reports the metrics of these checks.
func (d *AdminChecks) Metrics(sink metrics.Sink) {
	d.handlers.latency.Metrics(sink, "admin", "admin_check_seconds",
		"Time from a check's body to its answer, on the admin plane.")
}

// Latency returns how many checks there were, by how long they took.
func (d *AdminChecks) Latency() latency.Counts { return d.handlers.latency.Counts() }

// Answer answers a POST to one of the paths of the data plane. The caller has
// checked where the request comes from.
func (d *AdminChecks) Answer(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAdminBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return api.Errorf(api.TooLarge, "the body must not have more than %d bytes on the admin plane", maxAdminBody)
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
	x.onAdminPlane = true
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
