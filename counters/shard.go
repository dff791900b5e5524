package counters

import (
	"math/bits"
	"sync"
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

// shard is an open-addressing table: a key's search begins at the group that its Key.Lo falls into and goes on
// from group to group until one has an empty slot. It grows by a seventh, so that it is never much emptier than
// its bound of seven eighths; one move of a shard of some ten thousand records takes a fraction of a
// millisecond, and no other shard waits for it.
type shard struct {
	// A Take of a counter that is there looks at the first of these cache lines only.

	mu     sync.Mutex // guards everything below
	groups []group
	moves  int // times the records were laid out anew; places from before are void
	// Invariant: live + dead + spare == 7/8 of the slots; so a search always meets an empty one.
	live  int // slots in use
	dead  int // slots marked deleted
	spare int // empty slots that may still be filled before the shard is laid out anew

	max     int // bound on counters, logs included
	unsaved int // slots and logs changed, for checkpoints
	unsent  int // and for replicas
	hand    int // where the next eviction looks first

	logs  map[Key]*logSlot
	trail trail // where what is unsent is

	fullUntil int64 // steady: no search for a victim before then; the last one found none
	freeAt    int64 // Unix seconds, steady: when the first refused counter will be fresh, as of that search

	evicted, expired, refused int64

	_ [56]byte // cache lines of its own for each lock
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
	group int
	slot  int // −1: not in the table
	moves int
	log   *logSlot
}

func (p place) found() bool { return p.slot >= 0 || p.log != nil }

func tagOf(k Key) uint8 { return uint8(k.Lo) | tagUsed }

// home is the slot of its first group that k gets if it is free. A search looks there before it knows the tags: where it is
// right, as mostly, the processor fetches both at once.
func home(k Key) int { return int(k.Lo >> 8 % groupSlots) }

// start is the group at which the search for k begins.
func (s *shard) start(k Key) int {
	hi, _ := bits.Mul64(k.Lo, uint64(len(s.groups)))
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
func (s *shard) find(k Key) place {
	if len(s.groups) == 0 {
		return place{slot: -1}
	}
	i, slot := s.start(k), home(k)
	if g := &s.groups[i]; g.records[slot].key == k && g.tags[slot] == tagOf(k) {
		return place{group: i, slot: slot, moves: s.moves}
	}
	return s.search(k, i)
}

// search looks k up from group i on.
func (s *shard) search(k Key, i int) place {
	want := uint64(tagOf(k)) * lowBits
	for {
		g := &s.groups[i]
		w := g.word()
		for m := zeroBytes(w ^ want); m != 0; m &= m - 1 {
			slot := bits.TrailingZeros64(m) / 8
			if g.records[slot].key == k && g.tags[slot] == uint8(want) {
				return place{group: i, slot: slot, moves: s.moves}
			}
		}
		if zeroBytes(w) != 0 {
			return place{slot: -1, moves: s.moves}
		}
		if i++; i == len(s.groups) {
			i = 0
		}
	}
}

// insert puts k, which is not in the shard, into a slot. The caller has made room under max.
func (s *shard) insert(k Key) place {
	if s.spare == 0 {
		s.grow()
	}
	p := s.vacancy(k)
	g := &s.groups[p.group]
	if g.tags[p.slot] == tagDeleted {
		s.dead--
	} else {
		s.spare--
	}
	g.tags[p.slot] = tagOf(k)
	g.records[p.slot] = record{key: k}
	g.freshAt[p.slot] = 0
	s.live++
	return p
}

// vacancy is the first slot on k's way that is not in use: its home, or else the first of a group.
func (s *shard) vacancy(k Key) place {
	i := s.start(k)
	if slot := home(k); s.groups[i].tags[slot] < tagUsed {
		return place{group: i, slot: slot, moves: s.moves}
	}
	for {
		if free := ^s.groups[i].word() & highBits; free != 0 {
			return place{group: i, slot: bits.TrailingZeros64(free) / 8, moves: s.moves}
		}
		if i++; i == len(s.groups) {
			i = 0
		}
	}
}

// remove frees a slot. In a group with an empty slot no search goes past it, so it may become empty too.
func (s *shard) remove(p place) {
	g := &s.groups[p.group]
	s.clean(p, everyone)
	if zeroBytes(g.word()) != 0 {
		g.tags[p.slot] = tagEmpty
		s.spare++
	} else {
		g.tags[p.slot] = tagDeleted
		s.dead++
	}
	s.live--
}

// grow lays the shard out anew with room for at least one more record: by a seventh, or, when enough slots are
// merely deleted, at its size. At its bound of counters fewer deleted ones are enough, to keep it small.
func (s *shard) grow() {
	n := len(s.groups)
	enough := s.live / 8
	if s.live+len(s.logs) >= s.max-1 {
		enough = s.live / 16
	}
	if s.dead <= enough {
		n += max(1, n/7)
	}
	s.layOut(n)
}

// shrink gives memory back when less than a third of the shard is used.
func (s *shard) shrink() {
	if s.live == 0 {
		release(s.groups)
		s.groups, s.spare, s.dead, s.trail.groups = nil, 0, 0, nil
		s.moves++
		return
	}
	if slots := len(s.groups) * groupSlots; slots*groupBytes/groupSlots > pageBytes && s.live*3 < slots {
		s.layOut(s.live*3/2/groupSlots + 1)
	}
}

// layOut moves all records to n groups, or as many as fill the last page.
func (s *shard) layOut(n int) {
	old := s.groups
	if n*groupBytes >= pageBytes {
		pages := (n*groupBytes + pageBytes - 1) / pageBytes
		n = pages * pageBytes / groupBytes
	}
	s.groups = allocate(n)
	s.moves++
	s.spare = len(s.groups)*groupSlots*7/8 - s.live
	s.dead = 0
	s.trail.groups, s.trail.lost = s.trail.groups[:0], s.trail.lost || s.unsent > 0
	for i := range old {
		g := &old[i]
		for slot := range groupSlots {
			if g.tags[slot] < tagUsed {
				continue
			}
			p := s.vacancy(g.records[slot].key)
			to := &s.groups[p.group]
			to.tags[p.slot] = g.tags[slot]
			to.marks[p.slot] = g.marks[slot]
			to.freshAt[p.slot] = g.freshAt[slot]
			to.dirty |= g.dirty >> slot & uint64(everyone) << p.slot
			to.records[p.slot] = g.records[slot]
		}
	}
	release(old)
}
