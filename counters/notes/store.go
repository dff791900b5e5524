package notes

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rlnode/rlnode/ring"
)

// AnswerRetention is how long, in nanoseconds, the answer to a settlement is
// kept. Afterwards, the note only says that the reservation was settled.
const AnswerRetention = int64(60e9)

// Store holds the notes of a node. All methods may be called concurrently.
// Times are readings of the node's steady clock.
type Store struct {
	partitions [ring.Partitions]atomic.Pointer[partition] // nil before the first note
	// replicated is set by the first Copy or Changes for replicas: from then on,
	// changes are listed for replicas.
	replicated atomic.Bool
	rates      atomic.Int64 // notes of kind Rate
	sweepNext  atomic.Int64
	schedule   schedule

	mu      sync.Mutex // guards everything below; locked after a partition
	budgets [purposes]budget
	// expiredSlots counts, by rule or under InlineGroup, the slots that ended by
	// themselves here. It has an entry for each rule that ever had such slots, and
	// no more.
	expiredSlots map[uint32]int64
}

const (
	// LateSettling is how long, in seconds, a reservation may still be settled
	// after its end, unless its room is needed.
	LateSettling = 600
	// RateRetention is how long, in seconds, a note of kind Rate is kept after a
	// cost was put back. After a later Take, it is kept for at least half of
	// RateRetention, which is enough for a grant, or for the cost of a refused
	// check, to come back. A reservation keeps the note as long as its place.
	RateRetention = 120
)

// New returns an empty store, with a budget of forReservations bytes for
// reservations.
func New(forReservations int64) *Store {
	s := &Store{schedule: schedule{wake: make(chan struct{}, 1)}}
	s.BoundReservations(forReservations)
	s.budgets[answers].capacity = maxAnswers
	s.budgets[writes].capacity = maxWrites
	s.budgets[retries].capacity = maxRetries
	s.budgets[resets].capacity = maxResets
	s.budgets[slots].capacity = DefaultSlotBytes
	return s
}

// BoundReservations sets the budget for reservations, in bytes. The rates of
// their buckets have another budget of the same size. If more is taken already,
// nothing is removed.
func (s *Store) BoundReservations(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budgets[reservations].capacity = bytes
	s.budgets[rates].capacity = bytes
}

// BoundSlots sets the budget for slots, in bytes. If more is taken already,
// nothing is removed.
func (s *Store) BoundSlots(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budgets[slots].capacity = bytes
}

// partition holds the notes of one partition.
type partition struct {
	// mu guards everything below. resets and rates are read without it, and changed
	// only under it.
	mu    sync.Mutex
	notes map[Key]entry
	peak  int // the most notes that the map has held; its memory does not shrink with them
	// unsaved and unsent list the notes that changed since checkpoints and replicas
	// last received changes. Some may be gone. A note that was removed and put again
	// may be listed twice. Until checkpoints first receive changes, which never
	// happens on a node without a disk, unsaved is empty.
	unsaved, unsent []Key
	hasCheckpoints  bool // checkpoints receive changes
	// released lists the slots that are gone, but still on disk. The next
	// checkpoint must say so, or they would come back.
	released []Key

	resets atomic.Uint64 // Rank of the note of kind Resets
	rates  atomic.Int64  // notes of kind Rate

	slots      map[SlotsKey]*limitSlots // derived from the notes of kind Slot; nil before the first
	slotGroups map[uint32]int64         // derived from the same notes: units by rule
}

// entry is a note in a store, without its key.
type entry struct {
	rank, minor  uint64
	at           int64
	body         string
	until, group uint32
	inline       bool
	isScheduled  bool // the schedule has it
	isOnDisk     bool // a checkpoint has received it, or it was read from disk
	dirty        Readers
}

// entryOf returns the entry of n, which must not expire after 2106.
func entryOf(n *Note, dirty Readers) entry {
	return entry{
		rank: n.Rank, minor: n.Minor, at: n.At, body: n.Body,
		until: uint32(n.UntilSecond), group: n.Group, inline: n.Inline, dirty: dirty,
	}
}

// note returns the note that e stores under k.
func (e *entry) note(k Key) Note {
	return Note{
		Key: k, Rank: e.rank, Minor: e.minor, At: e.at, Body: e.body,
		UntilSecond: int64(e.until), Group: e.group, Inline: e.inline,
	}
}

// Readers is a set of readers of changes.
type Readers uint16

// The table of counters has a byte for each reader, with a bit for each of eight
// counters. These are the bits of the first one: see counters.bitsOf.
const (
	Checkpoints Readers = 1      // what DrainChanges writes to disk
	Replicas    Readers = 1 << 8 // what Replicate sends to other nodes
)

// ensurePartition returns partition p, creating it if need be.
func (s *Store) ensurePartition(p int) *partition {
	if have := s.partitions[p].Load(); have != nil {
		return have
	}

	// Several callers may get here at once. All return the partition of the first.
	s.partitions[p].CompareAndSwap(nil, &partition{notes: make(map[Key]entry)})
	return s.partitions[p].Load()
}

// Resets returns how many resets p has had, as far as this node knows.
func (s *Store) Resets(p int) uint64 {
	if part := s.partitions[p].Load(); part != nil {
		return part.resets.Load()
	}
	return 0
}

// HasRates reports whether p has notes of kind Rate.
func (s *Store) HasRates(p int) bool {
	if s.rates.Load() == 0 {
		return false
	}
	part := s.partitions[p].Load()
	return part != nil && part.rates.Load() > 0
}

// Wait returns once all earlier holders of p have unlocked it.
func (s *Store) Wait(p int) {
	part := s.partitions[p].Load()
	if part == nil {
		return
	}
	part.mu.Lock()
	defer part.mu.Unlock()
}

// LockedPartition is a partition that its user has locked. A caller that holds
// a shard may lock a partition, never the reverse. A LockedPartition must not
// be used after Unlock.
type LockedPartition struct {
	store  *Store
	part   *partition
	second int64
}

// Lock locks p. The caller must unlock it.
func (s *Store) Lock(p int, steady int64) LockedPartition {
	part := s.ensurePartition(p)
	part.mu.Lock()
	return LockedPartition{store: s, part: part, second: steady / 1e9}
}

// Unlock unlocks the partition.
func (lp LockedPartition) Unlock() { lp.part.mu.Unlock() }

// Get returns the note with key k, unless there is none or it has expired.
func (lp LockedPartition) Get(k Key) (Note, bool) {
	e, found := lp.part.notes[k]
	if !found || int64(e.until) <= lp.second {
		return Note{}, false
	}
	return e.note(k), true
}

// Put adds n, or replaces the note with its key. It checks no bound.
func (lp LockedPartition) Put(n *Note) { lp.put(n, Checkpoints|Replicas) }

func (lp LockedPartition) put(n *Note, readers Readers) {
	before, replaces := lp.part.notes[n.Key]
	if replaces {
		lp.count(before.note(n.Key), -1)
	}

	lp.count(*n, 1)
	e := entryOf(n, before.dirty)
	e.isScheduled, e.isOnDisk = before.isScheduled, before.isOnDisk
	if n.schedules() && !e.isScheduled {
		e.isScheduled = true
		lp.store.schedule.add(due{n.end(), n.Key})
	}

	lp.mark(n.Key, e, readers)
	if n.Kind == Resets {
		lp.part.resets.Store(n.numResets())
	}
}

// Remove removes the note with key k.
func (lp LockedPartition) Remove(k Key) {
	before, found := lp.part.notes[k]
	if !found {
		return
	}

	lp.count(before.note(k), -1)
	delete(lp.part.notes, k)
	// Replicas must drop the note as well. On disk, it may stay until it expires,
	// unless it is a slot: a slot that came back would count again.
	if k.Kind == Slot && before.isOnDisk {
		lp.part.released = append(lp.part.released, k)
	}
	if lp.store.replicated.Load() && before.dirty&Replicas == 0 {
		lp.part.unsent = append(lp.part.unsent, k)
	}
}

// count adds n to the budgets and numbers, or takes it off again if sign is −1.
func (lp LockedPartition) count(n Note, sign int64) {
	if n.Kind == Rate {
		lp.part.rates.Add(sign)
		lp.store.rates.Add(sign)
	}
	if n.Kind == Slot {
		lp.countSlot(&n, sign)
	}

	lp.store.mu.Lock()
	defer lp.store.mu.Unlock()
	lp.store.budgets[n.Kind.purpose()].add(&n, sign)
}

// mark stores e under k, marked as changed for the given readers.
func (lp LockedPartition) mark(k Key, e entry, readers Readers) {
	// While there is no replica, nothing is listed for replicas: nobody would ever
	// empty the list.
	if !lp.store.replicated.Load() {
		readers &^= Replicas
	}

	if readers&Checkpoints&^e.dirty != 0 && lp.part.hasCheckpoints {
		lp.pruneUnsaved()
		lp.part.unsaved = append(lp.part.unsaved, k)
	}
	if readers&Replicas&^e.dirty != 0 {
		lp.part.unsent = append(lp.part.unsent, k)
	}

	e.dirty |= readers
	lp.part.notes[k] = e
	lp.part.peak = max(lp.part.peak, len(lp.part.notes))
}

// pruneUnsaved removes from unsaved what no longer needs writing, once that is
// most of it. While the disk is full, nothing else shortens the list.
func (lp LockedPartition) pruneUnsaved() {
	p := lp.part
	if len(p.unsaved) < minUnsaved || len(p.unsaved) < 2*len(p.notes) {
		return
	}
	p.unsaved = slices.DeleteFunc(p.unsaved, func(k Key) bool {
		e, found := p.notes[k]
		return !found || e.dirty&Checkpoints == 0
	})
}

// minUnsaved is the length up to which unsaved may list notes that are gone.
const minUnsaved = 1024

// PutIfRoom adds the notes of a reservation: at most one of kind Reservation,
// and any number of kind Rate. All are of one rule and subject. It adds all or
// none. It fails with ErrReservations if that rule or that subject would then
// have more than its part of the budget for reservations, or of the one for
// rates.
func (lp LockedPartition) PutIfRoom(list ...Note) error {
	if !lp.hasRoom(list) {
		lp.store.budgets[reservations].refused.Add(1)
		return ErrReservations
	}

	// Between the test and here, notes of another partition may use the same room.
	// So the bound may be exceeded, but only by notes that are made at the same
	// time.
	for i := range list {
		lp.Put(&list[i])
	}
	return nil
}

// hasRoom reports whether there is room for the notes of a reservation, all of
// one rule and subject.
func (lp LockedPartition) hasRoom(list []Note) bool {
	var more [purposes]int64
	for i := range list {
		n := &list[i]
		more[n.Kind.purpose()] += n.size() - lp.sizeOf(n.Key)
	}

	lp.store.mu.Lock()
	defer lp.store.mu.Unlock()
	for i := range list {
		p := list[i].Kind.purpose()
		if !lp.store.budgets[p].allows(&list[i], more[p]) {
			return false
		}
	}
	return true
}

// sizeOf returns what the note with key k takes of its budget now; 0 if there is none.
func (lp LockedPartition) sizeOf(k Key) int64 {
	e, found := lp.part.notes[k]
	if !found {
		return 0
	}
	n := e.note(k)
	return n.size()
}

// HasRoom reports whether there is room for n, of kind Rate, Reservation or Slot.
func (lp LockedPartition) HasRoom(n *Note) bool { return lp.hasRoom([]Note{*n}) }

// MakeRoom makes room for a note of kind Answer, Write, Retry or Reset, if need
// be by dropping older notes that this node made. Answers to writes are never
// dropped: for one that finds no room, MakeRoom fails with ErrWrites. Otherwise
// it never fails. Notes that are made at the same time may exceed the bound.
// The caller must hold no partition.
func (s *Store) MakeRoom(n *Note, steady int64) error {
	b := &s.budgets[n.Kind.purpose()]
	for {
		s.mu.Lock()
		oldest, full := b.takeOldest(n)
		s.mu.Unlock()

		if !full {
			return nil
		}
		if oldest == nil && n.Kind == Write {
			b.refused.Add(1)
			return ErrWrites
		}
		if oldest == nil {
			return nil // copies from other nodes fill the budget, or older notes are being sorted out: see isPartial
		}

		// The store is unlocked here, because a partition must be locked before it.
		s.drop(*oldest, steady)
	}
}

// takeOldest reports whether there is no room for n. If so, it removes from the
// lists the note that must go, and returns it; nil if none can. Inline notes
// fill at most half of the room: beyond that, they give way to each other.
// Otherwise, notes that are not inline give way first.
func (b *budget) takeOldest(n *Note) (oldest *evictableNote, full bool) {
	size := n.size()
	isBeyondHalf := n.Inline && b.inline+size > b.capacity/2
	if b.used+size <= b.capacity && !isBeyondHalf {
		return nil, false
	}

	if n.Kind == Write {
		return nil, true // the answer to a write stays
	}
	oldest = b.evictableOf(isBeyondHalf).evict(n.Group)
	if oldest == nil && !isBeyondHalf {
		oldest = b.evictableOf(true).evict(n.Group)
	}
	return oldest, true
}

// drop removes a note that this node made, to make room. If the note was made
// anew since, drop leaves it: it is listed again, among the newer ones.
func (s *Store) drop(oldest evictableNote, steady int64) {
	lp := s.Lock(oldest.Partition(), steady)
	defer lp.Unlock()
	before, found := lp.part.notes[oldest.Key]
	if !found || before.at != oldest.at {
		return
	}

	// The partition must note that it no longer knows this reset. Otherwise, what
	// was taken before the reset would seem to be of the present life.
	if oldest.Kind == Reset {
		lp.markResetsForgotten(oldest.Subject, before.rank)
	}
	lp.Remove(oldest.Key)
}

// AddEvictable records that this node made n, for which MakeRoom made room. From
// now on, n may be dropped to make room, unless it is the answer to a write.
func (s *Store) AddEvictable(n *Note) {
	if n.Kind == Write {
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.budgets[n.Kind.purpose()].evictableOf(n.Inline).add(n.Group, evictableNote{n.Key, n.At})
}
