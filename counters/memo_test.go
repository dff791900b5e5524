package counters

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// amendment adds cost to a counter, at most once; its answer has n bytes.
func amendment(now algorithms.Instant, cost int64, body uint64, n int) *Amendment {
	return &Amendment{
		Ops:    []Op{{Key: Key{Subject: 7 << 52, Counter: 1}, Limit: tokenLimit, Cost: cost}},
		Memo:   &Memo{Key: Key{Subject: 7 << 52, Counter: 2}, ContentHash: body, Until: now.Steady/1e9 + 60},
		Answer: func(*Amendment) []byte { return bytes.Repeat([]byte{9, 0, 255}, n)[:n] },
	}
}

func TestAmendOnce(t *testing.T) {
	table := New(1000)
	defer table.Close()
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	k := amendment(now, 1, 1, 1).Ops[0].Key
	const size = 50 // of the answer: four notes
	expect := func(what string, table *Table, now algorithms.Instant, a *Amendment, repeated bool, want error, used int64) {
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
	expect("with another body", table, now, amendment(now, 5, 78, size), true, ErrRequestIDReused, 5)
	soon := algorithms.At(time.Unix(1_800_000_059, 0))
	expect("59 s later", table, soon, amendment(soon, 5, 77, size), true, nil, 5)

	// The memo moves with the counters.
	other := New(1000)
	defer other.Close()
	if err := table.Copy(k.Partition(), func(records []Record) error {
		for i := range records {
			var r Record
			if _, err := parseRecord(AppendRecord(nil, &records[i], now), &r, now); err != nil {
				return err
			}
			other.Put(now, r)
			other.Merge(now, r, true)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	expect("on a copy", other, now, amendment(now, 5, 77, size), true, nil, 5)
	other.Shut(k.Partition())
	expect("where it is shut", other, now, amendment(now, 5, 77, size), false, ErrShut, 5)

	late := algorithms.At(time.Unix(1_800_000_061, 0))
	expect("a minute later", table, late, amendment(late, 5, 78, size), false, nil, 10)
	table.Forget(late, Key{Subject: 7 << 52, Counter: 2})
	expect("forgotten", table, late, amendment(late, -3, 79, size), false, nil, 7)
	reset := amendment(late, 0, 80, size)
	reset.Reset, reset.Memo.Key.Counter = true, 3
	expect("reset", table, late, reset, false, nil, 0)
}

// A forgotten memo stays, as a fresh counter, until it has replaced its copies.
func TestForgottenMemoIsHandedOut(t *testing.T) {
	table := New(1000)
	defer table.Close()
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	memo := amendment(now, 5, 77, 50).Memo
	saved := func() map[Key]Record {
		out := map[Key]Record{}
		table.Changed(func(b []Record) error {
			for _, r := range b {
				out[r.Key] = r
			}
			return nil
		})
		return out
	}
	if err := table.Amend(now, amendment(now, 5, 77, 50)); err != nil {
		t.Fatal(err)
	}
	before := saved()
	table.Forget(now, memo.Key)
	table.Sweep(now, 1)
	after := saved()
	for i := range memoNotes(50) {
		k := memoKey(memo.Key, i)
		if r, found := after[k]; !found || !r.State.Fresh() || r.FreshAt != before[k].FreshAt {
			t.Errorf("note %d: have %+v (%t) after %+v", i, r, found, before[k])
		}
	}
	if table.Sweep(now, 1); table.Stats().Counters != 1 {
		t.Errorf("%d counters are left, want the one that was amended", table.Stats().Counters)
	}
}

// A memo that can no longer be read still counts: nothing happens twice.
func TestDamagedMemo(t *testing.T) {
	table := New(1000)
	defer table.Close()
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	if err := table.Amend(now, amendment(now, 5, 77, 50)); err != nil {
		t.Fatal(err)
	}
	memo := amendment(now, 5, 77, 50).Memo
	if err := table.SetNote(now, &Note{Key: memoKey(memo.Key, 2), Count: 1}, now.Steady/1e9+60); err != nil {
		t.Fatal(err)
	}
	if found, err := table.Recall(now, memo); !found || err != nil || memo.Answer != nil {
		t.Errorf("have %v, %v, %x", found, err, memo.Answer)
	}
}

// Without room for the answer, nothing changes.
func TestAmendWithoutRoom(t *testing.T) {
	table := New(1)
	defer table.Close()
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	full := false
	for i := range uint64(1 << 20) {
		ops := []Op{{Key: Key{Subject: i << 40, Counter: i}, Limit: &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1, Window: time.Hour}, Cost: 1}}
		table.Take(now, ops)
		if table.Take(now, ops); ops[0].Full {
			full = true
			break
		}
	}
	if !full {
		t.Skip("the table can't be filled")
	}
	if err := table.Amend(now, amendment(now, 5, 77, 50)); !errors.Is(err, ErrFull) {
		t.Errorf("have %v", err)
	}
	if used, _ := table.Usage(now, Key{Subject: 7 << 52, Counter: 1}, tokenLimit); used != 0 {
		t.Errorf("have %d used", used)
	}
	memo := &Memo{Key: Key{Subject: 7 << 52, Counter: 2}, ContentHash: 77, Answer: make([]byte, MaxMemo+1)}
	if err := table.Remember(now, memo); !errors.Is(err, ErrFull) {
		t.Errorf("an answer beyond MaxMemo: have %v", err)
	}
}

// Existing counters can be changed and reset even if the table has no room.
func TestAmendExistingCountersNeedsNoRoom(t *testing.T) {
	table, now := New(2), algorithms.At(time.Unix(1_800_000_000, 0))
	t.Cleanup(table.Close)
	limit := &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1, Window: time.Hour}
	for lo := range uint64(2) {
		if err := table.Penalize(now, Key{Subject: 1, Counter: lo}, limit, 5); err != nil { // they refuse, so they are never evicted
			t.Fatal(err)
		}
	}
	amend := func(reset bool, lo uint64) error {
		return table.Amend(now, &Amendment{Ops: []Op{{Key: Key{Subject: 1, Counter: lo}, Limit: limit, Cost: 1}}, Reset: reset})
	}
	if err := amend(false, 7); !errors.Is(err, ErrFull) {
		t.Errorf("another counter: have %v", err)
	}
	if err := amend(false, 0); err != nil {
		t.Errorf("a penalty: have %v", err)
	}
	if err := amend(true, 1); err != nil {
		t.Errorf("a reset: have %v", err)
	}
	if used, _ := table.Usage(now, Key{Subject: 1, Counter: 0}, limit); used != 6 {
		t.Errorf("have %d used, want 6", used)
	}
}
