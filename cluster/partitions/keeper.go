package partitions

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// Calls is how a Keeper speaks with other nodes. *peer.Peers is one.
type Calls interface {
	Go(to ring.NodeID, m peer.Method, body []byte, timeout time.Duration, done func(reply []byte, err error))
	Call(ctx context.Context, to ring.NodeID, m peer.Method, body []byte) ([]byte, error)
	Reachable(to ring.NodeID) bool
}

// Config says what a Keeper stands on.
type Config struct {
	Self  ring.NodeID
	Boot  uint64          // of this process
	Table *counters.Table // its gates are the Keeper's
	Now   func() algorithms.Now
	Calls Calls
	// Authority reports whether this node may act as an owner or a standby now.
	Authority func() bool
	// Interval is from one push to the standbys to the next; 100 ms by default.
	Interval time.Duration
	// Patience is how long a node that lost its memory waits for its standbys before it goes on with what its last
	// checkpoint had; 2 s by default.
	Patience time.Duration
	// Shares bounds the counters kept while acting as a standby; 65,536 by default.
	Shares int64
	// Save writes the table's counters to disk and returns when they are there. Confirm needs it where a partition has no
	// standby. It may be nil.
	Save   func(ctx context.Context) error
	Logger *slog.Logger
}

// DefaultConfig is a Config with all set that has a default.
func DefaultConfig() Config {
	return Config{
		Interval: 100 * time.Millisecond, Patience: 2 * time.Second, Shares: 1 << 16, Logger: slog.Default(),
		Authority: func() bool { return true },
	}
}

// Validate names what is missing.
func (c *Config) Validate() error {
	switch {
	case c.Self.IsZero():
		return errors.New("partitions: Self is zero")
	case c.Table == nil, c.Now == nil, c.Calls == nil, c.Authority == nil, c.Logger == nil:
		return errors.New("partitions: Table, Now, Calls, Authority or Logger is nil")
	case c.Interval <= 0, c.Patience <= 0, c.Shares < 1:
		return errors.New("partitions: Interval, Patience or Shares is not above 0")
	}
	return nil
}

// Keeper keeps this node's part of the ring. All methods may be called concurrently.
type Keeper struct {
	cfg    Config
	shares *counters.Table // what was admitted while acting, under shares of the limits

	// view and phases are what checks look at. Both are written under mu.
	view   atomic.Pointer[view]
	phases [ring.Partitions]atomic.Uint32
	// learned holds the revision in which a reply told that the token had moved to the new owner.
	learned [ring.Partitions]atomic.Uint64
	// lineages are those of the partitions held; of others what they were.
	lineages [ring.Partitions]atomic.Uint64

	// debiting is held while a message of debts is debited, and while changes are collected: a copy has all of what was
	// debited under a number, and the number, or nothing of it. It is taken before mu.
	debiting sync.Mutex

	mu        sync.Mutex // guards what follows
	parts     [ring.Partitions]part
	followers followers
	changed   chan struct{} // closed and made anew when a phase or the view changes
	giving    map[ring.NodeID]*gift
	errands   map[errand]bool
	pauses    map[ring.NodeID]time.Time // nodes that failed to take something are left alone until then
	contact   map[ring.NodeID]time.Time // owners that debts are for: from when on they are told those of fallbacks
	debts     debtLedger
	checked   time.Time // when those that were over were forgotten last
	drops     bool      // partitions that are of no concern here any more may still have counters
	stats     Stats
	// collecting: what changed is being collected for followers, in partitions whose tokens were here when that began.
	collecting bool
	// followed: since this process began there has been another node in a ring. Before, nobody is to hear of changes.
	// Afterwards they are collected even if this node is alone again: counters that were reset wait for that.
	followed bool
	confirms []*confirmation // that wait
	backups  atomic.Int64    // messages about debts that wait for standbys
	loans    int             // how many of them are not of debts: at most maxConfirms

	saving saving
	haste  chan struct{} // capacity 1: there may be confirmations to go on with
	seq    uint64        // of the last message to a follower; used by the loop alone
	kick   chan struct{} // capacity 1: there may be something to do before the next tick
	inbox  chan message
	stop   context.CancelFunc
	ctx    context.Context
	done   sync.WaitGroup
}

// The table and the ring cut the key space into the same slices: this does not compile otherwise.
var _ [counters.Partitions]struct{} = [ring.Partitions]struct{}{}

// message is what another keeper has sent.
type message struct {
	*peer.Call
	came time.Time
}

// inboxSize bounds the messages of other keepers that wait; the sender of one more is told to try again.
const inboxSize = 256

// phase is how a partition stands with this node.
type phase uint32

const (
	away       phase = iota // the token is not here, or is not known to be
	held                    // the token is here, the gate open
	freezing                // being handed over: the gate is shut, the last changes are on their way
	flipping                // being handed over: whether the other has taken it is not known
	handed                  // the other has taken it
	doubtful                // this node may have the token: the other end of the move is asked
	recovering              // the token is here, the counters are being looked for
)

// errand is a message that is under way, of which a node gets one at a time. Of MethodFlip these are questions.
type errand struct {
	node   ring.NodeID
	method peer.Method
}

// part is what is known of a partition here.
type part struct {
	phase   phase
	order               // of the counters here, as owner or as copy
	other   ring.NodeID // freezing, flipping, handed, doubtful: to whom, zero if this node flipped nothing
	boot    uint64      // of other
	ends    int64       // how often other had been ended
	attempt uint64      // number of the last flip or question about it
	void    void        // which flips are not accepted here
	began   time.Time   // freezing: when

	source ring.NodeID // whose pushes the copy here is made of; zero: no copy
	whole  bool        // the copy is complete
	pusher uint64      // boot of the process that pushed last
	seq    uint64      // of its last push
	parts  uint64      // sections of the whole copy that is coming, so far

	search *search // recovering: who has a copy
}

// own reports whether the counters here are all that there was when this node, as the owner, froze the partition.
func (pt *part) own() bool { return pt.whole && pt.source.IsZero() }

// lost reports whether the node that this one has sent a flip was ended since, even if it is back by now, or has lost its
// memory.
func (pt *part) lost(v *view) bool {
	return v.Boot(pt.other) != pt.boot || v.Generation(pt.other) != pt.ends
}

// void says that flips up to an attempt of a process are not accepted any more: it was told so.
type void struct {
	boot    uint64 // of the one that flips; boots are random
	attempt uint64
}

// view is the agreed state as the keeper has taken it up.
type view struct {
	*agreement.State
	member bool // this process may have tokens: its boot is the registered one
}

// Open starts a Keeper. All gates are shut until the agreed state gives this node tokens.
func Open(cfg Config) (*Keeper, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	k := &Keeper{
		cfg: cfg, shares: counters.New(cfg.Shares), debts: newDebtLedger(&cfg), followers: followers{},
		changed: make(chan struct{}), giving: map[ring.NodeID]*gift{}, errands: map[errand]bool{},
		pauses: map[ring.NodeID]time.Time{}, contact: map[ring.NodeID]time.Time{},
		saving: newSaving(), haste: make(chan struct{}, 1), kick: make(chan struct{}, 1), inbox: make(chan message, inboxSize), drops: true,
	}
	k.view.Store(&view{State: agreement.New()})
	k.ctx, k.stop = context.WithCancel(context.Background())
	cfg.Table.ShutAll()
	k.done.Go(k.run)
	k.done.Go(k.receive)
	return k, nil
}

// Close ends all work and waits for it. The gates are shut.
func (k *Keeper) Close() error {
	k.stop()
	k.done.Wait()
	k.cfg.Table.ShutAll()
	k.shares.Close()
	return nil
}

// Use takes up what has been agreed. Calls must come in the order of the states; some may be left out.
func (k *Keeper) Use(s *agreement.State) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.view.Load()
	v := &view{State: s, member: s.Boot(k.cfg.Self) == k.cfg.Boot}
	if s.Generation(k.cfg.Self) != before.Generation(k.cfg.Self) || !v.member {
		k.forgetAll()
	}
	k.view.Store(v)
	k.debts.incarnation = v.Boots[k.cfg.Self].Index
	k.followed = k.followed || v.others(k.cfg.Self)
	k.followers.take(v, before, k.cfg.Self)
	for p := range ring.Partitions {
		k.settlePart(v, p)
	}
	k.drops = true
	k.announce()
}

// others reports whether a ring has more members than self.
func (v *view) others(self ring.NodeID) bool {
	is := func(id ring.NodeID) bool { return id != self }
	return slices.ContainsFunc(v.From.Members(), is) || slices.ContainsFunc(v.To.Members(), is)
}

// alone reports whether nobody has had to hear of changes so far.
func (k *Keeper) alone() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.followed
}

// forgetAll gives up every token and copy: this node was ended, and others go on from their copies.
func (k *Keeper) forgetAll() {
	for p := range k.parts {
		if k.parts[p].phase == held {
			k.cfg.Table.Shut(p)
		}
		had := k.parts[p].any()
		k.parts[p] = part{void: k.parts[p].void}
		k.phases[p].Store(uint32(away))
		if had {
			k.cfg.Table.Drop(p)
			k.debts.replace(p)
		}
	}
	clear(k.followers)
	clear(k.pauses)
}

// settlePart brings a partition in line with a new view.
func (k *Keeper) settlePart(v *view, p int) {
	self, pt := k.cfg.Self, &k.parts[p]
	from, to := v.Owner(p)
	if !v.member {
		return
	}
	switch pt.phase {
	case held, freezing, recovering, doubtful:
		if from != self && (to != self || pt.phase != held) {
			// Settled meanwhile, or promoted away while it was in doubt: the token is not here.
			k.giveUp(p)
			return
		}
		if pt.phase == freezing && to != pt.other {
			k.setPhase(p, held) // the other end is another one now, and was not sent the flip
		}
		if pt.phase == doubtful && to == self {
			k.goOn(v, p, false)
		}
	case flipping, handed:
		switch {
		case from != self:
			k.giveUp(p)
		case to != pt.other || pt.lost(v):
			// The other cannot decide any more. It may have pushed to others what it could not push here.
			pt.whole = pt.whole || pt.phase == flipping
			k.goOn(v, p, false)
		}
	case away:
		if from == self {
			k.claim(v, p)
		}
	}
}

// giveUp is for a partition whose token is not here any more. What this node had of its own is no copy of anybody's.
func (k *Keeper) giveUp(p int) {
	if pt := &k.parts[p]; pt.source.IsZero() {
		pt.whole = false
	}
	k.setPhase(p, away)
}

// claim is for a partition that is this node's by from, and whose token it was not seen to have. Where it may have
// been flipped before, the other end is asked; where there is no copy, others are asked for theirs.
func (k *Keeper) claim(v *view, p int) {
	pt := &k.parts[p]
	if from, to := v.Owner(p); from != to {
		pt.attempt++
		pt.other = ring.NodeID{}
		k.setPhase(p, doubtful)
		return
	}
	k.goOn(v, p, pt.whole) // of a partition that does not move there is no second copy
}

// goOn is for a partition whose token is certainly here. Unless the copy here is surely the newest, the others are asked for
// theirs.
func (k *Keeper) goOn(v *view, p int, newest bool) {
	var buf [3]ring.NodeID
	if newest || len(v.holders(k.cfg.Self, p, buf[:0])) == 0 && len(v.Generations) == 0 {
		k.begin(p)
		return
	}
	k.parts[p].search = &search{since: time.Now(), found: map[ring.NodeID]finding{}}
	k.setPhase(p, recovering)
}

// begin makes this node the owner of p, with a lineage of its own: what was given or taken in the last one may be
// unknown here.
func (k *Keeper) begin(p int) {
	pt := &k.parts[p]
	pt.order, pt.source, pt.whole, pt.search = order{lineage: rand.Uint64()}, ring.NodeID{}, false, nil
	k.followers.unfollow(p)
	k.setPhase(p, held)
	// Without authority, a later entry may already have ended this node, and the debts would go with its counters. payDebts
	// keeps them once there is authority.
	if k.cfg.Authority() {
		k.debts.keep(p, k.cfg.Now())
	}
	k.stats.Begun++
}

// setPhase changes a partition's phase and its gate.
func (k *Keeper) setPhase(p int, next phase) {
	pt := &k.parts[p]
	if pt.phase == next {
		return
	}
	if pt.phase == held {
		k.cfg.Table.Shut(p)
	}
	if pt.phase = next; next != recovering {
		pt.search = nil
	}
	k.phases[p].Store(uint32(next))
	if next == held {
		k.lineages[p].Store(pt.lineage)
		k.cfg.Table.Open(p)
	}
	k.announce()
}

// ready reports whether node may be asked something now. It is called under mu.
func (k *Keeper) ready(node ring.NodeID) bool {
	return k.cfg.Calls.Reachable(node) && !time.Now().Before(k.pauses[node])
}

// failed takes note that node did not take something: the next try waits for an interval. It is called under mu.
func (k *Keeper) failed(node ring.NodeID) { k.pauses[node] = time.Now().Add(k.cfg.Interval) }

// announce wakes those who wait for a change, and the loop.
func (k *Keeper) announce() {
	close(k.changed)
	k.changed = make(chan struct{})
	k.wake()
}

// wake has the loop look whether there is something to do.
func (k *Keeper) wake() { signal(k.kick) }

// signal marks a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
