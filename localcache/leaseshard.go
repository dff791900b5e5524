package localcache

import (
	"container/heap"
	"math"
	"sync"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wake"
)

const leaseShards = 64

type leaseShard struct {
	mu     sync.Mutex        // guards everything below
	leases map[uint64]*lease // by Key.Subject
	queue  leaseQueue        // all leases, by when expire must visit them
	inline int               // leases of inline subjects
	ended  []EndedGrant      // what DrainEnded has yet to hand out
}

// EndedGrant is a grant that has ended, with what is left of it.
type EndedGrant struct {
	Source    Source
	Grant     uint64
	Life      counters.Life // as in Grant
	DebitedAt int64
	Until     time.Duration         // when its holder had to stop spending it
	Ops       []counters.Op         // their costs are what is left
	Marks     []algorithms.TakeMark // by op

	due time.Duration // when DrainEnded may hand it out
}

// lockSubject locks a subject's shard and returns its lease, or nil if there is
// none. It selects the shard by the lowest bits of the hash: the highest ones
// select the partition, so the subjects of each partition are spread over all
// shards.
func (ls *Leases) lockSubject(subject uint64) (*leaseShard, *lease) {
	sh := &ls.shards[subject%leaseShards]
	sh.mu.Lock()
	return sh, sh.leases[subject]
}

// lockLease locks the shard of ops' subject and returns the subject's lease, or
// nil if there is none for ops. The lease of a configured subject may have
// other limits than ops. An inline subject's lease with other limits is another
// caller's, so lockLease does not return it.
func (ls *Leases) lockLease(ops []counters.Op) (*leaseShard, *lease) {
	sh, le := ls.lockSubject(ops[0].Key.Subject)
	if le != nil && ops[0].Key.IsInline() && !le.matches(ops) {
		return sh, nil
	}
	return sh, le
}

// addLease adds a lease with the limits of ops. It returns nil if there is no room.
func (sh *leaseShard) addLease(ops []counters.Op, bound int) *lease {
	key := ops[0].Key
	if sh.leases[key.Subject] != nil || len(sh.queue) >= bound || key.IsInline() && sh.inline >= bound/2 {
		return nil
	}

	le := &lease{subject: key.Subject, index: -1}
	le.reset(ops)

	sh.leases[key.Subject] = le
	if le.isInline() {
		sh.inline++
	}
	return le
}

func (sh *leaseShard) removeLease(le *lease) {
	heap.Remove(&sh.queue, le.index)
	if le.isInline() {
		sh.inline--
	}
	delete(sh.leases, le.subject)
}

// leaseQueue is a heap with the lease that is due first in front.
type leaseQueue []*lease

func (q leaseQueue) Len() int           { return len(q) }
func (q leaseQueue) Less(i, j int) bool { return q[i].due < q[j].due }
func (q leaseQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *leaseQueue) Push(x any) {
	e := x.(*lease)
	e.index = len(*q)
	*q = append(*q, e)
}

func (q *leaseQueue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	e.index = -1
	return e
}

// schedule updates the time at which expire must visit le.
func (ls *Leases) schedule(sh *leaseShard, le *lease) {
	due := le.lastUsed + le.keepFor
	for i := range le.grants {
		// While there are grants, their earliest end counts instead of keepFor.
		until := le.grants[i].until
		if i == 0 || until < due {
			due = until
		}
	}

	le.due = due
	if le.index < 0 {
		heap.Push(&sh.queue, le)
	} else {
		heap.Fix(&sh.queue, le.index)
	}
	ls.wakeBy(due)
}

// wakeBy makes sure that DrainEnded is called by at.
func (ls *Leases) wakeBy(at time.Duration) {
	if ls.setAlarm(at) {
		wake.Signal(ls.wake)
	}
}

const never = time.Duration(math.MaxInt64)

// setAlarm makes the next call of DrainEnded due at the given time. It returns
// false if a call is due by then anyway.
func (ls *Leases) setAlarm(at time.Duration) bool {
	for current := ls.alarm.Load(); int64(at) < current; current = ls.alarm.Load() {
		if ls.alarm.CompareAndSwap(current, int64(at)) {
			return true
		}
	}
	return false
}
