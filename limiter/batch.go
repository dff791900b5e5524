package limiter

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// maxInFlight bounds the checks of one batch that wait for other nodes at once.
const maxInFlight = 256

// CheckAll decides queries in order, each as Check would. It sets answers and
// errs, which must have an element for each query. CheckAll sends questions to
// other nodes without waiting for earlier replies, but keeps checks of the same
// subject in order. Several checks may share one reading of the clock.
func (l *Limiter) CheckAll(queries []*Query, answers []*Answer, errs []error) {
	b := batch{limiter: l, queries: queries, answers: answers, errs: errs}
	b.readAuthority()

	for begin := 0; begin < len(queries); begin += maxAhead {
		end := min(begin+maxAhead, len(queries))
		for i := begin; i < end; i++ {
			b.match(i)
		}
		for i := begin; i < end; i++ {
			b.check(i)
		}
	}

	b.completeProvisional()
	b.finishUntil(len(queries))
}

// maxAhead is how many checks are matched before the first of them is decided,
// so that their counters load at the same time.
const maxAhead = 16

// maxProvisional bounds the checks that this node decides between two readings
// of its authority: if authority has ended, what they took is lost.
const maxProvisional = 32

// batch is a CheckAll in progress.
type batch struct {
	limiter *Limiter
	queries []*Query
	answers []*Answer
	errs    []error
	now     algorithms.Instant
	// authorized says whether this node had authority when it was last read, at
	// authorityReadAt on the recorder's clock.
	authorized      bool
	generation      int64 // for which the node had authority then
	authorityReadAt int64
	// provisional lists the checks that this node has decided since it last read
	// its authority; numProvisional is how many. Their answers stand only if the
	// node still has authority at the next reading.
	provisional    [maxProvisional]int
	numProvisional int
	firstUndecided int   // no check before it waits
	waiting        []int // the checks that wait for other nodes, in order
	// lastWaiting maps a subject to the last of its checks that may still be
	// waiting. It is nil until a check waits.
	lastWaiting map[rules.Hash]int
}

// readAuthority reads this node's authority, and the clock.
func (b *batch) readAuthority() {
	cp := b.limiter.cluster
	b.now = b.limiter.clock.Now()
	b.authorityReadAt = cp.recorderClock()
	b.authorized = true
	if cp != nil {
		b.generation, b.authorized = cp.ReadAuthority()
	}
}

func (b *batch) match(i int) {
	if q := b.queries[i]; !q.isOnceOrAtMost() {
		b.errs[i] = b.limiter.match(0, q, b.answers[i])
	}
}

// check decides the i-th check, which is matched, or begins to ask other nodes.
func (b *batch) check(i int) {
	l := b.limiter
	q := b.queries[i]
	a := b.answers[i]
	if q.isOnceOrAtMost() { // it may wait for the owner, so all checks before it are finished first
		b.completeProvisional()
		b.finishUntil(i)
		b.errs[i] = l.checkOnceOrAtMost(q, a)
		b.readAuthority()
		return
	}

	if a.scratch.active != l.active.Load() { // the rules have changed while an earlier check waited
		b.match(i)
	}
	if b.errs[i] == nil {
		b.errs[i] = l.listOps(b.now, q, a)
	}

	if b.errs[i] != nil || a.scratch.matchDecides {
		b.complete(i, b.errs[i])
		return
	}

	if len(b.waiting) > 0 {
		b.keepOrder(i)
	}

	verdict := counters.Undecided
	if b.authorized && l.mayDecideHere(a) {
		verdict = l.takeFromTable(b.now, a.scratch.ops, q.Peeks(), nil)
	}

	if verdict == counters.Undecided {
		b.decideOrAsk(i)
		return
	}

	a.markDecidedHere(verdict)
	b.provisional[b.numProvisional] = i

	b.numProvisional++
	if b.numProvisional == maxProvisional {
		b.completeProvisional()
	}
}

// completeProvisional completes the provisional checks if this node has kept
// authority (see clusterPart.hasKeptAuthority). Otherwise it decides them again,
// and some may then wait for other nodes. What they took the first time stays
// debited: this node can no longer prove that it owns the counters.
func (b *batch) completeProvisional() {
	n := b.numProvisional
	if n == 0 {
		return
	}

	// Empty the list first, because decideOrAsk may call completeProvisional.
	b.numProvisional = 0
	cp := b.limiter.cluster
	began := b.authorityReadAt
	generation := b.generation
	b.readAuthority()
	hasKept := b.authorized && b.generation == generation

	for _, i := range b.provisional[:n] {
		if !hasKept {
			b.decideOrAsk(i)
			continue
		}
		cp.recordDecision(ByOwner, b.answers[i].scratch.ops, began, 1)
		b.answers[i].conclude(b.limiter)
		b.complete(i, nil)
	}
}

// decideOrAsk has Limiter.tryDecide decide the i-th check, or begin to ask other
// nodes.
func (b *batch) decideOrAsk(i int) {
	q, a := b.queries[i], b.answers[i]
	a.scratch.opsAsListed = false // it may have been decided here without authority

	if b.limiter.tryDecide(q, a) {
		b.complete(i, a.scratch.failure)
		return
	}

	if b.lastWaiting == nil {
		b.lastWaiting = make(map[rules.Hash]int)
	}

	for j := range a.scratch.match.Hits {
		b.lastWaiting[a.scratch.match.Hits[j].Subject] = i
	}

	b.waiting = append(b.waiting, i)
	if len(b.waiting) >= maxInFlight {
		// Complete the provisional checks before the wait. If authority ended during
		// the wait, they would have to be decided again.
		b.completeProvisional()
		b.finishUntil(b.waiting[len(b.waiting)/2] + 1)
	}
}

// complete completes a check that is decided, or has failed.
func (b *batch) complete(i int, err error) {
	b.errs[i] = err
	if err == nil {
		b.limiter.account(b.queries[i], b.answers[i])
	}
}

// keepOrder finishes the waiting checks that share a subject with the i-th
// check. Checks that are identical to it may go on waiting: identical checks
// keep their order on the way to the owner.
func (b *batch) keepOrder(i int) {
	hits := b.answers[i].scratch.match.Hits
	for j := range hits {
		last, ok := b.lastWaiting[hits[j].Subject]
		if ok && last >= b.firstUndecided && !b.areIdentical(last, i) {
			b.completeProvisional()
			b.finishUntil(last + 1)
			// Only the clock reading is out of date; everything else in the answer still holds.
			b.answers[i].Now = b.now
		}
	}
}

// areIdentical reports whether two checks are identical and have a single subject.
func (b *batch) areIdentical(i, j int) bool {
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

// finishUntil waits for and finishes the waiting checks before the end-th.
func (b *batch) finishUntil(end int) {
	n := 0
	for ; n < len(b.waiting) && b.waiting[n] < end; n++ {
		i := b.waiting[n]
		b.complete(i, b.limiter.finish(b.queries[i], b.answers[i]))
	}

	// No check is provisional during a wait, and authority may have ended in it.
	if n > 0 {
		b.readAuthority()
	}

	b.waiting = append(b.waiting[:0], b.waiting[n:]...)
	b.firstUndecided = max(b.firstUndecided, end)

	if len(b.waiting) == 0 {
		clear(b.lastWaiting)
	}
}
