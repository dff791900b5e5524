package limiter

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// maxInFlight bounds the checks of one batch that wait for other nodes at once.
const maxInFlight = 256

// CheckAll decides queries in order, each as Check would. It reads the clock once, and again after each wait. answers and errs
// have one element per query. CheckAll sends questions to other nodes without waiting for earlier replies, but keeps checks of
// the same subject in order.
func (l *Limiter) CheckAll(queries []*Query, answers []*Answer, errs []error) {
	b := batch{limiter: l, queries: queries, answers: answers, errs: errs, now: l.clock.Now()}
	b.look()
	for i := range queries {
		b.check(i)
	}
	b.vouch()
	b.finishUntil(len(queries))
}

// maxUnvouched bounds the checks that this node decides between two readings of its authority.
const maxUnvouched = 32

// batch is a CheckAll in progress.
type batch struct {
	limiter *Limiter
	queries []*Query
	answers []*Answer
	errs    []error
	now     algorithms.Now
	// authorized says whether this node had authority when it was last read, at began on the recorder's clock.
	authorized bool
	began      int64
	// here lists the checks that this node has decided since it last read its authority; unvouched is how many. Their answers
	// stand only if the node still has authority at the next reading.
	here      [maxUnvouched]int
	unvouched int
	first     int // checks before it are decided
	waiting   []int
	// asked maps a subject to the last of its checks that may still be waiting. It is nil until a check waits.
	asked map[rules.Hash]int
}

// look reads this node's authority.
func (b *batch) look() {
	m := b.limiter.member
	b.began = m.clock()
	b.authorized = m == nil || m.Authority()
}

// check decides the i-th check, or begins to ask other nodes.
func (b *batch) check(i int) {
	l, q, a := b.limiter, b.queries[i], b.answers[i]
	if q.RequestID != "" { // it waits for the owner
		b.vouch()
		b.finishUntil(i)
		b.errs[i] = l.Check(q, a)
		b.now = l.clock.Now()
		return
	}
	over, err := l.prepare(b.now, q, a)
	if err != nil || over {
		b.close(i, err)
		return
	}
	if len(b.waiting) > 0 {
		b.keepOrder(i)
	}
	verdict := counters.Shut
	if b.authorized && l.mayOwn(a) {
		verdict = l.take(b.now, a.scratch.ops, q.Peeks())
	}
	if verdict == counters.Shut {
		b.start(i)
		return
	}
	a.decidedHere(verdict)
	b.here[b.unvouched] = i
	if b.unvouched++; b.unvouched == maxUnvouched {
		b.vouch()
	}
}

// vouch completes the checks decided here, if this node still has authority. Otherwise it decides them again and keeps what
// they took: ownership can no longer be proved.
func (b *batch) vouch() {
	n := b.unvouched
	if n == 0 {
		return
	}
	b.unvouched = 0
	m, began := b.limiter.member, b.began
	b.look()
	for _, i := range b.here[:n] {
		if !b.authorized {
			b.start(i)
			continue
		}
		m.recordDecision(ByOwner, b.answers[i].scratch.ops, began, 1)
		b.answers[i].conclude()
		b.close(i, nil)
	}
}

// start decides the i-th check by itself, or begins to ask other nodes.
func (b *batch) start(i int) {
	q, a := b.queries[i], b.answers[i]
	a.scratch.here = false // it may have been decided here without authority
	if b.limiter.start(q, a) {
		b.close(i, nil)
		return
	}
	if b.asked == nil {
		b.asked = make(map[rules.Hash]int)
	}
	for j := range a.scratch.match.Hits {
		b.asked[a.scratch.match.Hits[j].Subject] = i
	}
	b.waiting = append(b.waiting, i)
	if len(b.waiting) >= maxInFlight {
		b.vouch()
		b.finishUntil(b.waiting[len(b.waiting)/2] + 1)
	}
}

// close completes a check that does not wait for other nodes.
func (b *batch) close(i int, err error) {
	if b.errs[i] = err; err == nil {
		b.limiter.count(b.queries[i], b.answers[i])
	}
}

// keepOrder finishes the waiting checks that share a subject with the i-th check. Identical checks may go on waiting: they keep
// their order on the way to the owner.
func (b *batch) keepOrder(i int) {
	hits := b.answers[i].scratch.match.Hits
	for j := range hits {
		last, ok := b.asked[hits[j].Subject]
		if ok && last >= b.first && !b.alike(last, i) {
			b.vouch()
			b.finishUntil(last + 1)
			// Only the clock reading is out of date; everything else in the answer still holds.
			b.answers[i].Now = b.now
		}
	}
}

// alike reports whether two checks are identical and have a single subject.
func (b *batch) alike(i, j int) bool {
	if b.answers[i].scratch.active != b.answers[j].scratch.active {
		return false
	}
	x, y := b.answers[i].scratch.ops, b.answers[j].scratch.ops
	if len(x) != len(y) || len(b.answers[j].scratch.match.Hits) != 1 || len(b.answers[i].scratch.match.Hits) != 1 {
		return false
	}
	for k := range x {
		if x[k].Key != y[k].Key || x[k].Limit != y[k].Limit || x[k].Cost != y[k].Cost || x[k].Mode != y[k].Mode {
			return false
		}
	}
	return true
}

// finishUntil finishes the waiting checks before the end-th.
func (b *batch) finishUntil(end int) {
	n := 0
	for ; n < len(b.waiting) && b.waiting[n] < end; n++ {
		i := b.waiting[n]
		b.errs[i] = b.limiter.finish(b.queries[i], b.answers[i])
	}
	if n > 0 {
		b.now = b.limiter.clock.Now()
	}
	b.waiting = append(b.waiting[:0], b.waiting[n:]...)
	b.first = max(b.first, end)
	if len(b.waiting) == 0 {
		clear(b.asked)
	}
}
