package counters

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"unsafe"

	"github.com/rlnode/rlnode/algorithms"
)

const (
	groupSlots = 8 // slots in a group
	groupBytes = int(unsafe.Sizeof(group{}))
)

// Tags of slots. The tag of a used slot is the high bit plus seven bits of the key.
const (
	tagEmpty   = 0
	tagDeleted = 1
	tagUsed    = 0x80
)

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// group is eight slots. What a search reads first lies in one cache line. It holds no pointers.
type group struct {
	tags           [groupSlots]uint8
	kindFullnesses [groupSlots]kindFullness
	freshAt        [groupSlots]uint32 // Unix seconds on the steady clock
	dirty          uint64             // slots with changes that a reader has not received yet; see readers
	inline         uint8              // used slots that hold inline counters, one bit each
	_              [7]byte            // fills the first cache line, so that records begin with the next
	records        [groupSlots]record
}

type record struct {
	key   Key
	state algorithms.State
}

// set puts a counter's new state into its slot. The expiry never moves to an
// earlier time, even if a Give would allow it: a copy on disk may live until
// the old expiry, and the record must stay until it has replaced that copy.
func (g *group) set(slot int, kind algorithms.Kind, state algorithms.State, fullness uint8, freshAt uint32) {
	g.records[slot].state = state
	g.kindFullnesses[slot] = packKindFullness(kind, fullness)
	g.freshAt[slot] = max(g.freshAt[slot], freshAt)
}

// kindFullness packs a counter's kind (3 bits) and fullness (5 bits).
type kindFullness uint8

const packedRefusedFullness = 31 // the packed refusedFullness: the last check was refused

func packKindFullness(kind algorithms.Kind, fullness uint8) kindFullness {
	if fullness == refusedFullness {
		return kindFullness(kind) | packedRefusedFullness<<3
	}
	return kindFullness(kind) | kindFullness(uint16(fullness)*(packedRefusedFullness-1)/(refusedFullness-1))<<3
}

func (k kindFullness) kind() algorithms.Kind { return algorithms.Kind(k & 7) }
func (k kindFullness) fullness() uint8       { return uint8(k >> 3) }

// recordFullness returns the fullness as in a Record, 0…255: the lowest one
// that packs to the same value.
func (k kindFullness) recordFullness() uint8 {
	if k.fullness() == packedRefusedFullness {
		return refusedFullness
	}
	return uint8((uint16(k.fullness())*(refusedFullness-1) + packedRefusedFullness - 2) / (packedRefusedFullness - 1))
}

// subtable is an open-addressing hash table of counters. The search for a key
// begins at the group selected by Key.Counter, and continues group by group
// until one has an empty slot. The subtable grows by a seventh at a time, so
// its load never falls far below the maximum of seven eighths. Its shard's lock
// guards it.
type subtable struct {
	groups     []group
	moves      int // how many times the records were moved; earlier locations are invalid
	prefixBits int // number of leading bits of Key.Counter that all keys here share; see shard
	// live, dead and spare always add up to 7/8 of the slots, so a search always
	// reaches an empty one.
	live          int    // slots in use
	dead          int    // slots marked deleted
	spare         int    // empty slots that may be filled before the subtable must be rehashed
	lowestCounter uint64 // the lowest possible Key.Counter here
	shard         *shard

	logs       map[Key]*logSlot
	unsentList dirtyList // locates unsent changes
	clockHand  int       // the group where the last search for a victim ended

	// full is the result of the last search for a victim, by class of the newcomer.
	full [numClasses]struct {
		until  int64 // steady nanoseconds: the search found no victim, so the next one waits until then
		freeAt int64 // Unix seconds on the steady clock: when the first of the refusing counters it saw will be fresh
	}
}

// logSlot is a counter under sliding-window-log.
type logSlot struct {
	log          algorithms.Log
	kindFullness kindFullness
	freshAt      uint32
	dirty        readers
}

// location locates a counter.
type location struct {
	// subtable is first of four fields: with more, the compiler would keep
	// locations in memory rather than in registers.
	subtable *subtable
	index    int // of the slot, across all groups; −1 if the counter is a log or was not found
	moves    int
	log      *logSlot
}

func (loc location) found() bool { return loc.index >= 0 || loc.log != nil }

// groupIndex, slot and group are valid only for a counter that was found and is not a log.
func (loc location) groupIndex() int { return int(uint(loc.index) / groupSlots) }
func (loc location) slot() int       { return loc.index & (groupSlots - 1) }
func (loc location) group() *group   { return &loc.subtable.groups[uint(loc.index)/groupSlots] }

// locationAt returns the location of the slot with that index across all groups.
func (sub *subtable) locationAt(index int) location {
	return location{subtable: sub, index: index, moves: sub.moves}
}

func (loc location) state() algorithms.State {
	if loc.index < 0 {
		return algorithms.State{}
	}
	return loc.group().records[loc.slot()].state
}

func tagOf(k Key) uint8 { return uint8(k.Counter) | tagUsed }

// firstGroup returns the group at which the search for k begins.
func (sub *subtable) firstGroup(k Key) int {
	hi, _ := bits.Mul64(k.Counter<<(sub.prefixBits&63), uint64(len(sub.groups)))
	return int(hi)
}

// firstGroup returns the group of sub, the subtable of k, at which the search
// for k begins. A shard that is not split has no prefix. Reading a prefix of 0
// would touch one more cache line.
func (s *shard) firstGroup(sub *subtable, k Key) int {
	if s.subtables != nil {
		return sub.firstGroup(k)
	}
	hi, _ := bits.Mul64(k.Counter, uint64(len(sub.groups)))
	return int(hi)
}

// tagWord returns the group's tags as one number, with slot 0 in the lowest byte.
func (g *group) tagWord() uint64 { return binary.LittleEndian.Uint64(g.tags[:]) }

// zeroBytes sets the high bit of each zero byte of w. It may also set that of a
// byte 1 above a zero byte.
func zeroBytes(w uint64) uint64 { return (w - lowBits) &^ w & highBits }

// find looks k up. It does not find logs.
func (sub *subtable) find(k Key) location {
	if i := sub.indexOf(k); i >= 0 {
		return sub.locationAt(i)
	}
	return location{index: -1}
}

// indexOf returns the index of k's slot across all groups, or −1 if there is none.
func (sub *subtable) indexOf(k Key) int {
	if len(sub.groups) == 0 {
		return -1
	}

	for i := sub.firstGroup(k); ; {
		g := &sub.groups[i]
		if slot := g.slotOf(k); slot >= 0 {
			return i*groupSlots + slot
		}
		if zeroBytes(g.tagWord()) != 0 {
			return -1
		}

		i++
		if i == len(sub.groups) {
			i = 0
		}
	}
}

// slotOf returns the slot of g that holds k, or −1.
func (g *group) slotOf(k Key) int {
	for m := zeroBytes(g.tagWord() ^ uint64(tagOf(k))*lowBits); m != 0; m &= m - 1 {
		// A tag that only seems to match belongs to another used slot, so there is a
		// key to compare.
		if slot := bits.TrailingZeros64(m) / 8; g.records[slot].key == k {
			return slot
		}
	}
	return -1
}

// insert puts k into a slot. k must not be in the subtable, and there must be a spare slot.
func (sub *subtable) insert(k Key) location {
	loc := sub.vacantLocation(k)
	g := loc.group()
	if g.tags[loc.slot()] == tagDeleted {
		sub.dead--
	} else {
		sub.spare--
	}

	g.tags[loc.slot()] = tagOf(k)
	g.inline = g.inline&^(1<<loc.slot()) | uint8(k.class())<<loc.slot()
	g.records[loc.slot()] = record{key: k}

	// set never lowers the expiry, so the last counter's expiry must go.
	g.freshAt[loc.slot()] = 0
	sub.live++

	return loc
}

// vacantLocation returns the first unused slot for k in search order.
func (sub *subtable) vacantLocation(k Key) location {
	for i := sub.firstGroup(k); ; {
		if free := ^sub.groups[i].tagWord() & highBits; free != 0 {
			return sub.locationAt(i*groupSlots + bits.TrailingZeros64(free)/8)
		}
		i++
		if i == len(sub.groups) {
			i = 0
		}
	}
}

// freeSlot gives up a slot. No search continues past a group with an empty
// slot, so in such a group the slot may become empty too.
func (sub *subtable) freeSlot(loc location) {
	g := loc.group()
	if zeroBytes(g.tagWord()) != 0 {
		g.tags[loc.slot()] = tagEmpty
		sub.spare++
	} else {
		g.tags[loc.slot()] = tagDeleted
		sub.dead++
	}
	sub.live--
}

// rehash moves all records to n groups, rounded up to the size of a piece of memory.
func (sub *subtable) rehash(n int) {
	old := sub.groups

	// The list of groups holds their old locations, so it is no longer valid. The
	// list of logs holds keys, which stay valid.
	sub.unsentList.incomplete = sub.unsentList.incomplete || len(sub.unsentList.groups) > 0
	sub.unsentList.groups = sub.unsentList.groups[:0]
	sub.allocate(n)
	for i := range old {
		for slot, tag := range old[i].tags {
			if tag >= tagUsed {
				sub.copySlot(&old[i], slot)
			}
		}
	}
	sub.memory().release(sub.shard, old)
}

// memory returns where sub's groups are.
func (sub *subtable) memory() *memory { return &sub.shard.table.memory }

// allocate gives sub n empty groups, rounded up to the size of a piece of
// memory. The caller moves the records of the old groups.
func (sub *subtable) allocate(n int) {
	sub.setGroups(sub.memory().allocate(sub, n))
	sub.live = 0
	sub.dead = 0
	sub.spare = len(sub.groups) * groupSlots * 7 / 8
}

// setGroups replaces the groups, which invalidates all locations.
func (sub *subtable) setGroups(groups []group) {
	sub.groups = groups
	if s := sub.shard; sub == &s.single {
		s.hint.set(groups)
	}
	sub.moves++
}

// copySlot copies a slot of g into sub, which must have a spare slot.
func (sub *subtable) copySlot(g *group, slot int) {
	loc := sub.insert(g.records[slot].key)
	to := loc.group()
	to.kindFullnesses[loc.slot()] = g.kindFullnesses[slot]
	to.freshAt[loc.slot()] = g.freshAt[slot]
	to.dirty |= g.dirty >> slot & uint64(allReaders) << loc.slot()
	to.records[loc.slot()] = g.records[slot]
}

// releaseAll releases the memory and invalidates all locations.
func (sub *subtable) releaseAll() {
	sub.memory().release(sub.shard, sub.groups)
	sub.setGroups(nil)
	sub.live = 0
	sub.spare = 0
	sub.dead = 0
	sub.logs = nil
	sub.unsentList = dirtyList{}
}

// shrink releases memory when less than a third of it is used.
func (sub *subtable) shrink() {
	if sub.live == 0 {
		sub.memory().release(sub.shard, sub.groups)
		sub.setGroups(nil)
		sub.spare = 0
		sub.dead = 0
		sub.unsentList.groups = nil
		return
	}

	// The subtable shrinks until it is two thirds full, so that it neither grows
	// nor shrinks again soon. A subtable that takes less than a page is on the
	// heap, and not worth the move.
	n := len(sub.groups)
	if n*groupBytes > sub.memory().page && sub.live*3 < n*groupSlots {
		sub.rehash(sub.live*3/2/groupSlots + 1)
	}
}

// used yields the location of each slot in use. The caller may free the slot.
func (sub *subtable) used() iter.Seq[location] {
	return func(yield func(location) bool) {
		for i := range sub.groups {
			for slot, tag := range sub.groups[i].tags {
				if tag >= tagUsed && !yield(sub.locationAt(i*groupSlots+slot)) {
					return
				}
			}
		}
	}
}

// key returns the key of a slot.
func (loc location) key() Key { return loc.group().records[loc.slot()].key }

// count returns the number of counters, including logs.
func (sub *subtable) count() int { return sub.live + len(sub.logs) }
