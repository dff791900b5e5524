package authority

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/ring"
)

const (
	// tickEvery is how often the leader looks at what there is to do.
	tickEvery = 50 * time.Millisecond
	// emptyEvery is the shortest pause between two empty entries.
	emptyEvery = 100 * time.Millisecond
	// proposeTimeout bounds a proposal.
	proposeTimeout = 2 * time.Second
	// startOver is the pause after a proposal whose outcome is unknown.
	startOver = 250 * time.Millisecond
	// maxWaiting bounds the questions that wait for an empty entry.
	maxWaiting = 8192
)

// ErrNotLeading: this node does not lead, or can't prove it.
var ErrNotLeading = errors.New("this node does not lead")

// Node is a node as gossip knows it. A member that gossip has not seen yet is suspect: neither taken into the ring nor for failed.
type Node struct {
	agreement.Member
	Boot  uint64
	State gossip.State
	// Removed: an operator removes this process, alive or not.
	Removed bool
	// Supports: the node can compute a ring with this build's ring.DefaultSettings.
	Supports bool
}

// GiverConfig is what a Giver needs: all of it.
type GiverConfig struct {
	Self ring.NodeID
	Boot uint64 // this process; never 0
	// Expect is how many nodes the cluster is to begin with: the first ring waits 3 s for them.
	Expect int
	// State is what this node has applied. After Propose has returned it has that entry in it.
	State func() *agreement.State
	// Propose returns what became of the entry, after it was applied here. An error means that this is not known.
	Propose func(ctx context.Context, e agreement.Entry) (agreement.Result, error)
	// Nodes is gossip's view, this node included.
	Nodes func() []Node
	// Ruled is the index as of which the newest rules that this node has applied are in force. It is called from the one loop and must not block.
	Ruled func() uint64
	// HandOn has another node lead, if one can. It must not block.
	HandOn func()
	// Now is a monotonic clock. It may stand still in suspend.
	Now    func() time.Duration
	Logger *slog.Logger
}

// Giver gives and ends authority while its node leads. State, Nodes and Now are called from its one loop and must not
// block.
type Giver struct {
	config    GiverConfig
	orders    chan bool // true: lead, false: follow
	questions chan *question
	outcomes  chan outcome
	ctx       context.Context
	cancel    context.CancelFunc
	group     sync.WaitGroup

	// What follows belongs to run.
	reign *reign // nil while this node follows
}

// reign is the time from one mark in the log to the next. A leader whose proposal failed begins a new one.
type reign struct {
	number uint64
	ctx    context.Context
	cancel context.CancelFunc
	ledger *ledger // nil until the mark has been applied

	waiting  []*question // for an empty entry that hasn't been proposed yet
	asked    []*question // for the one that has been proposed
	behind   []*question // for a majority of the ring to apply an index; at most maxWaiting
	emptyAt  time.Duration
	empty    bool            // one is under way
	deciding agreement.Entry // under way; nil if none is
	pause    time.Duration   // no decision before this
	overAt   time.Duration   // without a ledger: when to begin anew; never while the mark is under way
}

// question waits for an empty entry.
type question struct {
	request *Request // nil for questions that are not about authority
	// answer makes the reply when the entry has been applied.
	answer func(l *ledger, now time.Duration, s *agreement.State) Reply
	// followed is the index of a question of Followed, which waits for a majority of the ring instead; else 0.
	followed uint64
	gone     <-chan struct{} // with followed: closed when nobody waits any more
	reply    chan Reply      // capacity 1
}

// outcome is what became of a proposal.
type outcome struct {
	reign  *reign
	entry  agreement.Entry
	result agreement.Result
	err    error
}

// NewGiver returns a Giver that follows.
func NewGiver(c GiverConfig) *Giver {
	g := &Giver{
		config: c, orders: make(chan bool), questions: make(chan *question),
		outcomes: make(chan outcome),
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.group.Go(g.run)
	return g
}

// Lead reports that this node has won the lead. Lead and Follow are called from one goroutine, in order; a lead that was
// lost and won again is Follow and Lead, or just Lead.
func (g *Giver) Lead() { g.order(true) }

// Follow reports that this node has lost the lead. When it has returned nothing is granted any more.
func (g *Giver) Follow() { g.order(false) }

func (g *Giver) order(lead bool) {
	select {
	case g.orders <- lead:
	case <-g.ctx.Done():
	}
}

// Answer waits until an empty entry that was proposed after the call has committed, and grants the request; or it
// refuses.
func (g *Giver) Answer(ctx context.Context, r Request) Reply {
	return g.ask(ctx, &question{request: &r, answer: func(l *ledger, now time.Duration, s *agreement.State) Reply {
		reply := l.grant(now, s, &r)
		reply.Behind = l.behind
		return reply
	}})
}

// Committed waits in the same way, for one who wants to read what is agreed now: the index to wait for. The error wraps
// ErrNotLeading or is the context's.
func (g *Giver) Committed(ctx context.Context) (uint64, error) {
	reply := g.ask(ctx, &question{answer: func(_ *ledger, _ time.Duration, s *agreement.State) Reply {
		return Reply{Granted: true, Index: s.Index}
	}})
	if !reply.Granted {
		return 0, cmp.Or(ctx.Err(), ErrNotLeading)
	}
	return reply.Index, nil
}

// Honoured reports whether every node that may have authority has applied the entry of an index, which this node has. If so,
// nobody gets authority any more without having applied it, under this leader or, since what a leader finds applied when
// it begins includes the newest rules, a later one. It waits as Answer does: what a leader that was deposed knows of the
// nodes is no answer.
func (g *Giver) Honoured(ctx context.Context, index uint64) bool {
	return g.ask(ctx, &question{answer: func(l *ledger, now time.Duration, _ *agreement.State) Reply {
		return Reply{Granted: l.honoured(now, index)}
	}}).Granted
}

// Followed waits until a majority of the ring has applied the entry of an index, and reports whether it has.
func (g *Giver) Followed(ctx context.Context, index uint64) bool {
	return g.ask(ctx, &question{followed: index, gone: ctx.Done()}).Granted
}

// ask has a question answered; it is refused if ctx ends before.
func (g *Giver) ask(ctx context.Context, q *question) Reply {
	q.reply = make(chan Reply, 1)
	select {
	case g.questions <- q:
	case <-ctx.Done():
		return Reply{Why: whyNotLeading}
	case <-g.ctx.Done():
		return Reply{Why: whyNotLeading}
	}
	select {
	case r := <-q.reply:
		return r
	case <-ctx.Done():
	case <-g.ctx.Done():
	}
	return Reply{Why: whyNotLeading}
}

// Close ends the loop and what it has under way.
func (g *Giver) Close() error {
	g.cancel()
	g.group.Wait()
	return nil
}

// run owns the reign.
func (g *Giver) run() {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	defer g.follow()
	for {
		var wake <-chan time.Time
		if wait, needed := g.flush(); needed {
			wake = time.After(wait)
		}
		select {
		case <-g.ctx.Done():
			return
		case lead := <-g.orders:
			g.follow()
			if lead {
				g.lead()
			}
		case q := <-g.questions:
			g.take(q)
		case o := <-g.outcomes:
			g.learn(o)
		case <-wake:
		case <-tick.C:
			g.decide()
		}
	}
}

// lead begins a reign with its mark.
func (g *Giver) lead() {
	r := &reign{emptyAt: never, pause: never, overAt: never}
	var number [8]byte
	rand.Read(number[:]) // never fails
	r.number = max(1, binary.BigEndian.Uint64(number[:]))
	r.ctx, r.cancel = context.WithCancel(g.ctx)
	g.reign = r
	g.propose(agreement.Reign{Number: r.number})
}

// follow ends the reign, if there is one.
func (g *Giver) follow() {
	r := g.reign
	if r == nil {
		return
	}
	r.cancel()
	g.reign = nil
	r.refuse()
}

// refuse sends everybody away who waits.
func (r *reign) refuse() {
	for _, q := range slices.Concat(r.waiting, r.asked, r.behind) {
		q.reply <- Reply{Why: whyNotLeading}
	}
	r.waiting, r.asked, r.behind = nil, nil, nil
}

// propose starts a proposal of the present reign. There are at most two at once, an empty entry and a decision, and
// those of earlier reigns, which have been cancelled.
func (g *Giver) propose(e agreement.Entry) {
	r := g.reign
	g.group.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, proposeTimeout)
		defer cancel()
		result, err := g.config.Propose(ctx, e)
		select {
		case g.outcomes <- outcome{r, e, result, err}:
		case <-g.ctx.Done():
		}
	})
}

// take hears a question. One that comes before the reign's mark has been applied is heard after that.
func (g *Giver) take(q *question) {
	r := g.reign
	switch {
	case r == nil:
		q.reply <- Reply{Why: whyNotLeading}
		return
	case len(r.waiting)+len(r.behind) >= maxWaiting:
		q.reply <- Reply{Why: whyBusy}
		return
	case q.followed != 0:
		r.behind = append(r.behind, q)
		g.follows()
		return
	}
	if r.ledger != nil && q.request != nil {
		reply := r.ledger.hear(g.config.Now(), g.config.State(), q.request)
		g.follows()
		if reply.Why != "" {
			reply.Behind = r.ledger.behind
			q.reply <- reply
			return
		}
	}
	r.waiting = append(r.waiting, q)
}

// follows answers who waits for a majority of the ring, and lets go of those that wait no more.
func (g *Giver) follows() {
	r := g.reign
	if r.ledger == nil {
		return
	}
	state := g.config.State()
	r.behind = slices.DeleteFunc(r.behind, func(q *question) bool {
		select {
		case <-q.gone:
			return true
		default:
		}
		there := r.ledger.followed(state, q.followed)
		if there {
			q.reply <- Reply{Granted: true}
		}
		return there
	})
}

// flush proposes an empty entry if somebody waits for one and it is time. Otherwise it returns how long to wait, if that
// is what there is to do.
func (g *Giver) flush() (wait time.Duration, needed bool) {
	r := g.reign
	if r == nil || r.ledger == nil || r.empty || len(r.waiting) == 0 {
		return 0, false
	}
	now := g.config.Now()
	if wait := r.emptyAt + emptyEvery - now; wait > 0 {
		return wait, true
	}
	r.asked, r.waiting = r.waiting, nil
	r.empty, r.emptyAt = true, now
	g.propose(agreement.Empty{})
	return 0, false
}

// learn takes a proposal's outcome in. An error, or a mark that isn't the last one in the log, means that what is agreed
// may be something else than this leader thinks: it begins anew, with a mark, and if it has been deposed that fails.
func (g *Giver) learn(o outcome) {
	r := g.reign
	if r == nil || r != o.reign || r.overAt != never {
		return // also the other one of two proposals, when the first has failed
	}
	state := g.config.State()
	if o.err != nil || state.Reign != r.number {
		g.config.Logger.Debug("a leader's proposal failed", "error", o.err)
		r.refuse()
		r.cancel()
		r.ledger, r.overAt = nil, g.config.Now()+startOver
		return
	}
	switch o.entry.(type) {
	case agreement.Reign:
		r.ledger = newLedger(g.config.Self, g.config.Boot, g.config.Expect, r.number, g.config.Now())
		r.ledger.floor, r.ledger.handOn = g.config.Ruled(), g.config.HandOn
		r.ledger.cry = func(msg string, id ring.NodeID) { g.config.Logger.Error(msg, "node", id) }
		early := r.waiting
		r.waiting = nil
		for _, q := range early {
			g.take(q)
		}
	case agreement.Empty:
		g.answer(state)
	default:
		r.ledger.proposed(o.entry)
		r.deciding = nil
		if o.result.Err != nil {
			g.config.Logger.Warn("a leader's entry was rejected", "entry", o.entry, "error", o.result.Err)
			r.pause = g.config.Now() + startOver
		} else {
			g.config.Logger.Info("a leader's entry was applied", "entry", o.entry)
		}
		g.decide()
	}
}

// answer grants what waited for the empty entry that has committed.
func (g *Giver) answer(state *agreement.State) {
	r := g.reign
	r.ledger.proved = g.config.Now()
	for _, q := range r.asked {
		q.reply <- q.answer(r.ledger, g.config.Now(), state)
	}
	r.asked, r.empty = nil, false
}

// decide proposes what is to be done next, one entry at a time.
func (g *Giver) decide() {
	r := g.reign
	if r == nil {
		return
	}
	now := g.config.Now()
	if r.ledger == nil {
		if r.overAt != never && now >= r.overAt {
			g.follow()
			g.lead()
		}
		return
	}
	if r.deciding != nil || now < r.pause {
		r.ledger.look(now)
		return
	}
	r.deciding = r.ledger.decide(newView(now, time.Now(), g.config.State(), g.config.Ruled(), g.config.Nodes()))
	if r.deciding != nil {
		g.propose(r.deciding)
	}
}
