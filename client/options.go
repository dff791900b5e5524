package client

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"
)

// OnError says what to decide if no node answers: none can be reached in time,
// or all answer 5xx. Invalid calls, and calls that the node rejects, are
// refused in any case; see Options.OnError.
type OnError int

const (
	// Open allows every call: if the limiter is down, callers still get through. The default.
	Open OnError = iota
	// Closed refuses every call.
	Closed
	// Local limits within this process: a check with inline limits by those, any
	// other by Options.Local, which is required. Each process counts for itself,
	// and admits up to the whole limit. Windows begin with a subject's first cost,
	// whatever the algorithm. At most 100,000 are kept; further subjects are
	// refused until some have ended.
	Local
)

// OnRejected says what to decide if nodes reject this client: they answer 401,
// or 403 with the code forbidden.
type OnRejected int

const (
	// RejectedClosed refuses every call. The default.
	RejectedClosed OnRejected = iota
	// RejectedOpen allows every call.
	RejectedOpen
)

// The defaults of Options.
const (
	// DefaultTimeout is slightly above the 900 ms within which a node decides even
	// if the owner can't be reached.
	DefaultTimeout     = time.Second
	DefaultMaxInFlight = 4
	DefaultMaxBatch    = 256
	DefaultMaxQueue    = 10_000
)

// The bounds of Options.
const (
	maxNodes    = 64
	maxInFlight = 256
	maxBatch    = 10_000 // the node's bound
	maxQueue    = 1_000_000
	maxTimeout  = time.Hour
)

// Options configures a Client. Only Nodes is required.
type Options struct {
	// Nodes are the addresses of the nodes' data planes, such as
	// "http://10.0.0.1:8080": 1 to 64, the preferred one first. A path in an
	// address precedes /v1/check.
	Nodes []string
	// Token is sent as a bearer token. It needs the scope check and, for Adjust and
	// Reset, adjust. Empty: no token.
	Token string
	// TLS is for nodes with https addresses. Nil: the system's root certificates.
	TLS *tls.Config

	// Timeout bounds a call from start to answer, including retries at other nodes;
	// a context may end it sooner. While another node is left to ask, a node gets
	// half of Timeout. 0: DefaultTimeout. At most one hour.
	Timeout time.Duration
	// OnError says what to decide if no node answers. Open never allows a call that
	// fails because of what, or how much, an untrusted user sends: a call beyond
	// MaxQueue (but see OpenWhenFull), one that no node could decide (ErrRequest),
	// and one that a node answers with an Error below 500, such as 400, 409 or 413.
	// It also decides if a rule in Rules does not exist.
	OnError OnError
	// OnRejected says what to decide if a node, and then another one, rejects the token.
	OnRejected OnRejected
	// Rules are names of rules that are constants of this program, not chosen by
	// its callers. If one of them does not exist, OnError decides; any other
	// unknown rule is refused. The client asks a node about them, and about the
	// token, when it is made, and logs what is wrong as an error. Middleware adds
	// its own rule.
	Rules []string
	// Local is used if OnError is Local, while no node answers, for checks without
	// inline limits. It has 1 to 8 limits, which apply to each subject: a rule's
	// key, or all attributes except endpoint and method.
	Local []Limit
	// OpenWhenFull lets OnError also decide calls that fail with ErrQueueFull.
	// Without it, calls are refused while the queue is full. With it and Open, a
	// user who fills the queue switches the limits off for everyone.
	OpenWhenFull bool

	// MaxInFlight bounds the requests with checks that are in flight at once.
	// Further checks wait and share the next requests. 0: DefaultMaxInFlight. At
	// most 256.
	MaxInFlight int
	// MaxBatch bounds the checks that share a request. 0: DefaultMaxBatch. 1: no
	// sharing. At most 10,000.
	MaxBatch int
	// MaxQueue bounds the waiting checks and, separately, the other calls in
	// progress: reservations, settlements, adjustments, usage, resets, and checks
	// with only some Subjects in CountMode. Calls beyond it fail at once with
	// ErrQueueFull and are refused. 0: DefaultMaxQueue. At most 1,000,000.
	MaxQueue int

	// Logger logs a warning if a node is skipped, and an error if nodes reject the
	// token or don't know one of Rules, each at most once a minute. It also logs
	// that a node is used again. Nil: slog.Default.
	Logger *slog.Logger
}

// withDefaults validates o and fills in the defaults.
func (o Options) withDefaults() (Options, error) {
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.MaxInFlight = cmp.Or(o.MaxInFlight, DefaultMaxInFlight)
	o.MaxBatch = cmp.Or(o.MaxBatch, DefaultMaxBatch)
	o.MaxQueue = cmp.Or(o.MaxQueue, DefaultMaxQueue)
	o.Logger = cmp.Or(o.Logger, slog.Default())

	for _, bound := range []struct {
		field           string
		have, from, top int64
	}{
		{"len(Nodes)", int64(len(o.Nodes)), 1, maxNodes},
		{"Timeout", int64(o.Timeout), 1, int64(maxTimeout)},
		{"OnError", int64(o.OnError), int64(Open), int64(Local)},
		{"OnRejected", int64(o.OnRejected), int64(RejectedClosed), int64(RejectedOpen)},
		{"len(Local)", int64(len(o.Local)), 0, maxLimits},
		{"MaxInFlight", int64(o.MaxInFlight), 1, maxInFlight},
		{"MaxBatch", int64(o.MaxBatch), 1, maxBatch},
		{"MaxQueue", int64(o.MaxQueue), 1, maxQueue},
	} {
		if bound.have < bound.from || bound.have > bound.top {
			return o, fmt.Errorf("client: Options.%s is %d; it must be %d to %d", bound.field,
				bound.have, bound.from, bound.top)
		}
	}

	if o.OnError == Local && len(o.Local) == 0 {
		return o,
			fmt.Errorf("%w: Options.Local is empty; with OnError Local it needs the limits of checks that bring none",
				ErrRequest)
	}

	for i := range o.Local {
		wrong := o.Local[i].mistake()
		_, ok := windowLength(o.Local[i].Per)
		if wrong == "" && !ok {
			wrong = fmt.Sprintf("Per is %.80q; it must be a window such as 10s, 1m or day", o.Local[i].Per)
		}
		if wrong != "" {
			return o, fmt.Errorf("client: Options.Local[%d].%s", i, wrong)
		}
	}

	if strings.ContainsAny(o.Token, "\r\n\x00") {
		return o, fmt.Errorf("client: Options.Token must be one line")
	}

	return o, nil
}

// parseBaseURL returns the address of a node without a trailing slash.
func parseBaseURL(i int, address string) (string, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return "", fmt.Errorf("client: Options.Nodes[%d]: %w", i, err)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.RawQuery != "", u.Fragment != "":
		return "",
			fmt.Errorf("client: Options.Nodes[%d]: %q must be an address such as http://127.0.0.1:8080",
				i, u.Redacted())
	}
	return strings.TrimRight(u.String(), "/"), nil
}
