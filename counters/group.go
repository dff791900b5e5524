package counters

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

const (
	groupSize  = 8 // slots in a group
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

// group is eight slots. A search first reads the tags, and the whole first
// cache line comes with them. A group holds no pointers, because it may lie
// outside the garbage-collected heap.
type group struct {
	tags           [groupSize]uint8
	kindFullnesses [groupSize]kindFullness
	expiresAt      [groupSize]uint32 // Unix seconds on the steady clock
	dirty          uint64            // slots with changes that a reader has not received yet; see bitsOf
	inline         uint8             // used slots that hold inline counters, one bit each
	_              [7]byte           // fills the first cache line, so that records begin with the next
	entries        [groupSize]groupEntry
}

type groupEntry struct {
	key   Key
	state algorithms.State
}

// set puts a counter's new state into its slot. The expiry never moves to an
// earlier time, even after a Give, which leaves less to expire. The copy on
// disk may live until the old expiry. If the counter left the table before
// that, the copy would come back at the next start.
func (g *group) set(slot int, kind algorithms.Kind, state algorithms.State, fullness uint8, expiresAt uint32) {
	g.entries[slot].state = state
	g.kindFullnesses[slot] = packKindFullness(kind, fullness)
	g.expiresAt[slot] = max(g.expiresAt[slot], expiresAt)
}

func tagOf(k Key) uint8 { return uint8(k.Counter) | tagUsed }

// tagWord returns the group's tags as one number, with slot 0 in the lowest byte.
func (g *group) tagWord() uint64 { return binary.LittleEndian.Uint64(g.tags[:]) }

// zeroBytes returns the high bit of each byte of w that is zero. A byte of 1
// right above a zero byte may seem to be zero as well.
func zeroBytes(w uint64) uint64 { return (w - lowBits) &^ w & highBits }

// slotOf returns the slot of g that holds k, or −1.
func (g *group) slotOf(k Key) int {
	for m := zeroBytes(g.tagWord() ^ uint64(tagOf(k))*lowBits); m != 0; m &= m - 1 {
		// The tags that match by mistake (see zeroBytes) belong to used slots, too. So
		// there is always a key to compare.
		if slot := bits.TrailingZeros64(m) / 8; g.entries[slot].key == k {
			return slot
		}
	}
	return -1
}

const (
	allReaders               = notes.Checkpoints | notes.Replicas
	noReaders  notes.Readers = 0

	replicasByte = 0xff << 8 // the replicas' byte of group.dirty
)

// bitsOf returns the bits that stand for a slot in group.dirty, for all of
// readers. Each reader has a byte there, in which bit i stands for slot i.
func bitsOf(slot int, readers notes.Readers) uint64 { return uint64(readers) << slot }

// isDirty reports whether a slot is marked for all of readers.
func (g *group) isDirty(slot int, readers notes.Readers) bool {
	return bitsOf(slot, readers)&^g.dirty == 0
}

// dirtySlots returns the slots marked for one reader, one bit each.
func (g *group) dirtySlots(readers notes.Readers) uint64 {
	return g.dirty >> bits.TrailingZeros64(uint64(readers)) & (1<<groupSize - 1)
}

// isUnreadReset reports whether a slot records a reset that one of the readers
// has not received yet. Only administrators reset counters, so such slots are
// rare.
func (g *group) isUnreadReset(slot int, readers notes.Readers) bool {
	return g.dirty&bitsOf(slot, readers) != 0 && g.entries[slot].state.Fresh()
}
