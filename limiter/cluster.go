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
	"github.com/rlnode/rlnode/limiter/grants"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

// Bounds of a check that is not decided here at once.
const (
	// checkTime is how long a check may take, whatever happens.
	checkTime = 900 * time.Millisecond
	// reserve is what is left of that when replies are no longer waited for.
	reserve = 20 * time.Millisecond
	// frozenTime is how much of it may go into waiting for partitions that are being handed over.
	frozenTime = 500 * time.Millisecond
	// catchUpTime is how long a node that is behind waits for the rules or the ring that another goes by.
	catchUpTime = 50 * time.Millisecond
	// maxServing bounds the questions of other nodes that wait for something here; one more is told to go on.
	maxServing = 4096
	// maxTurns bounds how often a check looks again at where its counters are, in a cluster that is moving them.
	maxTurns = 64
	// newsTime is how long a check waits for news of the ring where nobody says to be the owner; it doubles up to maxNewsTime.
	newsTime    = 200 * time.Microsecond
	maxNewsTime = 10 * time.Millisecond
	// inlineResults is how much work a question may be for the connection's reader to do it itself.
	inlineResults = 1024
	// defaultLeases bounds the subjects with leases.
	defaultLeases = 1 << 16
)

// Ownership says where the counters of a partition are decided, and keeps what is owed to where that is.
// *partitions.Keeper is one.
type Ownership interface {
	Route(p int) partitions.Route
	// Wait returns when p is not frozen any more, or ctx ends.
	Wait(ctx context.Context, p int)
	// Learn takes note that owner said to have p.
	Learn(p int, revision int64, owner ring.NodeID)
	// Lineage is that of p's counters here. What was taken in one is never given back to another.
	Lineage(p int) uint64
	// Act decides as a standby, within shares; counters.Shut where this node may not.
	Act(now algorithms.Now, ops []counters.Op, shares []algorithms.Limit, why partitions.Absence) counters.Verdict
	// Owe notes what this node admits without anyone else, for the owners to be told, unless a copy here refuses it.
	Owe(now algorithms.Now, ops []counters.Op) counters.Verdict
	// Forgive takes back what Owe noted of op at a time.
	Forgive(at algorithms.Now, op *counters.Op)
}

// Backup sees to it that what changes in a partition outlives this node. *partitions.Keeper is one.
type Backup interface {
	// Backed reports whether Confirm of p is likely to succeed now.
	Backed(p int) bool
	// Confirm returns when all that changed in p before is where p would go on from without this node.
	Confirm(ctx context.Context, p int) error
}

// Far carries messages to other regions. *regions.Pool is one.
type Far interface {
	// Go calls some node of a region that answers for it, and runs done once; as for Peers. A message that may have arrived
	// is not sent again.
	Go(region string, m peer.Method, body []byte, timeout time.Duration, done func(reply []byte, err error))
	Reachable(region string) bool
}

// Peers carries messages to other nodes. *peer.Peers is one.
type Peers interface {
	// Go calls, and runs done once; bodies may be used again when it returns, and replies hold until done returns.
	Go(to ring.NodeID, m peer.Method, body []byte, timeout time.Duration, done func(reply []byte, err error))
	// Send sends without a reply.
	Send(to ring.NodeID, m peer.Method, body []byte) error
	Reachable(to ring.NodeID) bool
}

// Recorder hears of each decision made as an owner or as a standby; for tests that look whether there were ever two
// owners.
type Recorder interface {
	// Clock reads a monotonic clock.
	Clock() int64
	// Decided tells of a decision between two readings of Clock; by is ByOwner or ByStandby.
	Decided(by DecidedBy, partition int, lineage uint64, began, ended int64)
}

// Cluster is what a limiter stands on that decides together with other nodes.
type Cluster struct {
	Self      ring.NodeID
	Ownership Ownership
	Peers     Peers
	// Authority reports whether this node may decide as an owner now. It is asked before and after each decision.
	Authority func() bool
	// Await waits until this node knows as much of who owns what, and has this version of the rules (0: any), or ctx
	// ends.
	Await func(ctx context.Context, revision, rulesVersion int64) bool
	// Ring is the last ring that this node knows, nil before the first: its members divide limits among themselves.
	Ring func() *ring.Table
	// Private has the counters that this node decides by itself; see localcache.New. The limiter does not close it.
	Private *counters.Table
	// Far reaches other regions; nil: nothing is borrowed from them.
	Far Far
	// Backup is for what is lent to other regions; nil: nothing is.
	Backup Backup
	// Recorder may be nil.
	Recorder Recorder
	// Boottime reads a clock that goes on in suspend, on which leases end. nil: the process's monotonic one.
	Boottime func() time.Duration
	// Secret is the cluster's, by which its nodes know the reservations that they made; nil or empty: not known yet.
	Secret func() []byte
	// Leases bounds the subjects of which this node holds leases, and of which it grants some; 0: 65,536.
	Leases int64
}

// Validate names what is missing.
func (c *Cluster) Validate() error {
	if c.Self.IsZero() || c.Ownership == nil || c.Peers == nil || c.Authority == nil || c.Await == nil || c.Ring == nil || c.Private == nil {
		return errors.New("limiter: Self, Ownership, Peers, Authority, Await, Ring or Private is missing")
	}
	return nil
}

// member is a limiter's part in a cluster.
type member struct {
	Cluster
	flights flights
	visits  sync.Pool // of *visit
	figures tallies
	leases  leases
	loans   loans // under way to this node's counters

	serving chan struct{} // holds a token for each question that waits for something
	ctx     context.Context
	stop    context.CancelFunc
	mu      sync.Mutex // guards closed: nothing is added to served after it
	closed  bool
	served  sync.WaitGroup // questions that wait for something
	done    sync.WaitGroup // tend
}

// Join returns a limiter over table that decides together with other nodes: what table's gates let it decide it decides
// itself, for the rest it asks the owners. Close ends it.
func Join(table *counters.Table, clock *Clock, c Cluster) (*Limiter, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	m := &member{Cluster: c, serving: make(chan struct{}, maxServing)}
	if m.Boottime == nil {
		start := time.Now()
		m.Boottime = func() time.Duration { return time.Since(start) + 1 }
	}
	bound := cmp.Or(c.Leases, defaultLeases)
	m.ctx, m.stop = context.WithCancel(context.Background())
	l := New(table, clock)
	l.member = m
	m.loans.init(l)
	m.leases = leases{l, localcache.NewLeases(bound), grants.NewLedger(bound)}
	m.done.Go(m.leases.tend)
	return l, nil
}

// Close ends the work on other nodes' questions and waits for it. Checks are still decided, and those already asked
// wait for their answers no longer than a check may take.
func (l *Limiter) Close() error {
	m := l.member
	if m == nil {
		return nil
	}
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	// What is passed on may be counted already: wait for its answer, or the asker would ask again, and it would be counted
	// twice. No question is worked on for longer.
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

// place is how many nodes divide limits among themselves, and this node's place among them.
func (m *member) place() (nodes, rank int) {
	t := m.Ring()
	if t == nil {
		return 0, -1
	}
	return len(t.Members()), t.Rank(m.Self)
}

// takenAt describes what op took at now, for a later Give. Of a log Window says how long after now that was, since a
// message has one time for all of its ops.
func takenAt(op *counters.Op, now algorithms.Now) algorithms.Taken {
	taken := op.Taken(now)
	if op.Limit.Kind == algorithms.SlidingLog {
		taken.Window = taken.Steady - now.Steady
	}
	return taken
}

// took reports whether op took its cost in a check that was admitted.
func took(op *counters.Op) bool { return op.Decision.Allowed && op.Cost > 0 }
