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

// OnError says what a Decision is when no node answers: none can be reached, in time, or it answers 5xx. What is wrong on
// this side of the node, or asked in a way that it does not take, is refused all the same; see Options.OnError.
type OnError int

const (
	// Open allows: the limiter's absence is nobody's absence. The default.
	Open OnError = iota
	// Closed refuses.
	Closed
)

// The defaults of Options.
const (
	// DefaultTimeout is a little more than the 900 ms within which a node decides even when the owner of a subject
	// can't be reached.
	DefaultTimeout     = time.Second
	DefaultMaxInFlight = 4
	DefaultMaxBatch    = 256
	DefaultMaxQueue    = 10_000
)

// The bounds of Options.
const (
	maxNodes    = 64
	maxInFlight = 256
	maxBatch    = 10_000 // the node's
	maxQueue    = 1_000_000
	maxTimeout  = time.Hour
)

// Options configure a Client. Only Nodes is needed.
type Options struct {
	// Nodes are the addresses of nodes' data planes, such as "http://10.0.0.1:8080", 1 to 64 of them, the one to ask
	// first at the beginning. A path is put before /v1/check.
	Nodes []string
	// Token is sent as a bearer token (one of the nodes, with the scopes check and, for Adjust, adjust). Empty: none.
	Token string
	// TLS is for nodes with https addresses. Nil: the system's roots.
	TLS *tls.Config

	// Timeout bounds a call, from its beginning to its answer, over all nodes that it is repeated at; a context may
	// end it sooner. A node gets half of it while there is another one left to ask. 0: DefaultTimeout. Up to an hour.
	Timeout time.Duration
	// OnError says what a Decision is when no node answers. Open never lets through what a stranger could bring about by
	// what or how much he sends: a call beyond MaxQueue (but see OpenWhenFull), one that no node could decide (ErrRequest),
	// and one that a node answers with an Error below 500, such as 400, 401, 404 or 413.
	OnError OnError
	// OpenWhenFull has OnError decide what fails with ErrQueueFull, too. Without it, calls are refused while the queue is full;
	// with it and Open, a stranger who fills the queue switches the limits off for everybody.
	OpenWhenFull bool

	// MaxInFlight bounds the requests with checks that are under way at once; further checks wait and share the next
	// ones. 0: DefaultMaxInFlight. Up to 256.
	MaxInFlight int
	// MaxBatch bounds the checks that share a request. 0: DefaultMaxBatch. 1: none do. Up to 10,000.
	MaxBatch int
	// MaxQueue bounds the checks that wait, and the reservations, settlements and adjustments that are under way. Calls
	// beyond it fail at once with ErrQueueFull, and are refused. 0: DefaultMaxQueue. Up to 1,000,000.
	MaxQueue int

	// Logger is told when a node is passed over and when it is well again. Nil: nobody is.
	Logger *slog.Logger
}

// complete checks o and fills in what is not given.
func (o Options) complete() (Options, error) {
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.MaxInFlight = cmp.Or(o.MaxInFlight, DefaultMaxInFlight)
	o.MaxBatch = cmp.Or(o.MaxBatch, DefaultMaxBatch)
	o.MaxQueue = cmp.Or(o.MaxQueue, DefaultMaxQueue)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, bound := range []struct {
		field           string
		have, from, top int64
	}{
		{"len(Nodes)", int64(len(o.Nodes)), 1, maxNodes},
		{"Timeout", int64(o.Timeout), 1, int64(maxTimeout)},
		{"OnError", int64(o.OnError), int64(Open), int64(Closed)},
		{"MaxInFlight", int64(o.MaxInFlight), 1, maxInFlight},
		{"MaxBatch", int64(o.MaxBatch), 1, maxBatch},
		{"MaxQueue", int64(o.MaxQueue), 1, maxQueue},
	} {
		if bound.have < bound.from || bound.have > bound.top {
			return o, fmt.Errorf("client: Options.%s is %d; it must be %d to %d", bound.field, bound.have, bound.from, bound.top)
		}
	}
	if strings.ContainsAny(o.Token, "\r\n\x00") {
		return o, fmt.Errorf("client: Options.Token must be one line")
	}
	return o, nil
}

// base is the address of a node without a slash at its end.
func base(i int, address string) (string, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return "", fmt.Errorf("client: Options.Nodes[%d]: %w", i, err)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.RawQuery != "", u.Fragment != "":
		return "", fmt.Errorf("client: Options.Nodes[%d]: %q: an address such as http://127.0.0.1:8080 is wanted", i, u.Redacted())
	}
	return strings.TrimRight(u.String(), "/"), nil
}
