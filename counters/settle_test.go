package counters

import (
	"errors"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/expect"
)

var tokenLimit = &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1000, Window: time.Hour}

// settled gives back 40 of a counter's 100, by the reservation with that ID.
func settled(table *Table, now algorithms.Instant, taken algorithms.TakeRecord, subject, id uint64) *SettlePlan {
	return &SettlePlan{
		Place: Place{
			Key: notes.Key{Subject: subject, ID: id, Kind: notes.Reservation}, OpenFor: time.Minute,
			Until: now.Steady/1e9 + 60, SettledUntil: now.Steady/1e9 + 60,
		},
		Changes: []SettledCost{{Key: Key{Subject: subject, Counter: 1}, Limit: tokenLimit,
			Reserved: 100, Used: 60, From: taken, InTightest: true}},
		Life:   table.Life(Key{Subject: subject}.Partition()),
		Answer: func(*SettlePlan) []byte { return []byte("settled with 60") },
	}
}

func TestSettleOnce(t *testing.T) {
	table := newTable(t, 1000)
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	const subject = 7 << 52
	k := Key{Subject: subject, Counter: 1}
	ops := []Op{{Key: k, Limit: tokenLimit, Cost: 100}}
	table.Take(now, ops)
	taken := ops[0].TakeRecord()
	expect := func(what string, table *Table, now algorithms.Instant, s *SettlePlan, want SettleOutcome, used int64) {
		t.Helper()
		got, err := table.Settle(now, s)
		if err != nil || got != want {
			t.Errorf("%s: have %v, %v; want %v", what, got, err, want)
		}
		if have, _ := table.Usage(now, k, tokenLimit); have != used {
			t.Errorf("%s: have %d used, want %d", what, have, used)
		}
		if want == MadeBefore && string(s.Kept) != "settled with 60" || want == Made && s.Tightest != 940 {
			t.Errorf("%s: have %+v", what, s)
		}
	}
	expect("first", table, now, settled(table, now, taken, subject, 2), Made, 60)
	again := settled(table, now, taken, subject, 2)
	again.TooLate = true
	expect("again", table, now, again, MadeBefore, 60)
	late := settled(table, now, taken, subject, 3)
	late.TooLate = true
	expect("late", table, now, late, NotMade, 60)

	// The note moves with the counters, between nodes and to disk.
	other := newTable(t, 1000)
	copyTo(t, table, other, k.Partition(), now, func(r Record) { other.Put(now, r) })
	expect("a copy", other, now, settled(other, now, taken, subject, 2), MadeBefore, 60)

	// After a minute the answer is forgotten, but not that it was settled. Once
	// expired it has no effect, whether swept or not.
	table.Sweep(shifted(now, 59*time.Second), 1)
	expect("nearly a minute later", table, now, settled(table, now, taken, subject, 2), MadeBefore, 60)
	then := shifted(now, 2*time.Minute)
	gone := settled(table, now, taken, subject, 2)
	gone.TooLate = true
	expect("over", table, then, gone, NotMade, 60)
	table.Shut(k.Partition())
	if _, err := table.Settle(now, settled(table, now, taken, subject, 4)); !errors.Is(err, ErrShut) {
		t.Errorf("shut: have %v", err)
	}
}

// What was reserved with a place is unknown once the place is gone, and settled
// again where it was lost with its node.
func TestPlaces(t *testing.T) {
	table := newTable(t, 1000)
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	const subject = 7 << 52
	ops := []Op{{Key: Key{Subject: subject, Counter: 1}, Limit: tokenLimit, Cost: 100}}
	reserve := func(id uint64) *SettlePlan {
		t.Helper()
		s := settled(table, now, algorithms.TakeRecord{}, subject, id)
		s.HadPlace = true
		expect.NoError(t, table.NoteReservation(now, &s.Place, true, ops))
		table.Take(now, ops)
		s.Changes[0].From = ops[0].TakeRecord()
		return s
	}
	settle := func(at time.Duration, s *SettlePlan) (done bool) {
		t.Helper()
		outcome, err := table.Settle(shifted(now, at), s)
		expect.NoError(t, err)
		return outcome != NotMade
	}

	if s := reserve(1); !settle(59*time.Second, s) {
		t.Error("a reservation could not be settled within its time")
	}
	s := reserve(2)
	table.ForgetReservation(now, s.Place.Key, true, nil)
	if settle(0, s) {
		t.Error("a reservation that came to nothing was settled")
	}
	if s := reserve(3); settle(2*time.Minute, s) {
		t.Error("a reservation was settled after its place had expired, by a clock that says that it is not over")
	}
	lost := settled(table, now, algorithms.TakeRecord{}, subject, 4)
	lost.HadPlace, lost.Life.Lineage = true, 99
	if !settle(0, lost) || lost.SameLineage {
		t.Error("a reservation whose place was lost with its node could not be settled")
	}
	if got := table.Notes().Stats().Open; got != 1 {
		t.Errorf("%d reservations are open, want the one that was not settled", got)
	}
}

// Nothing of a place is taken from the counters, and no flood of counters makes
// the table forget a settlement.
func TestNotesOutliveFloods(t *testing.T) {
	table := newTable(t, 64)
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	s := settled(table, now, algorithms.TakeRecord{}, 1<<60, 2)
	if _, err := table.Settle(now, s); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(10_000) {
		table.Take(now, []Op{{Key: Key{Subject: i << 40, Counter: i}, Limit: tokenLimit, Cost: 1}})
	}
	if outcome, err := table.Settle(now, s); err != nil || outcome != MadeBefore {
		t.Errorf("the note was evicted: %v", err)
	}

	// Ten thousand settlements leave room for each counter of a table of four.
	small := newTable(t, 4)
	for i := range uint64(10_000) {
		if _, err := small.Settle(now, settled(small, now, algorithms.TakeRecord{}, 1<<60, 10+i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(4) {
		if d := take(small, now, key(i), tokenLimit, 1); !d.Allowed {
			t.Fatalf("counter %d found no room", i)
		}
	}
}

// A settlement evicts none of the counters that it settles, and does not fail
// for lack of room for them.
func TestSettlingInAFullTable(t *testing.T) {
	table := newTable(t, 2)
	k, refusing := Key{Subject: 7, Counter: 1}, Key{Subject: 7, Counter: 2}
	expect.NoError(t, table.penalize(epoch, refusing, tokenLimit, 1000))
	take(table, epoch, k, tokenLimit, 5)
	s := settled(table, epoch, algorithms.TakeRecord{}, 7, 3)
	s.Changes[0].Used = 101
	s.Changes = append(s.Changes, SettledCost{Key: Key{Subject: 7, Counter: 4}, Limit: tokenLimit, Used: 1})
	if outcome, err := table.Settle(epoch, s); err != nil || outcome != Made || s.Dropped > 1 {
		t.Errorf("have %v, %v, %d dropped", outcome, err, s.Dropped)
	}
	if have, _ := table.Usage(epoch, k, tokenLimit); have != 6 {
		t.Errorf("have %d used, want 6", have)
	}
}

// What comes back after a reset was taken in an earlier life.
func TestLives(t *testing.T) {
	for name, l := range every() {
		t.Run(name, func(t *testing.T) {
			table := newTable(t, 1000)
			before := table.Life(key(1).Partition())
			ops := []Op{{Key: key(1), Limit: l, Cost: 5}}
			other := []Op{{Key: key(2), Limit: l, Cost: 5}}
			table.Take(epoch, ops)
			table.Take(epoch, other)
			taken := ops[0].TakeRecord()
			taken.MaxRate = l.Amount
			expect.NoError(t, table.makeFresh(epoch, key(1), l))
			table.Take(epoch, ops)

			expect.ErrorIs(t, table.GiveBack(epoch, key(1), l, taken, 5, before), ErrGone,
				"what was taken before the reset came back")
			if used, _ := table.Usage(epoch, key(1), l); used != 5 {
				t.Errorf("%d used, want 5", used)
			}
			if err := table.GiveBack(epoch, key(2), l, taken, 5, before); err != nil {
				t.Errorf("another subject's cost did not come back: %v", err)
			}
			now := table.Life(key(1).Partition())
			if err := table.GiveBack(epoch, key(1), l, taken, 5, now); err != nil {
				t.Errorf("what was taken after the reset did not come back: %v", err)
			}
			now.Lineage++
			expect.ErrorIs(t, table.GiveBack(epoch, key(1), l, taken, 5, now), ErrGone,
				"what was taken in another lineage came back")
		})
	}
}

// A debt from before a reset is forgiven with the rest.
func TestDebtsFromBeforeAReset(t *testing.T) {
	table := newTable(t, 1000)
	now := startOfMinute()
	earlier := shifted(now, -time.Second)
	debt := algorithms.TakeRecord{Steady: earlier.Steady, Window: now.Wall / int64(time.Hour)}
	take(table, earlier, key(1), tokenLimit, 5)
	expect.NoError(t, table.makeFresh(now, key(1), tokenLimit))
	expect.NoError(t, table.ForceCapped(now, key(1), tokenLimit, debt, 1000))
	if used, _ := table.Usage(now, key(1), tokenLimit); used != 0 {
		t.Errorf("%d used after a debt from before the reset, want 0", used)
	}

	debt.Steady = now.Steady + 1
	expect.NoError(t, table.ForceCapped(now, key(1), tokenLimit, debt, 7))
	if used, _ := table.Usage(now, key(1), tokenLimit); used != 7 {
		t.Errorf("%d used after a debt from after it, want 7", used)
	}
}

// A copy can be debited while the gate is shut.
func TestForceCapped(t *testing.T) {
	table := newTable(t, 100)
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	key := Key{Subject: 5 << 52, Counter: 2}
	taken := tokenLimit.TakeRecord(tokenLimit.Advance(algorithms.State{}, now), now)
	table.Shut(5)
	expect.NoError(t, table.ForceCapped(now, key, tokenLimit, taken, 1))
	if used, _ := table.Usage(now, key, tokenLimit); used != 1 {
		t.Errorf("have %d used", used)
	}
}

// A reservation that takes nothing leaves nothing behind, but for the rate of a
// bucket on which another one depends.
func TestUnmadePlacesLeaveNothing(t *testing.T) {
	table := newTable(t, 1000)
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	const subject = 7 << 52
	bucket := &algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 10, Burst: 10, Window: time.Hour}
	ops := []Op{{Key: Key{Subject: subject, Counter: 1}, Limit: bucket, Cost: 4}}
	place := func(id uint64) *Place {
		return &Place{Key: notes.Key{Subject: subject, ID: id, Kind: notes.Reservation},
			OpenFor: time.Minute, Until: now.Steady/1e9 + 60}
	}
	make := func(now algorithms.Instant, id uint64) {
		t.Helper()
		expect.NoError(t, table.NoteReservation(now, place(id), true, ops))
	}
	rates := func() bool { return table.Notes().HasRates(Key{Subject: subject}.Partition()) }

	make(now, 1)
	table.ForgetReservation(now, place(1).Key, true, ops)
	if st := table.Notes().Stats(); st.Open != 0 || st.Reservations != 0 || rates() {
		t.Errorf("after a refusal: %+v, rates %t", st, rates())
	}

	later := shifted(now, time.Second)
	for _, first := range []bool{true, false} {
		make(now, 2)
		make(later, 3)
		if first {
			table.ForgetReservation(now, place(2).Key, true, ops)
		} else {
			table.ForgetReservation(later, place(3).Key, true, ops)
		}
		if got := table.Notes().Stats().Open; got != 1 || !rates() {
			t.Errorf("of two, the first of which was refused (%t): %d are open, rates %t", first, got, rates())
		}
		table.ForgetReservation(later, place(2).Key, true, nil)
		table.ForgetReservation(later, place(3).Key, true, nil)
	}
}

// What comes back into buckets of many subjects is remembered within a bound.
// Beyond it, nothing comes back.
func TestReturnsAreBounded(t *testing.T) {
	table := newTable(t, 10_000)
	table.Notes().BoundReservations(100 * notes.Overhead)
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	bucket := &algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 10, Burst: 10, Window: time.Hour}
	back := 0
	for i := range uint64(1000) {
		ops := []Op{{Key: key(i), Limit: bucket, Cost: 4}}
		life := table.Life(ops[0].Key.Partition())
		table.Take(now, ops)
		taken := ops[0].TakeRecord()
		taken.MaxRate = bucket.Amount
		err := table.GiveBack(now, ops[0].Key, bucket, taken, 4, life)
		used, _ := table.Usage(now, ops[0].Key, bucket)
		switch {
		case err == nil && used == 0:
			back++
		case !errors.Is(err, ErrGone) || used != 4:
			t.Fatalf("subject %d: %v, %d used", i, err, used)
		}
	}
	if back < 50 || back > 100 {
		t.Errorf("the cost of %d subjects came back, want at most 100", back)
	}

	place := &Place{Key: notes.Key{Subject: 7 << 52, ID: 1, Kind: notes.Reservation}, Group: 1,
		Until: now.Steady/1e9 + 60}
	ops := []Op{{Key: Key{Subject: 7 << 52, Counter: 1}, Limit: bucket, Cost: 4}}
	if err := table.NoteReservation(now, place, true, ops); err != nil {
		t.Errorf("a reservation beside them: %v", err)
	}
}

// reserveSome reserves some of a bucket.
func reserveSome(t *testing.T, table *Table, k Key, l *algorithms.Limit, cost int64) algorithms.TakeRecord {
	t.Helper()
	place := Place{Key: notes.Key{Subject: k.Subject, ID: 1, Kind: notes.Reservation},
		OpenFor: time.Hour, Until: epoch.Steady/1e9 + 3600}
	ops := []Op{{Key: k, Limit: l, Cost: cost}}
	expect.NoError(t, table.NoteReservation(epoch, &place, true, ops))
	if verdict := table.Take(epoch, ops); verdict != Admitted {
		t.Fatalf("the reservation was %v", verdict)
	}
	taken := ops[0].TakeRecord()
	taken.Reserved = true
	return taken
}

// What comes back does not drain a bucket by the rate at which it was taken, if
// that is no longer in force.
func TestGiveBackByALimitFromBefore(t *testing.T) {
	table := newTable(t, 100)
	k := key(1)
	before := &algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 600, Burst: 100, Window: time.Minute}
	taken := reserveSome(t, table, k, before, 1)
	life := table.Life(k.Partition())
	take(table, epoch, k, before, 99)

	lowered := *before
	lowered.Amount = 6
	later := shifted(epoch, 10*time.Second)
	expect.NoError(t, table.GiveBack(later, k, before, taken, 1, life))
	if _, d := table.Usage(later, k, &lowered); d.Remaining > 2 {
		t.Errorf("%d are left, want 1 that drained and 1 that came back at most", d.Remaining)
	}
}

// Callers may bring other rates for a bucket, of which the node that gives
// something back does not know.
func TestGiveBackAfterOtherRates(t *testing.T) {
	table := newTable(t, 100)
	k := Key{Subject: 7, Counter: InlineCounter(1)}
	slow := &algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 6, Burst: 100, Window: time.Minute}
	fast := *slow
	fast.Amount = 600
	taken := reserveSome(t, table, k, slow, 50)
	life := table.Life(k.Partition())

	later := shifted(epoch, 10*time.Second)
	take(table, later, k, &fast, 100) // what was reserved has drained
	taken.MaxRate = slow.Amount
	expect.NoError(t, table.GiveBack(later, k, slow, taken, 50, life))
	if d := take(table, later, k, &fast, 1); d.Allowed {
		t.Error("101 were admitted at once, want at most 100")
	}
}

// A refused call may set the rate at which a cell bucket drains. What has drained
// by then does not come back.
func TestGiveBackAfterARefusedFasterRate(t *testing.T) {
	table := newTable(t, 100)
	k := Key{Subject: 7, Counter: InlineCounter(1)}
	slow := &algorithms.Limit{Kind: algorithms.CellBucket, Amount: 60, Burst: 100, Window: time.Minute}
	fast := *slow
	fast.Amount = 6000
	taken := reserveSome(t, table, k, slow, 50)
	life := table.Life(k.Partition())

	if d := take(table, shifted(epoch, time.Second), k, &fast, 101); d.Allowed {
		t.Fatal("101 of 100 were admitted")
	}
	later := shifted(epoch, 2*time.Second)
	take(table, later, k, slow, 50) // the first 50 have drained

	later = shifted(epoch, 3*time.Second)
	taken.MaxRate = slow.Amount
	expect.NoError(t, table.GiveBack(later, k, slow, taken, 50, life))
	if d := take(table, later, k, slow, 52); d.Allowed {
		t.Error("52 were admitted of the 51 that are left: what had drained came back")
	}
}

// A settlement with more drains the bucket by no rate from before, which may
// have been a higher one.
func TestSettleWithMoreAfterTheRateFell(t *testing.T) {
	table := newTable(t, 100)
	k := Key{Subject: 7, Counter: 1}
	fast := &algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 600, Burst: 100, Window: time.Minute}
	slow := *fast
	slow.Amount = 6
	reserveSome(t, table, k, fast, 100)
	life := table.Life(k.Partition())

	later := shifted(epoch, 10*time.Second) // by the old rate, 100 would have drained
	if d := take(table, later, k, &slow, 0); d.Remaining != 1 {
		t.Fatalf("%d are left, want the 1 that drained", d.Remaining)
	}
	later = shifted(epoch, 20*time.Second)
	outcome, err := table.Settle(later, &SettlePlan{
		Place: Place{Key: notes.Key{Subject: k.Subject, ID: 1, Kind: notes.Reservation},
			OpenFor: time.Minute, Until: later.Steady/1e9 + 60, SettledUntil: later.Steady/1e9 + 60},
		HadPlace: true, Life: life,
		Changes: []SettledCost{{Key: k, Limit: fast, Used: 1}},
		Answer:  func(*SettlePlan) []byte { return nil },
	})
	if outcome != Made || err != nil {
		t.Fatal(outcome, err)
	}
	if used, _ := table.Usage(later, k, &slow); used < 99 {
		t.Errorf("%d are used, want at least 99 of the 101 that were taken", used)
	}
}

// A note of a bucket's rates may be younger than a cost that is not part of a
// reservation. Then nothing is known of the rates before.
func TestGiveBackFromBeforeTheNote(t *testing.T) {
	table := newTable(t, 100)
	k := Key{Subject: 7, Counter: 1}
	slow := &algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 1, Burst: 100, Window: time.Second}
	fast := *slow
	fast.Amount = 1000
	ops := []Op{{Key: k, Limit: slow, Cost: 100}}
	life := table.Life(k.Partition())
	table.Take(epoch, ops)
	table.Take(shifted(epoch, time.Second), []Op{{Key: k, Limit: &fast, Cost: 1}}) // all has drained by now

	table.Take(shifted(epoch, time.Second), []Op{{Key: k, Limit: slow, Cost: 99}})
	place := Place{Key: notes.Key{Subject: k.Subject, ID: 1, Kind: notes.Reservation},
		OpenFor: time.Hour, Until: epoch.Steady/1e9 + 3600}
	expect.NoError(t, table.NoteReservation(shifted(epoch, time.Second), &place, true, ops))
	err := table.GiveBack(shifted(epoch, time.Second), k, slow, ops[0].TakeRecord(), 100, life)
	if used, _ := table.Usage(shifted(epoch, time.Second), k, slow); !errors.Is(err, ErrGone) || used != 100 {
		t.Errorf("%v, and %d are used, want 100", err, used)
	}
}

// Where rates give way to new reservations, a late settlement puts nothing back
// into their buckets: a note may be younger than its cost.
func TestLateSettlingAfterRatesGaveWay(t *testing.T) {
	for _, gaveWay := range []bool{false, true} {
		table := newTable(t, 100)
		k := Key{Subject: 7, Counter: 1}
		slow := &algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 6, Burst: 100, Window: time.Minute}
		fast := *slow
		fast.Amount = 600
		ops := []Op{{Key: k, Limit: slow, Cost: 50}}
		place := Place{
			Key: notes.Key{Subject: k.Subject, ID: 1, Kind: notes.Reservation}, OpenFor: time.Second,
			Until: epoch.Steady/1e9 + notes.LateSettling + 61, SettledUntil: epoch.Steady/1e9 + 61,
		}
		expect.NoError(t,
			table.NoteReservation(epoch, &place, true, append(ops, Op{Key: Key{Subject: 7, Counter: 2}, Limit: slow})))
		life := table.Life(k.Partition())
		table.Take(epoch, ops)
		take(table, shifted(epoch, 10*time.Second), k, &fast, 100) // what was reserved has drained

		if gaveWay {
			table.Notes().BoundReservations(3 * notes.Overhead) // there is one place, and two rates
			table.Sweep(shifted(epoch, 90*time.Second), 1)
			table.Notes().BoundReservations(DefaultReservationBytes)
		}
		later := shifted(epoch, 4*time.Minute)
		table.Sweep(later, 1)
		another := place
		another.Key.ID = 2
		another.Until = later.Steady/1e9 + notes.LateSettling + 61
		expect.NoError(t, table.NoteReservation(later, &another, true, ops))

		before, _ := table.Usage(later, k, slow)
		s := &SettlePlan{
			Place: place, HadPlace: true, Late: true, Life: life,
			Changes: []SettledCost{{Key: k, Limit: slow, Reserved: 50, AtExpiry: 50, From: ops[0].TakeRecord()}},
			Answer:  func(*SettlePlan) []byte { return nil },
		}
		s.Changes[0].From.Reserved = true
		if outcome, err := table.Settle(later, s); outcome != Made || err != nil {
			t.Fatal(outcome, err)
		}
		if after, _ := table.Usage(later, k, slow); after != before {
			t.Errorf("rates gave way %t: %d are used, want %d as before", gaveWay, after, before)
		}
	}
}

// A late settlement needs its place, even in another lineage: it may have been
// settled in time, and forgotten.
func TestLateSettlingNeedsItsPlace(t *testing.T) {
	table := newTable(t, 100)
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	s := settled(table, now, algorithms.TakeRecord{}, 7<<52, 4)
	s.HadPlace, s.Late, s.Life.Lineage = true, true, 99
	if outcome, err := table.Settle(now, s); outcome != NotMade || err != nil {
		t.Errorf("it was settled: %v, %v", outcome, err)
	}
}
