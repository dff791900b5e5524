package admin

import (
	"context"
	"errors"
	"net/http"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/internal/history"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/limiter/top"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

// Subjects reports and resets what subjects have used. *limiter.Limiter is one.
type Subjects interface {
	// Locate identifies a subject without asking its owner. The error wraps
	// limiter.ErrUnknownRule, limiter.ErrKey, limiter.ErrInline or
	// limiter.ErrNamespace.
	Locate(q *limiter.Query) (*limiter.Usage, error)
	// Usage returns what a subject has used. Errors are those of Locate, and limiter.ErrNoOwner.
	Usage(q *limiter.Query) (*limiter.Usage, error)
	// Reset clears a subject's counters and returns the usage afterwards. A request
	// id that was seen before does not reset again. Errors are those of Usage, and
	// those about request ids, such as limiter.ErrRequestIDReused.
	Reset(q *limiter.Query) (*limiter.Usage, error)
	// Unblock lifts the block that a refusal began, and returns the usage
	// afterwards. Errors are those of Reset.
	Unblock(q *limiter.Query) (*limiter.Usage, error)
	// Top returns one of the lists of subjects, and the nodes that have reported
	// theirs, this one first.
	Top(o top.Options) ([]top.Subject, []ring.NodeID)
	// RuleUse returns which rules were used in the last hour, in this region and in the given others.
	RuleUse(regions []string) *limiter.RuleUse
	// LimitFactor returns the factor by which the limits of an adaptive rule are
	// currently multiplied.
	LimitFactor(*rules.Rule) float64
	// Feedback counts a refusal as a false positive, and returns the subject and
	// the rule's count at this node. Errors are those of Locate.
	Feedback(rule string, key []string) (*limiter.Usage, int64, error)
}

// Membership removes nodes from the cluster. Errors are those of package cluster.
type Membership interface {
	// Leave hands this node's counters over and removes it from the ring and the
	// cluster. It reports whether this was the last node. The last node leaves
	// only with force; without it, the error wraps ErrOnlyMember.
	Leave(ctx context.Context, force bool, by string) (last bool, err error)
	// Remove removes the named node, which must be gone for good; with force, it
	// may be alive. The error wraps cluster.ErrNotFound or cluster.ErrRefused.
	Remove(ctx context.Context, name string, force bool, by string) error
}

// RegionRemover removes regions.
type RegionRemover interface {
	// RemoveRegion removes a region that is gone for good, and returns the version
	// of the rules without it. Errors are those of Membership.Remove, and
	// cluster.ErrNoPrimary.
	RemoveRegion(ctx context.Context, name string) (version int64, err error)
}

// Levels reports and raises the feature level: what all members must support
// before any of it is used. *cluster.Cluster is one.
type Levels interface {
	// Levels returns the agreed level and the members' levels, as far as this node knows them.
	Levels() cluster.Levels
	// Raise raises the agreed level, irrevocably, and returns it; level 0 means the
	// highest that all members know. The error wraps cluster.ErrRefused or
	// cluster.ErrLeaderUnavailable.
	Raise(ctx context.Context, level cluster.Level) (cluster.Level, error)
}

// RuleStore keeps the rules document across restarts.
type RuleStore interface {
	// Write makes a change. When it returns a version, the change is durable and in
	// force. The error is or wraps document.Errors, document.ErrNotFound,
	// rules.ErrConflict, cluster.ErrLeaderUnavailable, cluster.ErrNoPrimary or
	// cluster.ErrOutcomeUnknown.
	Write(ctx context.Context, change document.Change, options cluster.WriteOptions) (version int64, err error)
	// Versions lists the latest versions, newest first.
	Versions() []rules.Version
	// Version returns the document of version n. The error wraps document.ErrNotFound
	// if that version is not kept.
	Version(n int64) (*document.Document, error)
}

// EntryStore keeps the entries beside the rules.
type EntryStore interface {
	// WriteEntries makes changes of entries, all or none. When it returns, they are
	// durable and in force. It returns the version of the entries, and the last
	// entry that was written or removed. The error wraps one of package entries, or
	// is as for RuleStore.Write.
	WriteEntries(ctx context.Context, changes []cluster.EntryChange) (version int64, last *entries.Entry, err error)
}

// Config configures the admin plane.
type Config struct {
	Addr string // host:port; port 0 picks a free one

	// Hosts are the host names that the plane accepts in Host, besides addresses
	// and localhost. On loopback it accepts no other name. Elsewhere it accepts
	// every name if the list is empty.
	Hosts []string

	// Region is the region of this node.
	Region string

	Subjects   Subjects
	Rules      RuleStore
	Entries    EntryStore
	Cluster    Cluster
	Membership Membership
	Levels     Levels
	Regions    RegionRemover
	Activity   func() []limiter.NodeActivity
	// History returns what the nodes decided in the past, this one first.
	History func(history.Query) []*history.NodeReport
	// Events returns what the nodes logged in the last day, this one first.
	Events func() []*history.NodeEvents
	Loads  Loads  // the loads that adaptive rules follow
	Months Months // nil: usage is not counted by month
	// Checks answers a check, usage, an adjustment or a reset as the data plane
	// does.
	Checks func(w http.ResponseWriter, r *http.Request) error
	// Metrics are the sources of metrics, except for package api and the admin
	// plane, which add their own.
	Metrics []metrics.Source

	// CatchUp returns once this node has applied everything that the cluster agreed
	// on before the call. Reads of the rules call it to see writes at other nodes.
	// If it fails, the answer says that it may be stale.
	CatchUp func(context.Context) error
}

// Validate returns an error that lists the missing fields.
func (c *Config) Validate() error {
	return errors.Join(
		api.Require(c.Subjects != nil, "admin: Subjects"),
		api.Require(c.Rules != nil, "admin: Rules"),
		api.Require(c.Entries != nil, "admin: Entries"),
		api.Require(c.Cluster != nil, "admin: Cluster"),
		api.Require(c.Membership != nil, "admin: Membership"),
		api.Require(c.Levels != nil, "admin: Levels"),
		api.Require(c.Regions != nil, "admin: Regions"),
		api.Require(c.Activity != nil, "admin: Activity"),
		api.Require(c.History != nil, "admin: History"),
		api.Require(c.Events != nil, "admin: Events"),
		api.Require(c.Loads != nil, "admin: Loads"),
		api.Require(c.Checks != nil, "admin: Checks"),
		api.Require(c.CatchUp != nil, "admin: CatchUp"),
	)
}
