package usage

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/golden"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// A damaged file is set aside, and every sum reports that. A new file gets what is in memory.
func TestDamagedFile(t *testing.T) {
	c, _ := config(t.TempDir())
	path := filepath.Join(c.Dir, fileName)
	m := open(t, c)
	for i := range 50 {
		m.count(november, "r", []string{fmt.Sprint(i)}, "requests", 1)
	}
	expect.NoError(t, m.Sync())
	want := m.rows(t, "2026-11")
	if err := os.Truncate(path, 4096); err != nil { // under a running node
		t.Fatal(err)
	}
	m.count(november, "r", []string{"0"}, "requests", 1)
	want["r[0]requestsfalse"] = [2]int64{2, 2}
	for m.Sync() != nil { // the second try at the latest sets the file aside
	}
	if s := m.Stats(); s.SetAside != 1 || !m.file.WasSetAside() {
		t.Errorf("have %+v, want a file set aside", s)
	}
	m.Close()
	m = open(t, c)
	expectRows(t, m.rows(t, "2026-11"), want)
	m.Close()

	if err := os.WriteFile(path, bytes.Repeat([]byte("rubbish"), 5000), 0o600); err != nil { // under a stopped node
		t.Fatal(err)
	}
	m = open(t, c)
	m.count(november, "r", []string{"new"}, "requests", 1)
	expectRows(t, m.rows(t, "2026-11"), map[string][2]int64{"r[new]requestsfalse": {1, 1}})
	if s := m.Stats(); s.SetAside != 1 {
		t.Errorf("have %+v, want a file set aside", s)
	}
}

// As long as old months can't be dropped, each write tries again.
func TestOldMonthsAreDroppedLater(t *testing.T) {
	c, _ := config(t.TempDir())
	m := open(t, c)
	m.count(november, "r", []string{"1"}, "requests", 1)
	expect.NoError(t, m.Sync())
	m.writing.Lock()
	defer m.writing.Unlock()
	_ = m.file.Close() // the disk fails
	m.lastDropped = 0
	for i := range 2 {
		if err := m.write(); err == nil {
			t.Errorf("write %d dropped nothing, without an error", i)
		}
	}
}

// damageBlock damages a block of the first ledger in the file.
func damageBlock(t *testing.T, m *Meter, part byte) {
	t.Helper()
	if err := m.file.Update(func(tx persist.Tx) error {
		list, err := listBuckets(tx)
		if err != nil {
			return err
		}
		return tx.Put(list[0].name(), blockKey(part, 7, 0), []byte{1, 2, 3})
	}); err != nil {
		t.Fatal(err)
	}
}

// Only rows that can't be read are lost. The ledger stays marked as damaged:
// after restarts, after it is closed, and after a hand-over.
func TestDamagedRows(t *testing.T) {
	w := newTestCluster(t, 2)
	h := w.node(1)
	m := h.meter
	for i := range 3000 {
		m.count(november, "r", []string{fmt.Sprint(i)}, "requests", 1)
	}
	m.Close()
	m = open(t, h.config)
	damageBlock(t, m, namesPart)
	m.kill(t)
	rows := -1
	for range 2 {
		m = open(t, h.config)
		have := m.rows(t, "2026-11")
		if cost, checks := total(have); cost >= 3000 || cost < 2900 || checks != cost ||
			rows >= 0 && len(have) != rows {
			t.Errorf("have cost %d and %d checks in %d rows", cost, checks, len(have))
		}
		rows = len(have)
		if list, err := m.holdings(allMonths); err != nil || len(list) != 1 || !list[0].Damaged {
			t.Errorf("the ledger is not marked as damaged: have %v, %v", list, err)
		}
		m.Close()
	}
	h.Totals = NewTotals(open(t, h.config), w, func() []Member { return w.names })
	expect.NoError(t, h.HandOver(t.Context(), false))
	w.names = w.names[1:] // it has left
	if have, missing := w.read(w.node(2), thisMonth); len(have) != rows || !slices.Equal(missing, []string{"n1"}) {
		t.Errorf("handed over: have %d rows, missing %v; want %d rows, and n1", len(have), missing, rows)
	}
}

// TestGoldenFile: the format of usage.db and of messages between nodes has not changed.
func TestGoldenFile(t *testing.T) {
	id := ledgerID{Month: MonthOf(november.UnixNano()), Source: ring.NodeID{1, 2}, Number: 77}
	l := newLedger(id, "n1", 100)
	for i := range 3 {
		row := Row{Rule: "r", Key: []string{"k", fmt.Sprint(i)}, Unit: "tokens",
			Cost: int64(1000*i - 5), Checks: int64(i)}
		l.add(rowHashOf(rules.Hash{Hi: 1 << 60, Lo: uint64(5 + i*shards)}, row.Unit), &row)
	}
	other := Row{Rule: "r", Unit: "requests", Other: true, Cost: 9, Checks: 1}
	l.add(rowHash{}, &other)
	c, _ := config(t.TempDir())
	m := open(t, c)
	var lines []golden.Line
	write := func(what string, change func(tx persist.Tx) error) {
		t.Helper()
		var all []byte
		if err := m.file.Update(func(tx persist.Tx) error {
			if err := change(tx); err != nil {
				return err
			}
			names, err := tx.Names()
			for _, name := range names {
				all = append(all, name...)
				if err = tx.Scan(name, nil, func(key, value []byte) error {
					all = append(append(all, key...), binary.AppendUvarint(nil, uint64(len(value)))...)
					all = append(all, value...)
					return nil
				}); err != nil {
					return err
				}
				if err = tx.Drop(name); err != nil {
					return err
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, golden.Line{Name: what, Bytes: all})
	}
	open := bucketID{ledgerID: id}
	write("counted", func(tx persist.Tx) error {
		if err := l.eachChanged(0, writeBytes,
			func(group []block, _ bool) error { return putBlocks(tx, open, group) }); err != nil {
			return err
		}
		return putHead(tx, open, head{Node: "n1", Round: l.endRound()})
	})
	p := pager{limit: pageBytes}
	l.page(&p)
	handed := pageHeader{holding: holding{Ledger: id, Node: "n1", Round: 1, Copy: true}, Last: true}
	write("handed-over", func(tx persist.Tx) error { return handed.put(tx, p.page) })
	s := statement{Source: id.Source, Name: "n1", Boot: 5, Started: 6, Number: 7, AsOf: 8,
		Ledgers: []version{{id.Month, id.Number, 1}}}
	records := []*processRecord{{statement: s, Ended: 9}}
	write("records", func(tx persist.Tx) error { return putRecords(tx, records) })
	_ = l.eachChanged(0, sendBytes, func(group []block, _ bool) error {
		lines = append(lines, golden.Line{Name: "blocks", Bytes: appendBlocks(nil, group)})
		return nil
	})
	message, _ := json.Marshal(copyHeader{Statement: &s, Sent: []step{{Ledger: id, Node: "n1", To: 1}}})
	lines = append(lines, golden.Line{Name: "statement", Bytes: message})
	golden.Check(t, "testdata/file.txt", lines...)
}

// A file in another format is left as it is, and the error says what to do.
func TestFileOfAnotherVersion(t *testing.T) {
	c, _ := config(t.TempDir())
	m := open(t, c)
	older := strings.Repeat("x", bucketSize+7)
	expect.NoError(t, m.file.Update(func(tx persist.Tx) error { return tx.Put(older, []byte("head"), nil) }))
	m.kill(t)
	m = open(t, c)
	m.count(november, "r", []string{"k"}, "requests", 1)
	expect.ErrorIs(t, m.Sync(), errOtherVersion, "m.Sync()")
	if rows := m.rows(t, "2026-11"); len(rows) != 1 {
		t.Errorf("have %v", rows)
	}
	if err := m.file.View(func(tx persist.Tx) error {
		names, err := tx.Names()
		if !slices.Contains(names, older) {
			t.Errorf("have %q", names)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
