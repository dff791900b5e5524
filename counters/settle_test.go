package counters

import (
	"errors"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

var tokenLimit = &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1000, Window: time.Hour}

// settled gives back 40 of a counter's 100, under a note.
func settled(now algorithms.Instant, from algorithms.TakeRecord, note Key) *Settlement {
	return &Settlement{
		Notes:   []Note{{Key: note, Count: 60, At: 1}},
		Until:   now.Steady/1e9 + 60,
		Changes: []SettledCost{{Key: Key{Subject: note.Subject, Counter: 1}, Limit: tokenLimit, Cost: -40, From: from, InTightest: true}},
	}
}

func TestSettleOnce(t *testing.T) {
	table := New(1000)
	defer table.Close()
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	k, note := Key{Subject: 7 << 52, Counter: 1}, Key{Subject: 7 << 52, Counter: 2}
	ops := []Op{{Key: k, Limit: tokenLimit, Cost: 100}}
	table.Take(now, ops)
	from := tokenLimit.TakeRecord(algorithms.State{At: now.Wall / int64(time.Hour)}, now)
	expect := func(what string, table *Table, now algorithms.Instant, s *Settlement, repeated, done bool, used int64) {
		t.Helper()
		gotRepeated, gotDone, err := table.Settle(now, s)
		if err != nil || gotRepeated != repeated || gotDone != done {
			t.Errorf("%s: have %v, %v, %v; want %v, %v", what, gotRepeated, gotDone, err, repeated, done)
		}
		if have, _ := table.Usage(now, k, tokenLimit); have != used {
			t.Errorf("%s: have %d used, want %d", what, have, used)
		}
		if done && (s.Tightest != 940 || s.Notes[0].Count != 60 || s.Notes[0].At != 1) {
			t.Errorf("%s: have %+v", what, s)
		}
	}
	expect("first", table, now, settled(now, from, note), false, true, 60)
	again := settled(now, from, note)
	again.Notes[0].Count, again.TooLate = 3, true
	expect("again", table, now, again, true, true, 60)
	late := settled(now, from, Key{Subject: note.Subject, Counter: 3})
	late.TooLate = true
	expect("late", table, now, late, false, false, 60)

	// The note moves with the counters, between nodes and to disk.
	other := New(1000)
	defer other.Close()
	if err := table.Copy(k.Partition(), func(records []Record) error {
		for i := range records {
			var r Record
			if _, err := parseRecord(AppendRecord(nil, &records[i], now), &r, now); err != nil {
				return err
			}
			other.Put(now, r)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	expect("a copy", other, now, settled(now, from, note), true, true, 60)

	// Once expired it has no effect, whether swept or not.
	then := algorithms.At(time.Unix(0, now.Wall).Add(2 * time.Minute))
	gone := settled(now, from, note)
	gone.TooLate = true
	expect("over", table, then, gone, false, false, 60)
	table.Shut(k.Partition())
	if _, _, err := table.Settle(now, settled(now, from, Key{Subject: note.Subject, Counter: 4})); !errors.Is(err, ErrShut) {
		t.Errorf("shut: have %v", err)
	}
}

// A flood of new subjects does not make the table forget a settling, which could otherwise be repeated.
func TestNotesOutliveFloods(t *testing.T) {
	table := New(64)
	defer table.Close()
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	s := settled(now, algorithms.TakeRecord{}, Key{Subject: 1 << 60, Counter: 2})
	if _, _, err := table.Settle(now, s); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(10_000) {
		table.Take(now, []Op{{Key: Key{Subject: i << 40, Counter: i}, Limit: tokenLimit, Cost: 1}})
	}
	if repeated, _, err := table.Settle(now, s); err != nil || !repeated {
		t.Errorf("the note was evicted: %v", err)
	}
	// If only notes are left, there is no room for another one, and nothing changes.
	full := New(4)
	defer full.Close()
	for i := range uint64(4) {
		s := settled(now, algorithms.TakeRecord{}, Key{Subject: 1 << 60, Counter: 10 + i})
		if _, _, err := full.Settle(now, s); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := full.Settle(now, settled(now, algorithms.TakeRecord{}, Key{Subject: 1 << 60, Counter: 99})); !errors.Is(err, ErrFull) {
		t.Errorf("have %v, want %v", err, ErrFull)
	}
}

// A settlement evicts none of the counters that it settles, and needs no room for them.
func TestSettlingInAFullTable(t *testing.T) {
	for bound, want := range map[int64]error{2: ErrFull, 3: nil} {
		table := newTable(t, bound)
		k, refusing := Key{Subject: 7, Counter: 1}, Key{Subject: 7, Counter: 2}
		if err := table.Penalize(epoch, refusing, tokenLimit, 1000); err != nil {
			t.Fatal(err)
		}
		take(table, epoch, k, tokenLimit, 5)
		s := settled(epoch, algorithms.TakeRecord{}, Key{Subject: 7, Counter: 3})
		s.Changes[0].Cost = 1
		used := int64(5)
		if want == nil {
			used = 6
		}
		if _, _, err := table.Settle(epoch, s); !errors.Is(err, want) {
			t.Errorf("of %d counters: have %v, want %v", bound, err, want)
		}
		if have, _ := table.Usage(epoch, k, tokenLimit); have != used {
			t.Errorf("of %d counters: have %d used, want %d", bound, have, used)
		}
	}
}

// A replaced note is kept for the longer of both times and is copied with its partition. When two copies merge, the later one
// counts.
func TestReplacedNotes(t *testing.T) {
	table, other := New(100), New(100)
	defer table.Close()
	defer other.Close()
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	key := Key{Subject: 5 << 52, Counter: 2}
	second := now.Steady / 1e9
	expect := func(name string, table *Table, at algorithms.Instant, want int64) {
		t.Helper()
		n := Note{Key: key}
		if found := table.ReadNote(at, &n); found != (want > 0) || found && (n.Count != want || n.At != 7) {
			t.Errorf("%s: have %+v, %v, want %d", name, n, found, want)
		}
	}
	set := func(table *Table, count, until int64) {
		t.Helper()
		if err := table.SetNote(now, &Note{Key: key, Count: count, At: 7}, until); err != nil {
			t.Fatal(err)
		}
	}
	expect("nothing", table, now, 0)
	table.Shut(5)
	set(table, 3, second+60)
	set(table, 4, second+1)
	later := algorithms.At(time.Unix(1_800_000_030, 0))
	expect("replaced", table, later, 4)
	set(other, 9, second+10)
	if err := table.Copy(5, func(records []Record) error {
		for _, r := range records {
			b := AppendRecord(nil, &r, now)
			if _, err := parseRecord(b, &r, now); err != nil {
				t.Error(err)
			}
			other.Merge(now, r, true)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	expect("merged", other, later, 9)
	expect("over", table, algorithms.At(time.Unix(1_800_000_061, 0)), 0)
}

// A copy can be debited while the gate is shut.
func TestForceCapped(t *testing.T) {
	table := New(100)
	defer table.Close()
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	key := Key{Subject: 5 << 52, Counter: 2}
	from := tokenLimit.TakeRecord(tokenLimit.Advance(algorithms.State{}, now), now)
	table.Shut(5)
	if err := table.ForceCapped(now, key, tokenLimit, from, 1); err != nil {
		t.Fatal(err)
	}
	if used, _ := table.Usage(now, key, tokenLimit); used != 1 {
		t.Errorf("have %d used", used)
	}
}
