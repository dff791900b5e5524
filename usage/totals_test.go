package usage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// testCluster is a cluster whose messages are function calls.
type testCluster struct {
	t     *testing.T
	nodes map[ring.NodeID]*testNode
	names []Member
	down  map[ring.NodeID]bool
	ended map[ring.NodeID]bool
	calls atomic.Int64
	fail  func(m peer.Method, calls int64) bool
}

type testNode struct {
	*Totals
	dir    string
	config Config
}

func newTestCluster(t *testing.T, n int) *testCluster {
	w := &testCluster{t: t, nodes: map[ring.NodeID]*testNode{}, down: map[ring.NodeID]bool{},
		ended: map[ring.NodeID]bool{}}
	for i := range n {
		id := ring.NodeID{byte(i + 1)}
		w.names = append(w.names, Member{ID: id, Name: fmt.Sprintf("n%d", i+1), Alive: true, InRing: true})
		c, _ := config(t.TempDir())
		c.Self, c.Name, c.Rows = id, w.names[i].Name, 200_000
		h := &testNode{dir: c.Dir, config: c}
		h.Totals = NewTotals(open(t, c), w, func() []Member { return w.names })
		w.nodes[id] = h
		t.Cleanup(func() { h.Close() })
	}
	return w
}

func (c *testCluster) node(i int) *testNode { return c.nodes[ring.NodeID{byte(i)}] }

// Call implements Peers.
func (c *testCluster) Call(_ context.Context, to ring.NodeID, m peer.Method, body []byte) ([]byte, error) {
	calls := c.calls.Add(1)
	if c.down[to] || c.fail != nil && c.fail(m, calls) {
		return nil, peer.ErrUnreachable
	}
	return c.nodes[to].answer(m, bytes.Clone(body))
}

// ProcessGone implements Peers.
func (c *testCluster) ProcessGone(id ring.NodeID) bool { return c.ended[id] }

// read reads a month at a node.
func (c *testCluster) read(at *testNode, q Query) (rows []Row, missing []string) {
	c.t.Helper()
	s, err := at.Read(c.t.Context(), q)
	if err != nil {
		c.t.Fatal(err)
	}
	for {
		row, ok := s.Next()
		if !ok {
			break
		}
		if n := len(rows); n > 0 && compareRows(&rows[n-1], &row) >= 0 {
			c.t.Fatalf("%+v does not come after %+v", row, rows[n-1])
		}
		rows = append(rows, row)
	}
	return rows, s.Missing()
}

func sumOf(rows []Row) (cost, checks int64) {
	for _, r := range rows {
		cost, checks = cost+r.Cost, checks+r.Checks
	}
	return cost, checks
}

var thisMonth = Query{Month: MonthOf(november.UnixNano())}

func TestTotalsSum(t *testing.T) {
	w := newTestCluster(t, 3)
	for i := range 9000 { // more than a page
		w.node(i%3+1).meter.count(november, "tenant",
			[]string{fmt.Sprintf("a rather long name of subject %d", i/2)}, "requests", int64(i))
	}
	w.node(2).meter.count(november, "pair", []string{"a", "b"}, "tokens", 5)
	rows, missing := w.read(w.node(1), thisMonth)
	if cost, checks := sumOf(rows); len(rows) != 4501 || cost != 9000*8999/2+5 || checks != 9001 || len(missing) > 0 {
		t.Errorf("have %d rows, cost %d, %d checks, missing %v", len(rows), cost, checks, missing)
	}
	if rows[0].Rule != "pair" || !slices.Equal(rows[0].Key, []string{"a", "b"}) || rows[0].Cost != 5 {
		t.Errorf("have %+v first", rows[0])
	}
	only := thisMonth
	only.Rule = "pair"
	if rows, _ := w.read(w.node(3), only); len(rows) != 1 {
		t.Errorf("one rule: have %d rows", len(rows))
	}
	only.Rule = "nothing"
	if rows, _ := w.read(w.node(3), only); len(rows) != 0 {
		t.Errorf("no rule: have %d rows", len(rows))
	}
	here := thisMonth
	here.Here = true
	if rows, _ := w.read(w.node(3), here); len(rows) != 3000 {
		t.Errorf("one node: have %d rows, want 3000", len(rows))
	}
	if rows, missing := w.read(w.node(1), Query{Month: thisMonth.Month - 1}); len(rows)+len(missing) > 0 {
		t.Errorf("another month: have %d rows, missing %v", len(rows), missing)
	}

	w.down[ring.NodeID{3}] = true
	rows, missing = w.read(w.node(1), thisMonth)
	if _, checks := sumOf(rows); checks != 6001 || !slices.Equal(missing, []string{"n3"}) {
		t.Errorf("without n3: have %d checks, missing %v", checks, missing)
	}
	// A node that fails halfway is also missing, and the others are read to the end.
	w.down = map[ring.NodeID]bool{}
	w.fail = func(m peer.Method, calls int64) bool { return m == MethodRows && calls%4 == 0 }
	rows, missing = w.read(w.node(1), thisMonth)
	if _, checks := sumOf(rows); len(missing) == 0 || checks >= 9001 || checks < 3000 {
		t.Errorf("with calls that fail: have %d checks, missing %v", checks, missing)
	}
}

func TestHandOver(t *testing.T) {
	w := newTestCluster(t, 4)
	total := int64(0)
	count := func(node int, n int) {
		for i := range n {
			w.node(node).meter.count(november, "r",
				[]string{fmt.Sprintf("subject of %d to be handed over with a long name %d", node, i)},
				"requests", 1)
			total++
		}
	}
	expect := func(what string) {
		t.Helper()
		for _, m := range w.names {
			rows, missing := w.read(w.nodes[m.ID], thisMonth)
			if _, checks := sumOf(rows); checks != total || len(missing) > 0 {
				t.Errorf("%s, at %s: have %d checks, missing %v; want %d", what, m.Name, checks, missing, total)
			}
		}
	}
	leave := func(node int) {
		t.Helper()
		if err := w.node(node).HandOver(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	count(1, 10)
	count(2, 20)
	count(3, 30_000) // more than a page
	count(4, 40)
	w.node(3).meter.count(november.AddDate(0, -1, 0), "r", []string{"k"}, "requests", 7)
	expect("before")

	leave(3)
	expect("handed over, and still a member")
	leave(3) // as if the reply had been lost
	w.names = slices.DeleteFunc(w.names, func(m Member) bool { return m.Name == "n3" })
	expect("gone")
	count(3, 5)
	if rows, _ := w.read(w.node(1), Query{Month: thisMonth.Month - 1}); len(rows) != 1 || rows[0].Cost != 7 {
		t.Errorf("the month before: have %+v", rows)
	}
	leave(3) // hands over what it has counted since
	expect("gone, after a second hand-over")

	// The node that took the ledgers over leaves, too, and hands them on.
	leave(1)
	w.names = slices.DeleteFunc(w.names, func(m Member) bool { return m.Name == "n1" })
	expect("n1 gone as well")

	// n3 hands over again, to another node: each of its ledgers counts once.
	count(3, 3)
	leave(3)
	expect("n3 once more")
	w.names = append(w.names, Member{ID: ring.NodeID{3}, Name: "n3"})
	count(3, 2)
	expect("n3 is back")
}

// What a node counted stays in the sums when its directory becomes another
// node's, as when node.json is lost.
func TestDirectoryOfAnotherNode(t *testing.T) {
	w := newTestCluster(t, 2)
	h := w.node(1)
	h.meter.count(november, "r", []string{"k"}, "requests", 5)
	h.meter.Close()
	c := h.config
	c.Self, c.Name = ring.NodeID{7}, "n7"
	m := open(t, c)
	m.count(november, "r", []string{"k"}, "requests", 2)
	w.nodes[c.Self] = &testNode{Totals: NewTotals(m, w, func() []Member { return w.names }), dir: c.Dir, config: c}
	w.names = []Member{w.names[1], {ID: c.Self, Name: c.Name}}
	for _, what := range []string{"counted on", "closed", "handed over"} {
		if what == "closed" {
			m.writing.Lock()
			for _, l := range m.inMemory() {
				if err := m.closeLedger(l); err != nil {
					t.Fatal(err)
				}
			}
			m.writing.Unlock()
		}
		if what == "handed over" {
			if err := w.nodes[c.Self].HandOver(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			w.names = w.names[:1]
		}
		if rows, missing := w.read(w.node(2), thisMonth); len(rows) != 1 || rows[0].Cost != 7 || len(missing) > 0 {
			t.Errorf("%s: have %v, missing %v", what, rows, missing)
		}
	}
}

// A node that has copies of another node's ledgers hands its own to that node,
// which has its own counts already.
func TestHandOverToTheSource(t *testing.T) {
	w := newTestCluster(t, 2)
	for i := range 2 {
		w.node(i+1).meter.count(november, "r", []string{"k"}, "requests", 5)
		if err := w.node(i+1).HandOver(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	w.names = w.names[:1]
	if rows, missing := w.read(w.node(1), thisMonth); len(rows) != 1 || rows[0].Cost != 10 || len(missing) > 0 {
		t.Errorf("have %v, missing %v", rows, missing)
	}
}

func TestHandOverFails(t *testing.T) {
	w := newTestCluster(t, 2)
	for i := range 30_000 {
		w.node(1).meter.count(november, "r",
			[]string{fmt.Sprintf("a subject with a name that is long enough %d", i)}, "requests", 1)
	}
	pages := 0
	w.fail = func(m peer.Method, _ int64) bool {
		if m == MethodHandOver {
			pages++
		}
		return m == MethodHandOver && pages == 2
	}
	err := w.node(1).HandOver(t.Context(), false)
	if !errors.Is(err, peer.ErrUnreachable) || !errors.Is(err, ErrNotHandedOver) {
		t.Errorf("have %v, want both errors", err)
	}
	half, _ := w.read(w.node(2), thisMonth)
	if _, checks := sumOf(half); checks != 30_000 {
		t.Errorf("half handed over: have %d checks, want 30000", checks)
	}
	w.fail = nil
	if err := w.node(1).HandOver(t.Context(), false); err != nil {
		t.Error(err)
	}
	if list := w.node(2).meter.inFile(t); len(list) != 1 {
		t.Errorf("have %v, want one ledger", list)
	}
	alone := newTestCluster(t, 1)
	if err := alone.node(1).HandOver(t.Context(), false); !errors.Is(err, ErrNotHandedOver) {
		t.Errorf("alone: have %v, want ErrNotHandedOver", err)
	}
}

// A node that has left stops without a complaint when the others stop as well,
// unless it has counted meanwhile.
func TestHandOver_TwiceWhileNobodyAnswers(t *testing.T) {
	w := newTestCluster(t, 2)
	n := w.node(1)
	n.meter.count(november, "r", []string{"ann"}, "requests", 1)
	if err := n.HandOver(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	w.fail = func(peer.Method, int64) bool { return true }
	if err := n.HandOver(t.Context(), true); err != nil {
		t.Errorf("nothing was counted since: got %v, want nil", err)
	}

	n.meter.count(november, "r", []string{"ann"}, "requests", 1)
	if err := n.HandOver(t.Context(), true); !errors.Is(err, peer.ErrUnreachable) {
		t.Errorf("one more was counted: got %v, want that the node is unreachable", err)
	}
}

// Invalid messages are rejected, and write nothing.
func TestInvalidHandOverMessages(t *testing.T) {
	w := newTestCluster(t, 2)
	n := w.node(1)
	for _, body := range []string{"", "{}", "\x02{}", "\xff\xff\xff\xff\x0f{}", `\x10{"source":"zz"}`} {
		if _, err := n.answer(MethodHandOver, []byte(body)); err == nil {
			t.Errorf("%q: want an error", body)
		}
	}
	ledger := ledgerID{Month: thisMonth.Month, Source: ring.NodeID{9}, Number: 1}
	for what, p := range map[string]pageHeader{
		"no rows":      {holding: holding{Ledger: ledger, Round: 1}, Last: true},
		"a later page": {holding: holding{Ledger: ledger, Round: 1}, Page: 1, Last: true},
		"no page":      {holding: holding{Ledger: ledger, Round: 1}, Page: -1, Last: true},
		"its own": {holding: holding{Ledger: ledgerID{Month: thisMonth.Month,
			Source: ring.NodeID{1}}, Round: 1}, Last: true},
		"another month": {holding: holding{Ledger: ledgerID{Month: -5, Source: ring.NodeID{9}}, Round: 1}, Last: true},
	} {
		page := []byte(nil)
		if what == "no rows" {
			page = []byte("rubbish")
		}
		if _, err := w.node(2).sendPage(t.Context(), w.names[0], &p, page); err == nil {
			t.Errorf("%s: want an error", what)
		}
	}
	if left := n.meter.inFile(t); len(left) > 0 {
		t.Errorf("have %v", left)
	}
	for _, m := range []peer.Method{MethodInventory, MethodRows, 200} {
		if _, err := n.answer(m, []byte("rubbish")); err == nil {
			t.Errorf("method %d: want an error", m)
		}
	}
}

// After damage, sums are reported as incomplete until an operator removes the
// file that was set aside.
func TestDamageIsReported(t *testing.T) {
	w := newTestCluster(t, 2)
	w.node(2).meter.count(november, "r", []string{"k"}, "requests", 1)
	aside := filepath.Join(w.node(2).dir, fileName+".corrupt-20261121")
	os.WriteFile(aside, nil, 0o600)
	if rows, missing := w.read(w.node(1), thisMonth); len(rows) != 1 || !slices.Equal(missing, []string{"n2"}) {
		t.Errorf("have %d rows, missing %v", len(rows), missing)
	}
	os.Remove(aside)
	if _, missing := w.read(w.node(1), thisMonth); len(missing) > 0 {
		t.Errorf("missing %v", missing)
	}
	if err := w.node(2).meter.Close(); err != nil { // so nothing else writes
		t.Fatal(err)
	}
	w.node(2).meter.inMemory()[0].damaged = true
	if _, missing := w.read(w.node(1), thisMonth); !slices.Equal(missing, []string{"n2"}) {
		t.Errorf("a damaged ledger: missing %v", missing)
	}
}

// Rows with the same names, as in a month in which the hashing of subjects
// changed, are all read, however small the pages, both from memory and from the
// file.
func TestRowsWithTheSameNames(t *testing.T) {
	c, _ := config(t.TempDir())
	m := open(t, c)
	want := int64(0)
	for i := range uint64(30) {
		want += int64(1 + i)
		m.AddNamed(november.UnixNano(), rules.Hash{Hi: i, Lo: i}, "r",
			[]string{string(rune('a' + i%10))}, "requests", int64(1+i), 1)
	}
	id := m.inMemory()[0].id
	for _, place := range []string{"memory", "file"} {
		if place == "file" {
			m.writing.Lock()
			if err := m.closeLedger(m.inMemory()[0]); err != nil {
				t.Fatal(err)
			}
			m.writing.Unlock()
		}
		for _, limit := range []int{1, 30, 1 << 20} {
			cost, n := int64(0), 0
			for p := (&pager{limit: limit}); ; p = p.next() {
				if err := m.page(id, p); err != nil {
					t.Fatal(err)
				}
				rows, err := readPage(p.page)
				if err != nil {
					t.Fatal(err)
				}
				for i := range rows {
					cost += rows[i].Cost
				}
				n += len(rows)
				if !p.more {
					break
				}
			}
			if cost != want || n != 30 {
				t.Errorf("%s, pages of %d bytes: have %d in %d rows, want %d in 30", place, limit, cost, n, want)
			}
		}
	}
}

// A node that can't write hands over what it has in memory.
func TestHandOverWithoutADisk(t *testing.T) {
	w := newTestCluster(t, 2)
	if err := os.RemoveAll(w.node(1).dir); err != nil {
		t.Fatal(err)
	}
	w.node(1).meter.count(november, "r", []string{"k"}, "requests", 5)
	for range 2 {
		if err := w.node(1).HandOver(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	w.names = w.names[1:]
	if rows, missing := w.read(w.node(2), thisMonth); len(rows) != 1 || rows[0].Cost != 5 || len(missing) > 0 {
		t.Errorf("have %v, missing %v", rows, missing)
	}
}
