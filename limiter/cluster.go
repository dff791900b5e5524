package limiter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/tasks"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

// Bounds of a check that this node can't decide at once.
const (
	// checkTimeout bounds how long a check may take.
	checkTimeout = 900 * time.Millisecond
	// replySlack is the part of checkTimeout that is left when a check stops waiting for replies.
	replySlack = 20 * time.Millisecond
	// pendingTimeout bounds how long a check waits for pending partitions: those
	// that are being handed over. This time counts towards checkTimeout.
	pendingTimeout = 500 * time.Millisecond
	// catchUpTimeout bounds how long a node waits for the rules or the ring that
	// another node has and it does not.
	catchUpTimeout = 50 * time.Millisecond
	// maxBackground bounds the goroutines of background: for messages that must
	// wait, loans, notices, questions about activity and use, and places in queues.
	// Further messages are refused.
	maxBackground = 4096
	// maxAttempts bounds how often a check looks again for the node that decides a
	// subject, while the cluster is moving its counters.
	maxAttempts = 64
	// retryPause is the first wait for a newer ring if no node claims to be the
	// owner. The wait doubles with each attempt, up to maxRetryPause.
	retryPause    = 200 * time.Microsecond
	maxRetryPause = 10 * time.Millisecond
	// maxResultsByReader bounds the work (checks × limits) of a question that is
	// decided in the goroutine that reads the connection: meanwhile, no other
	// message of the connection is read.
	maxResultsByReader = 1024
	// defaultLeases is the default of ClusterConfig.Leases.
	defaultLeases = 1 << 16
)

// Ownership knows which node decides a partition's counters, and records debts
// to its owner. *partitions.Keeper implements it.
type Ownership interface {
	Route(p int) partitions.Route
	// WaitWhilePending returns when p is no longer pending, or when ctx ends.
	WaitWhilePending(ctx context.Context, p int)
	// LearnOwner records that another node named owner as the owner of p at the
	// given revision of the ring.
	LearnOwner(p int, revision int64, owner ring.NodeID)
	// DecideAsStandby decides ops in place of an owner that can't: as its standby
	// or, during a move, as the node that handed the partition over. It decides
	// within shares. It returns counters.Undecided if this node may not act for the
	// owner.
	DecideAsStandby(now algorithms.Instant, ops []counters.Op, shares []algorithms.Limit,
		problem partitions.OwnerProblem) counters.Verdict
	// DecideAlone decides ops on this node alone, in fallback. It admits them
	// unless a copy on this node refuses, and records what it admits as debts to
	// the owners.
	DecideAlone(now algorithms.Instant, ops []counters.Op) counters.Verdict
	// ForgiveDebt cancels the debt that DecideAlone recorded for op at the given
	// time.
	ForgiveDebt(at algorithms.Instant, op *counters.Op)
}

// Confirmer confirms that changes in a partition would outlive this node.
// *partitions.Keeper implements it.
type Confirmer interface {
	// CanConfirm reports whether Confirm is likely to succeed for p now.
	CanConfirm(p int) bool
	// ConfirmNotes is Confirm for notes alone. Where there is neither another node
	// nor a disk, it returns at once.
	ConfirmNotes(ctx context.Context, p int) error
	// Confirm returns once every earlier change in p has reached the node or disk
	// from which p would continue without this node.
	Confirm(ctx context.Context, p int) error
}

// OtherRegions carries messages to other regions. *regions.Pool implements it.
type OtherRegions interface {
	// Go calls a node that answers for the region, and runs done once. body and
	// reply are as for Peers.Go. A message that may have arrived is not sent again.
	Go(region string, m peer.Method, body []byte, timeout time.Duration, done func(reply []byte, err error))
	Reachable(region string) bool
}

// Peers carries messages to other nodes. *peer.Peers implements it.
type Peers interface {
	// Go calls a node and runs done once. The caller may reuse body once Go
	// returns; reply is valid until done returns.
	Go(to ring.NodeID, m peer.Method, body []byte, timeout time.Duration, done func(reply []byte, err error))
	// Send sends a message that has no reply.
	Send(to ring.NodeID, m peer.Method, body []byte) error
	Reachable(to ring.NodeID) bool
	// PathUnsure reports whether a node can't be reached now, and this node does
	// not know yet whether a path leads to it. It knows after a moment.
	PathUnsure(to ring.NodeID) bool
	// AwaitPath waits while PathUnsure returns true, but no longer than until ctx
	// ends.
	AwaitPath(ctx context.Context, to ring.NodeID)
}

// Recorder records each decision made as an owner or as a standby. Tests use it
// to check that there were never two owners.
type Recorder interface {
	// Clock reads a monotonic clock.
	Clock() int64
	// Decided records a decision made between two readings of Clock. by is ByOwner or ByStandby.
	Decided(by DecidedBy, partition int, lineage uint64, began, ended int64)
}

// ClusterConfig is what a limiter needs to decide together with other nodes.
type ClusterConfig struct {
	Self      ring.NodeID
	Boot      uint64 // identifies this process, its counts and its clock readings; not zero
	Ownership Ownership
	Peers     Peers
	// ReadAuthority reports whether this node may decide as an owner now, and
	// returns the generation of that authority, which rises each time the node is
	// ended. The limiter calls it before and after each decision, or a few decisions
	// of a batch.
	ReadAuthority func() (generation int64, valid bool)
	// AwaitRevision waits until this node has at least this revision of the ring
	// and this version of the rules (zero: any), or until ctx ends.
	AwaitRevision func(ctx context.Context, revision, rulesVersion int64) bool
	// Ring returns the latest ring this node knows, or nil before the first. Its
	// members divide limits among themselves.
	Ring func() *ring.Table
	// Fallback holds the counters for what this node decides alone; see
	// localcache.NewFallbackTable. The limiter does not close it.
	Fallback *counters.Table
	// OtherRegions reaches other regions. If it is nil, this node borrows nothing from them.
	OtherRegions OtherRegions
	// Confirmer confirms loans, settlements and slots. If it is nil, this node
	// lends nothing, and answers without a confirmation.
	Confirmer Confirmer
	// Recorder may be nil.
	Recorder Recorder
	// Boottime reads a clock that keeps running while the machine is suspended; it
	// times the leases. The default is the process's monotonic clock.
	Boottime func() time.Duration
	// SigningKey returns the key with which the cluster's nodes sign reservations. It
	// may be nil. It returns nothing while the node does not know the secret yet.
	SigningKey func() []byte
	// Level returns the feature level that the cluster has agreed on. If it is nil,
	// all nodes support what this node supports.
	Level func() int
	// Leases bounds the subjects that this node holds leases for and, separately,
	// the subjects that it makes grants for. Zero means 65,536.
	Leases int64
}

// Validate reports the first missing field.
func (config *ClusterConfig) Validate() error {
	switch {
	case config.Self.IsZero():
		return errors.New("limiter: Self is zero")
	case config.Boot == 0:
		return errors.New("limiter: Boot is zero")
	case config.Ownership == nil:
		return errors.New("limiter: Ownership is nil")
	case config.Peers == nil:
		return errors.New("limiter: Peers is nil")
	case config.ReadAuthority == nil:
		return errors.New("limiter: ReadAuthority is nil")
	case config.AwaitRevision == nil:
		return errors.New("limiter: AwaitRevision is nil")
	case config.Ring == nil:
		return errors.New("limiter: Ring is nil")
	case config.Fallback == nil:
		return errors.New("limiter: Fallback is nil")
	}

	return nil
}

// markOf returns the mark of when op took its cost. The mark of a log is
// relative to base. For slots, the mark is how much longer they are held.
func markOf(op *counters.Op, base algorithms.Instant) algorithms.TakeMark {
	taken := op.TakeRecord()
	switch {
	case op.Limit.Kind == algorithms.SlidingLog:
		return algorithms.TakeMark(taken.Steady - base.Steady)
	case op.Limit.Kind.IsBucket():
		return algorithms.TakeMark(taken.ResetAfter)
	case op.Limit.Kind == algorithms.Concurrency:
		return algorithms.TakeMark(op.SlotLeft())
	}
	return algorithms.TakeMark(taken.Window)
}

// clusterPart is what a limiter has only in a cluster.
type clusterPart struct {
	ClusterConfig
	flights      flights
	exchangePool sync.Pool // holds *exchange
	counts       counts
	leases       leases
	loans        loans    // between regions
	refunds      *backlog // of refunds that wait
	slotTasks    *backlog // of releases of slots, and reports of slots granted alone
	debtTasks    *backlog // of debts of settlements

	ctx         context.Context
	stop        context.CancelFunc
	background  tasks.Group    // work that may block, or that no caller waits for
	maintenance sync.WaitGroup // the goroutines of leases.maintain, the backlogs and carryOutEnds
}

// Authority reports whether this node may decide as an owner now.
func (cp *clusterPart) Authority() bool {
	_, valid := cp.ReadAuthority()
	return valid
}

// hasKeptAuthority reports whether this node has authority, and has not been
// ended since it had it for the given generation. Only then does what it debited
// in between stand. Authority alone says too little: after a debit, a goroutine
// may stand still until its node has applied that others took over, and has
// authority again.
func (cp *clusterPart) hasKeptAuthority(generation int64) bool {
	now, valid := cp.ReadAuthority()
	return valid && now == generation
}

// rankInRing returns how many nodes divide limits among themselves, and this
// node's rank among them: −1 if it is not one of them.
func (cp *clusterPart) rankInRing() (nodes, rank int) {
	table := cp.Ring()
	return len(table.Members()), table.Rank(cp.Self)
}

// shareOf returns this node's share of a limit. Its amounts are zero if this node has none.
func (cp *clusterPart) shareOf(limit *algorithms.Limit) *algorithms.Limit {
	nodes, rank := cp.rankInRing()
	share, _ := localcache.ShareOf(limit, nodes, rank)
	return &share
}

// catchUp waits until this node has at least a revision of the ring and a
// version of the rules (zero: any), but no longer than catchUpTimeout.
func (l *Limiter) catchUp(ctx context.Context, revision, version int64) {
	ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	l.cluster.AwaitRevision(ctx, revision, version)
}

// ownerTimeout bounds how long an owner may take for a reservation or an acquire
// with an id, for a charge, and for one try of a task in a backlog. It leaves a
// check that gets no answer some time to go on without the owner.
const ownerTimeout = checkTimeout * 2 / 3
