package limiter

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// pendingAsk is one check's question to one node, and the answer. It owns its
// ops, because the answer may arrive after the check was decided without it.
type pendingAsk struct {
	to       ring.NodeID
	owner    ring.NodeID // the node whose grants the answer may bring
	question question    // its ops receive the decisions
	// policies says, by subject, how it may be leased. It is nil if the check
	// wants no lease.
	policies []localcache.Policy
	renewal  bool        // the question only renews a lease: no check waits for it
	rule     *rules.Rule // of the question's subject; meaningless if it has several
	limits   []*rules.Limit
	deadline time.Time // the check must be decided by then
	state    atomic.Int32
	done     chan struct{} // capacity 1; signals that the answer is there

	// fromLease and the fields below it are the answer. They are written before
	// done is signalled.
	fromLease bool // answered from a lease; receipt says which
	receipt   localcache.Receipt
	err       error // the question was not delivered or not answered
	replyHead
	admitted bool
	lives    []counters.Life       // by subject
	marks    []algorithms.TakeMark // by op
}

// The states of an ask.
const (
	askOpen      = iota
	askAnswered  // the check uses the answer
	askAbandoned // the check was decided without the answer: give back what the answer took
)

// wait waits for the answer and reports whether it arrived by the deadline. If
// not, wait abandons the ask.
func (ak *pendingAsk) wait() bool {
	select {
	case <-ak.done:
		return true
	default:
	}

	timer := time.NewTimer(time.Until(ak.deadline))
	defer timer.Stop()

	select {
	case <-ak.done:
		return true
	case <-timer.C:
	}

	// If an answer was delivered just now, the check must use it: nobody else gives
	// back what the answer took.
	if ak.state.CompareAndSwap(askOpen, askAbandoned) {
		return false
	}

	<-ak.done
	return true
}

// copyAnswer copies into ak the answer for the i-th of the identical checks.
func (ak *pendingAsk) copyAnswer(r *reply, err error, i int) {
	ak.err = err
	if err != nil {
		return
	}

	ak.replyHead = r.replyHead
	if r.status != statusDecided {
		return
	}

	// The owner decides identical checks one after another, until one is refused.
	// The rest are refused like that one. If the last decision is an admission, a
	// gate has shut, and the rest were never decided.
	if last := len(r.admitted) - 1; i > last {
		if r.admitted[last] {
			ak.status = statusUndecided
			return
		}
		i = last
	}

	ak.admitted = r.admitted[i]

	// The reply's lists are copied, because r goes back to a pool.
	ak.lives = append(ak.lives[:0], r.lives...)
	ak.marks = ak.marks[:0]

	n := len(ak.question.ops)
	for j := range ak.question.ops {
		res := &r.results[i*n+j]
		ak.question.ops[j].Decision, ak.question.ops[j].NoRoom = res.Decision, res.noRoom
		ak.marks = append(ak.marks, res.mark)
	}
}

// flights are the questions in flight. Identical questions can share the next message.
type flights struct {
	shard [64]flightShard
}

type flightShard struct {
	mu    sync.Mutex // guards byKey and the flights in it
	byKey map[string]*flight
	_     [64]byte
}

// flight is a question in flight, plus the identical questions that have queued
// up for the next message.
type flight struct {
	shard *flightShard
	key   string        // the node asked, then the question's body
	queue []*pendingAsk // at most maxIdentical
}

const keyPrefix = len(ring.NodeID{})

// dispatch sends the question. mayShare means that the question may share a
// message with identical questions.
func (ak *pendingAsk) dispatch(l *Limiter, mayShare bool) {
	buffers := l.cluster.getExchange()
	defer l.cluster.putExchange(buffers)

	buffers.key = ak.question.appendBody(append(buffers.key[:0], ak.to[:]...))

	// Two checks with so many ops would not fit in one message.
	if !mayShare || len(ak.question.ops) > maxResults/2 {
		l.sendQuestion(nil, buffers.key[keyPrefix:], []*pendingAsk{ak})
		return
	}

	shard := &l.cluster.flights.shard[ak.question.ops[0].Key.Counter%uint64(len(flights{}.shard))]
	shard.mu.Lock()

	f, inFlight := shard.byKey[string(buffers.key)]
	switch {
	case inFlight && len(f.queue) < maxIdentical:
		f.queue = append(f.queue, ak)
		shard.mu.Unlock()
		return
	case inFlight:
		f = nil // the queue is full: send this question by itself
	default:
		f = &flight{shard: shard, key: string(buffers.key)}
		if shard.byKey == nil {
			shard.byKey = make(map[string]*flight)
		}
		shard.byKey[f.key] = f
	}

	// The message is not sent under the mutex: the handler of the reply takes
	// it, and may run before sendQuestion returns.
	shard.mu.Unlock()
	l.sendQuestion(f, buffers.key[keyPrefix:], []*pendingAsk{ak})
}

// sendQuestion sends one message for asks, which are identical. f is nil if no
// other ask can queue up behind them.
func (l *Limiter) sendQuestion(f *flight, body []byte, asks []*pendingAsk) {
	buffers := l.cluster.getExchange()
	defer l.cluster.putExchange(buffers)

	now := time.Now()
	qn := &asks[0].question
	timeout := latestDeadline(asks).Sub(now)
	head := question{count: len(asks), patience: timeout, hops: qn.hops}
	l.cluster.leases.addRequests(&head, asks)

	// Read the time before the message leaves. A grant's life counts from then, so
	// the grant ends here no later than at the owner.
	sent := l.cluster.Boottime()
	buffers.out = append(head.appendHead(buffers.out[:0]), body...)
	l.cluster.counts.coalesced.Add(int64(len(asks) - 1))

	// The timeout is at least 1 ms, even if the deadline has passed: a timeout of
	// 0 would mean 30 s.
	l.cluster.Peers.Go(asks[0].to, MethodAsk, buffers.out, max(timeout, time.Millisecond), func(body []byte, err error) {
		if err == nil {
			l.cluster.counts.addForward(time.Since(now))
		}
		l.handleReply(f, asks, sent, body, err)
	})
}

// latestDeadline returns the time by which the last of asks must be decided. A
// message that ends sooner would fail checks that still have time.
func latestDeadline(asks []*pendingAsk) time.Time {
	latest := asks[0].deadline
	for _, ak := range asks[1:] {
		if ak.deadline.After(latest) {
			latest = ak.deadline
		}
	}
	return latest
}

// handleReply delivers the answer to asks, and sends the next message for the
// asks that have queued up in f. What becomes of these depends on the answer:
//
//   - a decision: a grant that came with it decides some, and the next message
//     asks about the others;
//   - a timeout: the next message asks about those that still have time;
//   - any other failure: all of them fail in the same way.
func (l *Limiter) handleReply(f *flight, asks []*pendingAsk, sent time.Duration, body []byte, err error) {
	buffers := l.cluster.getExchange()
	defer l.cluster.putExchange(buffers)

	ops := asks[0].question.ops
	if err == nil {
		err = buffers.reply.read(body, len(ops), countSubjects(ops), len(asks))
	}

	// Store the grants first, so that the checks in the queue can spend them.
	l.cluster.leases.acceptReply(asks, sent, &buffers.reply, err)
	failed := err != nil || buffers.reply.status != statusDecided
	failsAgain := failed && !errors.Is(err, peer.ErrTimeout) // the next message would fail the same way

	// After a timeout, the checks in the queue that still have time ask the slow
	// node again.
	var next []*pendingAsk
	if f != nil {
		next = l.nextFor(f, failed, failsAgain, max(1, maxResults/len(ops)))
	}

	if failsAgain {
		asks = append(asks, next...)
		next = nil
	}

	if failed {
		l.cluster.counts.failed.Add(int64(len(asks)))
	}
	if len(next) > 0 {
		l.sendQuestion(f, []byte(f.key[keyPrefix:]), next)
	}

	for i, ak := range asks {
		ak.deliver(l, &buffers.reply, err, i)
	}
}

// nextFor returns the asks for f's next message, without those that a grant has
// decided. failed means that the last message brought no decision, and so no
// grant. all and bound are as for nextAsks.
func (l *Limiter) nextFor(f *flight, failed, all bool, bound int) []*pendingAsk {
	for {
		next := f.nextAsks(all, bound)
		if failed || len(next) == 0 {
			return next
		}

		// If a grant has decided all of next, look again: more asks may have queued up
		// meanwhile, and no other message would take them along.
		next = l.cluster.leases.decideQueued(next)
		if len(next) > 0 {
			return next
		}
	}
}

// nextAsks removes asks from the queue, for the next message, and returns them:
// at most bound, or every one if all is set. The flight ends if all is set, or if
// the queue is empty.
func (f *flight) nextAsks(all bool, bound int) (next []*pendingAsk) {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()

	// The owner must not take anything for checks that have given up.
	f.queue = slices.DeleteFunc(f.queue, func(ak *pendingAsk) bool { return ak.state.Load() != askOpen })
	if all || len(f.queue) <= bound {
		next = f.queue
		f.queue = nil
	} else {
		// Cut the capacity of next at bound as well: without that, a later append to
		// next would overwrite the rest of the queue.
		next = f.queue[:bound:bound]
		f.queue = f.queue[bound:]
	}

	if all || len(next) == 0 {
		delete(f.shard.byKey, f.key)
	}
	return next
}

// deliver hands the answer to the ask's check. If the check was decided without
// it, deliver gives back what the answer took.
func (ak *pendingAsk) deliver(l *Limiter, r *reply, err error, i int) {
	ak.copyAnswer(r, err, i)
	if !ak.state.CompareAndSwap(askOpen, askAnswered) {
		if ak.err == nil && ak.status == statusDecided {
			ak.rollBack(l)
		}
		return
	}
	ak.done <- struct{}{}
}

// rollBack gives back what the ask's check took, if it was admitted.
func (ak *pendingAsk) rollBack(l *Limiter) {
	if !ak.admitted || ak.question.flags&flagPeek != 0 {
		return
	}
	if ak.fromLease {
		l.cluster.leases.held.Unspend(ak.receipt, ak.question.ops)
		return
	}
	list := ak.refunds()
	if len(list) > 0 && ak.decider != l.cluster.Self {
		l.cluster.counts.givenBack.Add(1)
	}
	l.sendRefunds(list)
}

// refunds returns the refunds, one a subject, of all that the ask's check took at
// the node that answered, except for slots.
func (ak *pendingAsk) refunds() (list []refund) {
	for so := range bySubject(ak.question.ops) {
		back := refund{takenCosts: takenCosts{subject: so.subject(), boot: ak.boot,
			life: ak.lives[so.index], steady: ak.steady}}
		if ak.question.place != nil && ak.question.place.home == back.subject {
			back.place = ak.question.place.id
		}

		for i, op := range so.ops {
			if op.Took() && op.Limit.Kind != algorithms.Concurrency { // slots are released by their IDs
				back.ops = append(back.ops, op)
				back.marks = append(back.marks, ak.marks[so.first+i])
			}
		}

		if back.life.Lineage != 0 { // a standby's decision has no life, and its cost does not come back
			list = append(list, back)
		}
	}

	return list
}

// addUnspent adds to the decisions of ops what this node's leases have not spent.
// ops are all of one subject, and ak has answered them.
func (ls *leases) addUnspent(ak *pendingAsk, ops []counters.Op) {
	if ak.standby || ak.fromLease {
		return
	}
	_, index := findSubject(ak.question.ops, ops[0].Key.Subject)
	from := localcache.Source{Owner: ak.decider, Boot: ak.boot, Lineage: ak.lives[index].Lineage}
	ls.held.AddUnspent(from, ak.steady, ops)
}
