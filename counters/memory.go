package counters

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/rlnode/rlnode/counters/pages"
)

// memory holds the groups of a table's subtables, outside the garbage-collected
// heap: the collector neither scans them nor counts them when it decides when
// to start the next cycle. Groups that fill less than a page stay on the heap.
// With few counters spread over all shards, pages of their own would cost more
// processor time than the counters do.
//
// A slab consists of pieces of one size, which lie one after another without
// gaps: when a piece is freed, the last one moves to its place. So no memory is
// lost to gaps, and the slab can be mapped with large pages. Large pages pay in
// a table much larger than the processor's caches: with small ones, a check
// waits about as long for the translation of an address as for its contents.
type memory struct {
	// mu guards all below. A caller that holds a shard may lock mu. A caller that
	// holds mu may lock a shard only with TryLock.
	mu sync.Mutex
	// slabs are ordered by the size of their pieces. A subtable that no slab has
	// pieces for is on the heap. That happens only to a subtable that can't be
	// split any more: see maxPrefixBits.
	slabs [34]slab
	page  int // size of the system's pages, in bytes; never changes

	turn      int // the slab where the last search for memory to move to a large page ended
	failures  int // attempts that failed since the last success
	pauseLeft int // calls of tidy that still pass before the next attempt
}

// slab holds the pieces of one size.
type slab struct {
	// The first three never change.

	groups   int // in a piece
	bytes    int // of a piece: whole pages
	capacity int // pieces for which the slab reserves addresses; further ones are on the heap

	mapped, area []byte      // area begins at a large page within mapped; both are nil if there are no pieces
	owners       []*subtable // by piece; nil for a hole; the last piece is never a hole
	holes        int         // pieces that were freed while the shard of the last piece was busy
	usable       int         // bytes at the beginning of area that may be accessed
	largeBytes   int         // bytes at the beginning of area that are in large pages
	isMoving     bool        // memory is being moved to a large page, so area must not be unmapped
}

// init prepares slabs of at most capacity pieces each. page is the size of the
// system's pages, in bytes. A slab's pieces have a size that a growing subtable
// passes through.
func (m *memory) init(capacity, page int) {
	m.page = page
	n := (page - 1) / groupBytes // the most on the heap
	for i := range m.slabs {
		n = oneSeventhMore(n)
		bytes := (n*groupBytes + page - 1) / page * page
		n = bytes / groupBytes
		m.slabs[i] = slab{groups: n, bytes: bytes, capacity: capacity}
	}
}

// oneSeventhMore returns to how many groups a subtable of n groups grows,
// before they are rounded up.
func oneSeventhMore(n int) int { return n + max(1, n/7) }

// slabFor returns the slab with the smallest pieces that hold n groups. It
// returns nil if n groups belong on the heap.
func (m *memory) slabFor(n int) *slab {
	if n*groupBytes < m.page {
		return nil
	}
	for i := range m.slabs {
		if sb := &m.slabs[i]; n <= sb.groups {
			return sb
		}
	}
	return nil
}

// allocate returns n zeroed groups for sub, rounded up to the size of a piece.
// The caller must hold the shard until sub uses them.
func (m *memory) allocate(sub *subtable, n int) []group {
	sb := m.slabFor(n)
	if sb == nil {
		return make([]group, n)
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	if sb.area == nil {
		sb.mapped, sb.area = pages.Reserve(sb.capacity * sb.bytes)
	}

	i := len(sb.owners)
	if sb.holes > 0 {
		// A hole is zero: it was discarded when it was freed.
		i = slices.Index(sb.owners, nil)
		sb.owners[i] = sub
		sb.holes--
	} else if i < sb.capacity && sb.makeUsable((i+1)*sb.bytes) {
		sb.owners = append(sb.owners, sub)
	} else {
		sb.unreserveIfEmpty()
		return make([]group, sb.groups)
	}

	return sb.groupsOf(i)
}

// makeUsable makes the first n bytes of area accessible. It returns false if the system refuses.
func (sb *slab) makeUsable(n int) bool {
	if n <= sb.usable {
		return true
	}
	end := min((n+pages.Large-1)/pages.Large*pages.Large, len(sb.area))
	if n > end || !pages.MakeUsable(sb.area[sb.usable:end]) {
		return false
	}
	sb.usable = end
	return true
}

// release frees groups, which nothing uses now and which belonged to a subtable
// of holder. The caller must hold that shard. Another subtable may move to the
// place that becomes free, even one of holder.
func (m *memory) release(holder *shard, groups []group) {
	sb := m.slabFor(len(groups))
	if sb == nil {
		return
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	// Groups on the heap, for which the slab had no piece, are left to the
	// collector.
	if i, ok := sb.indexOf(groups); ok {
		sb.owners[i] = nil
		sb.holes++
		if !sb.fill(i, holder) {
			sb.discard(i)
		}
	}
}

// fill moves the last piece into hole i, unless i is the last piece itself. It
// returns false if the last piece's shard is busy. holder is the shard that the
// caller holds; nil if none.
func (sb *slab) fill(i int, holder *shard) bool {
	last := len(sb.owners) - 1
	if i != last {
		other := sb.owners[last]
		if other.shard != holder {
			if !other.shard.mu.TryLock() { // waiting could deadlock
				return false
			}
			defer other.shard.mu.Unlock()
		}

		copy(sb.piece(i), sb.piece(last))
		other.setGroups(sb.groupsOf(i))
		sb.owners[i], sb.owners[last] = other, nil
	}

	sb.discard(last)

	// A hole must not be last, so holes right before it go as well.
	for n := len(sb.owners); n > 0 && sb.owners[n-1] == nil; n-- {
		sb.owners = sb.owners[:n-1]
		sb.holes--
	}

	sb.unreserveIfEmpty()
	return true
}

func (sb *slab) unreserveIfEmpty() {
	if len(sb.owners) == 0 && !sb.isMoving {
		pages.Unreserve(sb.mapped)
		sb.mapped = nil
		sb.area = nil
		sb.owners = nil
		sb.usable = 0
		sb.largeBytes = 0
	}
}

// maxPause is how many calls of tidy pass at most before it tries again to get a large page.
const maxPause = 127

// tidy fills holes, and moves one stretch of memory to a large page. It moves
// only one, because checks of the counters there wait meanwhile. While the
// system has no large pages to give, tidy tries ever more seldom. The caller
// must not hold a shard.
func (m *memory) tidy() {
	m.mu.Lock()
	defer m.mu.Unlock()

	for i := range m.slabs {
		sb := &m.slabs[i]
		for sb.holes > 0 {
			hole := slices.Index(sb.owners, nil)
			if !sb.fill(hole, nil) {
				break
			}
		}
	}

	if m.pauseLeft > 0 {
		m.pauseLeft--
		return
	}

	for range m.slabs {
		m.turn = (m.turn + 1) % len(m.slabs)
		sb := &m.slabs[m.turn]
		if end := sb.largeBytes + pages.Large; end <= len(sb.owners)*sb.bytes && !sb.isMoving {
			m.enlarge(sb, end)
			return
		}
	}
}

// enlarge moves the stretch of sb that ends at end to a large page. It unlocks
// m meanwhile, because the system may first have to make room.
func (m *memory) enlarge(sb *slab, end int) {
	sb.largeBytes, sb.isMoving = end, true // a discard meanwhile lowers largeBytes again
	m.mu.Unlock()
	moved := pages.Enlarge(sb.area[end-pages.Large : end])
	m.mu.Lock()
	sb.isMoving = false

	if used := len(sb.owners) * sb.bytes; used < end {
		pages.Discard(sb.area[used:end]) // freed meanwhile, but the large page has taken memory for it again
	}

	if moved {
		m.failures = 0
	} else {
		sb.largeBytes = min(sb.largeBytes, end-pages.Large)
		m.failures++
		m.pauseLeft = min(1<<min(m.failures, 10), maxPause)
	}

	sb.unreserveIfEmpty()
}

// piece returns the memory of piece i.
func (sb *slab) piece(i int) []byte { return sb.area[i*sb.bytes : (i+1)*sb.bytes] }

func (sb *slab) groupsOf(i int) []group {
	return unsafe.Slice((*group)(unsafe.Pointer(&sb.piece(i)[0])), sb.groups)
}

// indexOf returns the piece with these groups, unless they are on the heap.
func (sb *slab) indexOf(groups []group) (i int, ok bool) {
	if sb.area == nil {
		return 0, false
	}
	offset := uintptr(unsafe.Pointer(&groups[0])) - uintptr(unsafe.Pointer(&sb.area[0]))
	return int(offset) / sb.bytes, offset < uintptr(len(sb.area))
}

// discard zeroes piece i and gives its memory back to the system.
func (sb *slab) discard(i int) {
	pages.Discard(sb.piece(i))
	sb.largeBytes = min(sb.largeBytes, i*sb.bytes/pages.Large*pages.Large)
}
