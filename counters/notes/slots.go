package notes

import (
	"cmp"
	"container/heap"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/rlnode/rlnode/internal/wire"
)

// A slot is a note of kind Slot. What is held of a limit is the sum of its
// slots that have not ended, wherever the notes came from. So that nobody has
// to add them up for each check, the store keeps for each limit that sum and a
// heap of ends. Both are derived only from the notes.

const (
	// MaxWho bounds what a slot says of its holder, in bytes.
	MaxWho = 32
	// slotBytes is what a slot takes of its budget besides what every note takes:
	// the most that its ends take in the heap.
	slotBytes = 64
	// exactEnds bounds the slots of a limit for which the time of the last end is
	// always exact.
	exactEnds = 64
)

// SlotsKey identifies the slots of one limit for one subject.
type SlotsKey struct {
	Subject uint64
	Counter uint64 // identifies rule, subject and limit
}

// SlotInfo is a slot that is held.
type SlotInfo struct {
	ID uint64 // of the slot, among those of a limit
	// Nonce is that of the attempt that acquired the slot. It keeps requests that
	// were meant for an earlier slot with the same ID away from this one.
	Nonce    uint64
	Units    int64  // how many it takes of the limit
	Granted  bool   // the attempt that acquired it was admitted as a whole, and has paid
	Repeated bool   // another request with the same id was answered with it
	Acquired int64  // steady nanoseconds
	End      int64  // steady nanoseconds; unless it is renewed before
	Who      string // at most MaxWho bytes
}

// Key returns the key of the note of a slot. A slot of several limits of one
// subject has a note for each limit.
func (s SlotsKey) Key(id uint64) Key { return Key{Subject: s.Subject, ID: id ^ s.Counter, Kind: Slot} }

// Note returns the note of a slot.
func (s SlotsKey) Note(i *SlotInfo, group uint32, inline bool) Note {
	n := Note{Key: s.Key(i.ID), Rank: s.Counter, At: i.Acquired, Group: group, Inline: inline}
	b := make([]byte, 0, 2*binary.MaxVarintLen64+len(i.Who))

	units := uint64(i.Units)
	if i.Granted {
		units |= grantedBit
	}
	if i.Repeated {
		units |= repeatedBit
	}

	b = binary.AppendUvarint(b, units)
	b = binary.LittleEndian.AppendUint64(b, i.Nonce)
	n.Body = string(append(b, i.Who...))
	n.setEnd(i.End)
	return n
}

// setEnd sets when n, a slot, ends.
func (n *Note) setEnd(at int64) {
	// Minor has no sign, so a slot can't end before it was made: At moves instead.
	n.At = min(n.At, at)
	n.Minor = uint64(at - n.At)
	n.UntilSecond = (at+1e9-1)/1e9 + 1
}

// slots returns the limit that n, a slot, belongs to.
func (n *Note) slots() SlotsKey { return SlotsKey{n.Subject, n.limit()} }

// slot returns what n, a slot, says. Whatever its bytes are, it takes at least one unit.
func (n *Note) slot() SlotInfo {
	d := wire.NewDecoder([]byte(n.Body))
	info := SlotInfo{ID: n.ID ^ n.limit(), Acquired: n.At, End: n.end()}
	units := d.UpTo(maxSlotUnits | repeatedBit | grantedBit)
	info.Units = max(1, units&^(repeatedBit|grantedBit))
	info.Granted = units&grantedBit != 0
	info.Repeated = units&repeatedBit != 0
	if b := d.Bytes(8); b != nil {
		info.Nonce = binary.LittleEndian.Uint64(b)
	}
	info.Who = n.Body[len(n.Body)-d.Len():]
	info.Who = info.Who[:min(len(info.Who), MaxWho)]
	return info
}

const (
	maxSlotUnits = 1 << 32
	// repeatedBit and grantedBit are added to the units of a slot that is Repeated
	// or Granted.
	repeatedBit = 1 << 33
	grantedBit  = 1 << 34
)

// limitSlots sums up the slots of one limit.
type limitSlots struct {
	held  int64 // units
	count int   // notes
	// ends is a heap with the end of each slot. It also has earlier ends of slots
	// that were renewed or released since.
	ends endList
	// latest is a time after which no slot ends. Up to exactEnds slots, each read
	// computes it anew. Beyond that, a read does so only if more than a quarter of
	// the slots have changed since; changes counts them.
	latest  int64
	changes int
}

// slotEnd is when a slot ends, or ended before it was renewed.
type slotEnd struct {
	at int64  // steady nanoseconds
	id uint64 // Key.ID
}

// compare orders ends by their time, and then by slot, so that equal ends lie
// next to each other.
func (e slotEnd) compare(o slotEnd) int {
	return cmp.Or(cmp.Compare(e.at, o.at), cmp.Compare(e.id, o.id))
}

// endList is a heap with the first end in front.
type endList []slotEnd

func (l endList) Len() int           { return len(l) }
func (l endList) Less(i, j int) bool { return l[i].compare(l[j]) < 0 }
func (l endList) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }
func (l *endList) Push(x any)        { *l = append(*l, x.(slotEnd)) } //nolint:forcetypeassert // only countSlot calls it
func (l *endList) Pop() any {
	last := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return last
}

// countSlot adds n, a slot, to what is held, or takes it off if sign is −1.
func (lp LockedPartition) countSlot(n *Note, sign int64) {
	p := lp.part
	if p.slots == nil {
		p.slots = make(map[SlotsKey]*limitSlots)
		p.slotGroups = make(map[uint32]int64)
	}

	key := n.slots()
	slots := p.slots[key]
	if slots == nil {
		slots = &limitSlots{}
		p.slots[key] = slots
	}

	units := sign * n.slot().Units
	slots.held += units
	slots.count += int(sign)
	slots.changes++
	addTo(&p.slotGroups, n.Group, units)

	if slots.count == 0 {
		delete(p.slots, key)
		return
	}

	// Each renewal and release leaves an end behind. Compacting at twice the number
	// of slots costs each of them only a small part. It happens here, too, because
	// a standby changes slots, but is never asked about them.
	if len(slots.ends) > 2*slots.count+exactEnds {
		lp.compact(key, slots)
	}

	// The end of a slot that goes stays in the heap, because finding it would mean
	// reading the whole heap. It is dropped when it comes to the front.
	if sign > 0 {
		heap.Push(&slots.ends, slotEnd{n.end(), n.ID})
		slots.latest = max(slots.latest, n.end())
	}
}

// isCurrent reports whether e is when a slot of key ends now.
func (lp LockedPartition) isCurrent(key SlotsKey, e slotEnd) bool {
	before, found := lp.part.notes[Key{Subject: key.Subject, ID: e.id, Kind: Slot}]
	return found && before.at+int64(before.minor) == e.at
}

// endSlots drops the slots of key that ended at or before steady, and returns
// what is still held; nil if nothing is.
func (lp LockedPartition) endSlots(key SlotsKey, steady int64) *limitSlots {
	slots := lp.part.slots[key]

	// Ends that are not current go as well, so that the first end is always that of
	// a slot. nextEnd relies on it.
	for slots != nil && len(slots.ends) > 0 && (slots.ends[0].at <= steady || !lp.isCurrent(key, slots.ends[0])) {
		e, _ := heap.Pop(&slots.ends).(slotEnd)
		if !lp.isCurrent(key, e) {
			continue
		}
		k := Key{Subject: key.Subject, ID: e.id, Kind: Slot}
		lp.store.countExpired(lp.part.notes[k])
		lp.forget(k)

		// If that was the last slot, its limit is gone from the map.
		slots = lp.part.slots[key]
	}

	return slots
}

// compact drops the earlier ends of slots that were renewed or released.
func (lp LockedPartition) compact(key SlotsKey, slots *limitSlots) {
	slots.ends = slices.DeleteFunc(slots.ends, func(e slotEnd) bool { return !lp.isCurrent(key, e) })
	slices.SortFunc(slots.ends, slotEnd.compare)
	slots.ends = slices.Clip(slices.Compact(slots.ends)) // sorted, it is a heap
}

// HeldSlots returns how many units of key are held at steady. It also returns
// how long it takes, in nanoseconds, until no more than rest of them are held
// (untilFits), and until none is (untilAll), provided that no slot is renewed.
// Both are 0 if nothing is held. untilFits may be too short if very many slots
// must end first. With more than exactEnds slots, untilAll may be somewhat too
// long.
func (lp LockedPartition) HeldSlots(key SlotsKey, steady, rest int64) (held, untilFits, untilAll int64) {
	slots := lp.endSlots(key, steady)
	if slots == nil {
		return 0, 0, 0
	}

	if slots.changes > slots.count/4 || slots.count <= exactEnds {
		slots.changes, slots.latest = 0, 0
		for _, e := range slots.ends {
			if lp.isCurrent(key, e) {
				slots.latest = max(slots.latest, e.at)
			}
		}
	}

	return slots.held, lp.nextEnd(key, slots, rest) - steady, slots.latest - steady
}

const (
	// maxEndsRead bounds the ends that are read for one answer.
	maxEndsRead = 64
	// maxEndsListed bounds the ends that are read for a list. If too few of them
	// are ends of slots, the heap is compacted first, which takes long if it is
	// large. It must be compacted again only after about as many slots were
	// renewed.
	maxEndsListed = 4096
)

// nextEnd returns when enough slots have ended that at most rest units are
// held. It returns an earlier time if it would have to read more than
// maxEndsRead ends.
func (lp LockedPartition) nextEnd(key SlotsKey, slots *limitSlots, rest int64) int64 {
	at := slots.ends[0].at
	held := slots.held
	lp.readEnds(key, slots, maxEndsRead, func(slot SlotInfo) bool {
		held -= slot.Units
		at = slot.End
		return held > rest
	})
	return at
}

// readEnds calls read with the slots of key in the order of their ends, until
// read returns false or bound ends were read.
func (lp LockedPartition) readEnds(key SlotsKey, slots *limitSlots, bound int, read func(SlotInfo) bool) {
	// The heap is not changed. No end is before its parent in the heap. So a second
	// heap, of indexes into the first, always has the next end in front: it begins
	// with the root, and each end that is read is replaced by its children.
	next := indexHeap{slots.ends, []int{0}}
	var last slotEnd
	for range bound {
		if len(next.indexes) == 0 {
			return
		}

		i, _ := heap.Pop(&next).(int)
		e := slots.ends[i]

		// A slot that was renewed to the same end has two equal ends.
		if e != last && lp.isCurrent(key, e) {
			k := Key{Subject: key.Subject, ID: e.id, Kind: Slot}
			before := lp.part.notes[k]
			n := before.note(k)
			if !read(n.slot()) {
				return
			}
		}
		last = e

		for _, child := range [...]int{2*i + 1, 2*i + 2} {
			if child < len(slots.ends) {
				heap.Push(&next, child)
			}
		}
	}
}

// indexHeap is a heap of indexes into a heap of ends.
type indexHeap struct {
	ends    endList
	indexes []int
}

func (x indexHeap) Len() int           { return len(x.indexes) }
func (x indexHeap) Less(i, j int) bool { return x.ends.Less(x.indexes[i], x.indexes[j]) }
func (x indexHeap) Swap(i, j int)      { x.indexes[i], x.indexes[j] = x.indexes[j], x.indexes[i] }
func (x *indexHeap) Push(i any)        { x.indexes = append(x.indexes, i.(int)) } //nolint:forcetypeassert // only readEnds calls it
func (x *indexHeap) Pop() any {
	last := x.indexes[len(x.indexes)-1]
	x.indexes = x.indexes[:len(x.indexes)-1]
	return last
}

// GetSlot returns a slot of key that is held at steady, and its note.
func (lp LockedPartition) GetSlot(key SlotsKey, id uint64, steady int64) (SlotInfo, Note, bool) {
	e, found := lp.part.notes[key.Key(id)]
	if !found {
		return SlotInfo{}, Note{}, false
	}
	n := e.note(key.Key(id))
	return n.slot(), n, n.end() > steady
}

// RenewSlot stores n, a slot, with a new end.
func (lp LockedPartition) RenewSlot(n *Note, end int64) {
	n.setEnd(end)
	lp.Put(n)
}

// HasRoomForSlot reports whether there is room for n, a slot.
func (lp LockedPartition) HasRoomForSlot(n *Note) bool {
	fits := lp.HasRoom(n)
	if !fits {
		lp.store.budgets[slots].refused.Add(1)
	}
	return fits
}

// ListSlots returns the slots of key that are held at steady, at most bound and
// the soonest end first, and how many there are.
func (lp LockedPartition) ListSlots(key SlotsKey, steady int64, bound int) (list []SlotInfo, all int) {
	slots := lp.endSlots(key, steady)
	if slots == nil {
		return nil, 0
	}

	read := func(slot SlotInfo) bool {
		list = append(list, slot)
		return len(list) < bound
	}
	lp.readEnds(key, slots, maxEndsListed, read)

	if len(list) < min(bound, slots.count) { // ends of slots that were renewed are in front
		lp.compact(key, slots)
		list = nil
		lp.readEnds(key, slots, maxEndsListed, read)
	}

	return list, slots.count
}

// ReleaseSlots removes all slots of key.
func (lp LockedPartition) ReleaseSlots(key SlotsKey) {
	slots := lp.part.slots[key]
	if slots == nil {
		return
	}
	for _, e := range slices.Clone(slots.ends) {
		lp.Remove(Key{Subject: key.Subject, ID: e.id, Kind: Slot})
	}
}

// CountersWithSlots returns the Counter of each limit of subject that has slots, inline or not.
func (lp LockedPartition) CountersWithSlots(subject uint64) (counters []uint64) {
	for key := range lp.part.slots {
		if key.Subject == subject {
			counters = append(counters, key.Counter)
		}
	}
	return counters
}

// MarkLost records that slots of p may have been lost by steady, together with
// all copies of them. The table then grants none for as long as the lost ones
// may be held. The note is kept until the given time, in Unix seconds on the
// steady clock.
func (s *Store) MarkLost(p int, steady, until int64) {
	lp := s.Lock(p, steady)
	defer lp.Unlock()
	lp.Put(&Note{Key: PartitionKey(Lost, p, 0), At: steady, UntilSecond: until})
}

// LostAt returns when slots of the partition of subject were last lost, and
// whether that is still known.
func (lp LockedPartition) LostAt(subject uint64) (steady int64, lost bool) {
	n, found := lp.Get(PartitionKey(Lost, Key{Subject: subject}.Partition(), 0))
	return n.At, found
}

// AddHeldSlots adds to held, by group, the units that are held in p at steady.
func (s *Store) AddHeldSlots(p int, steady int64, held map[uint32]int64) {
	if s.partitions[p].Load() == nil {
		return
	}
	lp := s.Lock(p, steady)
	defer lp.Unlock()
	lp.endSlotsOf(maxLimitsEnded, steady)
	for group, units := range lp.part.slotGroups {
		held[group] += units
	}
}

// maxLimitsEnded bounds the limits whose slots one reading of metrics may end
// in each partition, because others wait for the partition's lock. Iteration
// over a map begins anywhere, so the next readings end the rest.
const maxLimitsEnded = 4096

// endSlotsOf drops the slots that ended at or before steady, of up to bound
// limits.
func (lp LockedPartition) endSlotsOf(bound int, steady int64) {
	limits := 0
	for key := range lp.part.slots {
		if limits == bound {
			return
		}
		lp.endSlots(key, steady)
		limits++
	}
}

// InlineGroup stands for all groups of limits that come with the call, because
// strangers choose those groups.
const InlineGroup = 0

func (s *Store) countExpired(slot entry) {
	group := slot.group
	if slot.inline {
		group = InlineGroup
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expiredSlots == nil {
		s.expiredSlots = make(map[uint32]int64)
	}
	s.expiredSlots[group]++
}

// ExpiredSlots returns how many slots have ended here by themselves, by group,
// since the start. Those of limits that came with the call are of InlineGroup.
func (s *Store) ExpiredSlots() map[uint32]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.expiredSlots)
}
