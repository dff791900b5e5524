package counters

import (
	"math/bits"
	"unsafe"

	"github.com/rlnode/rlnode/algorithms"
)

const (
	groupSlots = 8 // slots in a group
	groupBytes = int(unsafe.Sizeof(group{}))
	pageBytes  = 4096
)

// Tags of slots. A used slot's tag is the high bit and seven bits of the key.
const (
	tagEmpty   = 0
	tagDeleted = 1
	tagUsed    = 0x80
)

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// group is eight slots, with what a search needs to know about them side by side. It holds no pointers.
type group struct {
	tags    [groupSlots]uint8
	marks   [groupSlots]mark
	freshAt [groupSlots]uint32 // Unix seconds on the steady clock
	dirty   uint64             // slots changed since each reader was last told; see readers
	inline  uint8              // used slots that hold inline counters, one bit each
	_       [7]byte            // fills the first cache line, so that records begin with the next
	records [groupSlots]record
}

type record struct {
	key   Key
	state algorithms.State
}

// mark is a counter's kind (3 bits) and level (5 bits).
type mark uint8

const levelRefused = 31 // a check was refused since the last one that was allowed

func newMark(kind algorithms.Kind, level uint8) mark {
	if level == refusedLevel {
		return mark(kind) | levelRefused<<3
	}
	return mark(kind) | mark(uint16(level)*(levelRefused-1)/(refusedLevel-1))<<3
}

func (m mark) kind() algorithms.Kind { return algorithms.Kind(m & 7) }
func (m mark) level() uint8          { return uint8(m >> 3) }

// publicLevel is the level as in a Record, 0…255: the lowest one that maps to the same mark.
func (m mark) publicLevel() uint8 {
	if m.level() == levelRefused {
		return refusedLevel
	}
	return uint8((uint16(m.level())*(refusedLevel-1) + levelRefused - 2) / (levelRefused - 1))
}

// records is an open-addressing table. The search for a key begins at the group selected by Key.Lo, and continues group by
// group until one has an empty slot. The table grows by a seventh at a time, so it never falls far below its maximum load of
// seven eighths. Its shard's lock guards it.
type records struct {
	groups []group
	moves  int // how often the records were moved; earlier places are void
	bits   int // how many leading bits of Key.Lo all keys here share; see shard
	// Invariant: live + dead + spare == 7/8 of the slots, so a search always reaches an empty one.
	live  int    // slots in use
	dead  int    // slots marked deleted
	spare int    // empty slots that may be filled before the table must be laid out anew
	first uint64 // the lowest possible Key.Lo here

	logs  map[Key]*logSlot
	trail trail // locates unsent changes
	hand  int   // where the next eviction starts looking

	// full is what the last search for a victim found out, by the class of the newcomer.
	full [classes]struct {
		until  int64 // steady nanoseconds: no search before then, as the last one found none
		freeAt int64 // Unix seconds on the steady clock: when the first refusing counter will be fresh, as of that search
	}
}

// logSlot is a counter under sliding-window-log.
type logSlot struct {
	log     algorithms.Log
	mark    mark
	freshAt uint32
	dirty   readers
}

// place locates a counter.
type place struct {
	// With more than four fields, the compiler would keep places in memory rather than in registers.
	in    *records
	index int // of the slot, across all groups; −1 if it is not among the records
	moves int
	log   *logSlot
}

func (p place) found() bool { return p.index >= 0 || p.log != nil }

// group, slot and home (the group itself) are only valid for a counter that is not a log.
func (p place) group() int   { return int(uint(p.index) / groupSlots) }
func (p place) slot() int    { return p.index & (groupSlots - 1) }
func (p place) home() *group { return &p.in.groups[uint(p.index)/groupSlots] }

// at returns the place of a slot.
func (r *records) at(group, slot int) place {
	return place{in: r, index: group*groupSlots + slot, moves: r.moves}
}

func (p place) state() algorithms.State {
	if p.index < 0 {
		return algorithms.State{}
	}
	return p.home().records[p.slot()].state
}

func tagOf(k Key) uint8 { return uint8(k.Lo) | tagUsed }

// home returns the slot that k prefers in its first group. A search reads it before it knows the tags. That guess is usually
// right, and then the processor fetches both at once.
func home(k Key) int { return int(k.Lo >> 8 % groupSlots) }

// start returns the group at which the search for k begins.
func (r *records) start(k Key) int {
	hi, _ := bits.Mul64(k.Lo<<(r.bits&63), uint64(len(r.groups)))
	return int(hi)
}

// word returns the group's tags as one number, slot 0 lowest.
func (g *group) word() uint64 {
	t := &g.tags
	return uint64(t[0]) | uint64(t[1])<<8 | uint64(t[2])<<16 | uint64(t[3])<<24 |
		uint64(t[4])<<32 | uint64(t[5])<<40 | uint64(t[6])<<48 | uint64(t[7])<<56
}

// zeroBytes sets the high bit of each zero byte of w. Bytes above a zero byte may be set too.
func zeroBytes(w uint64) uint64 { return (w - lowBits) &^ w & highBits }

// find looks k up among the records.
func (r *records) find(k Key) place {
	if len(r.groups) == 0 {
		return place{index: -1}
	}
	i, slot := r.start(k), home(k)
	if g := &r.groups[i]; g.records[slot].key == k && g.tags[slot] == tagOf(k) {
		return r.at(i, slot)
	}
	return r.search(k, i)
}

// search looks k up, starting at group i.
func (r *records) search(k Key, i int) place {
	want := uint64(tagOf(k)) * lowBits
	for {
		g := &r.groups[i]
		w := g.word()
		for m := zeroBytes(w ^ want); m != 0; m &= m - 1 {
			slot := bits.TrailingZeros64(m) / 8
			if g.records[slot].key == k && g.tags[slot] == uint8(want) {
				return r.at(i, slot)
			}
		}
		if zeroBytes(w) != 0 {
			return place{index: -1}
		}
		if i++; i == len(r.groups) {
			i = 0
		}
	}
}

// insert puts k into a slot. k must not be there, and there must be a spare slot.
func (r *records) insert(k Key) place {
	p := r.vacancy(k)
	g := p.home()
	if g.tags[p.slot()] == tagDeleted {
		r.dead--
	} else {
		r.spare--
	}
	g.tags[p.slot()] = tagOf(k)
	g.inline = g.inline&^(1<<p.slot()) | uint8(k.class())<<p.slot()
	g.records[p.slot()] = record{key: k}
	g.freshAt[p.slot()] = 0
	r.live++
	return p
}

// vacancy returns the first unused slot for k: its home, or else the first one in search order.
func (r *records) vacancy(k Key) place {
	i := r.start(k)
	if slot := home(k); r.groups[i].tags[slot] < tagUsed {
		return r.at(i, slot)
	}
	for {
		if free := ^r.groups[i].word() & highBits; free != 0 {
			return r.at(i, bits.TrailingZeros64(free)/8)
		}
		if i++; i == len(r.groups) {
			i = 0
		}
	}
}

// free gives up a slot. No search continues past a group with an empty slot, so there the slot may become empty as well.
func (r *records) free(p place) {
	g := p.home()
	if zeroBytes(g.word()) != 0 {
		g.tags[p.slot()] = tagEmpty
		r.spare++
	} else {
		g.tags[p.slot()] = tagDeleted
		r.dead++
	}
	r.live--
}

// layOut moves all records to n groups, rounded up to fill the last page.
func (r *records) layOut(n int) {
	old := r.groups
	r.trail.lost = r.trail.lost || len(r.trail.groups) > 0
	r.trail.groups = r.trail.groups[:0]
	r.allocate(n)
	for i := range old {
		for slot, tag := range old[i].tags {
			if tag >= tagUsed {
				r.copySlot(&old[i], slot)
			}
		}
	}
	release(old)
}

// allocate gives r n empty groups, rounded up to fill the last page. The caller moves the records of the old groups.
func (r *records) allocate(n int) {
	if n*groupBytes >= pageBytes {
		pages := (n*groupBytes + pageBytes - 1) / pageBytes
		n = pages * pageBytes / groupBytes
	}
	r.groups = allocate(n)
	r.moves++
	r.live, r.dead, r.spare = 0, 0, len(r.groups)*groupSlots*7/8
}

// copySlot copies a slot of g into r, which must have a spare slot.
func (r *records) copySlot(g *group, slot int) {
	p := r.insert(g.records[slot].key)
	to := p.home()
	to.marks[p.slot()] = g.marks[slot]
	to.freshAt[p.slot()] = g.freshAt[slot]
	to.dirty |= g.dirty >> slot & uint64(everyone) << p.slot()
	to.records[p.slot()] = g.records[slot]
}

// releaseAll releases the memory. All places become void.
func (r *records) releaseAll() {
	release(r.groups)
	r.groups, r.live, r.spare, r.dead, r.logs, r.trail = nil, 0, 0, 0, nil, trail{}
	r.moves++
}

// shrink releases memory when less than a third is used.
func (r *records) shrink() {
	if r.live == 0 {
		release(r.groups)
		r.groups, r.spare, r.dead, r.trail.groups = nil, 0, 0, nil
		r.moves++
		return
	}
	if slots := len(r.groups) * groupSlots; slots*groupBytes/groupSlots > pageBytes && r.live*3 < slots {
		r.layOut(r.live*3/2/groupSlots + 1)
	}
}

// count returns the number of counters, including logs.
func (r *records) count() int { return r.live + len(r.logs) }
