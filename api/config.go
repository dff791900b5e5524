package api

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/internal/figures"
	"github.com/rlnode/rlnode/internal/tracing"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/rules"
)

// Subjects reports and resets what subjects have used. *limiter.Limiter is one.
type Subjects interface {
	// Locate identifies a subject without asking its owner. The error wraps limiter.ErrUnknownRule or limiter.ErrKey.
	Locate(rule string, key []string) (*limiter.Usage, error)
	// Usage returns what a subject has used. Errors are those of Locate, and limiter.ErrNoOwner.
	Usage(rule string, key []string) (*limiter.Usage, error)
	// Reset clears a subject's counters and returns the usage after that. A request id that was seen before does not reset
	// again. Errors are those of Usage, and those of limiter about requests with an id.
	Reset(rule string, key []string, request string) (*limiter.Usage, error)
	// Top returns the n most refused subjects, in descending order.
	Top(n int) []limiter.TopSubject
	// Factor returns what a rule's limits are currently multiplied by.
	Factor(*rules.Rule) float64
	// Feedback counts a refusal that should not have happened, and returns the subject and the rule's count at this node.
	// Errors are those of Locate.
	Feedback(rule string, key []string) (*limiter.Usage, int64, error)
}

// Membership removes nodes from the cluster. Errors are those of package cluster.
type Membership interface {
	// Leave hands this node's counters over and removes it from the ring and the cluster. The error may wrap ErrOnlyMember.
	Leave(ctx context.Context) error
	// Remove removes a node by name that is gone for good; with force, also one that is alive. The error wraps
	// cluster.ErrNotFound or cluster.ErrRefused.
	Remove(ctx context.Context, name string, force bool) error
}

// RegionRemover removes regions from the world.
type RegionRemover interface {
	// RemoveRegion removes a region that is gone for good, and returns the version of the rules without it. Errors are
	// those of Membership.Remove, and cluster.ErrNoPrimary.
	RemoveRegion(ctx context.Context, name string) (version int64, err error)
}

// Levels reports and raises the feature level: what all members must support before any of it is used. *cluster.Cluster
// is one.
type Levels interface {
	// Levels returns the levels as this node knows them.
	Levels() cluster.Levels
	// Raise sets the agreed level for good and returns it; level 0 means the highest that all members know. The error wraps
	// cluster.ErrRefused or cluster.ErrNoLeader.
	Raise(ctx context.Context, level cluster.Level) (cluster.Level, error)
}

// ErrOnlyMember means that no other member could take over.
var ErrOnlyMember = errors.New("this node is the only member")

// RuleStore keeps the rules document across restarts.
type RuleStore interface {
	// Write makes a change. When it returns a version, the change is durable and in force. The error is or wraps
	// rules.Errors, rules.ErrNotFound, rules.ErrConflict, cluster.ErrNoLeader, cluster.ErrNoPrimary or cluster.ErrUnknown.
	Write(ctx context.Context, change rules.Change, options cluster.WriteOptions) (version int64, err error)
	// Versions lists the latest versions, newest first.
	Versions() []rules.Version
	// Version returns the document of version n. The error wraps rules.ErrNotFound if that version is no longer kept.
	Version(n int64) (*rules.Document, error)
}

// ClusterHealth lists what can keep a node from doing its part in the cluster.
type ClusterHealth struct {
	Connected   bool  // the node may act as an owner
	LeaderKnown bool  // without a leader nothing new can be agreed on
	StoreHung   bool  // a write to Raft's log has been in progress for too long
	StoreFull   bool  // the last write failed, for lack of space or another reason
	StoreErr    error // why it failed
	Stuck       error // why the node no longer applies what the cluster agrees on; nil if it does
}

// Config holds an API's dependencies and the addresses it listens on.
type Config struct {
	DataAddr  string // host:port of the data plane; port 0 picks a free one. Empty: no data plane
	AdminAddr string // host:port of the admin plane. Empty: no admin plane

	CertFile string // with KeyFile: HTTPS on both planes, reloaded when the files change
	KeyFile  string

	// Tokens. Once there is one, both planes require a token, except for probes, metrics and the dashboard's files.

	APIToken   string // has the scopes check and adjust; empty: none
	AdminToken string // has the scope admin; empty: none
	TokensFile string // lists more tokens and is reloaded when it changes; empty: none

	// AdminHosts are the host names that the admin plane answers to, besides addresses and localhost. On loopback it
	// answers to no other name. Elsewhere it answers to every name if the list is empty.
	AdminHosts []string

	// ReadTimeout bounds the time from the first byte of a data plane request to its last; batches get three times as long.
	// 0: 10 seconds.
	ReadTimeout time.Duration

	Node    string // this node's name, as answers show it
	Version string // the program's version

	Decider     Decider
	Subjects    Subjects
	Rules       RuleStore
	Cluster     Cluster
	Activity    func() []limiter.NodeActivity
	Checkpoints func() persist.Status // nil: counters are not saved
	Figures     []figures.Source      // of every part of the node; exported as metrics

	Loads  Loads           // the loads that adaptive rules follow
	Tracer *tracing.Tracer // records checks; nil: no tracing

	Months Months // nil: usage is not counted by month

	Levels     Levels
	Membership Membership
	Regions    RegionRemover
	// Health reports the node's state in the cluster. It must return at once, and never wait for a disk.
	Health func() ClusterHealth
	// Catch returns once this node has everything that was agreed before the call. A read of the rules calls it to show
	// what was written at another node. If it fails, the answer says that it may be stale.
	Catch func(context.Context) error
	// Condition returns why the node is not ready, once Ready has been called; nil if it is ready.
	Condition func() error

	Logger *slog.Logger // nil: slog.Default

	slow time.Duration // for tests: replaces all time bounds but ReadTimeout; 0: no replacement
}

// Validate returns an error that lists what is missing.
func (c *Config) Validate() error {
	var errs []error
	need := func(ok bool, field string) {
		if !ok {
			errs = append(errs, errors.New(field+" is missing"))
		}
	}
	need((c.CertFile == "") == (c.KeyFile == ""), "one of CertFile and KeyFile")
	need(c.ReadTimeout >= 0, "ReadTimeout of at least 0")
	need(c.Node != "", "Node")
	need(c.Decider != nil, "Decider")
	need(c.Subjects != nil, "Subjects")
	need(c.Rules != nil, "Rules")
	need(c.Cluster != nil, "Cluster")
	need(c.Activity != nil, "Activity")
	need(c.Loads != nil, "Loads")
	return errors.Join(errs...)
}
