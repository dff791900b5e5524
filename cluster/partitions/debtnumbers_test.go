package partitions

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/expect"
)

// loseAcknowledgement makes c owe a a cost for some of a's keys, and a debit
// it. The acknowledgement does not reach c, and c can't reach a any more.
func loseAcknowledgement(t *testing.T) (f *fleet, a, b, c *node, keys []int) {
	f = newThreeNodes(t)
	a, b, c = f.nodes[0], f.nodes[1], f.nodes[2]
	keys = f.keysOf(a, b, 50)
	f.net.Isolate(c.ip)
	time.Sleep(400 * time.Millisecond)
	for _, i := range keys {
		decideAlone(t, c, i, counters.Admitted)
	}
	f.net.DelayBetween(a.ip, c.ip, 50*time.Millisecond)
	f.net.Rejoin(c.ip)
	f.eventually("the debts are debited", func() bool { return f.usedIs(keys, 1) })
	f.net.Isolate(c.ip)
	f.net.DelayBetween(a.ip, c.ip, 0)
	if n := c.keeper.Load().Stats().Debts; n != len(keys) {
		t.Fatalf("have %d debts, want %d", n, len(keys))
	}
	time.Sleep(500 * time.Millisecond) // time for copies
	return f, a, b, c, keys
}

// checkDebitedOnce checks that the debts are acknowledged and were debited once.
func (f *fleet) checkDebitedOnce(t *testing.T, debtor *node, keys []int) {
	t.Helper()
	f.eventually("all debts are acknowledged", func() bool { return debtor.keeper.Load().Stats().Debts == 0 })
	time.Sleep(300 * time.Millisecond)
	for _, i := range keys {
		expect.Equal(t, f.used(keyOf(i)), 1, "key %d: used", i)
	}
}

// If the acknowledgement is lost, the debtor reports its debts again: to the
// same owner, to the node that the partition was handed to, or to the standby
// that was promoted. They are debited only once.
func TestD8_DebtsThatAreToldAgain(t *testing.T) {
	for name, next := range map[string]func(f *fleet, a, c *node){
		"the owner": func(*fleet, *node, *node) {},
		"a hand-over": func(f *fleet, a, c *node) {
			c.keeper.Load().mu.Lock()
			c.keeper.Load().callsInFlight[callKey{a.id, MethodDebts}] = true // c reports no more debts to a
			c.keeper.Load().mu.Unlock()
			f.net.Rejoin(c.ip)
			f.leave(a)
			f.settle()
		},
		"a promotion": func(f *fleet, a, c *node) {
			a.kill()
			f.net.Rejoin(c.ip)
			f.end(a)
			f.settle()
		},
		"a promotion and a hand-over": func(f *fleet, a, c *node) {
			a.kill()
			f.net.Rejoin(c.ip)
			f.end(a)
			f.settle()
			d := f.add()
			f.bring(d)
			f.ring(f.nodes[1], f.nodes[2], d)
			f.settle()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, a, _, c, keys := loseAcknowledgement(t)
				defer f.closeAll()
				if next(f, a, c); a.alive.Load() {
					f.net.Rejoin(c.ip)
				}
				f.checkDebitedOnce(t, c, keys)
			})
		})
	}
}

// The same if the debtor has restarted meanwhile and restores its debts from disk.
func TestD8_DebtsThatTheNextProcessTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, _, c, keys := loseAcknowledgement(t)
		defer f.closeAll()
		written := c.keeper.Load().AppendDebts(nil)
		c.kill()
		c.restart()
		if n, err := c.keeper.Load().RestoreDebts(written); n != len(keys) || err != nil {
			t.Fatalf("have %d restored, %v", n, err)
		}
		decideAlone(t, c, keys[0], counters.Admitted) // another debt of the same counter, which is not on disk
		f.bring(c)
		f.net.Rejoin(c.ip)
		f.settle()
		f.checkDebitedOnce(t, c, keys[1:])
		expect.Equal(t, f.used(keyOf(keys[0])), 2, "used")
	})
}

// newOwing returns the debts of a registered process, over a table of its own.
func newOwing(t *testing.T, room int64) *debts {
	config := DefaultConfig()
	config.Table = counters.New(room)
	t.Cleanup(func() { config.Table.Close() })
	ds := newDebts(&config)
	ds.bootIndex = 1
	return &ds
}

// owe records a debt that the counter here lacks.
func (ds *debts) owe(key counters.Key, l *algorithms.Limit, taken algorithms.TakeRecord, cost int64) {
	ds.addDebt(&counters.Op{Key: key, Limit: l, Cost: cost}, taken, cost, true)
}

// A debt was reported without an answer, and its window ended. The next process
// reports all of the new window's debt. If the debtor is the owner by then, it
// debits all of that, although another owner had debited the earlier one.
func TestAReportedDebtOfTheLastWindow(t *testing.T) {
	at, key := now(), keyOf(1)
	taken := takeRecordNow(&limit, at)
	last := taken
	last.Window--

	ds, next := newOwing(t, 100), newOwing(t, 100)
	ds.owe(key, &limit, last, 5)
	first := ds.notFinal(key)
	ds.makeFinal(first)
	ds.debitOnce(ds.self, first, at)
	ds.owe(key, &limit, taken, 10)

	n, err := next.restore(ds.append(nil, at), at)
	if list := next.inOrder(key.Partition()); n != 1 || err != nil || len(list) != 1 || list[0].cost != 10 {
		t.Errorf("got %d restored, %v: %+v, want one with a cost of 10", n, err, list)
	}

	ds.dropOwn(key.Partition(), at)
	if used, _ := ds.table.Usage(at, key, &limit); used != 10 {
		t.Errorf("got %d used, want 10", used)
	}
}

// A node takes a partition over that it owes debts to, some of them from a time
// before it restarted. Its counters have each debt once, whatever happened to
// the copy that it debited them from.
func TestOwnDebtsAfterACopyWasSent(t *testing.T) {
	at, key := now(), keyOf(1)
	for _, tt := range []struct {
		name  string
		since func(ds *debts) // what happened since the copy was sent
	}{
		{"nothing", func(*debts) {}},
		{"an owner without the copy has overwritten the counter", func(ds *debts) {
			life := ds.table.Life(key.Partition())
			expect.NoError(t, ds.table.GiveBack(at, key, &limit, takeRecordNow(&limit, at), 3, life))
			ds.markOverwritten(key)
		}},
		{"the copy of an owner that had it has replaced the copy", func(ds *debts) { ds.markDropped(key.Partition()) }},
	} {
		for _, restored := range []bool{false, true} {
			ds := newOwing(t, 100)
			ds.owe(key, &limit, takeRecordNow(&limit, at), 3)
			ds.notFinal(key).restored = restored

			ds.debitIntoCopy(key.Partition(), at)
			tt.since(ds)
			ds.dropOwn(key.Partition(), at)
			if used, _ := ds.table.Usage(at, key, &limit); used != 3 || ds.total != 0 {
				t.Errorf("%s, restored: %v: got %d used, %d debts left, want 3 and none", tt.name,
					restored, used, ds.total)
			}
		}
	}
}

// While an owner takes no debts, a counter has one debt that is reported again
// and again, and one for what is new.
func TestNewDebtsWaitForThoseBefore(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		i := f.keysOf(a, b, 1)[0]
		b.muted.Store(true) // the owner waits for its standby, in vain
		for range 4 {
			decideAlone(t, c, i, counters.Admitted)
			time.Sleep(2 * standbyWait)
		}

		k := c.keeper.Load()
		k.mu.Lock()
		expect.Equal(t, len(k.debts.ofCounter(keyOf(i))), 2, "debts of the counter")
		k.mu.Unlock()

		b.muted.Store(false)
		f.eventually("all debts are acknowledged", func() bool { return k.Stats().Debts == 0 })
		expect.Equal(t, f.used(keyOf(i)), 4, "used")
	})
}

// Of a partition with more debts than a message holds, an owner notes the first
// ones, and the debtor is killed. Its next process owes the others, and what
// was admitted after the report, if that was written to disk.
func TestDebtsOfWhichAMessageHoldsAPart(t *testing.T) {
	at, p := now(), keyOf(1).Partition()
	ofKey := func(i int) counters.Key {
		key := keyOf(1)
		key.Counter += uint64(i)
		return key
	}

	for _, isWritten := range []bool{false, true} { // after the report
		owner, ds, next := newOwing(t, 3*debtsPerMessage), newOwing(t, 100), newOwing(t, 100)
		for i := range debtsPerMessage + 10 {
			ds.owe(ofKey(i), &limit, takeRecordNow(&limit, at), 1)
		}

		written := ds.append(nil, at)
		for _, d := range ds.inOrder(p)[:debtsPerMessage] { // as reportDebts does
			ds.makeFinal(d)
			owner.debitOnce(idOf(1), d, at)
		}
		ds.owe(ofKey(0), &limit, takeRecordNow(&limit, at), 1)
		if isWritten {
			written = ds.append(nil, at)
		}

		_, err := next.restore(written, at)
		expect.NoError(t, err)
		for _, d := range next.inOrder(p) {
			owner.debitOnce(idOf(1), d, at)
		}

		for i := range debtsPerMessage + 10 {
			want := int64(1)
			if isWritten && i == 0 {
				want = 2
			}
			if used, _ := owner.table.Usage(at, ofKey(i), &limit); used != want {
				t.Fatalf("written after the report: %v: got %d used of counter %d, want %d", isWritten, used, i, want)
			}
		}
	}
}

// A debtor that is killed after it has reported debts, but before it has
// written them to disk again, causes no second debit, whether the owner got the
// debts in a report or with a copy. Nor does one that became the owner itself,
// whether or not it is still the owner when it is back.
func TestD8_DebtsThatWereWrittenBeforeTheyWereTold(t *testing.T) {
	for name, tt := range map[string]struct{ pulled, promoted, ended bool }{
		"told": {}, "pulled": {pulled: true}, "promoted": {promoted: true}, "promoted and ended": {promoted: true, ended: true},
	} {
		t.Run(name, func(t *testing.T) {
			onThreeNodes(t, func(t *testing.T, f *fleet) {
				a, teller := f.nodes[0], f.nodes[1]
				keys := f.keysOf(a, teller, 20)
				f.net.Isolate(a.ip)
				time.Sleep(400 * time.Millisecond)
				for _, i := range keys {
					actAsStandby(t, teller, i)
				}
				written := teller.keeper.Load().AppendDebts(nil)
				if changed := teller.keeper.Load().DebtChanges(); len(teller.keeper.Load().AppendDebts(nil)) != len(written) || teller.keeper.Load().DebtChanges() != changed {
					t.Error("AppendDebts changed DebtsChanged")
				}
				if tt.pulled || tt.promoted {
					a.kill()
				}
				if tt.pulled {
					a.restart()
				}
				f.net.HealAll()
				switch {
				case tt.pulled:
					f.bring(a)
				case tt.promoted:
					f.end(a)
				}
				f.settle()
				f.checkDebitedOnce(t, teller, keys)
				teller.kill()
				if tt.ended {
					f.end(teller)
				}
				teller.restart()
				if n, err := teller.keeper.Load().RestoreDebts(written); n != len(keys) || err != nil {
					t.Fatalf("have %d restored, %v", n, err)
				}
				f.bring(teller)
				f.settle()
				f.checkDebitedOnce(t, teller, keys)
			})
		})
	}
}

// A node owes costs that it admitted as a standby and alone, in one partition.
// It is killed as soon as the owner has debited some of them. Its next process
// reports the others.
func TestD8_DebtsOnDiskThatWereNotToldYet(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		i := f.keysOf(a, b, 1)[0]
		j := i + 1
		for ringPartition(j) != ringPartition(i) {
			j++
		}
		f.net.Isolate(a.ip)
		time.Sleep(400 * time.Millisecond)
		actAsStandby(t, b, i)
		decideAlone(t, b, j, counters.Admitted)
		written := b.keeper.Load().AppendDebts(nil)
		f.net.Rejoin(a.ip)
		back := time.Now()
		f.eventually("a debt is acknowledged", func() bool { return b.keeper.Load().Stats().Debts < 2 })
		if took := time.Since(back); took >= fallbackReportDelay {
			t.Errorf("acknowledged after %v: a standby reports at once", took)
		}
		b.kill()
		b.restart()
		if n, err := b.keeper.Load().RestoreDebts(written); n != 2 || err != nil {
			t.Fatalf("have %d restored, %v", n, err)
		}
		f.bring(b)
		f.settle()
		f.checkDebitedOnce(t, b, []int{i, j})
	})
}

// An owner lost its memory and gets its copy from a standby that owes it a
// debt. The copy includes the debt once, whether or not the standby had
// reported it before.
func TestD8_APulledCopyHasTheDebts(t *testing.T) {
	for _, told := range []bool{false, true} {
		onThreeNodes(t, func(t *testing.T, f *fleet) {
			a, b := f.nodes[0], f.nodes[1]
			keys := f.keysOf(a, b, 20)
			f.net.Isolate(a.ip)
			time.Sleep(400 * time.Millisecond)
			for _, i := range keys {
				actAsStandby(t, b, i)
			}
			if told {
				f.net.DelayBetween(a.ip, b.ip, 50*time.Millisecond)
				f.net.Rejoin(a.ip)
				f.eventually("the debts are debited", func() bool { return f.usedIs(keys, 1) })
				f.net.Isolate(f.nodes[2].ip) // so that no third node forwards
				f.net.CutOneWay(b.ip, a.ip)  // pushes with the debited costs still arrive at b
				time.Sleep(40 * time.Millisecond)
			}
			a.kill()
			f.net.HealAll()
			f.net.DelayBetween(a.ip, b.ip, 0)
			a.restart()
			time.Sleep(2100 * time.Millisecond)
			f.bring(a)
			f.settle()
			f.checkDebitedOnce(t, b, keys)
		})
	}
}

// A restarted owner may have a newer checkpoint than its standby's copy. The
// standby's debts are added to the checkpoint's counters, once.
func TestDebtsCountBesideANewerCheckpoint(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		keys := f.keysOf(a, b, 20)
		f.net.Isolate(a.ip)
		time.Sleep(400 * time.Millisecond)
		for _, i := range keys {
			actAsStandby(t, b, i)
			for range 3 {
				if by, ok, err := f.take(a, keyOf(i)); by != a || !ok || err != nil {
					t.Fatal(by.ip, ok, err)
				}
			}
		}
		a.kill()
		f.net.Rejoin(a.ip)
		a.start(2) // with all of its counters
		time.Sleep(2100 * time.Millisecond)
		f.bring(a)
		f.settle()
		f.eventually("all debts are acknowledged", func() bool { return b.keeper.Load().Stats().Debts == 0 })
		if !f.usedIs(keys, 4) {
			t.Errorf("key %d: have %d used, want 4", keys[0], f.used(keyOf(keys[0])))
		}
	})
}

// An owner has no room for a debt, and its answer is lost. When the debts are
// reported again, the answer is the same, even if a later one came in between.
// If there was room for all, none is debited again, even if its cost was given
// back meanwhile.
func TestNoRoomForADebtTwice(t *testing.T) {
	day := algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1, Window: 24 * time.Hour}
	for room, want := range map[int64]int{1: 1, 2: 0} {
		owner, debtor := newOwing(t, room), newOwing(t, 100)
		for i := range uint64(2) {
			key := keyOf(1)
			key.Counter += i
			debtor.owe(key, &day, takeRecordNow(&day, now()), 1)
			debtor.makeFinal(debtor.notFinal(key))
		}
		list := debtor.inOrder(keyOf(1).Partition())
		for range 2 {
			noRoom := 0
			for _, d := range list {
				if !owner.debitOnce(idOf(1), d, now()) {
					noRoom++
				}
			}
			expect.Equal(t, noRoom, want, "debts without room, of two with room for %d", room)
			later := *list[0]
			later.number.n = 9
			if !owner.debitOnce(idOf(1), &later, now()) && want > 0 {
				t.Error("no room for a later debt of a counter that is there")
			}
			if want == 0 {
				life := owner.table.Life(later.key.Partition())
				expect.NoError(t, owner.table.GiveBack(now(), later.key, &later.limit, later.taken, 1, life))
			}
		}
	}
}

// The owner refuses the debts that it debited if a standby does not get them in
// time. It still answers that it had no room for a debt, so that the debtor
// reports that one under another number.
func TestNoRoomAndALateStandby(t *testing.T) {
	list := []*debt{{key: keyOf(1)}, {key: keyOf(1)}, {key: keyOf(1)}}
	answers := []byte{debtTaken, debtNoRoom, debtRefused}
	refuseDebited(list, answers, map[int]bool{keyOf(1).Partition(): true})
	if want := []byte{debtRefused, debtNoRoom, debtRefused}; !slices.Equal(answers, want) {
		t.Errorf("got the answers %v, want %v", answers, want)
	}
}

// A debt for which the owner has no room is reported under another number,
// together with what was admitted meanwhile.
func TestADebtWithoutRoomIsReportedAgain(t *testing.T) {
	key, at := keyOf(1), now()
	taken := takeRecordNow(&limit, at)
	for _, later := range []int64{0, 2} {
		ds := newOwing(t, 100)
		ds.owe(key, &limit, taken, 3)
		first := ds.notFinal(key)
		ds.makeFinal(first)
		if later > 0 {
			ds.owe(key, &limit, taken, later)
		}
		ds.renumber(first)
		list := ds.ofCounter(key)
		if len(list) != 1 || ds.total != 1 || list[0].cost != 3+later ||
			list[0].lacking != 3+later || list[0].number != (debtNumber{n: 2}) {
			t.Errorf("got %+v, want one debt of %d with the second number", list, 3+later)
		}
	}
}

// A debt that was debited into a copy and then found no room gets another
// number. The copy takes in what the debt has gained since, and notes the new
// number: otherwise an owner that continues from the copy debits all of it again.
func TestADebtWithoutRoomInACopy(t *testing.T) {
	at := now()
	key := keyOf(1)
	taken := takeRecordNow(&limit, at)
	ds := newOwing(t, 100)
	ds.owe(key, &limit, taken, 3)
	p := key.Partition()
	ds.debitIntoCopy(p, at)

	first := ds.ofCounter(key)[0]
	ds.renumber(first)
	ds.owe(key, &limit, taken, 2) // joins the debt
	ds.debitIntoCopy(p, at)

	used, _ := ds.table.Usage(at, key, &limit)
	expect.Equal(t, used, 5, "used in the copy")
	for _, d := range ds.ofCounter(key) {
		if noted := ds.noteOf(p, ds.self, at); !noted.covers(d) {
			t.Errorf("the note %+v does not cover the debt %+v", noted, d)
		}
	}
}

// A debt of an earlier process that joins another is still debited in full: a
// merge may have lost the part that the counters had.
func TestARestoredDebtWithoutRoom(t *testing.T) {
	key, at := keyOf(1), now()
	taken := takeRecordNow(&limit, at)
	ds := newOwing(t, 100)
	ds.owe(key, &limit, taken, 3)
	first := ds.notFinal(key)
	ds.makeFinal(first)
	first.restored = true
	first.lacking = 0
	ds.owe(key, &limit, taken, 2)

	first.fallback = false
	ds.notFinal(key).fallback = true
	ds.renumber(first)
	expect.Equal(t, ds.notFinal(key).fallback, false, "all of it was admitted in fallback")
	ds.dropOwn(key.Partition(), at)
	used, _ := ds.table.Usage(at, key, &limit)
	expect.Equal(t, used, 5, "used")
}

// A debt without room does not come after a debt of a later window, which would
// no longer be the last of its counter. Its own window is over.
func TestADebtWithoutRoomOfTheLastWindow(t *testing.T) {
	key, at := keyOf(1), now()
	earlier := takeRecordNow(&limit, at)
	later := earlier
	later.Window++
	ds := newOwing(t, 100)
	ds.owe(key, &limit, earlier, 3)
	first := ds.notFinal(key)
	ds.makeFinal(first)
	ds.owe(key, &limit, later, 2)
	last := ds.notFinal(key)

	ds.renumber(first)
	expect.Equal(t, ds.notFinal(key), last, "the debt that is not reported yet")
	expect.Equal(t, len(ds.ofCounter(key)), 1, "debts")
	expect.Equal(t, ds.total, 1, "counters with debts")
}

// A complete copy that arrives with a gap is sent again, and resets no counters
// before it is whole. Changes after a gap are declined.
func TestCopiesWithHoles(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		i := f.keysOf(a, b, 1)[0]
		p := ringPartition(i)
		k := b.keeper.Load()
		b.table.Load().TakeUngated(now(), []counters.Op{{Key: keyOf(i), Limit: &limit, Cost: 5}})
		rate := notes.Note{Key: notes.Key{Subject: keyOf(i).Subject, ID: keyOf(i).Counter,
			Kind: notes.Rate}, Rank: 1, UntilSecond: math.MaxUint32}
		b.table.Load().Put(now(), counters.Record{Note: &rate})
		used := func() int64 {
			n, _ := b.table.Load().Usage(k.config.Now(), keyOf(i), &limit)
			return n
		}
		k.mu.Lock()
		at := k.parts[p].version
		k.mu.Unlock()
		part := func(round uint64, flags uint8, parts uint64) bool {
			s := section{p: p, version: version{at.lineage, at.tenure, round}, flags: flags, sectionNumber: parts}
			k.mu.Lock()
			from := peer.Identity{Node: a.id, Boot: k.parts[p].pusherBoot}
			seq := k.parts[p].lastPushNumber
			k.mu.Unlock()
			return k.beginSection(k.adopted.Load(), from, seq, s, false) && k.endSection(a.id, s)
		}
		now := func() version {
			k.mu.Lock()
			defer k.mu.Unlock()
			return k.parts[p].version
		}
		if !part(at.round+1, 0, 1) || now().round != at.round+1 {
			t.Errorf("have %+v after a change", now())
		}
		if part(at.round+3, 0, 1) || now().round != at.round+1 {
			t.Errorf("have %+v after a gap", now())
		}
		if !part(at.round+2, sectionMore, 1) || now().round != at.round+1 {
			t.Errorf("have %+v after a part of a round", now())
		}
		if part(at.round+2, 0, 3) || now().round != at.round+1 {
			t.Errorf("have %+v after a round with a gap", now())
		}
		if !part(at.round+2, sectionMore, 2) || !part(at.round+2, 0, 3) || now().round != at.round+2 {
			t.Errorf("have %+v after a round in three parts", now())
		}
		if part(at.round+9, sectionCopy|sectionBegins, 1); part(at.round+9, sectionCopy|sectionEnds,
			3) || now().round != at.round+2 {
			t.Errorf("have %+v after a copy with a gap", now())
		}
		expect.Equal(t, used(), 5, "used after a copy with a gap")
		part(at.round+9, sectionCopy|sectionBegins, 1)
		part(at.round+9, sectionCopy, 2)
		if !part(at.round+9, sectionCopy|sectionEnds, 3) || now().round != at.round+9 {
			t.Errorf("have %+v after a copy", now())
		}
		expect.Equal(t, used(), 0, "used after a copy without the counter")
		_ = b.table.Load().Copy(p, func(records []counters.Record) error {
			for i := range records {
				if r := &records[i]; r.Note == nil && r.Kind != limit.Kind {
					t.Errorf("the counter has kind %v after a copy without it, want %v", r.Kind, limit.Kind)
				}
			}
			return nil
		})
	})
}

// A state that is adopted between two records of a push changes the partition's
// phase, and the remaining records are ignored. So the push does not count, even
// if a second state brings the old phase back before the push ends. Nor does a
// later part of the same round or copy.
func TestAnInterruptedPushDoesNotCount(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		i := f.keysOf(a, b, 1)[0]
		p := ringPartition(i)
		k := b.keeper.Load()
		state := k.adopted.Load()

		k.mu.Lock()
		at := k.parts[p].version
		from := peer.Identity{Node: a.id, Boot: k.parts[p].pusherBoot}
		seq := k.parts[p].lastPushNumber
		k.mu.Unlock()

		head := func(round uint64, flags uint8, number uint64) section {
			return section{p: p, version: version{at.lineage, at.tenure, round}, flags: flags, sectionNumber: number}
		}
		enter := func(phases ...phase) {
			k.mu.Lock()
			defer k.mu.Unlock()
			for _, next := range phases {
				k.setPhase(p, next)
			}
		}
		record := counters.Record{Key: keyOf(i), Kind: limit.Kind}

		for _, test := range []struct {
			name        string
			first, next section
			interrupt   []phase
		}{
			{"last of a round, doubtful", head(at.round+1, 0, 1), section{}, []phase{doubtful}},
			{"last of a round, away again", head(at.round+1, 0, 1), section{}, []phase{doubtful, away}},
			{"first of a round", head(at.round+1, sectionMore, 1), head(at.round+1, 0, 2), []phase{doubtful, away}},
			{"first of a copy", head(at.round+9, sectionCopy|sectionBegins, 1),
				head(at.round+9, sectionCopy|sectionEnds, 2), []phase{doubtful, away}},
		} {
			if !k.beginSection(state, from, seq, test.first, false) {
				t.Fatalf("%s: the push was declined", test.name)
			}
			enter(test.interrupt...)
			k.putRecord(a.id, test.first, now(), record)
			if k.endSection(a.id, test.first) {
				t.Errorf("%s: a push with a gap was accepted", test.name)
			}
			enter(away)

			if test.next.p == p && k.beginSection(state, from, seq, test.next, false) && k.endSection(a.id, test.next) {
				t.Errorf("%s: the rest of a push with a gap was accepted", test.name)
			}
			k.mu.Lock()
			if have := k.parts[p].version; have != at {
				t.Errorf("%s: the copy has version %+v, want %+v", test.name, have, at)
			}
			k.parts[p].version = at // for the next case
			k.mu.Unlock()
		}

		if !k.beginSection(state, from, seq, head(at.round+1, 0, 1), false) || !k.endSection(a.id, head(at.round+1, 0, 1)) {
			t.Error("a whole push was declined")
		}
	})
}

// Of two copies of one lineage, the newer one wins, even if the older one has
// more used. Copies of different lineages are merged.
func TestD2_TheNewestCopyReplaces(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		d := f.add()
		f.bring(d)
		f.net.DelayBetween(a.ip, d.ip, 10*time.Millisecond)
		f.ring(f.nodes...)
		var i, p int
		for i = 0; ; i++ {
			p = ringPartition(i)
			if f.state.From.Owner(p) == a.id && f.state.To.Owner(p) == d.id &&
				f.state.To.Standby(p) == b.id {
				break
			}
		}
		f.eventually("the partition is handed over",
			func() bool { return phase(a.keeper.Load().phases[p].Load()) == handedOver })
		if _, ok, err := f.take(a, keyOf(i)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		time.Sleep(300 * time.Millisecond)
		f.net.Cut(a.ip, d.ip)
		time.Sleep(time.Second)
		// Reset the counter, so that the newest copy has less than the older one.
		expect.NoError(t,
			d.table.Load().Amend(now(),
				&counters.Amendment{Ops: []counters.Op{{Key: keyOf(i), Limit: &limit}}, Reset: counters.ResetSubject}))
		time.Sleep(300 * time.Millisecond)
		d.kill()
		f.agree(agreement.EndNode{Node: d.id, Generation: f.state.Generation(d.id)})
		f.eventually("the partition has an owner", func() bool { return f.used(keyOf(i)) >= 0 })
		expect.Equal(t, f.used(keyOf(i)), 0, "used")
	})
}

// Debts that have drained are no longer reported, and the others keep their numbers.
func TestReportsForgetWhatIsOver(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, c := f.nodes[0], f.nodes[2]
		i := f.keysOf(a, f.nodes[1], 1)[0]
		p := ringPartition(i)
		short := algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 10, Burst: 10, Window: time.Second}
		other := keyOf(i)
		other.Counter++
		k := c.keeper.Load()
		k.mu.Lock()
		for key, l := range map[counters.Key]*algorithms.Limit{keyOf(i): &limit, other: &short} {
			k.debts.addDebt(&counters.Op{Key: key, Limit: l, Cost: 3}, takeRecordNow(l, now()), 3, false)
		}
		for _, d := range k.debts.inOrder(p) {
			k.debts.makeFinal(d)
		}
		before := k.debts.ofCounter(keyOf(i))[0].number
		k.mu.Unlock()
		f.net.Isolate(c.ip)
		time.Sleep(15 * time.Second)
		k.mu.Lock()
		if list := k.debts.inOrder(p); len(list) != 1 || list[0].number != before ||
			list[0].key != keyOf(i) || k.debts.total != 1 {
			t.Errorf("got %+v, want the one with the number %+v", list, before)
		}
		k.mu.Unlock()
		f.net.Rejoin(c.ip)
		f.eventually("the debt is acknowledged", func() bool { return k.Stats().Debts == 0 })
		expect.Equal(t, f.used(keyOf(i)), 3, "used")
		if used, _ := a.table.Load().Usage(now(), other, &short); used != 0 {
			t.Errorf("have %d used of an expired debt", used)
		}
	})
}

// A standby that has reported its debts, but got no acknowledgement, is
// promoted. Its copy includes the debts once.
func TestD8_TheTellerTakesOver(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		keys := f.keysOf(a, b, 20)
		f.net.Isolate(a.ip)
		time.Sleep(400 * time.Millisecond)
		for _, i := range keys {
			actAsStandby(t, b, i)
		}
		f.net.DelayBetween(a.ip, b.ip, 50*time.Millisecond)
		f.net.Rejoin(a.ip)
		f.eventually("the debts are debited", func() bool { return f.usedIs(keys, 1) })
		f.net.Isolate(f.nodes[2].ip) // so that no third node forwards
		f.net.CutOneWay(b.ip, a.ip)
		f.eventually("the copies have arrived", func() bool {
			b.keeper.Load().mu.Lock()
			defer b.keeper.Load().mu.Unlock()
			for _, i := range keys {
				if list := b.keeper.Load().debts.ofCounter(keyOf(i)); len(list) != 1 || list[0].lacking != 1 {
					return false
				}
			}
			return true
		})
		a.kill()
		f.end(a)
		f.settle()
		f.checkDebitedOnce(t, b, keys)
	})
}

// A copy that is sent and does not arrive, even twice, drops no debts: an owner
// that continues without it debits all of them.
func TestD7_CopiesThatDontArriveTakeNoDebts(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		i := f.keysOf(a, b, 1)[0]
		p, k := ringPartition(i), b.keeper.Load()
		f.net.Isolate(a.ip)
		time.Sleep(400 * time.Millisecond)
		for n := range int64(3) {
			actAsStandby(t, b, i)
			k.mu.Lock()
			k.debts.debitIntoCopy(p, now())
			owed, lacking := int64(0), int64(0)
			for _, d := range k.debts.ofCounter(keyOf(i)) {
				owed += d.cost
				lacking += d.lacking
			}
			if owed != n+1 || lacking != 0 {
				t.Errorf("got %d owed, %d lacking after %d copies, want all counted", owed, lacking, n+1)
			}
			k.mu.Unlock()
			if used, _ := b.table.Load().Usage(now(), keyOf(i), &limit); used != n+1 {
				t.Errorf("the copy has %d used after %d copies", used, n+1)
			}
		}
		f.net.Rejoin(a.ip)
		f.eventually("all debts are acknowledged", func() bool { return k.Stats().Debts == 0 })
		expect.Equal(t, f.used(keyOf(i)), 3, "used")
	})
}

// An owner debits a debt, confirms a slot of that partition, and is killed
// before it pushes anything else. Its standby has the debt and its number, so
// the debt is debited once.
func TestD8_AConfirmationBetweenADebitAndItsPush(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		i := f.keysOf(a, b, 1)[0]
		d := &debt{key: keyOf(i), number: debtNumber{bootIndex: f.state.Processes[c.id].Index, n: 1}}
		d.owedCost = owedCost{limit: limit, taken: takeRecordNow(&limit, now()), cost: 1}
		time.Sleep(time.Second + DefaultConfig().Interval/2) // between two pushes

		expect.Equal(t, a.keeper.Load().acceptDebt(c.id, d, now(), false), debtTaken, "the owner's answer")
		expect.NoError(t, a.keeper.Load().ConfirmNotes(t.Context(), ringPartition(i)))
		a.kill()
		f.end(a)
		f.settle()

		expect.Equal(t, b.keeper.Load().acceptDebt(c.id, d, now(), false), debtTaken, "the next owner's answer")
		expect.Equal(t, f.used(keyOf(i)), 1, "used")
	})
}

// A standby misses the push of a debt, gets that of the next one, and is
// promoted before it gets a complete copy. It does not take the first debt for
// debited.
func TestD8_ADebtWhosePushIsLost(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		i := f.keysOf(a, b, 1)[0]
		debit := func(owner *node, n uint64) {
			d := &debt{key: keyOf(i), number: debtNumber{bootIndex: f.state.Processes[c.id].Index, n: n}}
			d.key.Counter += n
			d.owedCost = owedCost{limit: limit, taken: takeRecordNow(&limit, now()), cost: 1}
			expect.Equal(t, owner.keeper.Load().acceptDebt(c.id, d, now(), false), debtTaken, "debt %d: answer", n)
		}
		time.Sleep(time.Second)

		b.muted.Store(true)
		debit(a, 1)
		time.Sleep(2 * DefaultConfig().Interval)
		b.muted.Store(false)
		debit(a, 2)
		time.Sleep(2 * DefaultConfig().Interval)
		a.kill()
		f.end(a)
		f.settle()

		for n := range uint64(2) {
			debit(b, n+1)
			key := keyOf(i)
			key.Counter += n + 1
			expect.Equal(t, f.used(key), 1, "debt %d: used", n+1)
		}
	})
}
