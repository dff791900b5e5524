package partitions

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

// Calls sends a Keeper's messages to other nodes. *peer.Peers implements it.
type Calls interface {
	Go(to ring.NodeID, m peer.Method, body []byte, timeout time.Duration, done func(reply []byte, err error))
	Call(ctx context.Context, to ring.NodeID, m peer.Method, body []byte) ([]byte, error)
	Reachable(to ring.NodeID) bool
}

// Config holds a Keeper's dependencies and settings.
type Config struct {
	Self  ring.NodeID
	Boot  uint64          // of this process; changes at each start
	Table *counters.Table // the Keeper opens and shuts its gates
	Now   func() algorithms.Instant
	Calls Calls
	// Authority reports whether this node may act as an owner or a standby now.
	Authority func() bool
	// Interval is the time between pushes to the standbys; 100 ms by default.
	Interval time.Duration
	// Patience is how long a search for the newest copy waits for a node that
	// can't be reached. For a node that can be reached, it may wait slowPatience
	// times as long. 2 s by default.
	Patience time.Duration
	// StandbyCounters bounds the counters kept while acting as a standby; 65,536 by default.
	StandbyCounters int64
	// Save writes the table's counters to disk and returns once they are there.
	// Confirm needs it for partitions without a standby. It may be nil.
	Save   func(ctx context.Context) error
	Logger *slog.Logger
}

// DefaultConfig returns a Config with every default set.
func DefaultConfig() Config {
	return Config{
		Interval: 100 * time.Millisecond, Patience: 2 * time.Second, StandbyCounters: 1 << 16, Logger: slog.Default(),
		Authority: func() bool { return true },
	}
}

// Validate reports the first invalid field.
func (c *Config) Validate() error {
	switch {
	case c.Self.IsZero():
		return errors.New("partitions: Self is zero")
	case c.Table == nil:
		return errors.New("partitions: Table is nil")
	case c.Now == nil:
		return errors.New("partitions: Now is nil")
	case c.Calls == nil:
		return errors.New("partitions: Calls is nil")
	case c.Authority == nil:
		return errors.New("partitions: Authority is nil")
	case c.Logger == nil:
		return errors.New("partitions: Logger is nil")
	case c.Interval <= 0:
		return errors.New("partitions: Interval is not above 0")
	case c.Patience <= 0:
		return errors.New("partitions: Patience is not above 0")
	case c.StandbyCounters < 1:
		return errors.New("partitions: StandbyCounters is below 1")
	}

	return nil
}

// Keeper manages this node's part of the ring. All methods may be called concurrently.
type Keeper struct {
	config          Config
	standbyCounters *counters.Table // costs admitted as a standby, under shares of the limits

	// adopted and phases are written under mu. Checks read them without a lock.
	adopted atomic.Pointer[adoptedState]
	phases  [ring.Partitions]atomic.Uint32
	// learned holds the revision in which another node replied that the new owner has the token.
	learned [ring.Partitions]atomic.Uint64

	// Locks are taken in this order: receiveMu, sendMu, debitMu, mu, and then
	// those of the table: a shard, a partition of notes. (setPhase,
	// DecideAsStandby and debts.putNote take those under mu.) So code that holds a
	// lock of the table must not call the Keeper. For this reason, Table.Copy and
	// Table.Replicate yield without a lock.

	// debitMu is held while a debt is debited and while changes are collected, so
	// a copy has either a debt and its number, or neither.
	debitMu sync.Mutex

	mu       sync.Mutex // guards the fields from here to confirming
	parts    [ring.Partitions]partState
	inPhase  [recovering + 1]int // how many partitions are in each phase
	pushing  partitionSet        // partitions whose changes this node pushes, by their phase
	targets  copyTargets
	changed  chan struct{} // closed and replaced when a phase or the adopted state changes
	incoming map[ring.NodeID]*incomingCopy
	pending  map[pendingCall]bool
	// backoffUntil says, for a node whose last call failed, when something may be
	// sent to it again.
	backoffUntil     map[ring.NodeID]time.Time
	reportFallbackAt map[ring.NodeID]time.Time // when fallback debts may be reported to an owner that is back
	debts            debts
	lastPrune        time.Time // when expired debts were last pruned
	dropPending      bool      // partitions that no longer concern this node may still have counters
	stats            Stats
	// collecting is set while changes are collected for copy targets, from the
	// partitions whose tokens were here at its start.
	collecting bool
	// hadOthers is set once another node has been in a ring since this process
	// began. Before that, changes need not be sent. Afterwards they are collected
	// even if this node is alone again, because the table frees reset counters
	// only when their changes are collected.
	hadOthers  bool
	confirms   []*confirmation // waiting confirmations
	confirming int             // confirmations that are not for debts: at most maxConfirms

	debtsWaiting atomic.Int64 // messages about debts that wait for standbys
	saving       saving
	confirmWake  chan struct{} // capacity 1: there may be confirmations to work on

	// sendMu is held while messages to other keepers are made and sent, so they
	// leave in the order of their numbers.
	sendMu     sync.Mutex
	seq        uint64        // number of the last message to a copy target; guarded by sendMu
	unfinished bool          // some copies or tokens are in transit or missing; guarded by sendMu
	loopWake   chan struct{} // capacity 1: there may be work before the next tick

	inbox chan message
	// receiveMu is held while a message from another keeper is handled. waiting
	// counts the messages in inbox, and the one from inbox that is being handled.
	// So each sender's messages are handled in order.
	receiveMu sync.Mutex
	waiting   atomic.Int64

	stop  context.CancelFunc
	ctx   context.Context
	loops sync.WaitGroup
}

// phase is the state of a partition on this node.
type phase uint32

const (
	away       phase = iota // the token is not here, or is not known to be
	owning                  // the token is here and the gate is open
	freezing                // being handed over: the gate is shut and the last changes are on their way
	flipping                // being handed over: the flip is sent, and its answer has not arrived
	handedOver              // the other node took the token
	doubtful                // this node may have the token, and asks the other side of the move
	recovering              // the token is here, but this node still searches for the newest counters
)

// pendingCall is a kind of message to a node, of which at most one is in
// flight. For MethodFlip it covers only questions.
type pendingCall struct {
	node   ring.NodeID
	method peer.Method
}

// partState is this node's state of a partition.
type partState struct {
	phase   phase
	version // how new the counters here are, as owner or as copy
	// receiver is the other side of the move that this node began last, by freezing
	// the partition; zero if it began none.
	receiver           ring.NodeID
	receiverBoot       uint64      // the receiver's boot when this node froze the partition or recorded its hand-over
	receiverGeneration int64       // the receiver's generation at that time
	attempt            uint64      // number of the last flip, or question about it
	voided             voidedFlips // flips that this node no longer accepts
	frozenAt           time.Time   // when the partition was frozen

	source ring.NodeID // the node that pushed the copy here; zero if there is no copy
	// complete means that no counter is missing here. The counters are a full copy
	// of source's or, without a source, all that this node had when it froze the
	// partition.
	complete     bool
	pusherBoot   uint64 // boot of the process that pushed last
	lastPush     uint64 // number of its last push
	sectionCount uint64 // sections received so far of a copy in progress
	// While a complete copy is sent again, unconfirmed holds the counters here
	// that the copy has not brought yet. They are reset when the copy ends.
	// unconfirmed is nil otherwise, and in all phases but away and handedOver.
	unconfirmed map[counters.Key]algorithms.Kind

	search *search // recovering: what is known about copies elsewhere
}

// frozenHere reports whether the counters here are exactly those that this
// node, as the owner, froze.
func (pt *partState) frozenHere() bool { return pt.complete && pt.source.IsZero() }

// setReceiver records node, as it is in state, as the other side of the move.
func (pt *partState) setReceiver(state *adoptedState, node ring.NodeID) {
	pt.receiver = node
	pt.receiverBoot = state.Boot(node)
	pt.receiverGeneration = state.Generation(node)
}

// receiverReplaced reports whether the receiver of this node's flip has been
// ended since, or has begun another process. It is true even if the receiver
// has come back.
func (pt *partState) receiverReplaced(state *adoptedState) bool {
	return state.Boot(pt.receiver) != pt.receiverBoot || state.Generation(pt.receiver) != pt.receiverGeneration
}

// voidedFlips is the last attempt that this node has declined. It answered "not
// taken", so it must not accept any flip of that process up to this attempt.
type voidedFlips struct {
	boot    uint64 // of the sending process; boots are random
	attempt uint64
}

// adoptedState is the agreed state as the keeper last adopted it.
type adoptedState struct {
	*agreement.State
	registered bool // this process may have tokens: its boot is the registered one
}

// Open starts a Keeper. All gates stay shut until the agreed state gives this node tokens.
func Open(config Config) (*Keeper, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}

	k := &Keeper{
		config: config, standbyCounters: counters.New(config.StandbyCounters),
		debts: newDebts(&config), targets: copyTargets{nodes: map[ring.NodeID]*copyTarget{}},
		changed: make(chan struct{}), incoming: map[ring.NodeID]*incomingCopy{}, pending: map[pendingCall]bool{},
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
// now on, this node decides nothing as an owner or as a standby. Close does the
// same.
func (k *Keeper) StopDeciding() {
	k.stop()
	k.loops.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.config.Table.ShutAll()
}

// Close stops all work, waits for it, and shuts the gates.
func (k *Keeper) Close() error {
	k.StopDeciding()
	k.standbyCounters.Close()
	return nil
}

// isStopped reports whether StopDeciding was called.
func (k *Keeper) isStopped() bool { return k.ctx.Err() != nil }

// Adopt replaces the agreed state that this node follows. Calls must be in the
// order of the states; states may be skipped.
func (k *Keeper) Adopt(s *agreement.State) {
	k.mu.Lock()
	defer k.mu.Unlock()

	before := k.adopted.Load()
	state := &adoptedState{State: s, registered: s.Boot(k.config.Self) == k.config.Boot}
	if s.Generation(k.config.Self) != before.Generation(k.config.Self) || !state.registered {
		k.forgetAll()
	}

	k.adopted.Store(state)
	// Only a registered process has an index. Under the index of another process,
	// numbers could repeat.
	k.debts.bootIndex = 0
	if state.registered {
		k.debts.bootIndex = state.Processes[k.config.Self].Index
	}
	k.hadOthers = k.hadOthers || state.hasOtherMembers(k.config.Self)
	k.targets.update(state, before, k.config.Self)

	for p := range ring.Partitions {
		k.updatePart(state, p)
	}

	k.dropPending = true
	k.announce()
}

// hasOtherMembers reports whether a ring has members other than self.
func (state *adoptedState) hasOtherMembers(self ring.NodeID) bool {
	isOther := func(id ring.NodeID) bool { return id != self }
	return slices.ContainsFunc(state.From.Members(), isOther) || slices.ContainsFunc(state.To.Members(), isOther)
}

// neverHadOthers reports whether no other node has been in a ring so far. Until
// then, no node needs changes.
func (k *Keeper) neverHadOthers() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.hadOthers
}

// forgetAll gives up every token and copy: this process was ended or replaced,
// and other nodes continue from their copies.
func (k *Keeper) forgetAll() {
	for p := range k.parts {
		if k.parts[p].phase == owning {
			k.config.Table.Shut(p)
		}

		hadCounters := k.parts[p].hasCounters()
		// The answers "not taken" stay true: an offer that they cover may still
		// arrive, and must be declined.
		k.enterPhase(p, away)
		k.parts[p] = partState{voided: k.parts[p].voided}

		// Without a token or a copy, the counters here come from a checkpoint. This
		// process needs them once it is registered.
		if hadCounters {
			k.config.Table.Drop(p)
			k.debts.markDropped(p)
		}
	}

	clear(k.targets.nodes)
	clear(k.backoffUntil)
}

// updatePart brings a partition in line with a new state.
func (k *Keeper) updatePart(state *adoptedState, p int) {
	if !state.registered {
		return
	}

	self := k.config.Self
	pt := &k.parts[p]
	from, to := state.Owner(p)

	switch pt.phase {
	case owning, freezing, recovering, doubtful:
		if from != self && (to != self || pt.phase != owning) {
			// The move has settled, or another node was promoted while this one was in
			// doubt: the token is not here.
			k.release(p)
			return
		}

		if pt.phase == freezing && to != pt.receiver {
			k.setPhase(p, owning) // the other side has changed, and no flip was sent to the new one
		}

		// The move was taken back, so the token is here. But the other side may
		// have had it, and then its counters are newer.
		if pt.phase == doubtful && to == self {
			k.ownOrSearch(state, p, false)
		}
	case flipping, handedOver:
		switch {
		case from != self:
			k.release(p)
		case to != pt.receiver || pt.receiverReplaced(state):
			// The other node can no longer decide. If it took the token, it may have pushed
			// changes to its standby that never arrived here. If it did not take it, the
			// counters here are still all that there were at the freeze.
			pt.complete = pt.complete || pt.phase == flipping
			k.ownOrSearch(state, p, false)
		}
	case away:
		if from == self {
			k.beginOwnership(state, p)
		}
	}
}

// release marks a partition whose token is no longer here. This node's own
// counters are not a copy of anyone's.
func (k *Keeper) release(p int) {
	pt := &k.parts[p]
	if pt.source.IsZero() {
		pt.complete = false
	}
	k.setPhase(p, away)
}

// beginOwnership handles a partition that from assigns to this node while it is
// unknown whether its token is here. If an earlier owner may have handed the
// token over, this node asks the other side. If this node has no copy, it
// fetches one.
func (k *Keeper) beginOwnership(state *adoptedState, p int) {
	pt := &k.parts[p]
	from, to := state.Owner(p)
	if from != to {
		// A late answer to an earlier flip or question must not count as the
		// answer to the next question.
		pt.attempt++
		pt.receiver = ring.NodeID{}
		k.setPhase(p, doubtful)
		return
	}

	// A partition that does not move has no second owner, whose copy could be newer.
	k.ownOrSearch(state, p, pt.complete)
}

// ownOrSearch continues a partition whose token is certainly here. Unless the copy
// here is known to be the newest, it first searches for newer ones.
func (k *Keeper) ownOrSearch(state *adoptedState, p int, newest bool) {
	var buf [3]ring.NodeID
	// Nobody can have newer counters if there is no other holder, and no node was ever ended.
	if newest || len(state.copyHolders(k.config.Self, p, buf[:0])) == 0 && len(state.Generations) == 0 {
		k.beginLineage(p)
		return
	}

	k.parts[p].search = &search{since: time.Now(), found: map[ring.NodeID]finding{}}
	k.setPhase(p, recovering)
}

// beginLineage makes this node the owner of p, in a new lineage: this node may
// lack Takes and Gives of the old one.
func (k *Keeper) beginLineage(p int) {
	pt := &k.parts[p]
	pt.version = version{lineage: newLineage(k.adopted.Load().Revision)}
	pt.source = ring.NodeID{}
	pt.complete = false
	pt.search = nil

	// The copies elsewhere are of the old lineage, and their nodes decline
	// changes of the new one.
	k.targets.forgetCopies(p)
	k.setPhase(p, owning)

	k.settleOwnDebts(p)

	k.stats.Begun++
}

// setPhase changes a partition's phase and its gate.
func (k *Keeper) setPhase(p int, next phase) {
	pt := &k.parts[p]
	if pt.phase == next {
		return
	}

	// The gate shuts before the phase changes, and opens after it. So while the
	// phase is not owning, nothing here decides as the owner.
	if pt.phase == owning {
		k.config.Table.Shut(p)
	}
	if next != recovering {
		pt.search = nil
	}
	if next != away && next != handedOver {
		pt.unconfirmed = nil
	}

	k.enterPhase(p, next)
	if next == owning && !k.isStopped() {
		k.config.Table.Open(p, pt.lineage)
	}

	k.announce()
}

// enterPhase notes a partition's phase wherever it is kept.
func (k *Keeper) enterPhase(p int, next phase) {
	pt := &k.parts[p]
	k.inPhase[pt.phase]--
	k.inPhase[next]++
	pt.phase = next
	k.phases[p].Store(uint32(next))
	k.pushing.put(p, next.pushesChanges())
	k.targets.mayLackCopies = k.targets.mayLackCopies || next.pushesChanges()
}

// canSendTo reports whether this node may send to node now. The caller must hold mu.
func (k *Keeper) canSendTo(node ring.NodeID) bool {
	return k.config.Calls.Reachable(node) && !time.Now().Before(k.backoffUntil[node])
}

// backOff records that a call to node failed: nothing is sent to it for an
// interval. The caller must hold mu.
func (k *Keeper) backOff(node ring.NodeID) { k.backoffUntil[node] = time.Now().Add(k.config.Interval) }

// announce wakes the loop and everyone waiting for a change.
func (k *Keeper) announce() {
	close(k.changed)
	k.changed = make(chan struct{})
	k.wake()
}

// wake makes the loop check for work.
func (k *Keeper) wake() { wake.Signal(k.loopWake) }
