package counters

import (
	"math/bits"
	"unsafe"

	"github.com/rlnode/rlnode/algorithms"
)

const (
	groupSlots = 8
	groupBytes = int(unsafe.Sizeof(group{}))
	pageBytes  = 4096
)

// Tags of slots. A used slot's tag has the high bit and seven bits of the key.
const (
	tagEmpty   = 0
	tagDeleted = 1
	tagUsed    = 0x80
)

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// group is eight slots and what a search needs to know of them, side by side. It holds no pointers.
type group struct {
	tags    [groupSlots]uint8
	marks   [groupSlots]mark
	freshAt [groupSlots]uint32 // Unix seconds, steady
	dirty   uint64             // slots changed since each of the readers was told; see readers
	_       uint64             // so that all of the above is one cache line, and records begin with the next
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

// publicLevel is the level as Records give it, 0…255: the least that becomes the same mark.
func (m mark) publicLevel() uint8 {
	if m.level() == levelRefused {
		return refusedLevel
	}
	return uint8((uint16(m.level())*(refusedLevel-1) + levelRefused - 2) / (levelRefused - 1))
}

// records is an open-addressing table: a key's search begins at the group that its Key.Lo falls into and goes on from
// group to group until one has an empty slot. It grows by a seventh, so that it is never much emptier than its bound of
// seven eighths. The lock of its shard guards it.
type records struct {
	groups []group
	moves  int // times the records were laid out anew; places from before are void
	bits   int // first bits of Key.Lo that all keys here have in common; see shard
	// Invariant: live + dead + spare == 7/8 of the slots; so a search always meets an empty one.
	live  int    // slots in use
	dead  int    // slots marked deleted
	spare int    // empty slots that may still be filled before the table is laid out anew
	first uint64 // the least Key.Lo that may be here

	logs  map[Key]*logSlot
	trail trail // where what is unsent is
	hand  int   // where the next eviction looks first

	fullUntil int64 // steady: no search for a victim before then; the last one found none
	freeAt    int64 // Unix seconds, steady: when the first refused counter will be fresh, as of that search
}

// logSlot is a counter under sliding-window-log.
type logSlot struct {
	log     algorithms.Log
	mark    mark
	freshAt uint32
	dirty   readers
}

// place is where a counter is.
type place struct {
	// Four fields and no more, or the compiler keeps places in memory rather than in registers.
	in    *records
	index int // of the slot, in all groups; −1: not among the records
	moves int
	log   *logSlot
}

func (p place) found() bool { return p.index >= 0 || p.log != nil }

// group, slot and home, the group itself, are of a counter that is no log.
func (p place) group() int   { return int(uint(p.index) / groupSlots) }
func (p place) slot() int    { return p.index & (groupSlots - 1) }
func (p place) home() *group { return &p.in.groups[uint(p.index)/groupSlots] }

// at is the place of a slot.
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

// home is the slot of its first group that k gets if it is free. A search looks there before it knows the tags: where it is
// right, as mostly, the processor fetches both at once.
func home(k Key) int { return int(k.Lo >> 8 % groupSlots) }

// start is the group at which the search for k begins.
func (r *records) start(k Key) int {
	hi, _ := bits.Mul64(k.Lo<<(r.bits&63), uint64(len(r.groups)))
	return int(hi)
}

// word is the group's tags as one number, slot 0 lowest.
func (g *group) word() uint64 {
	t := &g.tags
	return uint64(t[0]) | uint64(t[1])<<8 | uint64(t[2])<<16 | uint64(t[3])<<24 |
		uint64(t[4])<<32 | uint64(t[5])<<40 | uint64(t[6])<<48 | uint64(t[7])<<56
}

// zeroBytes has the high bit of each zero byte of w set; bytes above a zero byte may be set too.
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

// search looks k up from group i on.
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

// insert puts k, which is not there, into a slot. There is a spare one.
func (r *records) insert(k Key) place {
	p := r.vacancy(k)
	g := p.home()
	if g.tags[p.slot()] == tagDeleted {
		r.dead--
	} else {
		r.spare--
	}
	g.tags[p.slot()] = tagOf(k)
	g.records[p.slot()] = record{key: k}
	g.freshAt[p.slot()] = 0
	r.live++
	return p
}

// vacancy is the first slot on k's way that is not in use: its home, or else the first of a group.
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

// free gives a slot back. In a group with an empty slot no search goes past it, so it may become empty too.
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

// layOut moves all records to n groups, or as many as fill the last page.
func (r *records) layOut(n int) {
	old := r.groups
	r.trail.lost = r.trail.lost || len(r.trail.groups) > 0
	r.trail.groups = r.trail.groups[:0]
	r.begin(n)
	for i := range old {
		for slot, tag := range old[i].tags {
			if tag >= tagUsed {
				r.take(&old[i], slot)
			}
		}
	}
	release(old)
}

// begin gives r n empty groups, or as many as fill the last page. What was in the old ones is the caller's to bring over.
func (r *records) begin(n int) {
	if n*groupBytes >= pageBytes {
		pages := (n*groupBytes + pageBytes - 1) / pageBytes
		n = pages * pageBytes / groupBytes
	}
	r.groups = allocate(n)
	r.moves++
	r.live, r.dead, r.spare = 0, 0, len(r.groups)*groupSlots*7/8
}

// take copies a slot of g. There is a spare one.
func (r *records) take(g *group, slot int) {
	p := r.insert(g.records[slot].key)
	to := p.home()
	to.marks[p.slot()] = g.marks[slot]
	to.freshAt[p.slot()] = g.freshAt[slot]
	to.dirty |= g.dirty >> slot & uint64(everyone) << p.slot()
	to.records[p.slot()] = g.records[slot]
}

// end releases the memory; places are void.
func (r *records) end() {
	release(r.groups)
	r.groups, r.live, r.spare, r.dead, r.logs, r.trail = nil, 0, 0, 0, nil, trail{}
	r.moves++
}

// shrink gives memory back when less than a third is used.
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

// count is how many counters there are, logs included.
func (r *records) count() int { return r.live + len(r.logs) }
