package notes

import (
	"container/heap"
	"sync"

	"github.com/rlnode/rlnode/internal/wake"
)

// A reservation may say, in its Body, what becomes of it if nobody settles it
// in time. Its home then carries that out. So a store keeps such reservations
// in the order of their ends. The reservations of copies are among them,
// because this node may own them by then.

// schedule lists the open reservations with a Body, soonest end first. A
// reservation that was settled or removed stays listed until its end.
type schedule struct {
	mu   sync.Mutex // locked after a partition
	list dueList
	wake chan struct{} // capacity 1: another reservation may now end first
}

// due is a reservation, and when it ends: steady nanoseconds.
type due struct {
	at int64
	k  Key
}

// dueList is a heap with the reservation that ends first in front.
type dueList []due

func (l dueList) Len() int           { return len(l) }
func (l dueList) Less(i, j int) bool { return l[i].at < l[j].at }
func (l dueList) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }
func (l *dueList) Push(x any)        { *l = append(*l, x.(due)) } //nolint:forcetypeassert // only add calls it
func (l *dueList) Pop() any {
	last := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return last
}

// add schedules a reservation.
func (sc *schedule) add(d due) {
	sc.mu.Lock()
	heap.Push(&sc.list, d)
	isFirst := sc.list[0] == d
	sc.mu.Unlock()

	if isFirst {
		wake.Signal(sc.wake)
	}
}

// take removes and returns the first reservation, if it ends at or before steady.
func (sc *schedule) take(steady int64) (k Key, found bool) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if len(sc.list) == 0 || sc.list[0].at > steady {
		return Key{}, false
	}
	first, _ := heap.Pop(&sc.list).(due)
	if len(sc.list) == 0 {
		sc.list = nil // release the memory of a flood
	}
	return first.k, true
}

// IsDue reports whether n is a reservation that ends at or before steady and is not settled.
func (n *Note) IsDue(steady int64) bool {
	return n.Kind == Reservation && n.Status() == Open && n.end() <= steady
}

// schedules reports whether n is a reservation to be carried out at its end.
func (n *Note) schedules() bool { return n.Kind == Reservation && n.Status() == Open && n.Body != "" }

// TakeDue returns the open reservations with a Body that ended at or before
// steady, but no more than bound. It returns each only once, so the caller must
// put off (see PutOff) those that it does not carry out.
func (s *Store) TakeDue(steady int64, bound int) (list []Note) {
	for len(list) < bound {
		k, isDue := s.schedule.take(steady)
		if !isDue {
			break
		}

		// take has unlocked the schedule again, because a partition must be locked
		// before it.
		lp := s.Lock(k.Partition(), steady)
		n, found := lp.Get(k)
		lp.Unlock()

		if found && n.schedules() {
			list = append(list, n)
		}
	}

	return list
}

// PutOff makes TakeDue return a reservation again, at the given steady time.
func (s *Store) PutOff(k Key, at int64) { s.schedule.add(due{at, k}) }

// NextDue returns when the next reservation with a Body ends, if there is one: steady nanoseconds.
func (s *Store) NextDue() (at int64, found bool) {
	s.schedule.mu.Lock()
	defer s.schedule.mu.Unlock()
	if len(s.schedule.list) == 0 {
		return 0, false
	}
	return s.schedule.list[0].at, true
}

// DueChanged returns a channel that receives a value when NextDue may return an
// earlier time.
func (s *Store) DueChanged() <-chan struct{} { return s.schedule.wake }
