package usage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
)

// newPair starts two nodes, each of which may hold the other's copy.
func newPair(t *testing.T) (w *world, one, other *billedNode) {
	dir := t.TempDir()
	if shm, err := os.MkdirTemp("/dev/shm", "bills"); err == nil { // far faster
		t.Cleanup(func() { os.RemoveAll(shm) })
		dir = shm
	}
	w = &world{t: t, rng: newRandom(1), began: time.Now(), dir: dir, seed: 1}
	w.offset.Store(int64(november.Sub(w.began)))
	for i := range 2 {
		p := &place{number: i + 1}
		w.change(func() { w.places = append(w.places, p) })
		p.begin(w)
		p.node.count(1)
	}
	time.Sleep(15 * time.Second)
	return w, w.places[0].node, w.places[1].node
}

// ledgersOf returns how many ledgers a node's file has of another one, and the size of the file.
func (n *billedNode) ledgersOf(other *billedNode) (ledgers int, size int64) {
	m := n.totals.meter
	err := m.file.View(func(tx persist.Tx) error {
		list, err := listBuckets(tx)
		for _, id := range list {
			if id.Source == other.config.Self {
				ledgers++
			}
		}
		return err
	})
	info, statErr := os.Stat(filepath.Join(n.config.Dir, fileName))
	if err != nil || statErr != nil {
		n.w.t.Fatal(err, statErr)
	}
	return ledgers, info.Size()
}

// readMonth reads this month's bill at a node.
func (n *billedNode) readMonth() (cost map[string]int64, s *Stream) {
	s, err := n.totals.Read(n.w.t.Context(), Query{Month: MonthOf(n.w.now())})
	expect.NoError(n.w.t, err)
	cost = map[string]int64{}
	for row, ok := s.Next(); ok; row, ok = s.Next() {
		cost[row.Key[0]] += row.Cost
	}
	return cost, s
}

// costHere returns what a node's own ledgers have.
func (n *billedNode) costHere() (cost int64) {
	s, err := n.totals.Read(n.w.t.Context(), Query{Month: MonthOf(n.w.now()), Here: true})
	expect.NoError(n.w.t, err)
	for row, ok := s.Next(); ok; row, ok = s.Next() {
		cost += row.Cost
	}
	return cost
}

// A node that crashes a thousand times in a month has few ledgers, on its own
// disk and on the one with the copy. Its bill is exact all the time, and
// nothing is said to be missing.
func TestCrashesMakeFewLedgers(t *testing.T) {
	const crashes = 4 * mergeAt
	synctest.Test(t, func(t *testing.T) {
		w, one, other := newPair(t)
		for i := range crashes {
			one.count(2)
			time.Sleep(2500 * time.Millisecond) // until it is on disk
			one.kill()
			one.start()
			if i%97 == 0 {
				w.check()
			}
		}
		time.Sleep(mergeGrace + time.Minute)

		admitted := int64(0)
		for _, c := range one.counts {
			admitted += c.cost
		}
		for _, at := range []*billedNode{one, other} {
			cost, s := at.readMonth()
			if got := cost[one.config.Name]; got != admitted || len(s.Missing()) > 0 || len(s.Estimated()) > 0 {
				t.Errorf("bill at %s: got %d, missing %v, estimated %v; want %d", at.config.Name,
					got, s.Missing(), s.Estimated(), admitted)
			}
			ledgers, size := at.ledgersOf(one)
			if ledgers > mergeAt+2 || size > 1<<20 {
				t.Errorf("%s: got %d ledgers and %d bytes after %d crashes", at.config.Name, ledgers, size, crashes)
			}
			if records := len(at.totals.processRecords.list()); records > 2 {
				t.Errorf("%s: got %d records of processes", at.config.Name, records)
			}
		}
		one.stop()
		other.stop()
	})
}

// Merging takes a copy that got further than the ledger here, and changes no
// bill: not even what says that an exported one was revised. Without an answer
// of all members, nothing is merged.
func TestMergingKeepsTheBill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, one, other := newPair(t)
		restart := func(mergeAt int) {
			w.mergeAt = mergeAt
			one.kill()
			one.start()
		}
		for range mergeAt + 20 {
			restart(1 << 20)
			one.count(3)
			one.totals.copyChanges() // the file lacks what comes between
			one.count(3)
			one.totals.copyChanges()
		}
		restart(1 << 20)
		time.Sleep(20 * time.Second)
		before, s := other.readMonth()
		s.Exported()
		if here := one.costHere(); here >= before[one.config.Name] {
			t.Fatalf("got %d on its own disk, want less than the %d of the bill: some copies got further", here, before[one.config.Name])
		}

		unmerged, _ := one.ledgersOf(one)
		w.change(func() { w.places[1].cut = true })
		restart(mergeAt)
		time.Sleep(2 * time.Minute)
		if ledgers, _ := one.ledgersOf(one); ledgers != unmerged || ledgers <= mergeAt {
			t.Errorf("got %d ledgers while the other node does not answer, want all %d, more than %d", ledgers, unmerged, mergeAt)
		}

		w.change(func() { w.places[1].cut = false })
		time.Sleep(mergeGrace + time.Minute)
		if ledgers, _ := one.ledgersOf(one); ledgers > mergeAt {
			t.Errorf("got %d ledgers, want most merged", ledgers)
		}
		after, s := other.readMonth()
		if after[one.config.Name] != before[one.config.Name] || !s.Revised().IsZero() {
			t.Errorf("got %d, revised %v after merging; want %d, not revised",
				after[one.config.Name], s.Revised(), before[one.config.Name])
		}
		one.stop()
		other.stop()
	})
}

// A node that has handed its ledgers over does not even try to merge them. If it
// stays after all, it merges them again.
func TestMergingEndsWithAHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, one, other := newPair(t)
		var log bytes.Buffer
		one.config.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		restart := func(mergeAt int) {
			w.mergeAt = mergeAt
			one.kill()
			one.start()
		}
		for range mergeAt + 4 {
			restart(1 << 20)
			one.count(2)
			time.Sleep(2500 * time.Millisecond) // until it is on disk
		}
		before, _ := other.readMonth()

		restart(mergeAt)
		expect.NoError(t, one.totals.HandOver(t.Context(), false))
		time.Sleep(time.Minute)
		if ledgers, _ := one.ledgersOf(one); ledgers <= mergeAt {
			t.Errorf("got %d ledgers after the hand-over, want more than %d, all of them", ledgers, mergeAt)
		}

		one.totals.Stay()
		time.Sleep(mergeGrace + time.Minute)
		if ledgers, _ := one.ledgersOf(one); ledgers > mergeAt {
			t.Errorf("got %d ledgers of a node that stays, want most merged", ledgers)
		}
		after, s := other.readMonth()
		if after[one.config.Name] != before[one.config.Name] || len(s.Missing()) > 0 {
			t.Errorf("got %d, missing %v after merging; want %d", after[one.config.Name], s.Missing(), before[one.config.Name])
		}
		one.stop()
		other.stop()
		if text := log.String(); strings.Contains(text, "can't merge") {
			t.Errorf("ledgers that were handed over were gathered for a merge:\n%.2000s", text)
		}
	})
}

// A merged ledger of which only a part is on disk counts for nothing, and goes at the next start.
func TestHalfAMergedLedgerIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, one, other := newPair(t)
		list, _ := one.totals.meter.holdings(allMonths)
		h := pageHeader{holding: holding{Ledger: list[0].Ledger, Node: "n1", Round: 1,
			Merged: binary.BigEndian.AppendUint64(nil, list[0].Ledger.Number)}}
		h.Ledger.Number++
		expect.NoError(t, one.totals.meter.putPage(&h, nil))
		want, _ := other.readMonth()
		one.kill()
		one.start()
		time.Sleep(5 * time.Second)
		got, s := other.readMonth()
		if fmt.Sprint(got) != fmt.Sprint(want) || len(s.Missing()) > 0 {
			t.Errorf("got %v, missing %v; want %v", got, s.Missing(), want)
		}
		if ledgers, _ := one.ledgersOf(one); ledgers != 1 {
			t.Errorf("got %d ledgers, want 1", ledgers)
		}
		one.stop()
		other.stop()
	})
}

// Of two merged ledgers with a common part, which only a restored data
// directory can make, one counts, and the bill is incomplete.
func TestMergedLedgersThatMeet(t *testing.T) {
	of := func(list ...uint64) (n ledgerNumbers) {
		for _, number := range list {
			n = n.with(binary.BigEndian.AppendUint64(nil, number))
		}
		return n
	}
	id := func(number uint64) ledgerID { return ledgerID{MonthOf(november.UnixNano()), ring.NodeID{1}, number} }
	b := &bill{ledgers: []holding{
		{Ledger: id(1), Node: "n1", Round: 3},
		{Ledger: id(10), Node: "n1", Round: 1, Merged: of(1, 2)},
		{Ledger: id(11), Node: "n1", Round: 1, Merged: of(2, 3, 4)},
		{Ledger: id(5), Node: "n1", Round: 2},
	}}
	b.omitReplaced()
	b.complete()
	if len(b.ledgers) != 2 || b.ledgers[0].Ledger != id(5) || b.ledgers[1].Ledger != id(11) ||
		fmt.Sprint(b.missing) != "[n1]" {
		t.Errorf("got %v, missing %v; want ledgers 5 and 11, n1 missing", b.ledgers, b.missing)
	}
}
