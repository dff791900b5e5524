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

// Subjects tells and resets what subjects have used. *limiter.Limiter is one.
type Subjects interface {
	// Locate names a subject without asking its owner. The error wraps limiter.ErrUnknownRule or limiter.ErrKey.
	Locate(rule string, key []string) (*limiter.Usage, error)
	// Usage tells what a subject has used. Errors as of Locate, and limiter.ErrNoOwner.
	Usage(rule string, key []string) (*limiter.Usage, error)
	// Reset makes a subject's counters fresh, once, if request is the id of one before, and tells what it has used then. Errors as
	// of Usage, and those of limiter about requests with an id.
	Reset(rule string, key []string, request string) (*limiter.Usage, error)
	// Top returns the n subjects refused most, most refused first.
	Top(n int) []limiter.TopSubject
	// Factor is what a rule's limits are multiplied by now.
	Factor(*rules.Rule) float64
	// Feedback counts a refusal that should not have been, and returns the subject and the rule's count here. Errors as
	// of Locate.
	Feedback(rule string, key []string) (*limiter.Usage, int64, error)
}

// Membership takes nodes out of the cluster. Errors are those of package cluster.
type Membership interface {
	// Leave hands this node's counters over and takes it out of the ring and of the cluster. The error may
	// wrap ErrOnlyMember.
	Leave(ctx context.Context) error
	// Remove takes a node that is gone for good out by its name; by force also one that is alive. The error wraps cluster.ErrNotFound or
	// cluster.ErrRefused.
	Remove(ctx context.Context, name string, force bool) error
}

// RegionRemover takes regions out of the world.
type RegionRemover interface {
	// RemoveRegion takes a region that is gone for good out, and returns the version of the rules without it. Errors as of
	// Membership.Remove, and cluster.ErrNoPrimary.
	RemoveRegion(ctx context.Context, name string) (version int64, err error)
}

// Levels tells and raises the feature level: what all members have to know before any of it is used. *cluster.Cluster is one.
type Levels interface {
	// Levels tells it as this node knows it.
	Levels() cluster.Levels
	// Raise makes a level, or with 0 the highest that all members know, the agreed one, for good, and returns it. The error
	// wraps cluster.ErrRefused or cluster.ErrNoLeader.
	Raise(ctx context.Context, level cluster.Level) (cluster.Level, error)
}

// ErrOnlyMember: there is no other member that could take over.
var ErrOnlyMember = errors.New("this node is the only member")

// RuleStore keeps the rules document through restarts.
type RuleStore interface {
	// Write makes a change. When it returns a version, the change is kept and in force. The error is or wraps
	// rules.Errors, rules.ErrNotFound, rules.ErrConflict, cluster.ErrNoLeader, cluster.ErrNoPrimary or cluster.ErrUnknown.
	Write(ctx context.Context, change rules.Change, options cluster.WriteOptions) (version int64, err error)
	// Versions lists the last versions, newest first.
	Versions() []rules.Version
	// Version returns the document that was version n. The error wraps rules.ErrNotFound when it is not kept.
	Version(n int64) (*rules.Document, error)
}

// ClusterHealth is what keeps a node from doing its part in the cluster.
type ClusterHealth struct {
	Connected   bool  // it may act as an owner
	LeaderKnown bool  // without one nothing new can be agreed on
	StoreHung   bool  // a write of Raft's log has been under way for too long
	StoreFull   bool  // the last write failed, for want of room or otherwise
	StoreErr    error // why
	Stuck       error // why the node applies nothing more that the cluster agrees on; nil: it does
}

// Config says what an API stands on and how it is reached.
type Config struct {
	DataAddr  string // host:port of the data plane; port 0 takes a free one. Empty: there is none
	AdminAddr string // host:port of the admin plane. Empty: there is none

	CertFile string // with KeyFile: HTTPS on both planes, read again when the files change
	KeyFile  string

	// Tokens. As soon as there is one, both planes ask for one, but for probes, metrics and the dashboard's files.

	APIToken   string // has the scopes check and adjust; empty: none
	AdminToken string // has the scope admin; empty: none
	TokensFile string // has more tokens, and is read again when it changes; empty: none

	// AdminHosts are the names by which the admin plane is asked for, beside addresses and localhost. On loopback it answers to
	// no other name; elsewhere to every name if none is given.
	AdminHosts []string

	// ReadTimeout bounds the time from the first byte of a request of the data plane to its last; batches have three
	// times as long. 0: 10 seconds.
	ReadTimeout time.Duration

	Node    string // this node's name, as answers tell it
	Version string // of the program

	Decider     Decider
	Subjects    Subjects
	Rules       RuleStore
	Cluster     Cluster
	Activity    func() []limiter.NodeActivity
	Checkpoints func() persist.Status // nil: counters are not saved
	Figures     []figures.Source      // of all that the node is made of; shown as metrics

	// Loads are what adaptive rules follow; nil: none is told.
	Loads  Loads
	Tracer *tracing.Tracer // is told of checks; nil: nothing is traced

	Months Months // nil: usage is not counted by month

	Levels     Levels
	Membership Membership
	Regions    RegionRemover
	// Health reports the node's part in the cluster. It must return at once, and never wait for a disk.
	Health func() ClusterHealth
	// Catch returns when this node has all that was agreed before. A read of the rules calls it, so that it shows
	// what was written at another node; where it fails, the answer says that it may be stale.
	Catch func(context.Context) error
	// Condition is why the node is not ready, once Ready has been called; nil when it is.
	Condition func() error

	Logger *slog.Logger // nil: slog.Default

	slow time.Duration // for tests: instead of all bounds in time but ReadTimeout; 0: those
}

// Validate says what is missing.
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
	return errors.Join(errs...)
}
