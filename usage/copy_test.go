package usage

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// inWorld runs a test with some nodes of a world, on virtual time.
func inWorld(
	t *testing.T, nodes int, change func(i int, c *Config), test func(t *testing.T, w *world, n []*billedNode),
) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, rng: newRandom(1), began: time.Now(), dir: dir}
		w.offset.Store(int64(november.Sub(w.began)))
		var list []*billedNode
		for i := range nodes {
			p := &place{number: i + 1}
			w.change(func() { w.places = append(w.places, p) })
			p.change = func(c *Config) {
				if change != nil {
					change(i, c)
				}
			}
			p.begin(w)
			list = append(list, p.node)
		}
		time.Sleep(2 * time.Second)
		test(t, w, list)
		for _, p := range w.places {
			if p.node != nil && p.node.totals != nil {
				p.node.stop()
			}
		}
	})
}

// holderOf returns the node that holds the copy of a node.
func (n *billedNode) holderOf() *billedNode {
	n.totals.copier.mu.Lock()
	defer n.totals.copier.mu.Unlock()
	return n.w.find(n.totals.copier.holder.ID)
}

// copies returns the ledgers of another node that a node has copies of.
func (n *billedNode) copies(of *billedNode) (list []holding) {
	all, err := n.totals.meter.holdings(allMonths)
	expect.NoError(n.w.t, err)
	return slices.DeleteFunc(all, func(s holding) bool { return s.Ledger.Source != of.config.Self })
}

func (n *billedNode) bill(month Month) *bill {
	return n.totals.gather(n.w.t.Context(), month, n.members())
}

// A node that counts nothing causes no writes at any other node, and no file.
func TestNothingCountedIsNotCopied(t *testing.T) {
	inWorld(t, 3, nil, func(t *testing.T, w *world, n []*billedNode) {
		time.Sleep(5 * time.Minute)
		for _, one := range n {
			if left, _ := os.ReadDir(one.config.Dir); len(left) > 0 {
				t.Errorf("%s has files: %v", one.config.Name, left)
			}
		}
	})
}

// When the holder of a copy dies, another node has everything within a minute,
// and the first one drops its copy once it is back and no longer needed.
func TestNewHolder(t *testing.T) {
	inWorld(t, 3, nil, func(t *testing.T, w *world, n []*billedNode) {
		n[0].count(20)
		time.Sleep(3 * time.Second)
		first := n[0].holderOf()
		if len(first.copies(n[0])) != 1 {
			t.Fatalf("the holder has %v", first.copies(n[0]))
		}
		first.kill()
		time.Sleep(copyGrace)
		second := n[0].holderOf()
		if second == first || len(second.copies(n[0])) != 1 {
			t.Fatalf("after a minute, %s is the holder", second.config.Name)
		}
		first.start()
		time.Sleep(staleAfter + time.Minute)
		if left := first.copies(n[0]); len(left) != 0 {
			t.Errorf("the first holder has still %v", left)
		}
		if len(second.copies(n[0])) != 1 {
			t.Error("the second holder has no copy any more")
		}
	})
}

// A node that finds no holder for a minute warns, and says when it has found one.
func TestNoHolder(t *testing.T) {
	var log process.Output
	inWorld(t, 3, func(i int, c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		if i > 0 {
			c.Rows, c.Logger = 1, discardLogs() // they take no copy with more names than that
		}
	}, func(t *testing.T, w *world, n []*billedNode) {
		for i := range 850 {
			n[0].totals.meter.count(november, "r", []string{fmt.Sprint(i, strings.Repeat("x", 3000))}, "requests", 1)
		}
		time.Sleep(copyGrace + 15*time.Second)
		if log.Count("no other node has a copy of what this node counts for bills") == 0 ||
			log.Count("more subjects than this node keeps") == 0 {
			t.Errorf("the log lacks the warning: %.4000s", log.String())
		}
		if age := n[0].totals.copier.age(); age < copyGrace {
			t.Errorf("the copy is %v old", age)
		}
		for _, one := range n[1:] {
			one.kill()
			one.config.Rows = 1000
			one.start()
		}
		time.Sleep(copyGrace)
		if log.Count("another node has a copy of what this node counts for bills again") == 0 {
			t.Errorf("the log lacks the end: %.4000s", log.String())
		}
	})
}

// The file of a node that lives is lost: its earlier counts come from the copy, and are estimated.
func TestLostFileOfAMember(t *testing.T) {
	inWorld(t, 3, nil, func(t *testing.T, w *world, n []*billedNode) {
		n[0].count(20)
		time.Sleep(3 * time.Second)
		n[0].kill()
		expect.NoError(t, os.Remove(filepath.Join(n[0].config.Dir, fileName)))
		time.Sleep(5 * time.Second)
		n[0].start()
		n[0].count(5)
		time.Sleep(5 * time.Second)
		want := int64(0)
		for _, c := range n[0].counts {
			want += c.cost
		}
		for _, at := range n {
			b := at.bill(thisMonth.Month)
			if len(b.missing) > 0 || len(b.estimated) != 1 ||
				b.estimated[0].Node != n[0].config.Name ||
				b.estimated[0].AtMostLost > 10*time.Second {
				t.Errorf("at %s: missing %v, estimated %v", at.config.Name, b.missing, b.estimated)
			}
			rows, _ := (&testCluster{t: t}).read(&testNode{Totals: at.totals}, thisMonth)
			if cost, _ := sumOf(rows); cost != want {
				t.Errorf("at %s: have %d, want %d", at.config.Name, cost, want)
			}
		}
	})
}

// hold makes the node's process write nothing more, as a disk that hangs does.
func (n *billedNode) hold(on bool) {
	m := n.totals.meter
	m.writing.Lock()
	defer m.writing.Unlock()
	m.closed = on
}

// A process whose disk hangs is killed. The next one has less than the copy on
// another node, and does not put that in its place: neither while it has it in
// memory, nor once it has closed it.
func TestCopyIsAheadOfTheFile(t *testing.T) {
	inWorld(t, 2, nil, func(t *testing.T, w *world, n []*billedNode) {
		n[0].count(5)
		time.Sleep(3 * time.Second)
		n[0].hold(true)
		n[0].count(100)
		time.Sleep(3 * time.Second)
		want := int64(0)
		for _, c := range n[0].counts {
			want += c.cost
		}
		check := func(what string, readers ...*billedNode) {
			t.Helper()
			for _, at := range readers {
				rows, missing := (&testCluster{t: t}).read(&testNode{Totals: at.totals}, thisMonth)
				if cost, _ := sumOf(rows); cost != want || len(missing) > 0 {
					t.Errorf("%s, at %s: have %d, missing %v; want %d", what, at.config.Name, cost, missing, want)
				}
			}
		}
		check("before the kill", n...)
		n[0].kill()
		n[0].start()
		n[0].hold(true)
		time.Sleep(3 * time.Second)
		check("with the ledger in memory", n...)
		n[0].hold(false)
		time.Sleep(3 * time.Second)
		check("with the ledger closed", n...)
		if age := n[0].totals.copier.age(); age > 2*time.Second {
			t.Errorf("the copy is %v old", age)
		}
		n[0].kill()
		time.Sleep(3 * time.Second)
		w.remove(n[0].config.Self)
		check("without the node", n[1])
	})
}

// A ledger that was damaged on the disk of the node that counted it does not
// replace the copy on another node.
func TestDamagedLedgerIsNotCopied(t *testing.T) {
	inWorld(t, 2, nil, func(t *testing.T, w *world, n []*billedNode) {
		for i := range 800 {
			n[0].totals.meter.count(november, "r", []string{fmt.Sprint(i)}, "requests", 1)
		}
		time.Sleep(3 * time.Second)
		check := func(what string, at *billedNode) {
			t.Helper()
			rows, missing := (&testCluster{t: t}).read(&testNode{Totals: at.totals}, thisMonth)
			if cost, _ := sumOf(rows); cost != 800 || len(missing) > 0 {
				t.Errorf("%s: have %d, missing %v; want 800", what, cost, missing)
			}
		}
		n[0].hold(true)
		damageBlock(t, n[0].totals.meter, namesPart)
		n[0].kill()
		n[0].start()
		n[0].hold(true)
		time.Sleep(3 * time.Second)
		check("with the ledger in memory", n[1])
		n[0].hold(false)
		time.Sleep(3 * time.Second)
		check("with the ledger closed", n[1])
		n[0].kill()
		time.Sleep(3 * time.Second)
		w.remove(n[0].config.Self)
		check("without the node", n[1])
	})
}

// Only a change of the sums after an export makes a month revised: not the end
// of a process, nor a copy that takes its place.
func TestRevised(t *testing.T) {
	inWorld(t, 3, nil, func(t *testing.T, w *world, n []*billedNode) {
		revised := func(at *billedNode) bool {
			t.Helper()
			s, err := at.totals.Read(t.Context(), thisMonth)
			expect.NoError(t, err)
			return !s.Revised().IsZero()
		}
		for _, one := range n {
			one.count(3)
		}
		time.Sleep(3 * time.Second)
		s, err := n[1].totals.Read(t.Context(), thisMonth)
		if err != nil || revised(n[0]) {
			t.Fatalf("before an export: it is revised (%v)", err)
		}
		for _, ok := s.Next(); ok; _, ok = s.Next() {
		}
		s.Exported()
		n[2].kill()
		time.Sleep(3 * time.Second)
		w.remove(n[2].config.Self)
		time.Sleep(20 * time.Second)
		if revised(n[0]) || revised(n[1]) {
			t.Error("it is revised, though the copy says the same")
		}
		n[2].start()
		time.Sleep(20 * time.Second)
		if revised(n[2]) {
			t.Error("it is revised, though the node has come back with the same")
		}
		n[0].count(1)
		if !revised(n[2]) || !revised(n[0]) {
			t.Error("it is not revised after more counts")
		}
		s, err = n[0].totals.Read(t.Context(), Query{Month: thisMonth.Month, Rule: "r"})
		expect.NoError(t, err)
		s.Exported()
		if !revised(n[0]) {
			t.Error("an export of one rule counts as one of the month")
		}
		n[1].kill() // it has exported the month; the others know
		time.Sleep(3 * time.Second)
		w.remove(n[1].config.Self)
		if !revised(n[0]) {
			t.Error("nobody knows of the export any more")
		}
	})
}

// Messages that no node sends are rejected and write nothing.
func TestInvalidCopies(t *testing.T) {
	w := newTestCluster(t, 2)
	n := w.node(1)
	ledger := ledgerID{Month: thisMonth.Month, Source: ring.NodeID{9}, Number: 1}
	message := func(head string, rest ...byte) []byte { return append(wire.AppendText(nil, head), rest...) }
	for _, m := range []struct {
		method peer.Method
		body   []byte
	}{
		{MethodCopy, nil}, {MethodCopy, []byte("\xff\xff\xff\xff\x0f{}")}, {MethodCopy, message("rubbish")},
		{MethodCopy, message(`{"ledger":{"month":-5,"source":"09000000000000000000000000000000","number":1}}`)},
		{MethodCopy, message(`{"ledger":{"month":24322,"source":"01000000000000000000000000000000","number":1}}`)},
		{MethodCopy,
			message(`{"ledger":{"month":24322,"source":"09000000000000000000000000000000","number":1}}`, 1, 2, 3)},
		{MethodCopy, message(`{"statement":{"source":"01000000000000000000000000000000"}}`)},
		{MethodCopy, message(`{"statement":{}}`)},
		{MethodNotes, []byte("rubbish")},
	} {
		if _, err := n.answer(m.method, m.body); err == nil {
			t.Errorf("method %d: %q: want an error", m.method, m.body)
		}
	}
	// Blocks without a statement, and a statement that claims more than there is, count nothing.
	row := Row{Rule: "r", Key: []string{"k"}, Unit: "requests", Cost: 7, Checks: 1}
	l := newLedger(ledger, "n9", 10)
	l.add(rowHash{1, 2}, &row)
	_ = l.eachChanged(0, sendBytes, func(group []block, _ bool) error {
		_, err := w.node(2).sendCopy(t.Context(), w.names[0], &copyHeader{Ledger: ledger}, group)
		return err
	})
	s := &statement{Source: ledger.Source, Name: "n9", Boot: 1, Number: 1,
		Ledgers: []version{{ledger.Month, ledger.Number, 5}}}
	reply, err := w.node(2).sendCopy(t.Context(), w.names[0],
		&copyHeader{Statement: s, Sent: []step{{Ledger: ledger, Node: "n9", From: 4, To: 5}}}, nil)
	if err != nil || len(reply.Missing) != 1 {
		t.Errorf("have %+v, %v; want it to be missing", reply, err)
	}
	if rows, missing := w.read(n, thisMonth); len(rows) > 0 || !slices.Equal(missing, []string{"n9"}) {
		t.Errorf("have %v, missing %v", rows, missing)
	}
}

// A holder loses its file while it is away for a moment. It gets everything
// anew, not only what has changed since.
func TestHolderLosesItsFile(t *testing.T) {
	inWorld(t, 2, nil, func(t *testing.T, w *world, n []*billedNode) {
		for i := range 300 {
			n[0].totals.meter.count(november, "r", []string{fmt.Sprint(i)}, "requests", 1)
		}
		time.Sleep(3 * time.Second)
		n[1].kill()
		expect.NoError(t, os.Remove(filepath.Join(n[1].config.Dir, fileName)))
		n[1].start()
		n[0].totals.meter.count(november, "r", []string{"0"}, "requests", 1)
		time.Sleep(5 * time.Second)
		n[0].kill()
		time.Sleep(5 * time.Second)
		w.remove(n[0].config.Self)
		time.Sleep(5 * time.Second)
		rows, missing := (&testCluster{t: t}).read(&testNode{Totals: n[1].totals}, thisMonth)
		if cost, _ := sumOf(rows); cost != 301 || len(missing) > 0 {
			t.Errorf("have %d, missing %v; want 301", cost, missing)
		}
	})
}

// A holder loses its file just before the node that it holds for stops. The
// last message then says what it lacks, and it gets everything anew.
func TestHolderLosesItsFileBeforeAStop(t *testing.T) {
	inWorld(t, 2, nil, func(t *testing.T, w *world, n []*billedNode) {
		n[0].totals.meter.count(november, "r", []string{"0"}, "requests", 300)
		time.Sleep(3 * time.Second)
		n[1].kill()
		expect.NoError(t, os.Remove(filepath.Join(n[1].config.Dir, fileName)))
		n[1].start()
		n[0].totals.meter.count(november, "r", []string{"0"}, "requests", 1)
		n[0].totals.sendLast()
		n[0].kill()
		time.Sleep(5 * time.Second)
		w.remove(n[0].config.Self)
		time.Sleep(5 * time.Second)

		rows, missing := (&testCluster{t: t}).read(&testNode{Totals: n[1].totals}, thisMonth)
		if cost, _ := sumOf(rows); cost != 301 || len(missing) > 0 {
			t.Errorf("have %d, missing %v; want 301", cost, missing)
		}
	})
}

// A copy that is shorter than the only statement is incomplete. With an earlier
// statement that it satisfies, that one says how much it may lack.
func TestShortCopy(t *testing.T) {
	ledger := ledgerID{Month: thisMonth.Month, Source: ring.NodeID{9}, Number: 1}
	record := func(number, round uint64, asOf time.Time) processRecord {
		return processRecord{Ended: november.UnixNano(), EndIsFinal: true, statement: statement{
			Source: ledger.Source, Name: "n9", Boot: 1, Number: number, AsOf: asOf.UnixNano(),
			Ledgers: []version{{ledger.Month, 1, round}},
		}}
	}
	last := record(8, 5, november.Add(-time.Second))
	h := inventory{Holdings: []holding{{Ledger: ledger, Node: "n9", Round: 3, Copy: true}},
		Records: []processRecord{last}}
	b := newBill(thisMonth.Month, []inventory{h}, november.UnixNano())
	if !slices.Equal(b.missing, []string{"n9"}) || len(b.estimated) > 0 {
		t.Errorf("with one statement: missing %v, estimated %v", b.missing, b.estimated)
	}
	h.Records = append(h.Records, record(6, 3, november.Add(-time.Minute)))
	b = newBill(thisMonth.Month, []inventory{h}, november.UnixNano())
	if len(b.missing) > 0 || !slices.Equal(b.estimated, []Estimate{{"n9", time.Minute}}) {
		t.Errorf("with an earlier statement: missing %v, estimated %v", b.missing, b.estimated)
	}
}

// Only an unbroken sight of a dead address until a node is removed shows that
// it counted nothing after its process had ended.
func TestEndOfAProcess(t *testing.T) {
	const asOf, seen, later = 100, 200, 900
	type look struct {
		now          int64
		member, dead bool
	}
	for what, tc := range map[string]struct {
		final bool
		looks []look
		want  int64
	}{
		"killed, and seen dead": {looks: []look{{seen, true, true}, {later, true, true},
			{later + 1, false, false}}, want: seen},
		"killed, and out of sight": {looks: []look{{seen, true, true},
			{seen + 1, true, false}, {later, false, false}}, want: later},
		"cut off, and removed": {looks: []look{{seen, true, false}, {later, false, false}}, want: later},
		"out of sight, and seen dead": {looks: []look{{seen, true, true},
			{seen + 1, true, false}, {later, true, true}, {later + 1, false, false}}, want: later},
		"stopped in order": {final: true,
			looks: []look{{seen, true, true}, {later, false, false}}, want: asOf},
		"stopped, out of sight, removed": {final: true,
			looks: []look{{seen, true, false}, {later, false, false}}, want: later},
		"removed, a member again, removed": {looks: []look{{seen, false, false},
			{seen + 1, true, false}, {later, false, false}}, want: later},
	} {
		r := &processRecord{statement: statement{AsOf: asOf, Final: tc.final}, heard: time.Now().Add(-time.Hour)}
		if tc.final {
			r.Ended, r.watched = asOf, true
		}
		for _, l := range tc.looks {
			r = r.observe(l.now, l.member, l.dead)
		}
		if r.Ended != tc.want || !r.EndIsFinal || r.isExact() != (tc.final && tc.want == asOf) {
			t.Errorf("%s: have %+v, want an end at %d", what, r, tc.want)
		}
	}
}
