package counters

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/expect"
)

// amendment adds cost to a counter, at most once; its answer has n bytes.
func amendment(now algorithms.Instant, cost int64, body uint64, n int) *Amendment {
	return &Amendment{
		Ops: []Op{{Key: Key{Subject: 7 << 52, Counter: 1}, Limit: tokenLimit, Cost: cost}},
		Memo: &Memo{
			Key: notes.Key{Subject: 7 << 52, ID: 2, Kind: notes.Write}, ContentHash: body, Until: now.Steady/1e9 + 60,
		},
		Answer: func(*Amendment) []byte { return bytes.Repeat([]byte{9, 0, 255}, n)[:n] },
	}
}

// copyTo sends p's records from one table to another, as over the wire.
func copyTo(t *testing.T, from, to *Table, p int, now algorithms.Instant, put func(r Record)) {
	t.Helper()
	err := from.Copy(p, func(records []Record) error {
		for i := range records {
			var r Record
			if _, err := parseRecord(AppendRecord(nil, &records[i], now), &r, now); err != nil {
				return err
			}
			put(r)
		}
		return nil
	})
	expect.NoError(t, err)
}

func TestAmendOnce(t *testing.T) {
	table := newTable(t, 1000)
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	k := amendment(now, 1, 1, 1).Ops[0].Key
	const size = 50 // of the answer
	expect := func(what string, table *Table, now algorithms.Instant, a *Amendment, repeated bool,
		want error, used int64) {
		t.Helper()
		if err := table.Amend(now, a); !errors.Is(err, want) || a.Repeated != repeated {
			t.Errorf("%s: have %v, repeated %v; want %v, %v", what, err, a.Repeated, want, repeated)
		} else if err == nil && !bytes.Equal(a.Memo.Answer, amendment(now, 1, 1, size).Answer(nil)) {
			t.Errorf("%s: have the answer %x", what, a.Memo.Answer)
		}
		if have, _ := table.Usage(now, k, tokenLimit); have != used {
			t.Errorf("%s: have %d used, want %d", what, have, used)
		}
	}
	expect("first", table, now, amendment(now, 5, 77, size), false, nil, 5)
	expect("again", table, now, amendment(now, 5, 77, size), true, nil, 5)
	expect("with another body", table, now, amendment(now, 5, 78, size), false, ErrRequestIDReused, 5)
	soon := algorithms.At(time.Unix(1_800_000_059, 0))
	expect("59 s later", table, soon, amendment(soon, 5, 77, size), true, nil, 5)

	// The memo moves with the counters.
	other := newTable(t, 1000)
	copyTo(t, table, other, k.Partition(), now, func(r Record) {
		other.Put(now, r)
		other.Merge(now, r, true)
	})
	expect("on a copy", other, now, amendment(now, 5, 77, size), true, nil, 5)
	other.Shut(k.Partition())
	expect("where it is shut", other, now, amendment(now, 5, 77, size), false, ErrShut, 5)

	late := algorithms.At(time.Unix(1_800_000_061, 0))
	expect("a minute later", table, late, amendment(late, 5, 78, size), false, nil, 10)
	reset := amendment(late, 0, 80, size)
	reset.Reset, reset.Memo.Key.ID = ResetSubject, 3
	expect("reset", table, late, reset, false, nil, 0)
}

// Without room for the counter, nothing changes. Answers need no room among the counters.
func TestAmendWithoutRoom(t *testing.T) {
	table := newTable(t, 1)
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	full := false
	for i := range uint64(1 << 20) {
		ops := []Op{{Key: Key{Subject: i << 40, Counter: i},
			Limit: &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1, Window: time.Hour},
			Cost:  1}}
		table.Take(now, ops)
		if table.Take(now, ops); ops[0].NoRoom {
			full = true
			break
		}
	}
	if !full {
		t.Skip("the table can't be filled")
	}
	expect.ErrorIs(t, table.Amend(now, amendment(now, 5, 77, 50)), ErrNoRoom,
		"table.Amend(now, amendment(now, 5, 77, 50))")
	if used, _ := table.Usage(now, Key{Subject: 7 << 52, Counter: 1}, tokenLimit); used != 0 {
		t.Errorf("have %d used", used)
	}
	memo := &Memo{Key: notes.Key{Subject: 7 << 52, ID: 2, Kind: notes.Answer}, ContentHash: 77,
		Until: now.Steady/1e9 + 60}
	if err := table.Remember(now, memo); err != nil {
		t.Errorf("an answer in a full table: have %v", err)
	}
	memo.Answer = make([]byte, notes.MaxBody+1)
	expect.ErrorIs(t, table.Remember(now, memo), ErrNoRoom, "an answer beyond notes.MaxBody")
}

// Existing counters can be changed and reset even if the table has no room.
func TestAmendExistingCountersNeedsNoRoom(t *testing.T) {
	table, now := newTable(t, 2), algorithms.At(time.Unix(1_800_000_000, 0))
	limit := &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1, Window: time.Hour}
	for lo := range uint64(2) {
		// they refuse, so they are never evicted
		if err := table.penalize(now, Key{Subject: 1, Counter: lo}, limit, 5); err != nil {
			t.Fatal(err)
		}
	}
	amend := func(reset Reset, lo uint64) error {
		return table.Amend(now,
			&Amendment{Ops: []Op{{Key: Key{Subject: 1, Counter: lo}, Limit: limit, Cost: 1}}, Reset: reset})
	}
	expect.ErrorIs(t, amend(NoReset, 7), ErrNoRoom, "another counter")
	if err := amend(NoReset, 0); err != nil {
		t.Errorf("a penalty: have %v", err)
	}
	if err := amend(ResetSubject, 1); err != nil {
		t.Errorf("a reset: have %v", err)
	}
	if used, _ := table.Usage(now, Key{Subject: 1, Counter: 0}, limit); used != 6 {
		t.Errorf("have %d used, want 6", used)
	}

	// A change names all limits of its subject. Those that it leaves alone, or from
	// which nothing can come off, need no room, nor do slots.
	slots := &algorithms.Limit{Kind: algorithms.Concurrency, Amount: 1, Window: time.Hour}
	all := func(cost int64) []Op {
		return []Op{{Key: Key{Subject: 1, Counter: 0}, Limit: limit, Cost: cost},
			{Key: Key{Subject: 1, Counter: 8}, Limit: limit}, {Key: Key{Subject: 1, Counter: 9}, Limit: limit, Cost: -1},
			{Key: Key{Subject: 1, Counter: 10}, Limit: slots, Cost: 1}, {Key: Key{Subject: 1, Counter: 11}, Limit: limit, Block: true}}
	}
	expect.NoError(t, table.Amend(now, &Amendment{Ops: all(-2)}))
	used, _ := table.Usage(now, Key{Subject: 1, Counter: 0}, limit)
	expect.Equal(t, used, 4, "used after a reward")

	reset := &Amendment{Ops: append(all(0)[:1:1], all(0)[4]), Reset: ResetLimits}
	expect.NoError(t, table.Amend(now, reset))
	used, _ = table.Usage(now, Key{Subject: 1, Counter: 0}, limit)
	expect.Equal(t, used, 0, "used after a reset")
}
