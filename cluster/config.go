package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/cluster/regions"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/entries"
)

// Errors returned by a Cluster.
var (
	// ErrLeaderUnavailable means that no leader can commit a change now, and that
	// nothing was changed.
	ErrLeaderUnavailable = errors.New("no leader can do this now")
	// ErrOutcomeUnknown means that it is unknown whether a change was made.
	ErrOutcomeUnknown = errors.New("it is unknown whether the change was made")
	// ErrNoPrimary means that the primary region, where rules are written, can't be
	// reached, and that nothing was changed.
	ErrNoPrimary = errors.New("the primary region can't be reached")
	// ErrRefused means that the cluster refuses the request.
	ErrRefused = errors.New("refused")
	// ErrDeparted means that this node was started again after it had left by
	// command, or after an operator had removed it.
	ErrDeparted = errors.New("this node is no longer a member")
	// ErrNotFound means that the cluster has no node or region of that name.
	ErrNotFound = errors.New("not found in the cluster")
	// ErrClosed means that the Cluster has been closed.
	ErrClosed = errors.New("this node's part of the cluster has been closed")
	// ErrConfig means that a Config is invalid. Errors that wrap it name the field.
	ErrConfig = errors.New("invalid cluster configuration")
)

const (
	maxVoters = 5  // voters in a cluster; the other nodes only follow
	maxExpect = 64 // nodes that can found a cluster together
)

// Node describes this node. Address is an IP address at which the other nodes reach it.
type Node struct {
	ID       ring.NodeID
	Boot     uint64 // differs with each start of the process
	Name     string
	Address  string
	Region   string
	Zone     string
	PeerPort int
}

// PeerAddress returns the address at which the node accepts calls.
func (n Node) PeerAddress() string { return net.JoinHostPort(n.Address, strconv.Itoa(n.PeerPort)) }

// Store holds Raft's durable data. *persist.RaftStore implements it.
type Store interface {
	Logs() raft.LogStore
	Stable() raft.StableStore
	Snapshots() raft.SnapshotStore
	// Probe writes a test record and waits until it is stored. It returns an error
	// if that takes too long.
	Probe() error
}

// AppliedStore stores how far a node has applied entries. The content is an
// index and the cluster's ID, so that no node takes another cluster's record
// for its own. *persist.SmallFile implements it.
type AppliedStore interface {
	// Read returns the content last written, or nil if there is none.
	Read() ([]byte, error)
	// Write stores content, which need not survive a power cut. It is called at
	// most once a second, and once more when the Cluster closes.
	Write(content []byte) error
}

// OtherRegions reaches the other regions. *regions.Pool implements it.
type OtherRegions interface {
	// Call calls any entry node of a region. The error wraps regions.ErrNoRoute if
	// nothing was sent.
	Call(ctx context.Context, region string, m peer.Method, body []byte) ([]byte, error)
	// Regions lists the other regions, by name.
	Regions() []regions.Region
	// SetEntryNode sets whether this node is an entry node, which other regions may
	// call. Repeating a value is harmless.
	SetEntryNode(yes bool)
	// SetRegionSize sets how many nodes this region has. Repeating a value is harmless.
	SetRegionSize(n int)
	// Changed receives a value when Regions may have changed.
	Changed() <-chan struct{}
}

// Timings are the intervals and bounds of a Cluster. All nodes of a cluster
// should have the same ones.
type Timings struct {
	HeartbeatTimeout   time.Duration // how long a follower goes without hearing from the leader before it stands for election
	ElectionTimeout    time.Duration // how long a candidate waits for a majority of votes before it tries again
	LeaderLeaseTimeout time.Duration // how long a leader goes without answers from a majority before it steps down
	Commit             time.Duration // how often an idle leader sends the commit index
	RPC                time.Duration // bounds one Raft RPC
	Snapshot           time.Duration // how often to check whether a snapshot is due
	Founding           time.Duration // how often to retry a founding that did not succeed
	Probe              time.Duration // how often to check that the store responds
	Reconcile          time.Duration // how often, at least, the leader compares Raft's configuration with the members
	// Stable is how long a node must be healthy before it becomes a voter, and how
	// long a voter must have failed before it is replaced.
	Stable time.Duration
	// AbsentAfter is how long until a member that gossip has not seen since this
	// node started counts as failed.
	AbsentAfter  time.Duration
	ForgetAfter  time.Duration // how long until a failed member is removed from Raft
	WriteTimeout time.Duration // bounds a write, or a wait for an entry, whose context has no deadline
	// RaiseAfter is how long all members must know a higher feature level before the
	// leader raises it by itself.
	RaiseAfter time.Duration
	// Follow is how often, at least, a leader asks the primary region for news, or
	// checks the regions' reports.
	Follow time.Duration
}

// Level is a feature level.
type Level = agreement.Level

// Newest is the newest feature level that this source code knows.
const Newest = agreement.Newest

// Build describes which data a build of the program can read.
type Build = agreement.Build

// Config configures a Cluster.
type Config struct {
	Self            Node
	BootstrapExpect int // on the first start, found a cluster of this many nodes; 0: join an existing one

	// Build describes which data this build can read. A Level of 0 means agreement.Newest.
	Build Build

	// Primary is the region where rules are written; "" means this one. All nodes
	// of a region should have the same value.
	Primary string
	// OtherRegions reaches the other regions; nil if there are none. The caller
	// closes it, after the Cluster.
	OtherRegions OtherRegions

	Store  Store
	Peers  *peer.Peers   // the caller starts it after Cluster.Handle and before the Cluster, and closes it
	Gossip gossip.Config // Start fills in Self, and Advertise and Logger if they are empty

	// InitialRules returns the first rules of a cluster founded here, and their author. nil: none.
	InitialRules func() (text []byte, by string)
	// OnState is called, in order, after the owners of partitions may have changed
	// (a new ring, an ended node, a new process or a settled epoch), and after the
	// members have; several changes may share one call. It must not wait for the
	// Cluster.
	OnState func(*agreement.State)
	// OnRules is called, from the same goroutine as OnState, when other rules come
	// into force, or the same rules with other shares. It may skip versions.
	OnRules func(*rules.Set)
	// OnEntries is called, from the same goroutine, when the entries beside the
	// rules have changed.
	OnEntries func(*entries.State)
	// SettledEpoch returns the epoch up to which this node has finished its part of
	// every hand-off. nil: the newest epoch.
	SettledEpoch func() int64
	// UnresponsiveNodes returns reachable nodes that no longer answer when this node
	// sends them copies. They count as unreachable. nil: there are none.
	UnresponsiveNodes func() []ring.NodeID
	// Boottime reads a clock that keeps running in suspend and is never set.
	Boottime func() time.Duration
	// Clocks reads the wall clocks by which this node decides windows. nil: the
	// system's.
	Clocks func() authority.Clocks
	// OnDeparted is called once the cluster has said that this node is no longer a
	// member. May be nil.
	OnDeparted func()
	// OnAddresses receives the addresses at which to find gossip after a restart,
	// whenever they change. May be nil.
	OnAddresses func(addresses []string)
	// AppliedStore records how far this node has applied entries. So after a
	// restart, this node knows the rules and the ring even if it can't reach the
	// other nodes. nil: nothing is recorded.
	AppliedStore AppliedStore

	SnapshotEntries uint64 // take a snapshot after this many entries
	SnapshotBytes   int64  // or after this many bytes of entries
	TrailingEntries uint64 // entries to keep in the log after a snapshot, for nodes that are only slightly behind

	Timings Timings
	Logger  *slog.Logger
}

// DefaultConfig returns the values for a node on a local network. The caller
// must set Self, Store, Peers, Gossip and Boottime.
func DefaultConfig() Config {
	return Config{
		SnapshotEntries: 8192,
		SnapshotBytes:   16 << 20,
		TrailingEntries: 2048,
		Timings:         DefaultTimings(),
		Logger:          slog.New(slog.DiscardHandler),
	}
}

// DefaultTimings returns timings for nodes in one region.
func DefaultTimings() Timings {
	return Timings{
		HeartbeatTimeout:   400 * time.Millisecond,
		ElectionTimeout:    400 * time.Millisecond,
		LeaderLeaseTimeout: 400 * time.Millisecond, // with less, a busy machine loses the lead after a short stall
		Commit:             20 * time.Millisecond,
		RPC:                2 * time.Second,
		Snapshot:           30 * time.Second,
		Founding:           500 * time.Millisecond,
		Probe:              3 * time.Second,
		Reconcile:          time.Second,
		Stable:             10 * time.Second,
		AbsentAfter:        30 * time.Second,
		ForgetAfter:        72 * time.Hour,
		WriteTimeout:       5 * time.Second,
		RaiseAfter:         time.Hour,
		Follow:             time.Second,
	}
}

// Validate returns an error that says what is missing or out of range.
func (c *Config) Validate() error {
	var errs []error
	require := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%w: %s", ErrConfig, what))
		}
	}
	require(!c.Self.ID.IsZero(), "Self.ID is zero")
	require(c.Self.Name != "", "Self.Name is empty")
	require(c.Self.Boot != 0, "Self.Boot is zero")
	require(net.ParseIP(c.Self.Address) != nil, "Self.Address is not an IP address")
	require(c.Self.PeerPort > 0 && c.Self.PeerPort < 1<<16, "Self.PeerPort is not a port")
	require(c.BootstrapExpect >= 0 && c.BootstrapExpect <= maxExpect,
		fmt.Sprintf("BootstrapExpect is not between 0 and %d", maxExpect))
	require(c.Store != nil, "Store is nil")
	require(c.Peers != nil, "Peers is nil")
	require(c.Boottime != nil, "Boottime is nil")

	require(len(c.Self.Region) <= agreement.MaxRegionName,
		fmt.Sprintf("Self.Region must have at most %d bytes", agreement.MaxRegionName))
	require(len(c.Primary) <= agreement.MaxRegionName,
		fmt.Sprintf("Primary must have at most %d bytes", agreement.MaxRegionName))

	require(c.SnapshotEntries > 0 && c.SnapshotBytes > 0, "SnapshotEntries and SnapshotBytes must be positive")
	t := c.Timings
	for _, d := range []time.Duration{
		t.HeartbeatTimeout, t.ElectionTimeout, t.LeaderLeaseTimeout, t.Commit, t.RPC, t.Snapshot, t.Founding, t.Probe,
		t.Reconcile, t.Stable, t.AbsentAfter,
		t.ForgetAfter, t.WriteTimeout, t.RaiseAfter, t.Follow,
	} {
		require(d > 0, "each of Timings must be positive")
	}

	require(t.LeaderLeaseTimeout <= t.HeartbeatTimeout && t.HeartbeatTimeout <= t.ElectionTimeout,
		"Timings must have LeaderLeaseTimeout <= HeartbeatTimeout <= ElectionTimeout")
	return errors.Join(errs...)
}

// foundsAlone reports whether this node founds a cluster by itself, without looking for others.
func (c *Config) foundsAlone() bool { return c.BootstrapExpect == 1 && len(c.Gossip.Join) == 0 }
