package localcache

import (
	"container/heap"
	"slices"
	"time"

	"github.com/rlnode/rlnode/counters"
)

// end ends all grants of e.
func (s *Leases) end(sh *leaseShard, e *lease, at time.Duration) {
	for len(e.grants) > 0 {
		s.endFirst(sh, e, at)
	}
}

// backPause is from the end of a grant to when what is left of it is handed out: checks that spent some of it, and that
// another limit refuses, are under way for a while. There is none for buckets: their owner goes by what a holder says that
// it may still spend, and this is not in it.
const backPause = 10 * time.Millisecond

// endFirst ends the first grant of e. What is left of it is for Ended to hand out.
func (s *Leases) endFirst(sh *leaseShard, e *lease, at time.Duration) {
	g := e.grants[0]
	out := Ended{Source: e.source, Grant: g.id, due: at + backPause}
	for i := range e.limits {
		l := &e.limits[i]
		if l.limit.Kind.Bucket() {
			out.due = at
		}
		key := counters.Key{Hi: e.hi, Lo: l.lo}
		out.Ops = append(out.Ops, counters.Op{Key: key, Limit: l.limit, Cost: g.parts[i].left})
		out.Window = append(out.Window, g.parts[i].window)
	}
	s.held.Add(-1)
	e.grants, e.renew = slices.Delete(e.grants, 0, 1), 0
	sh.ended = append(sh.ended, out)
	s.poke(out.due)
}

// putBack adds to what is left of a grant that is over what was spent of it.
func (sh *leaseShard) putBack(r Receipt, ops []counters.Op) {
	for i := range sh.ended {
		o := &sh.ended[i]
		if o.Grant != r.grant || o.Source != r.from || len(o.Ops) != len(ops) || o.Ops[0].Key != ops[0].Key {
			continue
		}
		for j := range ops {
			o.Ops[j].Cost += ops[j].Cost
		}
	}
}

// handOut appends the grants that are due to buf, and returns when the next one is.
func (sh *leaseShard) handOut(at time.Duration, buf []Ended) ([]Ended, time.Duration) {
	next, kept := never, sh.ended[:0]
	for _, o := range sh.ended {
		switch {
		case o.due > at:
			kept = append(kept, o)
			next = min(next, o.due)
		case slices.ContainsFunc(o.Ops, func(op counters.Op) bool { return op.Cost > 0 }):
			buf = append(buf, o)
		}
	}
	clear(sh.ended[len(kept):])
	sh.ended = kept
	return buf, next
}

// Wake tells when Ended is to be called earlier than it said.
func (s *Leases) Wake() <-chan struct{} { return s.wake }

// Next is when Ended is to be called, if nothing happens before.
func (s *Leases) Next() time.Duration { return time.Duration(s.armed.Load()) }

// Ended appends the grants that are over and of which something is left to buf: to be given back, once. It forgets
// subjects that nobody has asked about for long.
func (s *Leases) Ended(at time.Duration, buf []Ended) []Ended {
	s.armed.Store(int64(never))
	next := never
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for len(sh.queue) > 0 && sh.queue[0].due <= at {
			s.look(sh, sh.queue[0], at)
		}
		if len(sh.queue) > 0 {
			next = min(next, sh.queue[0].due)
		}
		var due time.Duration
		buf, due = sh.handOut(at, buf)
		next = min(next, due)
		sh.mu.Unlock()
	}
	s.arm(next)
	return buf
}

// look does what is due at e.
func (s *Leases) look(sh *leaseShard, e *lease, at time.Duration) {
	for len(e.grants) > 0 && at >= e.grants[0].until {
		s.endFirst(sh, e, at)
	}
	if len(e.grants) == 0 && at >= e.touched+e.keep {
		heap.Remove(&sh.queue, e.index)
		delete(sh.known, e.hi)
		return
	}
	s.schedule(sh, e)
	if e.due <= at { // only the next grant can be over before the current one
		s.end(sh, e, at)
		s.schedule(sh, e)
	}
}

// Use says whether leases may begin. Where they may not, those that there are end; Ended then hands out what is left.
func (s *Leases) Use(at time.Duration, yes bool) {
	if s.closed.Store(!yes); yes {
		return
	}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, e := range sh.known {
			s.end(sh, e, at-backPause) // nobody asks here any more
			e.refused = refusal{}
		}
		sh.mu.Unlock()
	}
}
