package limiter

import (
	"github.com/rlnode/rlnode/rules"
)

// maxInFlight bounds the checks of one batch that wait for other nodes at once.
const maxInFlight = 256

// CheckAll decides queries in order, as Check does one: answers and errs have a place for each. Questions to other
// nodes are sent without waiting for the replies to those before, except that checks of one subject keep their order.
func (l *Limiter) CheckAll(queries []*Query, answers []*Answer, errs []error) {
	b := batch{limiter: l, queries: queries, answers: answers, errs: errs}
	for i := range queries {
		b.check(i)
	}
	b.finishUntil(len(queries))
}

// batch is a CheckAll at work.
type batch struct {
	limiter *Limiter
	queries []*Query
	answers []*Answer
	errs    []error
	first   int // those before are decided
	waiting []int
	// asked is, by subject, the last check about it that may still wait. nil before the first one waits.
	asked map[rules.Hash]int
}

// check decides the i-th check, or puts it on its way.
func (b *batch) check(i int) {
	l, q, a := b.limiter, b.queries[i], b.answers[i]
	over, err := l.prepare(l.clock.Now(), q, a)
	if err != nil || over {
		b.close(i, err)
		return
	}
	if len(b.waiting) > 0 {
		b.keepOrder(i)
	}
	if l.start(q, a) {
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
		b.finishUntil(b.waiting[len(b.waiting)/2] + 1)
	}
}

// close ends a check that did not wait.
func (b *batch) close(i int, err error) {
	if b.errs[i] = err; err == nil {
		b.limiter.count(b.queries[i], b.answers[i])
	}
}

// keepOrder finishes what waits about the subjects of the i-th check, unless that is the same check: those alike keep
// their order on their way.
func (b *batch) keepOrder(i int) {
	hits := b.answers[i].scratch.match.Hits
	for j := range hits {
		last, ok := b.asked[hits[j].Subject]
		if ok && last >= b.first && !b.alike(last, i) {
			b.finishUntil(last + 1)
			// The rest of the check is as it was; its clock reading should not be.
			b.answers[i].Now = b.limiter.clock.Now()
		}
	}
}

// alike reports whether two checks ask one subject the same.
func (b *batch) alike(i, j int) bool {
	if b.queries[i].Peek != b.queries[j].Peek || b.answers[i].scratch.book != b.answers[j].scratch.book {
		return false
	}
	x, y := b.answers[i].scratch.ops, b.answers[j].scratch.ops
	if len(x) != len(y) || len(b.answers[j].scratch.match.Hits) != 1 || len(b.answers[i].scratch.match.Hits) != 1 {
		return false
	}
	for k := range x {
		if x[k].Key != y[k].Key || x[k].Limit != y[k].Limit || x[k].Cost != y[k].Cost {
			return false
		}
	}
	return true
}

// finishUntil waits for the checks before the end-th.
func (b *batch) finishUntil(end int) {
	n := 0
	for ; n < len(b.waiting) && b.waiting[n] < end; n++ {
		i := b.waiting[n]
		b.errs[i] = b.limiter.finish(b.queries[i], b.answers[i])
	}
	b.waiting = append(b.waiting[:0], b.waiting[n:]...)
	b.first = max(b.first, end)
	if len(b.waiting) == 0 {
		clear(b.asked)
	}
}
