package grants

import (
	"container/heap"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

const (
	bookShards = 64
	// minSubjects is the least bound on the subjects of a book, and maxOut bounds the grants of one.
	minSubjects = 1024
	maxOut      = 4096
	// grace is how long after its end a grant may still come back: on its way since its holder's end of it.
	grace = 500 * time.Millisecond
)

// Book is what an owner has granted and not got back. All methods may be called concurrently. Times are readings of a
// clock that goes on in suspend.
type Book struct {
	perShard int // subjects
	ids      atomic.Uint64
	out      atomic.Int64
	shards   [bookShards]bookShard
}

type bookShard struct {
	mu    sync.Mutex // guards what follows
	known map[uint64]*subject
	queue subjectQueue
}

// subject is what is out of one subject.
type subject struct {
	hi    uint64
	out   []entry
	until time.Duration // from then on nothing is out
	index int           // in its shard's queue
}

// entry is a grant that is out.
type entry struct {
	id      uint64
	holder  ring.NodeID
	lineage uint64
	until   time.Duration // the holder spends none of it after that, and it does not come back much later
	limits  []uint64      // Key.Lo
	amounts []int64       // granted: no more comes back
	out     []int64       // at most so much may still be spent
	back    []int64       // about so much may still come back, as the holder said last
}

// NewBook returns a book of at most bound subjects, and at least 1,024.
func NewBook(bound int64) *Book {
	b := &Book{perShard: int(max(bound, minSubjects) / bookShards)}
	for i := range b.shards {
		b.shards[i].known = make(map[uint64]*subject)
	}
	return b
}

// Out is how many grants are out.
func (b *Book) Out() int64 { return b.out.Load() }

func (b *Book) shardOf(hi uint64) *bookShard { return &b.shards[hi%bookShards] }

// Request is a holder's wish about one subject.
type Request struct {
	Holder  ring.NodeID
	Lineage uint64 // of the partition's counters here
	Mine    bool   // what the wish says about grants is of this process
	Wish    *localcache.Wish
	Nodes   int // among which limits are divided
	// Ops are the subject's limits. Their decisions say what remains; costs don't matter.
	Ops []counters.Op
}

// Grant grants what it may of r: take is called with the sizes as costs, which it is to debit, all or nothing. An ID of
// 0 is no grant.
func (b *Book) Grant(at time.Duration, r *Request, take func(ops []counters.Op) bool) (id uint64, amounts []int64) {
	hi := r.Ops[0].Key.Hi
	sh := b.shardOf(hi)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	b.sweep(sh, at)
	s := sh.known[hi]
	if s != nil {
		b.sync(s, at, r)
	}
	if s == nil && len(sh.known) >= b.perShard || s != nil && len(s.out) >= maxOut {
		return 0, nil
	}
	ops := s.sizes(r)
	if ops == nil || !take(ops) {
		return 0, nil
	}
	if s == nil {
		s = &subject{hi: hi, index: -1}
		sh.known[hi] = s
		heap.Push(&sh.queue, s)
	}
	e := entry{id: b.ids.Add(1), holder: r.Holder, lineage: r.Lineage, until: at + r.Wish.Terms.TTL + grace}
	for i := range ops {
		e.limits = append(e.limits, ops[i].Key.Lo)
		e.amounts, e.out, e.back = append(e.amounts, ops[i].Cost), append(e.out, ops[i].Cost), append(e.back, ops[i].Cost)
	}
	s.out = append(s.out, e)
	b.out.Add(1)
	s.until = max(s.until, e.until)
	heap.Fix(&sh.queue, s.index)
	return e.id, slices.Clone(e.amounts)
}

// sync takes over what the holder says of its grants: those that came to it and that it does not name are not spent any
// more, though something of them may be on its way back.
func (b *Book) sync(s *subject, at time.Duration, r *Request) {
	kept := s.out[:0]
	for _, e := range s.out {
		if at >= e.until || e.lineage != r.Lineage {
			continue
		}
		if r.Mine && e.holder == r.Holder && e.id <= r.Wish.Seen {
			held := find(r.Wish.Held, e.id)
			if held == nil {
				e.until = min(e.until, at+grace)
			}
			for i := range e.out {
				if held == nil {
					e.out[i] = 0
				} else if i < len(held.Left) {
					e.out[i], e.back[i] = min(e.out[i], held.Left[i]), min(e.back[i], held.Left[i])
				}
			}
		}
		kept = append(kept, e)
	}
	b.out.Add(int64(len(kept) - len(s.out)))
	clear(s.out[len(kept):])
	s.out = kept
}

func find(list []localcache.Held, id uint64) *localcache.Held {
	for i := range list {
		if list[i].ID == id {
			return &list[i]
		}
	}
	return nil
}

// sizes are r's ops with what may be granted as costs; nil where one that is wanted gets nothing.
func (s *subject) sizes(r *Request) []counters.Op {
	ops := make([]counters.Op, 0, len(r.Ops))
	some, terms := false, r.Wish.Terms
	terms.Nodes = r.Nodes
	for i := range r.Ops {
		op := counters.Op{Key: r.Ops[i].Key, Limit: r.Ops[i].Limit}
		a := Ask{Limit: op.Limit, Want: r.Wish.Want[i], Remaining: r.Ops[i].Decision.Remaining}
		a.Out, a.OutThere = s.outOf(op.Key.Lo, r.Holder)
		if a.Want > 0 {
			if op.Cost = Size(a, terms); op.Cost == 0 {
				return nil
			}
			some = true
		}
		ops = append(ops, op)
	}
	if !some {
		return nil
	}
	return ops
}

// outOf is what is out of one limit, in all and with one holder.
func (s *subject) outOf(lo uint64, holder ring.NodeID) (all, there int64) {
	if s == nil {
		return 0, 0
	}
	for i := range s.out {
		e := &s.out[i]
		for j := range e.limits {
			if e.limits[j] == lo {
				all = add(all, e.out[j])
				if e.holder == holder {
					there = add(there, e.out[j])
				}
			}
		}
	}
	return all, there
}

// Return takes a grant of this process back, once: give is called for each op with the cost that may be put back. used
// tells what is used of a limit. It does nothing where the grant is not out any more.
func (b *Book) Return(at time.Duration, lineage, id uint64, ops []counters.Op,
	used func(op *counters.Op) int64, give func(i int, cost int64)) {
	if len(ops) == 0 {
		return
	}
	sh := b.shardOf(ops[0].Key.Hi)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.known[ops[0].Key.Hi]
	if s == nil {
		return
	}
	e, ok := s.remove(lineage, id)
	if !ok {
		return
	}
	b.out.Add(-1)
	if at >= e.until {
		return
	}
	for i := range ops {
		left := e.amount(ops[i].Key.Lo)
		if left == nil {
			continue
		}
		cost := min(ops[i].Cost, *left)
		if ops[i].Limit.Kind == algorithms.TokenBucket {
			out, _ := s.outOf(ops[i].Key.Lo, ring.NodeID{})
			// What is used is told rounded up.
			cost = min(cost, used(&ops[i])-1-out)
		}
		if cost > 0 {
			*left -= cost
			give(i, cost)
		}
	}
}

// amount is what may still come back of one limit, nil if nothing was granted of it.
func (e *entry) amount(lo uint64) *int64 {
	for i := range e.limits {
		if e.limits[i] == lo {
			return &e.amounts[i]
		}
	}
	return nil
}

// remove takes one grant out.
func (s *subject) remove(lineage, id uint64) (entry, bool) {
	for i := range s.out {
		if e := s.out[i]; e.id == id && e.lineage == lineage {
			last := len(s.out) - 1
			s.out[i] = s.out[last]
			s.out[last] = entry{}
			s.out = s.out[:last]
			return e, true
		}
	}
	return entry{}, false
}

// Back is how much of one limit may still come back from grants: more is not to be taken out of its counter otherwise,
// or what comes back finds nothing to be put into.
func (b *Book) Back(at time.Duration, hi, lo uint64) (all int64) {
	sh := b.shardOf(hi)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.known[hi]
	if s == nil {
		return 0
	}
	for i := range s.out {
		e := &s.out[i]
		for j := range e.limits {
			if e.limits[j] == lo && at < e.until {
				all = add(all, e.back[j])
			}
		}
	}
	return all
}

// Forget forgets what is out of a subject, so that none of it comes back: its counters were changed otherwise.
func (b *Book) Forget(hi uint64) {
	sh := b.shardOf(hi)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if s := sh.known[hi]; s != nil {
		b.out.Add(int64(-len(s.out)))
		s.out = nil
	}
}

// Sweep forgets what has ended.
func (b *Book) Sweep(at time.Duration) {
	for i := range b.shards {
		sh := &b.shards[i]
		sh.mu.Lock()
		b.sweep(sh, at)
		sh.mu.Unlock()
	}
}

func (b *Book) sweep(sh *bookShard, at time.Duration) {
	for len(sh.queue) > 0 && sh.queue[0].until <= at {
		s := heap.Pop(&sh.queue).(*subject)
		b.out.Add(int64(-len(s.out)))
		delete(sh.known, s.hi)
	}
}

// subjectQueue has what ends first in front.
type subjectQueue []*subject

func (q subjectQueue) Len() int           { return len(q) }
func (q subjectQueue) Less(i, j int) bool { return q[i].until < q[j].until }
func (q subjectQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push is for container/heap.
func (q *subjectQueue) Push(x any) {
	s := x.(*subject)
	s.index = len(*q)
	*q = append(*q, s)
}

// Pop is for container/heap.
func (q *subjectQueue) Pop() any {
	last := len(*q) - 1
	s := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	s.index = -1
	return s
}
