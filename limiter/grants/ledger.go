package grants

import (
	"math"
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
	ledgerShards = 64
	// minSubjects is the least bound on the subjects of a ledger, and maxOut bounds the grants of one.
	minSubjects = 1024
	maxOut      = 4096
	// grace is how long after its end a grant may still come back: on its way since its holder's end of it.
	grace = 500 * time.Millisecond
	never = time.Duration(math.MaxInt64)
)

// Ledger is what an owner has granted and not got back. All methods may be called concurrently. Times are readings of a
// clock that goes on in suspend.
type Ledger struct {
	perShard int // subjects
	ids      atomic.Uint64
	out      atomic.Int64
	shards   [ledgerShards]ledgerShard
}

type ledgerShard struct {
	mu    sync.Mutex // guards what follows
	known map[uint64]*subject
	next  time.Duration // when some subject may have ended
}

// subject is what is out of one subject.
type subject struct {
	out   []entry
	until time.Duration // from then on nothing is out
}

// entry is a grant that is out.
type entry struct {
	id      uint64
	holder  ring.NodeID
	lineage uint64
	until   time.Duration // the holder spends none of it after that, and it does not come back much later
	parts   []part
}

// part is one limit's part of a grant.
type part struct {
	lo     uint64 // Key.Lo
	amount int64  // granted: no more comes back
	out    int64  // at most so much may still be spent
	back   int64  // about so much may still come back, as the holder said last
}

// NewLedger returns a ledger of at most bound subjects, and at least 1,024.
func NewLedger(bound int64) *Ledger {
	b := &Ledger{perShard: int(max(bound, minSubjects) / ledgerShards)}
	for i := range b.shards {
		b.shards[i].known, b.shards[i].next = make(map[uint64]*subject), never
	}
	return b
}

// Out is how many grants are out.
func (b *Ledger) Out() int64 { return b.out.Load() }

// hold locks a subject's shard, and returns what is out of the subject; nil: nothing.
func (b *Ledger) hold(hi uint64) (*ledgerShard, *subject) {
	sh := &b.shards[hi%ledgerShards]
	sh.mu.Lock()
	return sh, sh.known[hi]
}

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
func (b *Ledger) Grant(at time.Duration, r *Request, take func(ops []counters.Op) bool) (id uint64, amounts []int64) {
	hi := r.Ops[0].Key.Hi
	sh, s := b.hold(hi)
	defer sh.mu.Unlock()
	if s != nil {
		b.sync(s, at, r)
	} else {
		b.sweep(sh, at)
	}
	if s == nil && len(sh.known) >= b.perShard || s != nil && len(s.out) >= maxOut {
		return 0, nil
	}
	ops := s.sizes(r)
	if ops == nil || !take(ops) {
		return 0, nil
	}
	if s == nil {
		s = &subject{}
		sh.known[hi] = s
	}
	e := entry{id: b.ids.Add(1), holder: r.Holder, lineage: r.Lineage, until: at + r.Wish.Terms.TTL + grace}
	for i := range ops {
		cost := ops[i].Cost
		e.parts, amounts = append(e.parts, part{ops[i].Key.Lo, cost, cost, cost}), append(amounts, cost)
	}
	s.out = append(s.out, e)
	b.out.Add(1)
	s.until = max(s.until, e.until)
	sh.next = min(sh.next, s.until)
	return e.id, amounts
}

// sync takes over what the holder says of its grants: those that came to it and that it does not name are not spent any
// more, though something of them may be on its way back.
func (b *Ledger) sync(s *subject, at time.Duration, r *Request) {
	before := len(s.out)
	s.out = slices.DeleteFunc(s.out, func(e entry) bool { return at >= e.until || e.lineage != r.Lineage })
	b.out.Add(int64(len(s.out) - before))
	for i := range s.out {
		e := &s.out[i]
		if !r.Mine || e.holder != r.Holder || e.id > r.Wish.Seen {
			continue
		}
		held := slices.IndexFunc(r.Wish.Held, func(h localcache.Held) bool { return h.ID == e.id })
		if held < 0 {
			e.until = min(e.until, at+grace)
		}
		for j := range e.parts {
			if p := &e.parts[j]; held < 0 {
				p.out = 0
			} else if left := r.Wish.Held[held].Left; j < len(left) {
				p.out, p.back = min(p.out, left[j]), min(p.back, left[j])
			}
		}
	}
}

// sizes are r's ops with what may be granted as costs; nil where one that is wanted gets nothing.
func (s *subject) sizes(r *Request) []counters.Op {
	ops := make([]counters.Op, 0, len(r.Ops))
	some, terms := false, r.Wish.Terms
	terms.Nodes = r.Nodes
	for i := range r.Ops {
		op := counters.Op{Key: r.Ops[i].Key, Limit: r.Ops[i].Limit}
		a := Ask{Limit: op.Limit, Want: r.Wish.Want[i], Remaining: r.Ops[i].Decision.Remaining}
		s.each(op.Key.Lo, func(e *entry, p *part) {
			a.Out = add(a.Out, p.out)
			if e.holder == r.Holder {
				a.OutThere = add(a.OutThere, p.out)
			}
		})
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

// each calls f for the parts of one limit that are out.
func (s *subject) each(lo uint64, f func(e *entry, p *part)) {
	if s == nil {
		return
	}
	for i := range s.out {
		e := &s.out[i]
		for j := range e.parts {
			if e.parts[j].lo == lo {
				f(e, &e.parts[j])
			}
		}
	}
}

// Return takes a grant of this process back, once: give is called for each op with the cost that may be put back. used
// tells what is used of a limit. It does nothing where the grant is not out any more.
func (b *Ledger) Return(at time.Duration, lineage, id uint64, ops []counters.Op,
	used func(op *counters.Op) int64, give func(i int, cost int64)) {
	sh, s := b.hold(ops[0].Key.Hi)
	defer sh.mu.Unlock()
	if s == nil {
		return
	}
	place := slices.IndexFunc(s.out, func(e entry) bool { return e.id == id && e.lineage == lineage })
	if place < 0 {
		return
	}
	e := s.out[place]
	s.out = slices.Delete(s.out, place, place+1)
	b.out.Add(-1)
	if at >= e.until {
		return
	}
	for i := range ops {
		of := slices.IndexFunc(e.parts, func(p part) bool { return p.lo == ops[i].Key.Lo })
		if of < 0 {
			continue
		}
		cost := min(ops[i].Cost, e.parts[of].amount)
		if ops[i].Limit.Kind == algorithms.TokenBucket {
			out := int64(0)
			s.each(ops[i].Key.Lo, func(_ *entry, p *part) { out = add(out, p.out) })
			// What is used is told rounded up.
			cost = min(cost, used(&ops[i])-1-out)
		}
		if cost > 0 {
			e.parts[of].amount -= cost
			give(i, cost)
		}
	}
}

// Back is how much of one limit may still come back from grants: more is not to be taken out of its counter otherwise,
// or what comes back finds nothing to be put into.
func (b *Ledger) Back(at time.Duration, hi, lo uint64) (all int64) {
	sh, s := b.hold(hi)
	defer sh.mu.Unlock()
	s.each(lo, func(e *entry, p *part) {
		if at < e.until {
			all = add(all, p.back)
		}
	})
	return all
}

// Forget forgets what is out of a subject, so that none of it comes back: its counters were changed otherwise.
func (b *Ledger) Forget(hi uint64) {
	sh, s := b.hold(hi)
	defer sh.mu.Unlock()
	if s != nil {
		b.out.Add(int64(-len(s.out)))
		s.out = nil
	}
}

// Sweep forgets what has ended.
func (b *Ledger) Sweep(at time.Duration) {
	for i := range b.shards {
		sh := &b.shards[i]
		sh.mu.Lock()
		b.sweep(sh, at)
		sh.mu.Unlock()
	}
}

// sweep forgets what has ended in a shard, which is held. It looks at all of the shard, so it does so at most once in grace.
func (b *Ledger) sweep(sh *ledgerShard, at time.Duration) {
	if at < sh.next {
		return
	}
	next := never
	for hi, s := range sh.known {
		if s.until <= at {
			b.out.Add(int64(-len(s.out)))
			delete(sh.known, hi)
		} else {
			next = min(next, s.until)
		}
	}
	sh.next = max(next, at+grace)
}
