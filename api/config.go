package api

import (
	"errors"
	"log/slog"
	"time"

	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// Decider decides checks. *limiter.Limiter is one.
type Decider interface {
	// Check decides q now. It does not retain q. Errors are those of limiter.Limiter.Check.
	Check(q *limiter.Query, a *limiter.Answer) error
	// CheckAll decides several queries in order, each as Check does. answers and
	// errs have one element per query.
	CheckAll(queries []*limiter.Query, answers []*limiter.Answer, errs []error)
	// Reserve decides q as Check does. If q is allowed, id names the reservation for Settle.
	Reserve(q *limiter.Query, ttl time.Duration, a *limiter.Answer) (id string, err error)
	// Settle replaces a reservation's estimate with the actual costs, once.
	Settle(id string, costs []limiter.UnitCost) (*limiter.Settlement, error)
	// Acquire decides q as Check does. If q is allowed, the slot can be renewed and released.
	Acquire(q *limiter.Query, a *limiter.Answer) (limiter.Slot, error)
	RenewSlot(id string, ttl time.Duration) (expires time.Duration, err error)
	ReleaseSlot(id string) (held bool, err error)
	// ReleaseUnanswered releases a slot just acquired whose caller did not get the
	// answer.
	ReleaseUnanswered(s limiter.Slot)
	// SlotOf returns the slot that was acquired with a reservation just made, if there is one.
	SlotOf(reservation string) (s limiter.Slot, some bool)
	// Usage returns what the only subject of q has used. Adjust adds q's costs to
	// the usage, Reset clears it. Both return the usage afterwards. A request id
	// that was seen before has no further effect.
	Usage(q *limiter.Query) (*limiter.Usage, error)
	Adjust(q *limiter.Query) (*limiter.Usage, error)
	Reset(q *limiter.Query) (*limiter.Usage, error)
	// KeyUsage says what the only counter of a key holds, in a namespace where each key
	// has one. ResetKey clears it, and returns what it held.
	KeyUsage(namespace, key string) (limiter.KeyUsage, error)
	ResetKey(namespace, key string) (limiter.KeyUsage, error)
	// Rules returns the rules in force; nil until there are any.
	Rules() *rules.Set
}

// Config holds what all doors need.
type Config struct {
	Node    string // this node's name, as answers show it
	Version string // the program's version

	CertFile string // with KeyFile: all doors use TLS; both are reloaded when the files change
	KeyFile  string

	// If any token is configured, all doors require one, except for probes, metrics
	// and the dashboard's files.

	APIToken   string // has the scopes check and adjust; empty: none
	AdminToken string // has the scope admin; empty: none
	TokensFile string // lists further tokens; reloaded when it changes; empty: none

	Memory      int64 // bytes that the process may use, from which bounds on connections follow; 0: unknown
	Connections int   // bounds those of the data plane; 0: by Memory, at most 32,768
	MaxMatched  int   // bounds the limits that the checks of a batch match together; 0: MaxMatched

	Decider     Decider
	Checkpoints func() CheckpointHealth // nil: counters are not saved
	// Health reports the node's state in the cluster. It must return at once, and
	// must not wait for a disk.
	Health func() ClusterHealth
	// CheckReady returns why the node is not ready, once Ready has been called; nil if it is ready.
	CheckReady func() error
	// CheckMember returns why the node is no working member of the cluster, for
	// example because it has left; nil if it is a working member. It is called for
	// each check of callers that can ask another node. If CheckMember is nil, the
	// node always is a member.
	CheckMember func() error

	Logger *slog.Logger // nil: slog.Default

	// For tests; 0 means the default.

	Timeout        time.Duration // overrides the timeouts of all doors
	MaxConnections int           // overrides the maximum number of connections of each door
}

// MaxMatched bounds the limits that the checks of a batch match together,
// unless Config.MaxMatched says otherwise. Deciding that many takes seconds.
const MaxMatched = 100_000

// Validate returns an error that lists the missing fields.
func (c *Config) Validate() error {
	return errors.Join(
		Require((c.CertFile == "") == (c.KeyFile == ""), "api: one of CertFile and KeyFile"),
		Require(c.Node != "", "api: Node"),
		Require(c.Decider != nil, "api: Decider"),
	)
}

// Require returns an error that names the missing field of a configuration, unless ok is set.
func Require(ok bool, field string) error {
	if ok {
		return nil
	}
	return errors.New(field + " is missing")
}
