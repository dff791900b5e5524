package counters

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/expect"
)

// A reset stays in the table until it is written, even if the table is swept
// during a write that fails.
func TestResetsStayUntilWritten(t *testing.T) {
	for _, kind := range allKinds {
		table, l, failed := newTable(t, 1000), perMinute(kind, 10), errors.New("the disk is full")
		take(table, epoch, key(1), l, 10)
		write := func(want int, err error) {
			t.Helper()
			var have []Record
			if got := table.DrainChanges(func(records []Record) error {
				have = append(have, onlyCounters(records)...)
				table.Sweep(epoch, 1)
				return err
			}); got != err || len(have) != 1 || have[0].isFresh() != (want == 0) {
				t.Errorf("%v: have %+v, %v", kind, have, got)
			}
		}
		write(10, nil)
		expect.NoError(t, table.makeFresh(epoch, key(1), l))
		write(0, failed)
		write(0, nil)
		table.Sweep(epoch, 1)
		expect.Equal(t, table.Stats().Counters, 0, "%v: counters", kind)
	}
}

// Resets that nobody has received yet go only if there is nothing else. They lock nobody out.
func TestResetsLockNobodyOut(t *testing.T) {
	for _, kind := range allKinds {
		table, l := newTable(t, 100), perMinute(kind, 10)
		for i := range uint64(50) {
			take(table, epoch, key(i), l, 1)
			expect.NoError(t, table.makeFresh(epoch, key(i), l))
		}
		for i := uint64(50); i < 150; i++ {
			if d := take(table, epoch, key(i), l, 1); !d.Allowed {
				t.Fatalf("%v: new counter %d found no room", kind, i)
			}
		}
		resets := func() (n int) {
			err := table.DrainChanges(func(records []Record) error {
				for _, r := range onlyCounters(records) {
					if r.isFresh() {
						n++
					}
				}
				return errors.New("not written")
			})
			if err == nil {
				t.Fatal("nothing has changed")
			}
			return n
		}
		expect.Equal(t, resets(), 50, "%v: of 50 resets are left, though others could go", kind)

		for i := range uint64(200) {
			if err := table.makeFresh(epoch, key(1000+i), l); err != nil {
				t.Fatalf("%v: reset %d found no room: %v", kind, i, err)
			}
		}
		for i := range uint64(100) {
			if d := take(table, epoch, key(2000+i), l, 1); !d.Allowed {
				t.Fatalf("%v: new counter %d found no room among resets", kind, i)
			}
		}
	}
}

// Restoring records in shard order, as a base on disk has them, rehashes each
// shard only a few times, and leaves it no larger than inserting the counters
// one by one would.
func TestRestoreMovesFewTimes(t *testing.T) {
	const n, batch = 400_000, 30_000
	table, again := newTable(t, 2*n), newTable(t, 2*n)
	for i := range uint64(n) {
		table.Put(epoch,
			Record{Key: key(i), Kind: algorithms.TokenBucket, ExpiresAt: epoch.Steady/1e9 + 60,
				State: algorithms.State{Count: 1, At: epoch.Steady}})
	}
	var all []Record
	expect.NoError(t, table.DrainChanges(func(records []Record) error { all = append(all, records...); return nil }))
	for rest := all; len(rest) > 0; {
		have := min(batch, len(rest))
		if restored, noRoom := again.Restore(epoch, rest[len(rest)-have:]); restored != have || noRoom != 0 {
			t.Fatalf("have %d, %d of %d", restored, noRoom, have)
		}
		rest = rest[:len(rest)-have]
	}
	moves, before := 0, 0
	for i := range again.shards {
		moves += again.shards[i].single.moves
		before += table.shards[i].single.moves
	}
	if shards := len(again.shards); moves > 2*shards || before < 10*shards {
		t.Errorf("%d shards were rehashed %d times; %d times with counters inserted one by one", shards, moves, before)
	}
	if have, most := again.Stats().Bytes, table.Stats().Bytes; have > most {
		t.Errorf("the table takes %d bytes, want at most %d", have, most)
	}
	addsUp(t, again)
}

// Expired records take no room, and their shards don't grow for them.
func TestRestoreMakesNoRoomForExpired(t *testing.T) {
	const n = 100_000
	table := newTable(t, 2*n)
	records := make([]Record, n)
	for i := range records {
		records[i] = Record{Key: key(uint64(i)), Kind: algorithms.TokenBucket,
			ExpiresAt: epoch.Steady / 1e9, State: algorithms.State{Count: 1, At: epoch.Steady}}
	}
	records[0].ExpiresAt++
	if restored, noRoom := table.Restore(epoch, records); restored != 1 || noRoom != 0 {
		t.Fatalf("have %d, %d, want 1, 0", restored, noRoom)
	}
	if have := table.Stats().Bytes; have > int64(groupBytes+os.Getpagesize()) {
		t.Errorf("the table takes %d bytes for one counter", have)
	}
	addsUp(t, table)
}

// writtenAsReleased returns how many slots DrainChanges yields as released.
func writtenAsReleased(t *testing.T, table *Table) (released int) {
	t.Helper()
	expect.NoError(t, table.DrainChanges(func(records []Record) error {
		for i := range records {
			if records[i].IsReleasedSlot() {
				released++
			}
		}
		return nil
	}))
	return released
}

// A slot whose release could not be written is yielded as released again.
func TestTable_DrainChanges_ReleasesAgain(t *testing.T) {
	table := New(1000)
	now := epoch
	part := SlotPart{Key: Key{Subject: 1 << 60, Counter: 7}, Units: 1, TTL: time.Hour}
	expect.NoError(t, table.RenewSlot(now, &part, 1, 1, time.Hour, true))
	expect.NoError(t, table.DrainChanges(func([]Record) error { return nil }))

	_, _, err := table.ReleaseSlot(now, part.Key, 1, 1, false)
	expect.NoError(t, err)
	failed := errors.New("no space left on device")
	expect.Equal(t, table.DrainChanges(func([]Record) error { return failed }), failed, "error of a failed write")

	expect.Equal(t, writtenAsReleased(t, table), 1, "slots that are written as released")
}

// A checkpoint has no number of a debtor without the debts up to it, even if a
// debt is debited while the counters are written, and the process dies at once.
func TestCheckpointsHaveDebtsOfTheirNumbers(t *testing.T) {
	table := New(1000)
	now := epoch
	l := perMinute(algorithms.FixedWindow, 100)
	debit := func(number uint64) {
		note := notes.Note{Key: notes.PartitionKey(notes.Debtor, key(1).Partition(), 9), Minor: number, At: now.Steady,
			UntilSecond: now.Steady/1e9 + 600}
		lp := table.Notes().Lock(key(1).Partition(), now.Steady)
		lp.Put(&note)
		lp.Unlock()
		take(table, now, key(1), l, 10)
	}

	number := func(of *Table) uint64 {
		lp := of.Notes().Lock(key(1).Partition(), now.Steady)
		defer lp.Unlock()
		n, _ := lp.Get(notes.PartitionKey(notes.Debtor, key(1).Partition(), 9))
		return n.Minor
	}

	// What a process reads that starts after each batch: the last record of a
	// counter counts.
	var counted int64
	var numbers []uint64
	during := false
	checkpoint := func() {
		expect.NoError(t, table.DrainChanges(func(records []Record) error {
			again := New(1000)
			again.Restore(now, records)
			if len(onlyCounters(records)) > 0 {
				counted, _ = again.Usage(now, key(1), l)
			}
			if n := number(again); n > 0 {
				numbers = append(numbers, n)
				if counted < int64(10*n) {
					t.Errorf("debts up to %d are noted, and %d are counted", n, counted/10)
				}
			}
			if !during {
				during = true
				debit(2)
			}
			return nil
		}))
	}
	debit(1)
	failed := errors.New("no space left on device")
	err := table.DrainChanges(func([]Record) error { return failed })
	expect.Equal(t, err, failed, "error of a failed write")
	checkpoint()
	checkpoint()
	if !slices.Equal(numbers, []uint64{1, 2}) {
		t.Errorf("got the numbers %d, want 1, then 2", numbers)
	}
}

// While nothing is written, as on a full disk, notes that come and go take no
// memory. Slots that are on disk are written as released later.
func TestTable_DrainChanges_WhileTheDiskIsFull(t *testing.T) {
	table := New(1000)
	now := epoch
	part := SlotPart{Key: Key{Subject: 1 << 60, Counter: 7}, Units: 1, TTL: time.Hour}
	hold := func(id uint64) { expect.NoError(t, table.RenewSlot(now, &part, id, 1, time.Hour, true)) }
	release := func(id uint64) {
		held, _, err := table.ReleaseSlot(now, part.Key, id, 1, false)
		if !held || err != nil {
			t.Fatalf("release of slot %d: got %v, %v", id, held, err)
		}
	}
	hold(1)
	hold(2)
	expect.NoError(t, table.DrainChanges(func([]Record) error { return nil }))
	release(1)

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for id := range uint64(500_000) {
		hold(10 + id)
		release(10 + id)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}

	expect.Equal(t, writtenAsReleased(t, table), 1, "slots that are written as released")
}
