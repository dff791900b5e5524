package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// Errors of a Cluster.
var (
	// ErrNoLeader means that there is nobody now who could agree, and that nothing was changed.
	ErrNoLeader = errors.New("the cluster has no leader")
	// ErrUnknown means that a change may or may not have been made.
	ErrUnknown = errors.New("whether the change was made is not known")
	// ErrNoPrimary means that the region where rules are written can't be reached, and that nothing was changed.
	ErrNoPrimary = errors.New("the primary region can't be reached")
	// ErrRefused means that the cluster will not do what was asked of it.
	ErrRefused = errors.New("refused")
	// ErrNotFound means that the cluster has no node, or no region, of that name.
	ErrNotFound = errors.New("there is none of that name")
	// ErrClosed means that the Cluster has been closed.
	ErrClosed = errors.New("the cluster's part here has been closed")
	// ErrConfig means that a Config can't be used as it is.
	ErrConfig = errors.New("bad cluster settings")
)

// Node says who this node is. Address is an IP that the others reach it at.
type Node struct {
	ID       ring.NodeID
	Boot     uint64 // differs with each start of the process
	Name     string
	Address  string
	Region   string
	Zone     string
	PeerPort int
}

// PeerAddress is where the node takes calls.
func (n Node) PeerAddress() string { return net.JoinHostPort(n.Address, strconv.Itoa(n.PeerPort)) }

// Store is where Raft keeps what it must not forget. *persist.Raft is one.
type Store interface {
	Logs() raft.LogStore
	Stable() raft.StableStore
	Snapshots() raft.SnapshotStore
}

// Timings are how long things take. Each node of a cluster should have the same ones.
type Timings struct {
	Heartbeat   time.Duration // a follower without a sign of the leader for so long stands for election
	Election    time.Duration // a candidate without enough votes for so long tries again
	LeaderLease time.Duration // a leader without answers of a majority for so long steps down
	Commit      time.Duration // an idle leader sends the commit index so often
	RPC         time.Duration // bound of one exchange of Raft
	Snapshot    time.Duration // whether a snapshot is due is looked at so often
	Founding    time.Duration // a founding that did not succeed is tried again so often
	Reconcile   time.Duration // the leader compares members and configuration at least so often
	Stable      time.Duration // a node is made a voter, or a failed one replaced, after so long without a change
	Absent      time.Duration // a member that gossip has not seen since this node started counts as failed after so long
	Forgotten   time.Duration // a member that failed so long ago is taken out of Raft
	Write       time.Duration // bound of a write or a Catch whose context has no deadline
	Rise        time.Duration // the feature level rises by itself when all members have known a higher one for so long
	Follow      time.Duration // a leader asks the primary region what is new, or looks what the regions tell, at least so often
}

// Level is a feature level.
type Level = agreement.Level

// Newest is the newest feature level that this source knows.
const Newest = agreement.Newest

// Build is what a build of the program can read.
type Build = agreement.Build

// Config says what a Cluster stands on.
type Config struct {
	Self   Node
	Expect int // found a cluster of so many nodes, in a first start; 0: join one that exists

	// Build is what this build can read; without a Level it knows agreement.Newest.
	Build Build

	// Primary is the region where rules are written; "": this one. Each node of a region should have the same one.
	Primary string
	// Far reaches the other regions; nil: there are none. It is closed by the caller, after the Cluster.
	Far Far

	Store  Store
	Peers  *peer.Peers   // started by the caller before the Cluster, after Cluster.Handle; closed by the caller
	Gossip gossip.Config // Self and Accept are filled in here

	// Seed returns the first rules of a cluster founded here, and by whom they are. nil: none.
	Seed func() (text []byte, by string)
	// OnState is called for each change of who may own what, in order: a ring, an end, a new process, a completed epoch.
	// Several changes in quick succession make one call. It must not wait for the Cluster.
	OnState func(*agreement.State)
	// OnRules is called for each version of the rules that comes into force, from the same goroutine.
	OnRules func(*rules.Set)
	// Settled is the epoch that this node has completed: its part of each hand-off is over. nil: the newest.
	Settled func() int64
	// Lagging are nodes that can be reached, and don't take the copies that this one has for them. They count as those that
	// can't be reached. nil: there are none.
	Lagging func() []ring.NodeID
	// Boottime is a clock that goes on in suspend and is never set.
	Boottime func() time.Duration
	// Remember is given the addresses at which gossip may be found after a restart, when they change. nil: nobody.
	Remember func(addresses []string)
	// Applied is where it is noted what this node has applied, so that after a restart it knows rules and ring though
	// it can't reach the others. nil: nowhere.
	Applied AppliedNote

	SnapshotEntries uint64 // a snapshot after so many entries
	SnapshotBytes   int64  // or after so many bytes of them
	TrailingEntries uint64 // kept behind a snapshot, for those who are only a little behind

	Timings Timings
	Logger  *slog.Logger
}

// DefaultConfig has the values of a node on a local network. Self, Store, Peers, Gossip and Boottime are missing.
func DefaultConfig() Config {
	return Config{
		SnapshotEntries: 8192,
		SnapshotBytes:   16 << 20,
		TrailingEntries: 2048,
		Timings:         DefaultTimings(),
		Logger:          slog.New(slog.DiscardHandler),
	}
}

// DefaultTimings suit a region.
func DefaultTimings() Timings {
	return Timings{
		Heartbeat:   400 * time.Millisecond,
		Election:    400 * time.Millisecond,
		LeaderLease: 400 * time.Millisecond, // with less, a busy machine changes leaders for want of a moment
		Commit:      20 * time.Millisecond,
		RPC:         2 * time.Second,
		Snapshot:    30 * time.Second,
		Founding:    500 * time.Millisecond,
		Reconcile:   time.Second,
		Stable:      10 * time.Second,
		Absent:      30 * time.Second,
		Forgotten:   72 * time.Hour,
		Write:       5 * time.Second,
		Rise:        time.Hour,
		Follow:      time.Second,
	}
}

// Validate says what is missing or out of bounds.
func (c *Config) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%w: %s", ErrConfig, what))
		}
	}
	need(!c.Self.ID.IsZero(), "Self.ID is missing")
	need(c.Self.Name != "", "Self.Name is missing")
	need(c.Self.Boot != 0, "Self.Boot is missing")
	need(net.ParseIP(c.Self.Address) != nil, "Self.Address is no IP")
	need(c.Self.PeerPort > 0 && c.Self.PeerPort < 1<<16, "Self.PeerPort is no port")
	need(c.Expect >= 0 && c.Expect <= maxExpect, fmt.Sprintf("Expect is not from 0 to %d", maxExpect))
	need(c.Store != nil, "Store is missing")
	need(c.Peers != nil, "Peers is missing")
	need(c.Boottime != nil, "Boottime is missing")
	for what, name := range map[string]string{"Self.Region": c.Self.Region, "Primary": c.Primary} {
		need(len(name) <= agreement.MaxRegionName, fmt.Sprintf("%s has more than %d bytes", what, agreement.MaxRegionName))
	}
	need(c.SnapshotEntries > 0 && c.SnapshotBytes > 0, "SnapshotEntries and SnapshotBytes must be positive")
	t := c.Timings
	for _, d := range []time.Duration{
		t.Heartbeat, t.Election, t.LeaderLease, t.Commit, t.RPC, t.Snapshot, t.Founding, t.Reconcile, t.Stable, t.Absent,
		t.Forgotten, t.Write, t.Rise, t.Follow,
	} {
		need(d > 0, "each of Timings must be positive")
	}
	need(t.LeaderLease <= t.Heartbeat && t.Heartbeat <= t.Election, "Timings need LeaderLease <= Heartbeat <= Election")
	return errors.Join(errs...)
}

// alone says that this node founds a cluster by itself, without looking for others.
func (c *Config) alone() bool { return c.Expect == 1 && len(c.Gossip.Join) == 0 }
