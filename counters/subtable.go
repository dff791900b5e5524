package counters

import (
	"iter"
	"math/bits"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

// subtable is an open-addressing hash table of counters. The search for a key
// begins at the group selected by Key.Counter, and continues group by group
// until one has an empty slot. At most seven eighths of the slots are in use.
// The subtable grows by a seventh at a time, so growing never leaves it much
// emptier than that. Its shard's lock guards it.
type subtable struct {
	groups     []group
	moves      int // how many times the records were moved; earlier locations are invalid
	prefixBits int // number of leading bits of Key.Counter that all keys here share; see shard
	// live, dead and growthLeft always add up to 7/8 of the slots, so a search always
	// reaches an empty one.
	live          int    // slots in use
	dead          int    // slots marked deleted
	growthLeft    int    // empty slots that may be filled before the subtable must be rehashed
	lowestCounter uint64 // the lowest possible Key.Counter here
	shard         *shard

	logs       map[Key]*storedLog
	unsentList dirtyList // locates unsent changes
	clockHand  int       // the group where the last search for a victim ended

	// lastSearch is the result of the last search for a victim, by class of the newcomer.
	lastSearch [numClasses]struct {
		until  int64 // steady nanoseconds: that search found no victim, so the next one waits until then
		freeAt int64 // Unix seconds on the steady clock: when the first refusing counter that it saw will be fresh
	}
}

// storedLog is a counter under sliding-window-log.
type storedLog struct {
	log          algorithms.Log
	kindFullness kindFullness
	expiresAt    uint32
	dirty        notes.Readers
}

// location says where a counter is. A later move of the subtable's records
// makes it invalid: moves then differs from the subtable's.
type location struct {
	// subtable is first of four fields: with more, the compiler would keep
	// locations in memory rather than in registers.
	subtable *subtable
	index    int // of the slot, across all groups; −1 if the counter is a log or was not found
	moves    int
	log      *storedLog
}

func (loc location) found() bool { return loc.index >= 0 || loc.log != nil }

// groupIndex, slot and group are valid only for a counter that was found and is not a log.
func (loc location) groupIndex() int { return int(uint(loc.index) / groupSize) }
func (loc location) slot() int       { return loc.index & (groupSize - 1) }
func (loc location) group() *group   { return &loc.subtable.groups[uint(loc.index)/groupSize] }

func (loc location) key() Key { return loc.group().entries[loc.slot()].key }

func (loc location) state() algorithms.State {
	if loc.index < 0 {
		return algorithms.State{}
	}
	return loc.group().entries[loc.slot()].state
}

// logOrFresh returns the log at loc or, if it has none, a fresh one.
func (loc location) logOrFresh() *algorithms.Log {
	if loc.log != nil {
		return &loc.log.log
	}
	return &algorithms.Log{}
}

// locationAt returns the location of the slot with that index across all groups.
func (sub *subtable) locationAt(index int) location {
	return location{subtable: sub, index: index, moves: sub.moves}
}

// firstGroup returns the group at which the search for k begins.
func (sub *subtable) firstGroup(k Key) int {
	hi, _ := bits.Mul64(k.Counter<<(sub.prefixBits&63), uint64(len(sub.groups)))
	return int(hi)
}

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
			return i*groupSize + slot
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

// insert puts k, with a zero state, into a slot. k must not be in the subtable,
// and there must be a spare slot.
func (sub *subtable) insert(k Key) location {
	loc := sub.vacantLocation(k)
	g := loc.group()
	if g.tags[loc.slot()] == tagDeleted {
		sub.dead--
	} else {
		sub.growthLeft--
	}

	g.tags[loc.slot()] = tagOf(k)
	g.inline = g.inline&^(1<<loc.slot()) | uint8(k.class())<<loc.slot()
	g.entries[loc.slot()] = groupEntry{key: k}

	// set never lowers an expiry. The expiry of the slot's last counter must not
	// stay for this one.
	g.expiresAt[loc.slot()] = 0
	sub.live++

	return loc
}

// vacantLocation returns the first unused slot for k in search order.
func (sub *subtable) vacantLocation(k Key) location {
	for i := sub.firstGroup(k); ; {
		if free := ^sub.groups[i].tagWord() & highBits; free != 0 {
			return sub.locationAt(i*groupSize + bits.TrailingZeros64(free)/8)
		}
		i++
		if i == len(sub.groups) {
			i = 0
		}
	}
}

// freeEntry gives up a slot. If the group has an empty slot, no search continues
// past the group, so the freed slot may become empty as well. Otherwise it is
// marked deleted, so that searches go on to the next group.
func (sub *subtable) freeEntry(loc location) {
	g := loc.group()
	if zeroBytes(g.tagWord()) != 0 {
		g.tags[loc.slot()] = tagEmpty
		sub.growthLeft++
	} else {
		g.tags[loc.slot()] = tagDeleted
		sub.dead++
	}
	sub.live--
}

// putLog inserts a log under k, which must not have one.
func (sub *subtable) putLog(k Key, e *storedLog) {
	if sub.logs == nil {
		sub.logs = make(map[Key]*storedLog)
	}
	sub.logs[k] = e
}

// locations yields the location of each slot in use. The caller may free the slot.
func (sub *subtable) locations() iter.Seq[location] {
	return func(yield func(location) bool) {
		for i := range sub.groups {
			for slot, tag := range sub.groups[i].tags {
				if tag >= tagUsed && !yield(sub.locationAt(i*groupSize+slot)) {
					return
				}
			}
		}
	}
}

// count returns the number of counters, including logs.
func (sub *subtable) count() int { return sub.live + len(sub.logs) }

// maxDirtyList bounds each part of a dirtyList. The groups are also limited to
// about an eighth of all groups: visiting more than that in random order costs
// as much as scanning them all.
const maxDirtyList = 256

// dirtyList lists where a subtable changed since replicas last received its
// changes, to save a full scan. An entry may appear twice, or be clean again.
type dirtyList struct {
	groups     []uint32
	logs       []Key
	incomplete bool // some changes are not listed, so a full scan is needed
}

// hasChanges reports whether there may be changes: dl lists some, or does not
// list all.
func (dl *dirtyList) hasChanges() bool { return dl.incomplete || len(dl.groups)+len(dl.logs) > 0 }

// addGroup adds group i of the n groups.
func (dl *dirtyList) addGroup(i, n int) {
	dl.incomplete = dl.incomplete || len(dl.groups) >= min(maxDirtyList, n/8+8)
	if !dl.incomplete {
		dl.groups = append(dl.groups, uint32(i))
	}
}

func (dl *dirtyList) addLog(k Key) {
	dl.incomplete = dl.incomplete || len(dl.logs) >= maxDirtyList
	if !dl.incomplete {
		dl.logs = append(dl.logs, k)
	}
}
