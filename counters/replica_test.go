package counters

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// keyIn returns a key of partition p.
func keyIn(p int, n uint64) Key {
	k := key(n)
	return Key{Subject: uint64(p)<<52 | k.Subject>>12, Counter: k.Counter}
}

// contents returns all counters of p, by key.
func contents(tb testing.TB, t *Table, p int) map[Key]Record {
	tb.Helper()
	out := map[Key]Record{}
	err := t.Copy(p, func(b []Record) error {
		for _, r := range onlyCounters(b) {
			if _, twice := out[r.Key]; twice {
				tb.Fatalf("%v comes twice", r.Key)
			}
			out[r.Key] = r
		}
		return nil
	})
	expect.NoError(tb, err)
	return out
}

// handOff takes from a partition of one table concurrently while it moves to
// another, and checks that nothing is lost on the way.
func handOff(t *testing.T, bound int64) {
	const p, keys = 77, 20
	from, to := New(bound), New(bound)
	defer from.Close()
	defer to.Close()
	to.ShutAll()
	limits := []*algorithms.Limit{perMinute(algorithms.FixedWindow, 1<<40), perMinute(algorithms.SlidingLog, 1<<40)}
	var admitted [keys]atomic.Int64
	var shut atomic.Bool
	var hammers sync.WaitGroup
	for w := range uint64(3) {
		hammers.Go(func() {
			for i := w; ; i++ {
				n := i * 7 % keys
				other := keyIn(p+1, n) // in a neighbour that stays open
				l := limits[n%2]
				late := shut.Load()
				switch from.Take(epoch, []Op{{Key: keyIn(p, n), Limit: l, Cost: 1}, {Key: other, Limit: l, Cost: 1}}) {
				case Admitted:
					admitted[n].Add(1)
					if late {
						t.Error("admitted after Shut returned")
						return
					}
				case Undecided:
					return
				case Refused:
					t.Error("refused")
					return
				}
			}
		})
	}
	for n := 0; n < keys; runtime.Gosched() { // until all keys are in use
		for n = 0; n < keys && admitted[n].Load() > 0; {
			n++
		}
	}
	receive := func(b []Record) error {
		for _, r := range onlyCounters(b) {
			if !to.Put(epoch, r) {
				return errors.New("no room")
			}
		}
		return nil
	}
	if err := from.Copy(p, receive); err != nil {
		t.Error(err)
	}
	for range 3 {
		err := from.Replicate(func(q int) bool { return q == p }, func(_ int, b []Record) error { return receive(b) })
		if err != nil {
			t.Error(err)
		}
	}
	from.Shut(p)
	shut.Store(true)
	if err := receive(from.ReplicatePartition(p, nil)); err != nil {
		t.Error(err)
	}
	hammers.Wait()
	if have, want := contents(t, to, p), contents(t, from, p); !reflect.DeepEqual(have, want) {
		t.Fatalf("have %+v, want %+v", have, want)
	}
	for n := range admitted {
		used, _ := to.Usage(epoch, keyIn(p, uint64(n)), limits[n%2])
		expect.Equal(t, used, admitted[n].Load(), "key %d, used", n)
	}
	to.Open(p, soleLineage)
	expect.Equal(t, to.Take(epoch, []Op{{Key: keyIn(p, 0), Limit: limits[0], Cost: 1}}), Admitted, "at the new owner")
	expect.Equal(t, to.Take(epoch, []Op{{Key: keyIn(p+1, 0), Limit: limits[0], Cost: 1}}), Undecided, "in another partition")
}

func TestG6_HandOffForgetsNothing(t *testing.T) {
	for range 30 {
		handOff(t, 100_000)
	}
	for range 2 {
		handOff(t, 200_000_000) // several shards per partition
	}
}

func TestShutPreventsChanges(t *testing.T) {
	table, l := newTable(t, 1000), perMinute(algorithms.TokenBucket, 10)
	k := keyIn(5, 1)
	take(table, epoch, k, l, 3)
	table.Shut(5)
	taken := algorithms.TakeRecord{Steady: epoch.Steady}
	for what, err := range map[string]error{
		"force": table.force(epoch, k, l, taken, 1), "penalize": table.penalize(epoch, k, l, 1),
		"give": table.give(epoch, k, l, taken, 1), "reward": table.reward(epoch, k, l, 1),
		"reset": table.makeFresh(epoch, k, l),
	} {
		expect.ErrorIs(t, err, ErrShut, "%s", what)
	}
	ops := []Op{{Key: keyIn(6, 1), Limit: l, Cost: 1}, {Key: k, Limit: l, Cost: 1}}
	expect.Equal(t, table.Take(epoch, ops), Undecided, "take")
	expect.Equal(t, table.Peek(epoch, ops), Undecided, "peek")
	if used, _ := table.Usage(epoch, k, l); used != 3 || table.Stats().Counters != 1 {
		t.Errorf("have %d used, %d counters", used, table.Stats().Counters)
	}
	expect.Equal(t, table.TakeUngated(epoch, ops), Admitted, "take ungated")
	table.ShutAll()
	if table.IsOpen(6) {
		t.Error("open after ShutAll")
	}
	if table.Open(6, soleLineage); !table.IsOpen(6) || table.IsOpen(5) || table.IsOpen(7) {
		t.Error("Open opened another partition, or none")
	}
}

// Replicate yields more changes than a dirty list holds, and even after a shard
// was rehashed. Each partition's notes come with its counters.
func TestReplicateBeyondTheDirtyList(t *testing.T) {
	table := newTable(t, 1_000_000)
	fixed, log := perMinute(algorithms.FixedWindow, 100), perMinute(algorithms.SlidingLog, 100)
	everything := func() (n int) {
		last := -1
		err := table.Replicate(func(int) bool { return true }, func(p int, b []Record) error {
			if p <= last {
				t.Fatalf("partition %d after %d", p, last)
			}
			if slices.ContainsFunc(b, func(r Record) bool { return r.Key.Partition() != p }) {
				t.Fatalf("changes of other partitions among those of %d", p)
			}
			last = p
			n += len(b)
			return nil
		})
		expect.NoError(t, err)
		return n
	}
	everything() // notes are listed from now on
	for n := uint64(1); n < 200_000; n *= 4 {
		for i := range n {
			take(table, epoch, key(i), fixed, 1)
		}
		for i := range n / 4 {
			take(table, epoch, key(1<<40+i), log, 1)
		}
		const noted = ring.Partitions / 2
		for p := range noted {
			lp := table.Notes().Lock(p, epoch.Steady)
			lp.Put(&notes.Note{Key: notes.PartitionKey(notes.Debtor, p, 1), Rank: n, UntilSecond: math.MaxUint32})
			lp.Unlock()
		}
		if have, want := everything(), int(n+n/4)+noted; have != want {
			t.Fatalf("have %d changed, want %d", have, want)
		}
		if have := everything(); have != 0 {
			t.Fatalf("%d count as changed without a change", have)
		}
		take(table, epoch, key(0), fixed, 1)
		if have := everything(); have != 1 {
			t.Fatalf("have %d changed, want 1", have)
		}
	}
	take(table, epoch, key(0), fixed, 1)
	for i := range table.shards {
		s := &table.shards[i]
		if s.single.unsentList.incomplete {
			t.Fatal("a dirty list stays incomplete")
		}
		s.single.rehash(len(s.single.groups) + 20)
	}
	if have := everything(); have != 1 {
		t.Fatalf("have %d changed after the shards were rehashed, want 1", have)
	}
}

// Shut does not return while a decision that began earlier is running.
func TestShutWaits(t *testing.T) {
	table := newTable(t, 100_000)
	shards := table.shardsOf(7)
	held := &shards[len(shards)-1]
	held.mu.Lock() // as a decision does
	var returned atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		table.Shut(7)
		returned.Store(true)
	})
	for table.IsOpen(7) {
		runtime.Gosched()
	}
	for range 1000 {
		runtime.Gosched()
	}
	if returned.Load() {
		t.Error("Shut returned before the decision ended")
	}
	held.mu.Unlock()
	wg.Wait()
}

func TestDropReleasesMemory(t *testing.T) {
	for _, bound := range []int64{50_000, 200_000_000} {
		table := newTable(t, bound)
		fixed, log := perMinute(algorithms.FixedWindow, 100), perMinute(algorithms.SlidingLog, 100)
		for i := range uint64(300) {
			take(table, epoch, keyIn(9, i), fixed, 1)
			take(table, epoch, keyIn(9, 1000+i), log, 1)
		}
		take(table, epoch, keyIn(10, 1), fixed, 1)
		table.Drop(9)
		if st := table.Stats(); st.Counters != 1 || st.Logs != 0 || st.LogEntries != 0 || st.Expired+st.Evicted != 0 {
			t.Errorf("have %+v", st)
		}
		table.Drop(10)
		expect.Equal(t, table.Stats().Bytes, 0, "bytes")
		table.DrainChanges(func(b []Record) error { t.Errorf("dropped, but still yielded: %+v", b); return nil })
	}
}

// What a standby receives is not replicated further, but goes into its next checkpoint.
func TestPutIsForCheckpointsOnly(t *testing.T) {
	table := newTable(t, 1000)
	second := epoch.Steady / 1e9
	records := []Record{
		{Key: keyIn(1, 1), Kind: algorithms.FixedWindow, State: algorithms.State{Count: 3, At: 7},
			ExpiresAt: second + 60},
		{Key: keyIn(1, 2), Kind: algorithms.SlidingLog,
			Log: []algorithms.Entry{{At: epoch.Steady, N: 2}}, ExpiresAt: second + 60},
	}
	for _, r := range records {
		table.Put(epoch, r)
	}
	if b := table.ReplicatePartition(1, nil); len(b) != 0 {
		t.Errorf("for replicas: have %+v", b)
	}
	n := 0
	table.DrainChanges(func(b []Record) error { n += len(onlyCounters(b)); return nil })
	expect.Equal(t, n, len(records), "for checkpoints: records")
	// The owner reset them, or they have expired, so the copies on disk must go too.
	records[0].State, records[0].Fullness = algorithms.State{}, 0
	records[1].ExpiresAt = second
	for _, r := range records {
		table.Put(epoch, r)
	}
	n = 0
	table.DrainChanges(func(b []Record) error {
		for _, r := range onlyCounters(b) {
			n++
			if !r.isFresh() || r.ExpiresAt != second+60 {
				t.Errorf("have %+v", r)
			}
		}
		return nil
	})
	if table.Sweep(epoch, 1); n != 2 || table.Stats().Counters != 0 {
		t.Errorf("have %d records, and %d counters after the sweep", n, table.Stats().Counters)
	}
}

// Copies respect the table's bound and never evict a refusing counter.
func TestPutKeepsToTheBounds(t *testing.T) {
	table, l := newTable(t, 100), perMinute(algorithms.FixedWindow, 1)
	for i := range uint64(100) {
		take(table, epoch, key(i), l, 1)
		take(table, epoch, key(i), l, 1)
	}
	r := Record{Key: key(1000), Kind: algorithms.FixedWindow,
		State: algorithms.State{Count: 1, At: 7}, ExpiresAt: epoch.Steady/1e9 + 9}
	if table.Put(epoch, r) || table.Merge(epoch, r, true) {
		t.Error("found room")
	}
	if table.Drop(key(1).Partition()); !table.Put(epoch, r) {
		t.Error("found no room")
	}

	table = newTable(t, 1000)
	var log []algorithms.Entry
	for i := range int64(algorithms.MaxLogEntries + 9) {
		log = append(log, algorithms.Entry{At: epoch.Steady + i*1000, N: 1})
	}
	for i := range uint64(20) {
		table.Put(epoch, Record{Key: key(i), Kind: algorithms.SlidingLog, Log: log, ExpiresAt: epoch.Steady/1e9 + 3600})
		if used, _ := table.Usage(after(time.Second), key(i),
			perMinute(algorithms.SlidingLog, 10)); used != int64(len(log)) {
			t.Fatalf("have %d used, want %d", used, len(log))
		}
	}
	if st := table.Stats(); st.LogEntries > 2*minLogEntries {
		t.Errorf("have %d entries", st.LogEntries)
	}
}

func TestMerge(t *testing.T) {
	const sliding, fixed, bucket, log = algorithms.SlidingWindow, algorithms.FixedWindow, algorithms.TokenBucket, algorithms.SlidingLog
	const first = algorithms.FirstWindow
	type s = algorithms.State
	second, now := epoch.Steady/1e9, epoch.Steady
	record := func(kind algorithms.Kind, state s, fresh int64) Record {
		return Record{Key: key(1), Kind: kind, State: state, ExpiresAt: second + fresh}
	}
	logOf := func(fresh int64, entries ...algorithms.Entry) Record {
		return Record{Key: key(1), Kind: log, Log: entries, ExpiresAt: second + fresh}
	}
	for _, tt := range []struct {
		name       string
		a, b, want Record
	}{
		{"same window", record(fixed, s{Count: 5, At: 7}, 60),
			record(fixed, s{Count: 3, At: 7}, 61), record(fixed, s{Count: 5, At: 7}, 61)},
		{"later window", record(fixed, s{Count: 5, At: 7}, 60),
			record(fixed, s{Count: 3, At: 8}, 90), record(fixed, s{Count: 3, At: 8}, 90)},
		{"both counts", record(sliding, s{Count: 5, Part: 1, At: 7}, 60),
			record(sliding, s{Count: 3, Part: 2, At: 7}, 60),
			record(sliding, s{Count: 5, Part: 2, At: 7}, 60)},
		{"one window back", record(sliding, s{Count: 5, Part: 9, At: 7}, 60),
			record(sliding, s{Count: 3, Part: 2, At: 8}, 90),
			record(sliding, s{Count: 3, Part: 5, At: 8}, 90)},
		{"two windows back", record(sliding, s{Count: 5, Part: 9, At: 6}, 60),
			record(sliding, s{Count: 3, Part: 2, At: 8}, 90),
			record(sliding, s{Count: 3, Part: 2, At: 8}, 90)},
		{"fresh later", record(bucket, s{Count: 5, At: now}, 60),
			record(bucket, s{Count: 3, At: now - 9}, 61), record(bucket, s{Count: 3, At: now - 9}, 61)},
		{"changed later", record(bucket, s{Count: 5, At: now - 9}, 60),
			record(bucket, s{Count: 3, At: now}, 60), record(bucket, s{Count: 3, At: now}, 60)},
		{"owes more", record(bucket, s{Count: 5, At: now}, 60),
			record(bucket, s{Count: 3, Part: 8, At: now}, 60),
			record(bucket, s{Count: 5, At: now}, 60)},
		{"copies of a first window", record(first, s{Count: 5, At: now - 9}, 60),
			record(first, s{Count: 3, At: now}, 61), record(first, s{Count: 5, At: now}, 61)},
		{"the later copy has more", record(first, s{Count: 5, At: now - 9}, 60),
			record(first, s{Count: 7, At: now}, 60), record(first, s{Count: 7, At: now}, 60)},
		{"a first window that is over", record(first, s{Count: 5, At: now - 70e9}, 0),
			record(first, s{Count: 3, At: now}, 60), record(first, s{Count: 3, At: now}, 60)},
		{"log, fresh later", logOf(60, algorithms.Entry{At: now, N: 5}),
			logOf(61, algorithms.Entry{At: now, N: 2}), logOf(61, algorithms.Entry{At: now, N: 2})},
		{"log, more used", logOf(60, algorithms.Entry{At: now, N: 5}),
			logOf(60, algorithms.Entry{At: now - 5, N: 9}),
			logOf(60, algorithms.Entry{At: now - 5, N: 9})},
		{"expired", record(bucket, s{Count: 5, At: now}, 60),
			record(bucket, s{Count: 9, At: now}, 0), record(bucket, s{Count: 5, At: now}, 60)},
		{"reset", record(bucket, s{Count: 5, At: now}, 60), record(bucket, s{}, 99),
			record(bucket, s{Count: 5, At: now}, 60)},
		{"another kind", record(bucket, s{Count: 5, At: now}, 60),
			logOf(61, algorithms.Entry{At: now, N: 2}), logOf(61, algorithms.Entry{At: now, N: 2})},
	} {
		for _, order := range [][]Record{{tt.a, tt.b}, {tt.b, tt.a}} {
			table := newTable(t, 1000)
			for _, r := range order {
				if !table.Merge(epoch, r, true) {
					t.Fatal("no room")
				}
			}
			have := table.ReplicatePartition(key(1).Partition(), nil)
			if len(have) != 1 || !reflect.DeepEqual(have[0], tt.want) {
				t.Errorf("%s: have %+v, want %+v", tt.name, have, tt.want)
			}
		}
	}
}

// Where clocks differ, the higher count stays, in the later window. What was
// borrowed for one window does not widen another one.
func TestMerge_OtherClocks(t *testing.T) {
	record := func(window, count, borrowed int64) Record {
		return Record{Key: key(1), Kind: algorithms.FixedWindow, ExpiresAt: epoch.Steady/1e9 + 60,
			State: algorithms.State{Count: count, Part: borrowed, At: window}}
	}
	for _, tt := range []struct{ a, b, want Record }{
		{record(9, 10, 0), record(9, 3, 95), record(9, 10, 95)},
		{record(10, 10, 0), record(9, 3, 95), record(10, 10, 0)},
		{record(10, 3, 95), record(9, 10, 0), record(10, 10, 0)},
	} {
		for _, order := range [][]Record{{tt.a, tt.b}, {tt.b, tt.a}} {
			table := newTable(t, 1000)
			for _, r := range order {
				table.Merge(epoch, r, false)
			}
			got := table.ReplicatePartition(key(1).Partition(), nil)
			if len(got) != 1 || !reflect.DeepEqual(got[0], tt.want) {
				t.Errorf("%+v and %+v: got %+v, want %+v", tt.a.State, tt.b.State, got, tt.want.State)
			}
		}
	}
}

// Levels survive any number of moves between nodes.
func TestLevelsDoNotFade(t *testing.T) {
	for packed := range kindFullness(32) {
		if have := packKindFullness(0, (packed << 3).recordFullness()); have != packed<<3 {
			t.Errorf("have level %d, want %d", have.packedFullness(), packed)
		}
	}
}

func TestConcurrentMoves(t *testing.T) {
	table := newTable(t, 3000)
	limits := []*algorithms.Limit{perMinute(algorithms.FixedWindow, 3), perMinute(algorithms.SlidingLog, 3)}
	var wg sync.WaitGroup
	for w := range uint64(4) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(w, 7))
			for i := range 10_000 {
				now := after(time.Duration(i) * time.Millisecond)
				k := keyIn(rng.IntN(8)*500, rng.Uint64N(500))
				l := limits[k.Counter%2]
				switch rng.IntN(40) {
				case 0:
					table.Drop(k.Partition())
				case 1:
					table.Shut(k.Partition())
				case 2, 3:
					table.Open(k.Partition(), soleLineage)
				case 4:
					table.Sweep(now, 0.2)
				case 5:
					table.makeFresh(now, k, l)
				case 6, 7:
					table.Merge(now,
						Record{Key: k, Kind: l.Kind, State: algorithms.State{Count: 1}, ExpiresAt: now.Steady/1e9 + 5},
						true)
				default:
					table.Take(now, []Op{{Key: k, Limit: l, Cost: 1}})
				}
			}
		})
	}
	wg.Go(func() {
		var buf []Record
		for i := range 100 {
			table.Replicate(func(p int) bool { return p%1000 == 0 }, func(p int, b []Record) error {
				return []error{nil, errFailed}[i%2]
			})
			buf = table.ReplicatePartition(i%8*500, buf)
			table.Copy(i%8*500, func(b []Record) error {
				for _, r := range slices.Clone(b) {
					table.Put(epoch, r)
				}
				return nil
			})
			table.DrainChanges(func([]Record) error { return nil })
		}
	})
	wg.Wait()
	table.Sweep(after(time.Hour), 1)
	if st := table.Stats(); st.Counters != 0 || st.LogEntries != 0 || st.Bytes != 0 {
		t.Errorf("left behind: %+v", st)
	}
	for i := range table.shards {
		if s := &table.shards[i]; s.unsaved != 0 || s.unsent != 0 {
			t.Errorf("shard %d is empty, but counts %d unsaved and %d unsent", i, s.unsaved, s.unsent)
		}
	}
}

// BenchmarkReplicate yields some changes among a million counters.
func BenchmarkReplicate(b *testing.B) {
	for _, bound := range []int64{1_000_000, 10_000_000} {
		for _, changed := range []int{0, 1000, 10_000, 100_000} {
			for _, lost := range []bool{false, true} {
				b.Run(fmt.Sprintf("bound=%d/changed=%d/scan=%v", bound, changed, lost), func(b *testing.B) {
					benchmarkReplicate(b, bound, changed, lost)
				})
			}
		}
	}
}

func benchmarkReplicate(b *testing.B, bound int64, changed int, scan bool) {
	table, l := newTable(b, bound), perMinute(algorithms.TokenBucket, 1<<40)
	const n = 900_000
	for i := range uint64(n) {
		take(table, epoch, key(i), l, 1)
	}
	wanted := func(int) bool { return true }
	handed := 0
	yield := func(_ int, b []Record) error { handed += len(b); return nil }
	table.Replicate(wanted, yield)
	rng := rand.New(rand.NewPCG(1, 1))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		for range changed {
			take(table, epoch, key(rng.Uint64N(n)), l, 1)
		}
		for i := range table.shards {
			table.shards[i].single.unsentList.incomplete = table.shards[i].single.unsentList.incomplete || scan
		}
		b.StartTimer()
		table.Replicate(wanted, yield)
	}
	b.ReportMetric(float64(handed-n)/float64(b.N), "records/op")
}
