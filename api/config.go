package api

import (
	"errors"
	"log/slog"
	"time"

	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/rules"
)

// Decider decides checks. *limiter.Limiter is one.
type Decider interface {
	// Check decides q now and keeps nothing of q. The error wraps limiter.ErrUnknownRule or limiter.ErrKey.
	Check(q *limiter.Query, a *limiter.Answer) error
	// CheckAll decides several queries in order, each as Check does. answers and errs have an element for each.
	CheckAll(queries []*limiter.Query, answers []*limiter.Answer, errs []error)
	// Reserve decides q as Check does. If q is allowed, id names the reservation for Settle.
	Reserve(q *limiter.Query, ttl time.Duration, a *limiter.Answer) (id string, err error)
	// Settle replaces a reservation's estimate by the real costs, once.
	Settle(id string, costs []limiter.UnitCost) (*limiter.Settlement, error)
	// Usage returns what the only subject of q has used. Adjust adds q's costs to that, and Reset clears it; they return the
	// usage after that. A request id that was seen before changes nothing again.
	Usage(q *limiter.Query) (*limiter.Usage, error)
	Adjust(q *limiter.Query) (*limiter.Usage, error)
	Reset(q *limiter.Query) (*limiter.Usage, error)
	// Rules returns the rules in force; nil until there are any.
	Rules() *rules.Set
}

// Config holds what all doors need.
type Config struct {
	Node    string // this node's name, as answers show it
	Version string // the program's version

	CertFile string // with KeyFile: TLS at all doors, reloaded when the files change
	KeyFile  string

	// Tokens. Once there is one, all doors require a token, except for probes, metrics and the dashboard's files.

	APIToken   string // has the scopes check and adjust; empty: none
	AdminToken string // has the scope admin; empty: none
	TokensFile string // lists more tokens and is reloaded when it changes; empty: none

	Decider     Decider
	Checkpoints func() persist.Status // nil: counters are not saved
	// Health reports the node's state in the cluster. It must return at once, and never wait for a disk.
	Health func() ClusterHealth
	// Condition returns why the node is not ready, once Ready has been called; nil if it is ready.
	Condition func() error

	Logger *slog.Logger // nil: slog.Default

	// For tests; 0 replaces nothing.

	Bound  time.Duration // replaces the time bounds of all doors
	Places int           // replaces the bound on the connections of each door
}

// Validate returns an error that lists what is missing.
func (c *Config) Validate() error {
	return errors.Join(
		Need((c.CertFile == "") == (c.KeyFile == ""), "api: one of CertFile and KeyFile"),
		Need(c.Node != "", "api: Node"),
		Need(c.Decider != nil, "api: Decider"),
	)
}

// Need returns an error that names a field of a configuration, unless the field is ok.
func Need(ok bool, field string) error {
	if ok {
		return nil
	}
	return errors.New(field + " is missing")
}
