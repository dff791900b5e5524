package limiter

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

// Bounds of a check that can't be decided here at once.
const (
	// checkTime bounds how long a check may take.
	checkTime = 900 * time.Millisecond
	// replySlack is the part of checkTime left over when the check stops waiting for replies.
	replySlack = 20 * time.Millisecond
	// frozenTime bounds how long a check waits for partitions that are being handed over; it is part of checkTime.
	frozenTime = 500 * time.Millisecond
	// catchUpTime bounds how long a node that is behind waits for the rules or the ring that another node uses.
	catchUpTime = 50 * time.Millisecond
	// maxServing bounds the questions from other nodes that wait for something here. Further ones are turned away.
	maxServing = 4096
	// maxTurns bounds how often a check looks again for its counters while the cluster is moving them.
	maxTurns = 64
	// retryPause is how long a check first waits for news of the ring if no node claims to be the owner. The wait doubles up to
	// maxRetryPause.
	retryPause    = 200 * time.Microsecond
	maxRetryPause = 10 * time.Millisecond
	// maxResultsByReader bounds the work (checks × limits) of a question that the connection's reader decides itself.
	maxResultsByReader = 1024
	// defaultLeases is the default bound on the subjects with leases.
	defaultLeases = 1 << 16
)

// Ownership knows which node decides a partition's counters, and records debts to that node. *partitions.Keeper implements it.
type Ownership interface {
	Route(p int) partitions.Route
	// Wait returns when p is no longer frozen, or when ctx ends.
	Wait(ctx context.Context, p int)
	// Learn records that another node named owner as the owner of p, at that revision of the ring.
	Learn(p int, revision int64, owner ring.NodeID)
	// Lineage identifies p's counters here. What was taken in one lineage is never given back to another.
	Lineage(p int) uint64
	// DecideAsStandby decides ops in place of an owner that can't: as its standby or, during a move, as the node that handed
	// the partition over. It decides within shares, and returns counters.Shut if this node may not act.
	DecideAsStandby(now algorithms.Now, ops []counters.Op, shares []algorithms.Limit, why partitions.Absence) counters.Verdict
	// DecideAlone decides ops by this node alone, in fallback: it admits them unless a copy here refuses, and records what it
	// admits as debts to the owners.
	DecideAlone(now algorithms.Now, ops []counters.Op) counters.Verdict
	// Forgive takes back what DecideAlone recorded for op at that time.
	Forgive(at algorithms.Now, op *counters.Op)
}

// Backup makes changes in a partition outlive this node. *partitions.Keeper implements it.
type Backup interface {
	// Backed reports whether Confirm of p is likely to succeed now.
	Backed(p int) bool
	// Confirm returns once every earlier change in p is on the node or disk from which p would continue without this node.
	Confirm(ctx context.Context, p int) error
}

// Far carries messages to other regions. *regions.Pool implements it.
type Far interface {
	// Go calls a node of the region that answers for it, and runs done once; bodies are as for Peers. A message that may have
	// arrived is not sent again.
	Go(region string, m peer.Method, body []byte, timeout time.Duration, done func(reply []byte, err error))
	Reachable(region string) bool
}

// Peers carries messages to other nodes. *peer.Peers implements it.
type Peers interface {
	// Go calls a node and runs done once. The caller may reuse body once Go returns; reply is valid until done returns.
	Go(to ring.NodeID, m peer.Method, body []byte, timeout time.Duration, done func(reply []byte, err error))
	// Send sends a message that has no reply.
	Send(to ring.NodeID, m peer.Method, body []byte) error
	Reachable(to ring.NodeID) bool
}

// Recorder is told of each decision made as an owner or as a standby. Tests use it to check that there were never two owners.
type Recorder interface {
	// Clock reads a monotonic clock.
	Clock() int64
	// Decided reports a decision made between two readings of Clock. by is ByOwner or ByStandby.
	Decided(by DecidedBy, partition int, lineage uint64, began, ended int64)
}

// ClusterConfig is what a limiter needs to decide together with other nodes.
type ClusterConfig struct {
	Self      ring.NodeID
	Ownership Ownership
	Peers     Peers
	// Authority reports whether this node may decide as an owner now. It is called before and after each decision.
	Authority func() bool
	// Await waits until this node has at least these revisions of the ring and of the rules (zero: any), or until ctx ends.
	Await func(ctx context.Context, revision, rulesVersion int64) bool
	// Ring returns the latest ring this node knows, or nil before the first. Its members divide limits among themselves.
	Ring func() *ring.Table
	// Fallback holds the counters of what this node decides alone; see localcache.NewFallbackTable. The limiter does not close it.
	Fallback *counters.Table
	// Far reaches other regions. If it is nil, nothing is borrowed from them.
	Far Far
	// Backup confirms loans to other regions. If it is nil, nothing is lent.
	Backup Backup
	// Recorder may be nil.
	Recorder Recorder
	// Boottime reads a clock that keeps running while the machine is suspended; leases end by it. If it is nil, the process's
	// monotonic clock is used.
	Boottime func() time.Duration
	// Secret returns the cluster's secret, by which its nodes recognise the reservations they made. It may be nil, and it may
	// return nothing while the secret is not known yet.
	Secret func() []byte
	// Level returns the feature level that the cluster has agreed on. If it is nil, all nodes know what this one knows.
	Level func() int
	// Leases bounds the subjects this node holds leases of, and the subjects it grants leases of. Zero means 65,536.
	Leases int64
}

// Validate returns an error if a required field is missing.
func (c *ClusterConfig) Validate() error {
	if c.Self.IsZero() || c.Ownership == nil || c.Peers == nil || c.Authority == nil || c.Await == nil || c.Ring == nil || c.Fallback == nil {
		return errors.New("limiter: Self, Ownership, Peers, Authority, Await, Ring or Fallback is missing")
	}
	return nil
}

// member is a limiter's part in a cluster.
type member struct {
	ClusterConfig
	flights    flights
	servedAsks sync.Pool // holds *servedAsk
	figures    tallies
	leases     leases
	loans      loans // loans between regions

	serving chan struct{} // holds a token for each question being served in a goroutine
	ctx     context.Context
	stop    context.CancelFunc
	mu      sync.Mutex // guards closed: once it is set, nothing is added to served
	closed  bool
	served  sync.WaitGroup // the goroutines that serve questions
	done    sync.WaitGroup // leases.tend
}

// Join returns a limiter over table that decides together with other nodes. It decides a check itself if table's gates are open
// for it, and asks the owners otherwise. Close ends it.
func Join(table *counters.Table, clock *Clock, c ClusterConfig) (*Limiter, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	m := &member{ClusterConfig: c, serving: make(chan struct{}, maxServing)}
	if m.Boottime == nil {
		start := time.Now()
		m.Boottime = func() time.Duration { return time.Since(start) + 1 }
	}
	bound := cmp.Or(c.Leases, defaultLeases)
	m.ctx, m.stop = context.WithCancel(context.Background())
	l := New(table, clock)
	l.member = m
	m.loans.init(l)
	m.leases = leases{l: l, held: localcache.NewLeases(bound), granted: localcache.NewLeaseLedger(bound)}
	m.done.Go(m.leases.tend)
	return l, nil
}

// Close stops answering other nodes, and waits until that work is done. Checks are still decided. Those already under way wait
// for replies no longer than a check may take.
func (l *Limiter) Close() error {
	m := l.member
	if m == nil {
		return nil
	}
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	// A question that was passed on may already be counted. Wait for its answer: otherwise the asker would ask again, and it
	// would be counted twice. No question takes longer than checkTime.
	over := make(chan struct{})
	go func() { m.served.Wait(); close(over) }()
	select {
	case <-over:
	case <-time.After(checkTime):
	}
	m.stop()
	<-over
	m.done.Wait()
	return nil
}

// rankInRing returns how many nodes divide limits among themselves, and this node's rank among them (−1 if it has none).
func (m *member) rankInRing() (nodes, rank int) {
	t := m.Ring()
	if t == nil {
		return 0, -1
	}
	return len(t.Members()), t.Rank(m.Self)
}

// takenAt describes what op took at now, for a later Give. For a log, Window is the offset from now, because a message has one
// time for all its ops.
func takenAt(op *counters.Op, now algorithms.Now) algorithms.Taken {
	taken := op.Taken(now)
	if op.Limit.Kind == algorithms.SlidingLog {
		taken.Window = taken.Steady - now.Steady
	}
	return taken
}

// catchUp waits up to catchUpTime for a revision of the ring and a version of the rules.
func (l *Limiter) catchUp(ctx context.Context, revision, version int64) {
	ctx, cancel := context.WithTimeout(ctx, catchUpTime)
	defer cancel()
	l.member.Await(ctx, revision, version)
}
