package partitions

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// Keeper manages this node's part of the ring. All methods may be called concurrently.
type Keeper struct {
	config          Config
	standbyCounters *counters.Table // costs admitted as a standby, under shares of the limits

	// adopted and phases are written under mu. Checks read them without a lock.
	adopted atomic.Pointer[adoptedState]
	phases  [ring.Partitions]atomic.Uint32
	// movedRevision[p] is the revision under which another node replied that the
	// new owner has p's token. It counts only while that revision is the adopted
	// one.
	movedRevision [ring.Partitions]atomic.Uint64

	// Locks are taken in this order: receiveMu, sendMu, debitMu, mu, and then
	// those of the table: a shard, a partition of notes. (setPhase,
	// DecideAsStandby and debts.putNote take those under mu.) So code that holds a
	// lock of the table must not call the Keeper. For this reason, Table.Copy and
	// Table.Replicate yield without a lock.

	// A copy must have both a debt and its number, or neither. Code that reads
	// changes or a copy for copy targets holds debitMu, and so does acceptDebt.
	// Other code may debit debts without debitMu if
	//   - it holds sendMu, without which nothing is read; or
	//   - it makes this node forget the copies elsewhere, which are then sent as a
	//     whole (forgetCopies); or
	//   - this node does not send the partition's changes, because it is not the
	//     owner or was ended.
	debitMu sync.Mutex

	mu            sync.Mutex // guards the fields from here to boundedConfirms
	parts         [ring.Partitions]partState
	inPhase       [recovering + 1]int // how many partitions are in each phase
	pushing       partitionSet        // partitions whose changes this node pushes, by their phase
	targets       copyTargets
	changed       chan struct{} // closed and replaced when a phase or the adopted state changes
	incoming      map[ring.NodeID]*incomingCopy
	callsInFlight map[callKey]bool
	// backoffUntil says, for a node whose last call failed, when something may be
	// sent to it again.
	backoffUntil     map[ring.NodeID]time.Time
	reportFallbackAt map[ring.NodeID]time.Time // when fallback debts may be reported to an owner that is back
	debts            debts
	lastPrune        time.Time // when expired debts were last pruned
	dropPending      bool      // there may still be counters here of partitions that no longer concern this node
	stats            Stats
	// collecting is set while changes are collected for copy targets. A collection
	// pushes only the partitions that this node pushed when the collection began.
	// Changes elsewhere are discarded, so the copy targets of a token that arrives
	// meanwhile need whole copies.
	collecting bool
	// hadOthers is set once another node has been in a ring since this process
	// began. Before that, changes need not be sent. Afterwards they are collected
	// even if this node is alone again, because the table frees reset counters
	// only when their changes are collected.
	hadOthers       bool
	confirms        []*confirmation // waiting confirmations
	boundedConfirms int             // confirmations that are not for debts: at most maxConfirms

	debtsWaiting atomic.Int64 // messages about debts that wait for standbys
	saving       saving
	confirmWake  chan struct{} // capacity 1: there may be confirmations to work on

	// sendMu is held while messages to other keepers are made and sent, so they
	// leave in the order of their numbers.
	sendMu     sync.Mutex
	seq        uint64        // number of the last push, flip or question; guarded by sendMu
	unfinished bool          // some copies or tokens are in transit or missing; guarded by sendMu
	loopWake   chan struct{} // capacity 1: there may be work before the next tick

	inbox chan message
	// receiveMu is held while a message from another keeper is handled. queued
	// counts the messages in inbox, and the one from inbox that is being handled. A
	// message may bypass the inbox only while queued is 0. So each sender's
	// messages are handled in order.
	receiveMu sync.Mutex
	queued    atomic.Int64

	stop         context.CancelFunc
	ctx          context.Context
	loops        sync.WaitGroup
	stopDeciding sync.Once
}

// Open starts a Keeper. All gates stay shut until the agreed state gives this node tokens.
func Open(config Config) (*Keeper, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}

	k := &Keeper{
		config: config, standbyCounters: counters.New(config.StandbyCounters),
		debts: newDebts(&config), targets: copyTargets{nodes: map[ring.NodeID]*copyTarget{}},
		changed: make(chan struct{}), incoming: map[ring.NodeID]*incomingCopy{}, callsInFlight: map[callKey]bool{},
		backoffUntil: map[ring.NodeID]time.Time{}, reportFallbackAt: map[ring.NodeID]time.Time{},
		saving: saving{turn: make(chan struct{}, 1)}, confirmWake: make(chan struct{}, 1),
		loopWake: make(chan struct{}, 1),
		inbox:    make(chan message, inboxSize), dropPending: true,
	}
	k.inPhase[away] = ring.Partitions
	k.adopted.Store(&adoptedState{State: agreement.New()})
	k.ctx, k.stop = context.WithCancel(context.Background())
	config.Table.ShutAll()
	k.loops.Go(k.run)
	k.loops.Go(k.receive)

	return k, nil
}

// StopDeciding stops all work, waits for it, and shuts the gates for good: from
// now on, this node decides nothing as an owner or as a standby. If this node
// still owns partitions, StopDeciding then sends the last changes to the
// standbys that have copies, and waits half a second at most for their answers.
// Close calls StopDeciding.
func (k *Keeper) StopDeciding() { k.stopDeciding.Do(k.stopAndPush) }

func (k *Keeper) stopAndPush() {
	k.stop()
	k.loops.Wait()
	k.mu.Lock()
	k.config.Table.ShutAll()
	k.mu.Unlock()

	k.pushLast()
}

// Close stops all work, waits for it, and shuts the gates.
func (k *Keeper) Close() error {
	k.StopDeciding()
	k.standbyCounters.Close()
	return nil
}
