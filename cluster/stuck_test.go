package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

func entryOf(t testing.TB, e agreement.Entry) []byte {
	t.Helper()
	b, err := agreement.ThisBuild.Encode(e)
	expect.NoError(t, err)
	return b
}

// later is a build of an unreleased version; its entries name that version.
var later = agreement.Build{Level: agreement.Newest, Release: "v9.1.0"}

// TestUnknownEntriesStopTheMachine: nothing after an unreadable entry is
// applied, and no snapshot that would hide the entry is taken.
func TestUnknownEntriesStopTheMachine(t *testing.T) {
	settled, err := later.Encode(agreement.SettleMove{Epoch: 7})
	expect.NoError(t, err)
	change := func(at int, to byte) []byte {
		b := bytes.Clone(settled)
		b[at] = to
		return b
	}
	unknownField := append(bytes.Clone(settled[:len(settled)-1]), `,"colour":1}`...)
	for name, entry := range map[string][]byte{
		"kind": change(1, 200), "format": change(2, 200), "level": change(3, 100), "field": unknownField,
	} {
		m := newMachine(agreement.ThisBuild, func() {})
		m.Apply(&raft.Log{Index: 3, Data: entryOf(t, agreement.Empty{})})
		m.Apply(&raft.Log{Index: 4, Data: entry})
		if _, err := entryResult(m.Apply(&raft.Log{Index: 5,
			Data: entryOf(t, agreement.Empty{})})); !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, ErrStuck) {
			t.Errorf("unknown %s: have %v", name, err)
		}
		expect.Equal(t, m.state.Load().Index, 3, "unknown %s: entries are applied up", name)
		if _, err := m.Snapshot(); !errors.Is(err, ErrStuck) ||
			!strings.Contains(err.Error(), "v9.1.0") || !strings.Contains(err.Error(), "entry 4") {
			t.Errorf("unknown %s: have %v", name, err)
		}
	}
}

// lacking makes a node's build lack a kind of entry while the returned switch is on.
func (n *node) lacking(kind string) (on *atomic.Bool) {
	on = new(atomic.Bool)
	n.adjust = func(c *Config) {
		c.Build.Lacks = func(k string) bool { return on.Load() && k == kind }
	}
	return on
}

// sameState waits until the nodes have applied the same index, and fails unless
// their states are equal.
func (w *world) sameState(nodes ...*node) {
	w.t.Helper()
	w.until(20*time.Second, "one state", func() bool {
		var first []byte
		for i, n := range nodes {
			b, err := n.c.Load().State().AppendBinary(nil)
			expect.NoError(w.t, err)
			if i == 0 {
				first = b
			} else if !bytes.Equal(first, b) {
				return false
			}
		}
		return true
	})
}

// TestANodeThatLacksAKindStops: the other nodes continue without it, and it
// resumes with the next release.
func TestANodeThatLacksAKindStops(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.several(3, 3)
		lacks := nodes[2].lacking("agreement.WriteRules")
		for _, n := range nodes {
			n.run()
		}
		w.oneCluster(nodes...)
		w.inRing(nodes...)
		lacks.Store(true)
		odd, others := nodes[2], nodes[:2]
		if w.aLeader() == odd {
			// Its own build can't read the entry, so the entry is not proposed.
			if _, err := odd.c.Load().propose(t.Context(),
				agreement.WriteRules{Change: changeTo(8)}); !errors.Is(err, ErrRefused) {
				t.Errorf("have %v", err)
			}
			odd.c.Load().tracker.transferLead(t.Context())
			w.until(20*time.Second, "another leader", func() bool { l := w.leader(); return l != nil && l != odd })
		}
		w.leader().mustWrite(8)
		w.until(10*time.Second, "stop", func() bool { return odd.c.Load().StuckError() != nil })
		w.inRing(others...) // no node waits for it
		for range 5 {
			others[0].mustWrite(9)
			time.Sleep(5 * time.Second)
			if c := odd.c.Load(); c.Authority() || c.leads() || c.raft.Load().State() == raft.Leader {
				t.Fatal("it decides, or leads")
			}
		}
		c := odd.c.Load()
		if last := c.raft.Load().LastIndex(); last+20 < others[0].c.Load().raft.Load().LastIndex() {
			t.Errorf("it stores no more: the last entry is %d", last)
		}
		expect.ErrorIs(t, c.CatchUp(t.Context()), ErrStuck, "c.CatchUp(t.Context())")
		odd.stop()
		lacks.Store(false)
		odd.run()
		w.inRing(nodes...)
		w.sameState(nodes...)
	})
}

// TestWhatIsRefusedIsNotWritten: a document that the leader's build refuses is
// not written to the log, because another build might accept it.
func TestWhatIsRefusedIsNotWritten(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.several(3, 3)
		lacks := map[*node]*atomic.Bool{}
		for _, n := range nodes {
			lacks[n] = n.lacking("agreement.WriteRules") // a node that meets a WriteRules entry then stops
			n.run()
		}
		w.oneCluster(nodes...)
		w.inRing(nodes...)
		leader := w.aLeader()
		for _, n := range nodes {
			lacks[n].Store(n != leader)
		}
		for name, test := range map[string]struct {
			change document.Change
			match  int64
			want   error
		}{
			"not valid": {change: document.Change{Part: document.TierPart, Name: "t", Body: []byte("colour: red")}},
			"not found": {change: document.Change{Part: document.TierPart, Name: "t", Delete: true}, want: document.ErrNotFound},
			"conflict":  {change: changeTo(7), match: 77, want: rules.ErrConflict},
		} {
			_, err := nodes[0].c.Load().Write(t.Context(), test.change, WriteOptions{IfMatch: test.match})
			if test.want != nil && !errors.Is(err, test.want) || test.want == nil &&
				!errors.As(err, new(document.Errors)) {
				t.Errorf("%s: have %v", name, err)
			}
		}
		agreed := leader.c.Load().State().Index
		for _, n := range nodes {
			c := n.c.Load()
			w.until(10*time.Second, "all is applied",
				func() bool { return c.State().Index >= agreed || c.StuckError() != nil })
			if err := c.StuckError(); err != nil {
				t.Errorf("%s: %v", n.name, err)
			}
			lacks[n].Store(false)
		}
		nodes[0].mustWrite(8)
		w.sameState(nodes...)
	})
}

// TestALeaderThatIsStuckHandsTheLeadOn: the next leader may not know what an
// earlier one left in the log.
func TestALeaderThatIsStuckHandsTheLeadOn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.several(3, 3)
		lacks := map[*node]*atomic.Bool{}
		for _, n := range nodes {
			lacks[n] = n.lacking("agreement.Forget")
			n.run()
		}
		w.oneCluster(nodes...)
		w.inRing(nodes...)
		leader := w.aLeader()
		lacks[leader].Store(true)
		err := leader.c.Load().raft.Load().Apply(entryOf(t, agreement.Forget{Node: leader.id}), time.Second).Error()
		expect.NoError(t, err)
		w.until(5*time.Second, "another leader", func() bool { l := w.leader(); return l != nil && l != leader })
		var others []*node
		for _, n := range nodes {
			if n != leader {
				others = append(others, n)
			}
		}
		w.inRing(others...)
		others[0].mustWrite(7)
		w.sameState(others...)
	})
}

// TestAnUnknownSnapshotStopsANode: it starts, votes, and reports what it needs.
func TestAnUnknownSnapshotStopsANode(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.founded(3)
		odd := nodes[2]
		odd.stop()
		whole, err := later.AppendSnapshot(nil, nodes[0].c.Load().State())
		expect.NoError(t, err)
		whole[1] = 77 // the level needed to read it
		whole = whole[:len(whole)-4]
		whole = binary.LittleEndian.AppendUint32(whole, crc32.Checksum(whole, crc32.MakeTable(crc32.Castagnoli)))
		low, _ := odd.disk.bounds()
		conf, _ := nodes[0].c.Load().configuration()
		odd.disk.data = whole
		odd.disk.meta = &raft.SnapshotMeta{Version: 1, ID: "1-1", Index: low + 1, Term: 1,
			Configuration: conf, ConfigurationIndex: 1, Size: int64(len(whole))}
		odd.run()
		nodes[1].crash() // so that the odd node is needed for a majority
		w.until(20*time.Second, "agreement", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := nodes[0].c.Load().Write(ctx, changeTo(7), WriteOptions{})
			return err == nil
		})
		if err := odd.c.Load().ReadyError(); !errors.Is(err, ErrStuck) || !strings.Contains(err.Error(), "release v9.1.0") {
			t.Errorf("have %v", err)
		}
	})
}

// TestSkip: an entry that no node can apply is replaced in every log, and all nodes continue.
func TestSkip(t *testing.T) {
	poison := append(entryOf(t, agreement.SettleMove{Epoch: 1}), "poison"...)
	var old []*node
	var stuck *Stuck
	bubble(t, func(t *testing.T, w *world) {
		old = w.founded(3)
		f := w.aLeader().c.Load().raft.Load().Apply(poison, time.Second)
		expect.NoError(t, f.Error())
		if _, err := entryResult(f.Response()); !errors.As(err, &stuck) {
			t.Fatalf("have %v", err)
		}
		w.until(10*time.Second, "nobody who applies it", func() bool {
			for _, n := range old {
				if !errors.Is(n.c.Load().StuckError(), ErrStuck) {
					return false
				}
			}
			return true
		})
	})
	if err := Recover(&store{disk: old[0].disk.clone()}, agreement.ThisBuild, old[0].id, "",
		nil); err == nil || !strings.Contains(err.Error(), "can't be applied") {
		t.Errorf("recovered, with an entry that can't be applied: %v", err)
	}
	expect.Equal(t, stuck.Hash, sha256.Sum256(poison), "hash")
	for _, n := range old {
		s := &store{disk: n.disk}
		expect.ErrorIs(t, Skip(s, agreement.ThisBuild, stuck.Index, sha256.Sum256(nil)), ErrRefused,
			"another entry was skipped")
		if err := Skip(s, agreement.ThisBuild, stuck.Index, stuck.Hash); err != nil {
			t.Error(err)
		}
		expect.ErrorIs(t, Skip(s, agreement.ThisBuild, stuck.Index, stuck.Hash), ErrRefused, "skipped twice")
		expect.ErrorIs(t, Skip(s, agreement.ThisBuild, 1, stuck.Hash), ErrRefused, "Raft's own entry was skipped")
	}
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.several(3, 3)
		for i, n := range nodes {
			n.id, n.disk = old[i].id, old[i].disk
			n.run()
		}
		w.inRing(nodes...)
		nodes[1].mustWrite(8)
		w.sameState(nodes...)
	})
}

// TestAWriteForAnotherBaseIsProposedAgain: a result that was computed while
// something else was agreed on is computed again.
func TestAWriteForAnotherBaseIsProposedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.founded(3)
		leader := w.aLeader().c.Load()
		late, _, err := leader.config.Build.Prepare(leader.State(), agreement.WriteRules{Change: changeTo(7)})
		expect.NoError(t, err)
		version := nodes[0].mustWrite(8)
		if r, err := leader.proposeBytes(t.Context(), late); err != nil ||
			!errors.Is(r.Err, agreement.ErrBase) || rulesVersion(leader.State()) != version {
			t.Errorf("have %+v, %v", r, err)
		}
		// Of many concurrent writes, all prepared for the same rules, each is made.
		done := make(chan error)
		for i := range 10 {
			go func() {
				r, err := leader.propose(t.Context(), agreement.WriteRules{Change: changeTo(10 + i)})
				done <- errors.Join(err, r.Err)
			}()
		}
		for range 10 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		expect.Equal(t, rulesVersion(leader.State()), version+10, "version")
		w.sameState(nodes...)
	})
}
