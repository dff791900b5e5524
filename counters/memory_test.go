package counters

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/pages"
	"github.com/rlnode/rlnode/internal/expect"
)

// memoryAddsUp checks that each piece belongs to the subtable that uses it, and
// that the holes are counted.
func memoryAddsUp(t interface {
	Helper()
	Fatalf(string, ...any)
}, table *Table) {
	t.Helper()
	pieces, used := 0, 0
	for i := range table.memory.slabs {
		s := &table.memory.slabs[i]
		holes := 0
		for j, o := range s.owners {
			switch {
			case o == nil:
				holes++
			case len(o.groups) != s.groups || &o.groups[0] != &s.groupsOf(j)[0]:
				t.Fatalf("piece %d of %d groups belongs to a subtable that does not use it", j, s.groups)
			default:
				pieces++
			}
		}
		n := len(s.owners)
		if holes != s.holes || n > 0 && s.owners[n-1] == nil || n == 0 && s.area != nil || n*s.bytes < s.largeBytes {
			t.Fatalf("a slab has %d pieces, %d holes of %d counted, %d bytes in large pages", n,
				holes, s.holes, s.largeBytes)
		}
	}
	for i := range table.shards {
		table.shards[i].forEachLocked(func(sub *subtable) {
			if s := table.memory.slabFor(len(sub.groups)); s != nil {
				if _, ok := s.indexOf(sub.groups); ok {
					used++
				}
			}
		})
	}
	if used != pieces {
		t.Fatalf("%d pieces belong to subtables, %d are in use", pieces, used)
	}
}

func skipWithoutSlabs(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("all memory is on the heap")
	}
}

var (
	plenty = &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1 << 30, Window: time.Hour}
	brief  = &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1 << 30, Window: time.Second}
)

// While several callers add counters and sweeps drop others, pieces move all
// the time, and no count is lost. In the end, all memory is given back.
func TestPiecesMove(t *testing.T) {
	skipWithoutSlabs(t)
	const callers, each = 4, 60_000
	table := newTable(t, 1_000_000) // 64 shards
	done := make(chan struct{})
	var sweeps, checks sync.WaitGroup
	sweeps.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				table.Sweep(after(time.Minute), 0.1)
			}
		}
	})
	counts := func(c, i int) int64 { return int64(1 + (i+c)%3) }
	keyOf := func(c, i int) Key { return key(uint64(c*each + i)) }
	for c := range callers {
		checks.Go(func() {
			for i := range each {
				for range counts(c, i) {
					take(table, epoch, keyOf(c, i), plenty, 1)
				}
				take(table, epoch, key(uint64((callers+c)*each+i)), brief, 1) // the next sweep drops it
			}
		})
	}
	checks.Wait()
	close(done)
	sweeps.Wait()
	table.Sweep(after(time.Minute), 1)
	addsUp(t, table)
	expect.Equal(t, table.Stats().Counters, callers*each, "counters")
	for i := range table.memory.slabs {
		if n := table.memory.slabs[i].holes; n > 0 {
			t.Errorf("%d holes are left in a table at rest", n)
		}
	}
	for c := range callers {
		for i := range each {
			if used, _ := table.Usage(epoch, keyOf(c, i), plenty); used != counts(c, i) {
				t.Fatalf("caller %d, key %d: have %d, want %d", c, i, used, counts(c, i))
			}
		}
	}
	table.Sweep(after(3*time.Hour), 1)
	addsUp(t, table)
	for i := range table.memory.slabs {
		if s := &table.memory.slabs[i]; s.area != nil {
			t.Errorf("an empty table keeps pieces of %d groups", s.groups)
		}
	}
}

// fillShard adds n counters to a shard of a table with 64 of them.
func fillShard(table *Table, shard uint64, n int) {
	for i := range uint64(n) {
		take(table, epoch, inShard(shard<<6, i), plenty, int64(i))
	}
}

// checkShard checks the counters that fillShard has added.
func checkShard(t *testing.T, table *Table, shard uint64, n int) {
	t.Helper()
	for i := range uint64(n) {
		if used, _ := table.Usage(epoch, inShard(shard<<6, i), plenty); used != int64(i) {
			t.Fatalf("shard %d, key %d: have %d, want %d", shard, i, used, i)
		}
	}
}

// If the last piece can't move because its shard is busy, the freed piece is a
// hole. Whatever comes next fills it: a subtable that needs a piece, and finds
// it zeroed, or a sweep.
func TestHoles(t *testing.T) {
	skipWithoutSlabs(t)
	for _, next := range []string{"piece", "sweep"} {
		table := newTable(t, 100_000)
		if len(table.shards) != 64 {
			t.Fatalf("have %d shards", len(table.shards))
		}
		const n = 100
		for shard := range uint64(3) {
			fillShard(table, shard, n)
		}
		slab := table.memory.slabFor(len(table.shards[0].single.groups))
		if len(slab.owners) != 3 {
			t.Fatalf("have %d pieces", len(slab.owners))
		}
		table.shards[2].mu.Lock() // the last piece's
		table.shards[0].mu.Lock()
		table.shards[0].single.rehash(slab.groups + 1)
		table.shards[0].mu.Unlock()
		table.shards[2].mu.Unlock()
		if slab.holes != 1 || slab.owners[0] != nil {
			t.Fatalf("have %d holes", slab.holes)
		}
		addsUp(t, table)
		want := 3
		if next == "piece" {
			fillShard(table, 3, n)
		} else {
			table.Sweep(epoch, 1)
			want = 2
		}
		if slab.holes != 0 || len(slab.owners) != want {
			t.Errorf("%s: have %d holes in %d pieces", next, slab.holes, len(slab.owners))
		}
		addsUp(t, table)
		for shard := range uint64(want) {
			checkShard(t, table, shard, n)
		}
	}
}

// A subtable that gets rid of deleted slots ends up where it was.
func TestPurgedSubtableStays(t *testing.T) {
	skipWithoutSlabs(t)
	table := newTable(t, 100_000)
	for shard := range uint64(3) {
		fillShard(table, shard, 100)
	}
	sub := &table.shards[1].single
	before := &sub.groups[0]
	sub.shard.mu.Lock()
	sub.rehash(len(sub.groups))
	sub.shard.mu.Unlock()
	if &sub.groups[0] != before {
		t.Error("the subtable has moved")
	}
	addsUp(t, table)
	checkShard(t, table, 1, 100)
}

// A large bound takes more subtables than shards. All have room in a slab.
func TestCapacityOfSlabs(t *testing.T) {
	for _, bound := range []int64{1, 100_000, 10_000_000, 1_000_000_000, 1 << 33} {
		table := New(bound)
		slots := table.memory.slabs[0].capacity * table.maxSubtableSlots / 2
		if table.memory.slabs[0].capacity <= len(table.shards) || int64(slots) < bound {
			t.Errorf("bound %d: a slab has at most %d pieces, for %d shards", bound,
				table.memory.slabs[0].capacity, len(table.shards))
		}
		largest := table.memory.slabs[len(table.memory.slabs)-1].groups * groupSize
		if largest < table.maxSubtableSlots {
			t.Errorf("the largest pieces have %d slots, a subtable up to %d", largest, table.maxSubtableSlots)
		}
	}
}

// Pieces fill pages of any size, because only whole pages can be given back.
func TestPiecesFillPages(t *testing.T) {
	for _, page := range []int{4 << 10, 16 << 10, 64 << 10} {
		var m memory
		m.init(1, page)
		before := (page - 1) / groupBytes
		if m.slabFor(before) != nil {
			t.Errorf("pages of %d bytes: %d groups are not on the heap", page, before)
		}
		for i := range m.slabs {
			s := &m.slabs[i]
			if s.bytes%page != 0 || s.bytes < s.groups*groupBytes || s.bytes-s.groups*groupBytes >= groupBytes {
				t.Errorf("pages of %d bytes: %d groups have %d bytes", page, s.groups, s.bytes)
			}
			for _, n := range []int{before + 1, oneSeventhMore(before), s.groups} {
				if m.slabFor(n) != s {
					t.Errorf("pages of %d bytes: %d groups are not in the slab of %d", page, n, s.groups)
				}
			}
			before = s.groups
		}
		if m.slabFor(before+1) != nil {
			t.Errorf("pages of %d bytes: %d groups are not on the heap", page, before+1)
		}
	}
}

// Without addresses to spare, subtables are on the heap.
func TestMemoryOnTheHeap(t *testing.T) {
	table := newTable(t, 100_000)
	table.memory.init(2, os.Getpagesize())
	for shard := range uint64(4) {
		fillShard(table, shard, 1000)
	}
	addsUp(t, table)
	for shard := range uint64(4) {
		checkShard(t, table, shard, 1000)
	}
	table.Sweep(after(3*time.Hour), 1)
	addsUp(t, table)
	expect.Equal(t, table.Stats().Bytes, 0, "an empty table has bytes")
}

// Sweeps move full stretches of a slab to large pages, one at a time. Their
// contents remain. What is freed is no longer there.
func TestLargePages(t *testing.T) {
	skipWithoutSlabs(t)
	mapped, probe := pages.Reserve(pages.Large)
	supported := pages.MakeUsable(probe)
	if supported {
		probe[0] = 1
		supported = pages.Enlarge(probe)
	}
	pages.Unreserve(mapped)
	if !supported {
		t.Skip("the system has no large pages to spare, or can't move memory to them")
	}
	table := newTable(t, 10_000_000)
	const n = 150_000
	for i := range uint64(n) {
		limit := brief
		if i%6 == 0 {
			limit = plenty
		}
		take(table, epoch, key(i), limit, 1)
	}
	full := 0
	for i := range table.memory.slabs {
		s := &table.memory.slabs[i]
		full += len(s.owners) * s.bytes / pages.Large
	}
	if full < 2 {
		t.Fatalf("the table has %d full stretches", full)
	}
	for want := 1; want <= full+1; want++ {
		table.Sweep(epoch, 0)
		have := 0
		for i := range table.memory.slabs {
			have += table.memory.slabs[i].largeBytes / pages.Large
		}
		if table.memory.failures > 0 {
			t.Skip("the system has no more large pages to spare")
		}
		if have != min(want, full) {
			t.Fatalf("after %d sweeps, have %d stretches in large pages", want, have)
		}
	}
	if have := largeBytes(t); have < full/2*pages.Large { // the system may have split some meanwhile
		t.Errorf("have %d bytes in large pages, want %d", have, full*pages.Large)
	}
	check := func() {
		t.Helper()
		addsUp(t, table)
		for i := uint64(0); i < n; i += 6 {
			if used, _ := table.Usage(epoch, key(i), plenty); used != 1 {
				t.Fatalf("key %d: have %d", i, used)
			}
		}
	}
	check()
	for i := range table.shards {
		if s := &table.shards[i]; i%3 > 0 {
			s.mu.Lock()
			s.single.rehash(len(s.single.groups) + 1)
			s.mu.Unlock()
		}
	}
	check()
	table.Sweep(after(time.Minute), 1) // drops most
	check()
}

// Memory keeps its addresses while a part of it is moved to a large page.
func TestMemoryStaysWhileItMoves(t *testing.T) {
	skipWithoutSlabs(t)
	table := newTable(t, 10_000_000) // a slab may have several stretches
	fillShard(table, 0, 100)
	slab := table.memory.slabFor(len(table.shards[0].single.groups))
	slab.isMoving = true
	table.Sweep(after(3*time.Hour), 1)
	if slab.area == nil || len(slab.owners) != 0 {
		t.Errorf("have %d bytes for %d pieces", len(slab.area), len(slab.owners))
	}
	slab.isMoving = false
	fillShard(table, 0, 100)
	if !slab.makeUsable(pages.Large) {
		t.Fatal("the system refuses memory")
	}
	slab.area[len(slab.owners)*slab.bytes] = 1 // as if a piece was freed while it moved
	table.memory.mu.Lock()
	table.memory.enlarge(slab, pages.Large)
	table.memory.mu.Unlock()
	if slab.area[len(slab.owners)*slab.bytes] != 0 {
		t.Error("memory that was freed while it moved is still in use")
	}
	table.Sweep(after(3*time.Hour), 1)
	addsUp(t, table)
}

// largeBytes returns the memory of this process in large pages.
func largeBytes(t *testing.T) (n int) {
	t.Helper()
	rollup, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(rollup)) {
		if name, value, _ := strings.Cut(line, ":"); name == "AnonHugePages" {
			kB, err := strconv.Atoi(strings.Fields(value)[0])
			expect.NoError(t, err)
			n += kB << 10
		}
	}
	return n
}

// If the system has no large pages, tidy tries ever more seldom, until it gets one.
func TestLargePagesAreNotForced(t *testing.T) {
	skipWithoutSlabs(t)
	var m memory
	m.init(1, os.Getpagesize())
	mapped, area := pages.Reserve(2 * pages.Large)
	defer pages.Unreserve(mapped)
	if !pages.MakeUsable(area) {
		t.Skip("the system refuses memory")
	}
	s := &m.slabs[0]
	s.area, s.owners = area[1:], make([]*subtable, 1+pages.Large/s.bytes)
	for i := range s.owners {
		s.owners[i] = &subtable{}
	}
	var attempts []int // all fail: the stretch does not begin at a page
	for call := range 1000 {
		before := m.failures
		if m.tidy(); m.failures > before {
			attempts = append(attempts, call)
		}
	}
	if len(attempts) < 10 || len(attempts) > 20 || s.largeBytes != 0 {
		t.Errorf("tidy tried at calls %v", attempts)
	}
	s.area, m.pauseLeft = area, 0
	area[0] = 1
	if m.tidy(); s.largeBytes > 0 && m.failures > 0 {
		t.Errorf("have %d failures after a success", m.failures)
	}
}
