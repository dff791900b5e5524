package notes

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// Errors of what finds no room.
var (
	// ErrReservations means that the node has no room for another reservation, or
	// no more for one of that rule or subject.
	ErrReservations = errors.New("too many reservations are open")
	// ErrWrites means that the node keeps too many answers to writes and can drop none.
	ErrWrites = fmt.Errorf("no room to keep another answer (%d MiB for the last minute)", maxWrites>>20)
)

// Budgets, in bytes.
const (
	// DefaultReservationBytes is room for 1,000 reservations a second that each
	// stay open for 10 minutes, all of one subject, and for half as many of others.
	DefaultReservationBytes = 224 << 20
	maxAnswers              = 48 << 20
	maxWrites               = 16 << 20
	maxRetries              = 8 << 20
	maxResets               = 10 << 20
	// DefaultSlotBytes is room for a million slots, all of one subject.
	DefaultSlotBytes = 512 << 20
)

// purpose is what a budget is for.
type purpose uint8

const (
	reservations purpose = iota
	rates
	answers
	writes
	retries
	resets
	slots
	unbounded // bounded by the number of partitions and nodes
	purposes
)

// purpose returns the budget that notes of k are part of.
func (k Kind) purpose() purpose {
	switch k {
	case Reservation:
		return reservations
	case Rate:
		return rates
	case Answer:
		return answers
	case Write:
		return writes
	case Retry:
		return retries
	case Reset:
		return resets
	case Slot:
		return slots
	}

	return unbounded
}

// budget counts what the notes of one purpose take. Store.mu guards it, except for refused.
type budget struct {
	capacity int64
	used     int64
	inline   int64 // of used: notes of subjects that came with their limits
	open     int64 // reservations that are Open
	// evictable and evictableInline list the notes that this node made and may drop
	// to make room: evictableInline those that are inline, evictable the others.
	evictable, evictableInline evictableNotes

	byRule    map[uint32]int64 // of reservations, rates and slots: bytes by rule
	bySubject map[uint64]int64 // of reservations, rates and slots: bytes by subject
	refused   atomic.Int64
}

// evictableOf returns the notes made here with the given Inline.
func (b *budget) evictableOf(inline bool) *evictableNotes {
	if inline {
		return &b.evictableInline
	}
	return &b.evictable
}

// evictableNotes lists notes by group, oldest first. Some may be gone already.
// Others were made anew since, and are listed twice.
type evictableNotes struct {
	byGroup map[uint32][]evictableNote
	count   int
	// isPartial is true while compactList sorts out older notes. No note gives way
	// meanwhile: the oldest one listed could be the newest.
	isPartial bool
}

// evictableNote is a note that was made at a steady time.
type evictableNote struct {
	Key
	at int64
}

// add adds the newest note of a group.
func (m *evictableNotes) add(group uint32, newest evictableNote) {
	if m.byGroup == nil {
		m.byGroup = make(map[uint32][]evictableNote)
	}
	m.byGroup[group] = append(m.byGroup[group], newest)
	m.count++
}

// takeFirst removes the oldest note of a group and returns it, or nil if there is none.
func (m *evictableNotes) takeFirst(group uint32) *evictableNote {
	list := m.byGroup[group]
	if len(list) == 0 {
		return nil
	}

	first := list[0]
	m.byGroup[group] = list[1:]
	m.count--
	if len(list) == 1 {
		delete(m.byGroup, group)
	}

	return &first
}

// groupsSeen bounds the groups that evict looks at. Strangers can make very
// many groups, one for each namespace.
const groupsSeen = 64

// evict removes and returns the note that must go so that group can have
// another one; nil if there is none. If group already has its even share, its
// own oldest note goes, and otherwise the oldest of a group that has more. So a
// group with few notes loses none to others. evict looks at no more than
// groupsSeen groups, in random order.
func (m *evictableNotes) evict(group uint32) *evictableNote {
	if m.isPartial {
		return nil
	}

	seen := 0
	for other, list := range m.byGroup {
		if m.hasShare(group) || seen == groupsSeen {
			break
		}
		if len(list) > len(m.byGroup[group]) {
			group = other
		}
		seen++
	}

	return m.takeFirst(group)
}

// hasShare reports whether a group has at least as many notes as groups have on average.
func (m *evictableNotes) hasShare(group uint32) bool {
	return len(m.byGroup[group])*len(m.byGroup) >= m.count
}

// add counts n, or takes it off again if sign is −1.
func (b *budget) add(n *Note, sign int64) {
	size := sign * n.size()
	b.used += size
	if n.Inline {
		b.inline += size
	}
	if p := n.Kind.purpose(); p != reservations && p != rates && p != slots {
		return
	}

	if n.Kind == Reservation && n.Status() == Open {
		b.open += sign
	}
	addTo(&b.byRule, n.Group, size)
	addTo(&b.bySubject, n.Subject, size)
}

// addTo adds n to a sum, and forgets a sum of 0.
func addTo[K comparable](sums *map[K]int64, key K, n int64) {
	if *sums == nil {
		*sums = make(map[K]int64)
	}
	(*sums)[key] += n
	if (*sums)[key] == 0 {
		delete(*sums, key)
	}
}

// Reservations, the rates of their buckets, and slots each have a budget, which
// rules and subjects share. What one of them may have depends on what is free:
// maxTimesFree times as much, apart from a reserve for those who have little.
// So something always stays free, and the more take part, the less each may
// have. One subject alone may have two thirds of the budget, and a second one a
// part of what is left.
const (
	maxTimesFree   = 4    // one may have that many times what is free
	reserveDivisor = 10   // one part in that many is the reserve
	littleDivisor  = 1024 // those with less than one part in that many have little
)

// mayTake returns how much one rule, or one subject of a rule, may have of a
// total, given how much of it is free.
func mayTake(total, free int64) int64 {
	return max(maxTimesFree*(free-total/reserveDivisor), total/littleDivisor)
}

// allows reports whether the rule and the subject of n may have size more
// bytes. The rules share the budget. The subjects of a rule share what the rule
// may have.
func (b *budget) allows(n *Note, size int64) bool {
	if size <= 0 {
		return true
	}

	free := b.capacity - b.used - size
	if n.Inline {
		free = min(free, b.capacity/2-b.inline-size)
	}
	if free < 0 {
		return false
	}

	rule := mayTake(b.capacity, free)
	ruleFree := rule - b.byRule[n.Group] - size
	return ruleFree >= 0 && b.bySubject[n.Subject]+size <= mayTake(rule, ruleFree)
}
