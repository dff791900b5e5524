package authority

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

const (
	// confirmInterval is the minimum interval between the beginnings of two
	// confirmations. It is also how long a confirmation waits for an answer before
	// it looks at the voters again.
	confirmInterval = 100 * time.Millisecond
	// proposeTimeout bounds one proposal or confirmation.
	proposeTimeout = 2 * time.Second
	// restartPause is how long to pause after a proposal was rejected or failed, or
	// a confirmation failed.
	restartPause = 250 * time.Millisecond
	// maxWaiting bounds the requests that wait for the next confirmation or for a
	// majority of the ring.
	maxWaiting = 8192
)

// ErrNotLeading means that this node does not lead, or can't prove that it does.
var ErrNotLeading = errors.New("this node does not lead")

// GranterConfig configures a Granter. Every field is required. Only Propose and
// Confirm may block: the Granter's loop calls the other functions itself.
type GranterConfig struct {
	Self ring.NodeID
	Boot uint64 // this process; never 0
	// BootstrapExpect is how many nodes the cluster starts with. The first ring
	// waits for them, but at most 3 s.
	BootstrapExpect int
	// State returns the state that this node has applied. Once Propose has returned
	// an entry's result, the state includes that entry.
	State func() *agreement.State
	// Propose returns the entry's result after this node has applied it. After an
	// error, the entry may still be applied.
	Propose func(ctx context.Context, e agreement.Entry) (agreement.Result, error)
	// Confirm returns nil if, at some moment after the call, this node led in the
	// Raft term in which it proposed the mark of the reign, and no later leader had
	// been elected yet.
	Confirm func(ctx context.Context, reign uint64) error
	// Nodes returns this node, those that gossip has seen, and the other agreed members.
	Nodes func() []Node
	// RulesIndex returns the index of the newest rules applied here, or a later one.
	// A node that has applied that entry uses those rules or newer ones.
	RulesIndex func() uint64
	// TransferLead begins to transfer the lead to another node, if one can take it.
	TransferLead func()
	// Now reads a monotonic clock. It may stand still in suspend.
	Now    func() time.Duration
	Logger *slog.Logger
}

// Granter grants and ends authority while its node leads. Its methods may be
// called concurrently, except for StartLeading and StopLeading.
type Granter struct {
	config      GranterConfig
	leadChanges chan bool // true: this node leads; false: it follows
	requests    chan *pendingRequest
	outcomes    chan outcome
	ctx         context.Context
	cancel      context.CancelFunc
	group       sync.WaitGroup

	reign *reign // nil while this node follows; only run uses it
}

// reign is a leader's time from its mark in the log to the next mark of any
// leader; see the package comment. A leader whose proposal or confirmation
// fails begins a new reign.
type reign struct {
	number   uint64 // random; never 0
	ctx      context.Context
	cancel   context.CancelFunc
	observed *reignState // what this leader has seen and granted; nil until the mark has been applied

	waiting          []*pendingRequest // requests that wait for the next confirmation
	inConfirmation   []*pendingRequest // requests that wait for the pending confirmation
	awaitingMajority []*pendingRequest // requests that wait until a majority of the ring has applied an index
	lastConfirmAt    time.Duration     // when the last confirmation began
	confirming       bool              // a confirmation is pending
	proposal         agreement.Entry   // the pending proposal; nil if there is none
	pausedUntil      time.Duration     // no decision before this time
	restartAt        time.Duration     // without a reignState: when to start over; never while the mark is pending
}

// pendingRequest is a caller's request that waits for its reply. A request of
// AwaitMajority waits for a majority of the ring, any other for a confirmation
// that this node leads. Together, at most maxWaiting requests are in
// reign.waiting and reign.awaitingMajority.
type pendingRequest struct {
	request *Request // nil unless it asks for authority
	// buildReply builds the reply after the confirmation; nil in a request of
	// AwaitMajority.
	buildReply    func(rs *reignState, now time.Duration, s *agreement.State) Reply
	majorityIndex uint64          // of AwaitMajority: the index that a majority must apply
	cancelled     <-chan struct{} // of AwaitMajority: closed when the caller stops waiting
	reply         chan Reply      // capacity 1
}

// awaitsMajority reports whether p waits for a majority of the ring.
func (p *pendingRequest) awaitsMajority() bool { return p.buildReply == nil }

// outcome is the result of a proposal or a confirmation.
type outcome struct {
	reign  *reign
	entry  agreement.Entry // nil for a confirmation
	result agreement.Result
	err    error
}

// NewGranter returns a Granter that starts as a follower.
func NewGranter(c GranterConfig) *Granter {
	g := &Granter{
		config: c, leadChanges: make(chan bool), requests: make(chan *pendingRequest),
		outcomes: make(chan outcome),
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.group.Go(g.run)
	return g
}

// StartLeading informs the Granter that this node has won the lead. Call
// StartLeading and StopLeading from one goroutine, in order. If this node has
// lost the lead and won it back, call StopLeading and StartLeading, or just
// StartLeading.
func (g *Granter) StartLeading() { g.setLeading(true) }

// StopLeading informs the Granter that this node has lost the lead. After it
// returns, the Granter grants nothing.
func (g *Granter) StopLeading() { g.setLeading(false) }

func (g *Granter) setLeading(lead bool) {
	// The channel has no buffer. So once this send is done, the loop ends the
	// reign before it answers anything.
	select {
	case g.leadChanges <- lead:
	case <-g.ctx.Done():
	}
}

// Answer grants or refuses the request. It grants nothing before a confirmation
// that this node led at some moment after the call. If ctx ends first, Answer
// refuses the request.
func (g *Granter) Answer(ctx context.Context, req Request) Reply {
	return g.submit(ctx,
		&pendingRequest{request: &req, buildReply: func(rs *reignState, now time.Duration, s *agreement.State) Reply {
			reply := rs.grant(now, s, &req)
			reply.Ungranted = rs.ungranted
			return reply
		}})
}

// CommittedIndex returns an index that includes everything agreed on before the
// call. Like Answer, it waits for a confirmation. The error is ErrNotLeading or
// the context's.
func (g *Granter) CommittedIndex(ctx context.Context) (uint64, error) {
	reply := g.submit(ctx, &pendingRequest{buildReply: func(_ *reignState, _ time.Duration, s *agreement.State) Reply {
		return Reply{Granted: true, Index: s.Index}
	}})
	if !reply.Granted {
		return 0, cmp.Or(ctx.Err(), ErrNotLeading)
	}
	return reply.Index, nil
}

// RequireApplied reports whether every node that may have authority has applied
// the entry at index, which must not be above RulesIndex.
//
//   - Once RequireApplied has returned true, no node that lacks the entry gets
//     authority, from this leader or a later one: when its reign begins, each
//     leader requires RulesIndex.
//   - clocks are those by which the region decides windows, or unknown. If applied
//     is true, from clocks.Latest + EndingWait on, by its own clock, no node
//     decided unless it had applied the entry.
//   - Like Answer, RequireApplied waits for a confirmation, because a deposed
//     leader's knowledge of the nodes proves nothing.
func (g *Granter) RequireApplied(ctx context.Context, index uint64) (clocks Clocks, applied bool) {
	var known Clocks
	reply := g.submit(ctx, &pendingRequest{buildReply: func(rs *reignState, now time.Duration, _ *agreement.State) Reply {
		known = rs.clocks(now)
		return Reply{Granted: rs.tryRaiseFloor(now, index)}
	}})

	// A reply with a reason did not come from buildReply, which may still run and
	// write known. So known must not be read.
	if reply.Reason != "" {
		return Clocks{}, false
	}
	return known, reply.Granted
}

// AwaitMajority waits until a majority of the ring has applied the entry at
// index, and reports whether it has.
func (g *Granter) AwaitMajority(ctx context.Context, index uint64) bool {
	return g.submit(ctx, &pendingRequest{majorityIndex: index, cancelled: ctx.Done()}).Granted
}

// submit submits a request and waits for the reply. If ctx ends first, it returns a refusal.
func (g *Granter) submit(ctx context.Context, pending *pendingRequest) Reply {
	pending.reply = make(chan Reply, 1)

	select {
	case g.requests <- pending:
	case <-ctx.Done():
		return Reply{Reason: reasonNoAnswer}
	case <-g.ctx.Done():
		return Reply{Reason: reasonNotLeading}
	}

	// The reply channel has room for the reply, so a caller that leaves early does
	// not block the loop.
	select {
	case reply := <-pending.reply:
		return reply
	case <-ctx.Done():
		return Reply{Reason: reasonNoAnswer}
	case <-g.ctx.Done():
		return Reply{Reason: reasonNotLeading}
	}
}

// Close stops the loop and everything that it has started.
func (g *Granter) Close() error {
	g.cancel()
	g.group.Wait()
	return nil
}

// run is the loop that owns the reign.
func (g *Granter) run() {
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	defer g.endReign()

	for {
		// A follower has nothing to propose.
		if g.reign == nil {
			tick.Stop()
		}

		retry := g.startConfirmation()

		select {
		case <-g.ctx.Done():
			return
		case lead := <-g.leadChanges:
			g.endReign()
			if lead {
				g.beginReign()
				tick.Reset(tickInterval)
			}
		case pending := <-g.requests:
			g.accept(pending)
		case o := <-g.outcomes:
			g.handleOutcome(o)
		case <-retry:
		case <-tick.C:
			g.proposeNext()
		}
	}
}

// beginReign begins a reign by proposing its mark.
func (g *Granter) beginReign() {
	r := &reign{lastConfirmAt: never, pausedUntil: never, restartAt: never}

	var number [8]byte
	rand.Read(number[:]) // never fails
	// 0 is the reign in a state without any mark.
	r.number = max(1, binary.BigEndian.Uint64(number[:]))

	r.ctx, r.cancel = context.WithCancel(g.ctx)
	g.reign = r
	g.propose(agreement.Reign{Number: r.number})
}

func (g *Granter) endReign() {
	r := g.reign
	if r == nil {
		return
	}

	r.cancel()
	g.reign = nil
	r.refuseAll()
}

// refuseAll answers every waiting request with a refusal.
func (r *reign) refuseAll() {
	for _, pending := range slices.Concat(r.waiting, r.inConfirmation, r.awaitingMajority) {
		pending.reply <- Reply{Reason: reasonNotLeading}
	}

	r.waiting = nil
	r.inConfirmation = nil
	r.awaitingMajority = nil
}

// propose starts a proposal of the current reign.
func (g *Granter) propose(e agreement.Entry) {
	g.startTask(func(ctx context.Context, o *outcome) {
		o.entry = e
		o.result, o.err = g.config.Propose(ctx, e)
	})
}

// startTask starts a task of the current reign. At most two run at a time, a
// confirmation and a proposal, besides cancelled tasks of earlier reigns.
func (g *Granter) startTask(task func(context.Context, *outcome)) {
	r := g.reign

	g.group.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, proposeTimeout)
		defer cancel()

		o := outcome{reign: r}
		task(ctx, &o)

		select {
		case g.outcomes <- o:
		case <-g.ctx.Done():
		}
	})
}

// accept answers a request or queues it. A request that arrives before the
// reign's mark has been applied waits for that. A reign that has failed would
// only refuse what it queued.
func (g *Granter) accept(pending *pendingRequest) {
	r := g.reign

	switch {
	case r == nil || r.restartAt != never:
		pending.reply <- Reply{Reason: reasonNotLeading}
	case len(r.waiting)+len(r.awaitingMajority) >= maxWaiting:
		pending.reply <- Reply{Reason: reasonBusy}
	case pending.awaitsMajority():
		r.awaitingMajority = append(r.awaitingMajority, pending)
		g.answerMajority()
	default:
		refused := g.recordRequest(pending)
		if !refused {
			r.waiting = append(r.waiting, pending)
		}
	}
}

// recordRequest records what a request for authority reports, and refuses the
// request if it can't be granted now. A refusal is safe even from a node that
// leads no more, so it needs no confirmation. Requests of other kinds report
// nothing.
func (g *Granter) recordRequest(pending *pendingRequest) (refused bool) {
	r := g.reign
	if r.observed == nil || pending.request == nil {
		return false
	}

	reply := r.observed.handleRequest(g.config.Now(), g.config.State(), pending.request)
	// This request may be the report that completes a majority.
	g.answerMajority()
	if reply.Reason == "" {
		return false
	}

	reply.Ungranted = r.observed.ungranted
	pending.reply <- reply
	return true
}

// answerMajority answers requests whose index a majority of the ring has
// applied, and drops those whose callers have stopped waiting.
func (g *Granter) answerMajority() {
	r := g.reign
	if r.observed == nil {
		return
	}

	state := g.config.State()
	r.awaitingMajority = slices.DeleteFunc(r.awaitingMajority, func(pending *pendingRequest) bool {
		select {
		case <-pending.cancelled:
			return true
		default:
		}

		applied := r.observed.appliedByMajority(state, pending.majorityIndex)
		if applied {
			pending.reply <- Reply{Granted: true}
		}
		return applied
	})
}

// startConfirmation begins a confirmation if a request waits for one, no other
// is pending, and the last one began at least confirmInterval ago. If only the
// interval is not over yet, it returns a channel that fires when it is;
// otherwise nil.
func (g *Granter) startConfirmation() (retry <-chan time.Time) {
	r := g.reign
	if r == nil || r.observed == nil || r.confirming || len(r.waiting) == 0 {
		return nil
	}

	now := g.config.Now()

	wait := r.lastConfirmAt + confirmInterval - now
	if wait > 0 {
		return time.After(wait)
	}

	// One confirmation serves all requests that arrived before it. Later ones wait for the next.
	r.inConfirmation = r.waiting
	r.waiting = nil
	r.confirming = true
	r.lastConfirmAt = now
	g.startTask(func(ctx context.Context, o *outcome) { o.err = g.config.Confirm(ctx, r.number) })
	return nil
}

// handleOutcome handles the outcome of a proposal or a confirmation. After an
// error, or if another leader's mark is the last one in the log, this leader
// may not know the agreed state. It then starts over with a new mark, which
// fails if this leader has been deposed.
func (g *Granter) handleOutcome(o outcome) {
	r := g.reign
	if r == nil || r != o.reign || r.restartAt != never {
		return // the reign is over, or has failed and is about to start over
	}

	state := g.config.State()
	if o.err != nil || state.Reign != r.number {
		g.config.Logger.Debug("the leader's proposal or confirmation failed", "error", o.err)
		g.failReign()
		return
	}

	switch o.entry.(type) {
	case agreement.Reign:
		g.startReignState()
	case nil: // a confirmation: it has no entry
		g.answerConfirmed(state)
	default:
		g.finishProposal(o)
	}
}

// failReign refuses all requests of the reign and stops its tasks. Until
// proposeNext starts a new reign after restartPause, accept refuses further
// requests.
func (g *Granter) failReign() {
	r := g.reign
	r.refuseAll()
	r.cancel()
	r.observed = nil
	r.restartAt = g.config.Now() + restartPause
}

// startReignState gives the reign its state, once its mark has been applied.
func (g *Granter) startReignState() {
	r := g.reign
	r.observed = newReignState(g.config.Self, g.config.Boot, g.config.BootstrapExpect, r.number, g.config.Now())
	r.observed.floor = g.config.RulesIndex()
	r.observed.transferLead = g.config.TransferLead
	r.observed.alarm = g.config.Logger.Error

	// These requests arrived before the mark was applied.
	early := r.waiting
	r.waiting = nil
	for _, pending := range early {
		g.accept(pending)
	}
}

// finishProposal handles the outcome of a decision's proposal, and proposes the
// next one.
func (g *Granter) finishProposal(o outcome) {
	r := g.reign
	r.observed.recordOutcome(o.entry)
	r.proposal = nil

	if o.result.Err != nil {
		g.config.Logger.Warn("the leader's entry was rejected",
			"entry", fmt.Sprintf("%T", o.entry), "error", o.result.Err)
		r.pausedUntil = g.config.Now() + restartPause
	} else {
		g.config.Logger.Debug("the leader's entry was applied", "entry", fmt.Sprintf("%T", o.entry))
	}

	g.proposeNext()
}

// answerConfirmed answers the requests that waited for the confirmation.
func (g *Granter) answerConfirmed(state *agreement.State) {
	r := g.reign
	r.observed.leadConfirmedAt = g.config.Now()

	for _, pending := range r.inConfirmation {
		pending.reply <- pending.buildReply(r.observed, g.config.Now(), state)
	}

	r.inConfirmation = nil
	r.confirming = false
}

// proposeNext proposes the next entry, unless one is pending. Without a
// reignState, it starts a new reign when it is time.
func (g *Granter) proposeNext() {
	r := g.reign
	if r == nil {
		return
	}

	now := g.config.Now()
	if r.observed == nil {
		if r.restartAt != never && now >= r.restartAt {
			g.endReign()
			g.beginReign()
		}
		return
	}

	if r.proposal != nil || now < r.pausedUntil {
		r.observed.detectStall(now)
		return
	}

	r.proposal = r.observed.nextEntry(newDecisionInput(now, time.Now(), g.config.State(),
		g.config.RulesIndex(), g.config.Nodes()))
	if r.proposal != nil {
		g.propose(r.proposal)
	}
}
