package counters

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/rlnode/rlnode/algorithms"
)

// addsUp checks that the budget, the shards' room and their counters add up to
// the table's bound, that subtables partition their shards, and that their
// counts are right.
func addsUp(t interface {
	Helper()
	Fatalf(string, ...any)
}, table *Table) {
	t.Helper()
	sum := table.budget.Load()
	for i := range table.shards {
		s := &table.shards[i]
		sum += int64(s.room)
		bits := 0
		if s.subtables != nil {
			bits = s.subtables.prefixBits
		}
		if s.room < 0 || s.subtables != nil && len(s.subtables.list) != 1<<bits {
			t.Fatalf("shard %d has room for %d, and subtables by %d bits", i, s.room, bits)
		}
		next, inline := uint64(0), 0
		s.forEachLocked(func(sub *subtable) {
			if sub.lowestCounter != next || sub.prefixBits > bits {
				t.Fatalf("shard %d: a subtable of %d bits begins at %x, want %x", i, sub.prefixBits,
					sub.lowestCounter, next)
			}
			next += 1 << (64 - sub.prefixBits)
			live := 0
			for j := range sub.groups {
				for slot, tag := range sub.groups[j].tags {
					if k := sub.groups[j].entries[slot].key; tag >= tagUsed {
						if s.subtables == nil &&
							s.hint.groupOf(k) != uintptr(unsafe.Pointer(&sub.groups[sub.firstGroup(k)])) {
							t.Fatalf("shard %d: the hint says that %x is in another group", i, k)
						}
						live++
						if s.subtableOf(k) != sub || !sub.find(k).found() {
							t.Fatalf("shard %d: %x is in the wrong subtable", i, k)
						}
						inline += int(k.class())
						if class(sub.groups[j].inline>>slot&1) != k.class() {
							t.Fatalf("shard %d: %x is marked as the other class", i, k)
						}
					}
				}
			}
			if live != sub.live || sub.live+sub.dead+sub.growthLeft != len(sub.groups)*groupSize*7/8 {
				t.Fatalf("shard %d: %d live, of %d, with %d dead and %d spare in %d groups", i,
					live, sub.live, sub.dead, sub.growthLeft, len(sub.groups))
			}
			sum += int64(sub.count())
			for k := range sub.logs {
				inline += int(k.class())
			}
		})
		if s.inline != inline || inline > table.maxInline {
			t.Fatalf("shard %d: %d inline counters, of at most %d, and %d counted", i, inline,
				table.maxInline, s.inline)
		}
		if next != 0 {
			t.Fatalf("shard %d: its subtables end at %x", i, next)
		}
	}
	if sum != table.maxCounters {
		t.Fatalf("counters, room and budget add up to %d, want %d", sum, table.maxCounters)
	}
	memoryAddsUp(t, table)
}

// inShard returns the n-th key of a shard that is the same in all tables with up to 4,096 shards.
func inShard(shard uint64, n uint64) Key {
	k := key(n)
	k.Subject = k.Subject>>12 | shard<<52
	return k
}

// refuseAll fills one shard with n refused subjects.
func refuseAll(table *Table, l *algorithms.Limit, n uint64) {
	ops := []Op{{Limit: l, Cost: 1}}
	for i := range n {
		ops[0].Key = inShard(7, i)
		table.Take(epoch, ops)
		table.Take(epoch, ops)
	}
}

// An attacker who can predict where subjects land fills one shard with refusing
// counters. Other subjects in that shard are still admitted, in large and small
// tables, as long as the table has room or a counter that does not refuse. No
// subtable grows large meanwhile, and all memory is released.
func TestOneShardIsFilled(t *testing.T) {
	for name, tt := range map[string]struct {
		bound int64
		n     uint64
	}{
		"59,400 in a default table": {10_000_000, 59_400},
		"a million":                 {10_000_000, 1_000_000},
		"most of a small table":     {100_000, 90_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := tt.n
			if testing.Short() && n > 100_000 {
				n = 100_000
			}
			table := newTable(t, tt.bound)
			l := perMinute(algorithms.FixedWindow, 1)
			refuseAll(table, l, n)
			for i := range uint64(1000) {
				if d := take(table, epoch, inShard(7, 1<<40+i), l, 1); !d.Allowed {
					t.Fatalf("newcomer %d is locked out: %+v", i, d)
				}
			}
			if used, _ := table.Usage(epoch, inShard(7, 0), l); used != 1 {
				t.Error("a refused subject was forgotten")
			}
			addsUp(t, table)
			st := table.Stats()
			if st.Counters != int64(n)+1000 || st.Evicted+st.Refused != 0 || st.Bytes > 66*st.Counters+1<<20 {
				t.Errorf("have %+v: %d bytes a counter", st, st.Bytes/st.Counters)
			}
			for i := range table.shards {
				table.shards[i].forEachLocked(func(sub *subtable) {
					if len(sub.groups)*groupSize > table.maxSubtableSlots*8/7 {
						t.Errorf("a subtable has %d groups", len(sub.groups))
					}
				})
			}
			table.Sweep(after(2*time.Minute), 1)
			addsUp(t, table)
			if st := table.Stats(); st.Counters != 0 || st.Bytes != 0 {
				t.Errorf("after all: have %+v", st)
			}
			if unused := table.maxCounters - table.budget.Load(); unused > 2*int64(table.drawSize*len(table.shards)) {
				t.Errorf("the shards keep room for %d", unused)
			}
		})
	}
}

// The table is at its bound; one shard has only refusing counters, and the
// others have none. A newcomer in that shard gets the room of another shard's
// counter that is close to fresh.
func TestFullShardOfAFullTable(t *testing.T) {
	for _, bound := range []int64{20_000, 300_000} {
		table := newTable(t, bound)
		l := perMinute(algorithms.FixedWindow, 1)
		many := perMinute(algorithms.FixedWindow, 1000)
		refuseAll(table, l, uint64(bound/5))
		for i := range uint64(bound) {
			if k := key(1<<32 + i); k.Subject>>52 != 7 {
				take(table, epoch, k, many, 1)
			}
		}
		for i := range uint64(bound / 10) {
			k := inShard(7, 1<<40+i)
			if d := take(table, epoch, k, l, 1); !d.Allowed {
				t.Fatalf("%d: newcomer %d is locked out: %+v", bound, i, d)
			}
			take(table, epoch, k, l, 1) // refused from now on
		}
		for i := range uint64(bound / 5) {
			if used, _ := table.Usage(epoch, inShard(7, i), l); used != 1 {
				t.Fatalf("%d: refused subject %d was forgotten", bound, i)
			}
		}
		addsUp(t, table)
		if st := table.Stats(); st.Counters > bound || st.Counters < bound*15/16 || st.Refused != 0 {
			t.Errorf("%d: have %+v", bound, st)
		}
	}
}

// A newcomer in any shard is refused only if the whole table refuses, and only
// until a counter is free.
func TestNothingButRefusals(t *testing.T) {
	const bound = 20_000
	table := newTable(t, bound)
	l := perMinute(algorithms.FixedWindow, 1)
	admitted := uint64(0)
	for i := range uint64(2 * bound) {
		if take(table, epoch, key(i), l, 1).Allowed {
			admitted++
			take(table, epoch, key(i), l, 1)
		}
	}
	if admitted != bound {
		t.Errorf("%d subjects found room, of %d", admitted, bound)
	}
	if st := table.Stats(); st.Counters != bound || st.Evicted != 0 || st.Refused == 0 {
		t.Errorf("have %+v", st)
	}
	addsUp(t, table)
	if d := take(table, after(2*time.Minute), inShard(7, 1<<40), l, 1); !d.Allowed {
		t.Errorf("still refused when the others are fresh: %+v", d)
	}
}

// Some goroutines fill several shards concurrently, others empty, copy and save
// them. No refusing counter is lost, and the counts add up.
func TestShardsGrowTogether(t *testing.T) {
	table := newTable(t, 40_000)
	table.maxSubtableSlots = 256
	l := perMinute(algorithms.FixedWindow, 1)
	first := perMinute(algorithms.FixedWindow, 2)
	for i := range uint64(100) {
		take(table, epoch, inShard(i%3, i), first, 2)
	}
	var fill, around sync.WaitGroup
	done := make(chan struct{})
	for w := range uint64(4) {
		fill.Go(func() {
			for i := range uint64(30_000) {
				k := inShard((w+i)%3, 1<<40+w<<32+i)
				ops := []Op{{Key: k, Limit: l, Cost: 1},
					{Key: Key{Subject: k.Subject + 1<<60, Counter: k.Counter + 1}, Limit: l, Cost: 1}}
				table.Take(epoch, ops)
			}
		})
	}
	for _, f := range []func(){
		func() { table.Sweep(epoch, 0.5) },
		func() { table.DrainChanges(func([]Record) error { return nil }) },
		func() {
			table.Copy(1, func([]Record) error { return nil })
			table.Replicate(func(p int) bool { return p < 2 }, func(int, []Record) error { return nil })
		},
		func() { table.Drop(64 + rand.IntN(3)) },
		func() { table.Stats() },
	} {
		around.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					f()
				}
			}
		})
	}
	fill.Wait()
	close(done)
	around.Wait()
	addsUp(t, table)
	if st := table.Stats(); st.Counters > table.maxCounters {
		t.Errorf("have %+v", st)
	}
	for i := range uint64(100) {
		if used, _ := table.Usage(epoch, inShard(i%3, i), first); used > 2 {
			t.Errorf("counter %d: %d used", i, used)
		}
	}
	table.Sweep(after(2*time.Minute), 1)
	addsUp(t, table)
	if st := table.Stats(); st.Counters != 0 || st.Bytes != 0 {
		t.Errorf("after all: have %+v", st)
	}
}
