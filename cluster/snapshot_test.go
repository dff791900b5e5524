package cluster

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules/document"
)

// manySubjects returns a document that lists count subjects.
func manySubjects(count int) document.Change {
	var b strings.Builder
	b.WriteString("version: 1\nrules:\n  - {name: login, key: [tenant], tiered: true}\n" +
		"tiers: {free: {limits: [{limit: 5, per: 1m}]}}\ndefault_tier: free\nsubjects:\n  tenant:\n")
	for i := range count {
		fmt.Fprintf(&b, "    t%d: {tier: free}\n", i)
	}
	return document.Change{Body: []byte(b.String())}
}

var manyInSnapshot = flag.Int("snapshot-subjects", 10_000,
	"subjects that a late node gets at once; make models has more")

// TestASnapshotBringsALateNodeUpToDate: the log no longer has the entries that
// the node missed. It receives many subjects at once.
func TestASnapshotBringsALateNodeUpToDate(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		few := func(c *Config) { c.SnapshotBytes, c.TrailingEntries = 1<<17, 8 }
		nodes := w.several(3, 3)
		for _, n := range nodes {
			n.adjust = few
			n.run()
		}
		w.oneCluster(nodes...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		subjects := *manyInSnapshot
		if testing.Short() {
			subjects = 1000
		}
		version, err := nodes[0].c.Load().Write(ctx, manySubjects(subjects), WriteOptions{})
		expect.NoError(t, err)
		if !testing.Short() {
			w.until(2*time.Minute, "snapshot", func() bool {
				for _, n := range nodes {
					if list, _ := n.store.List(); len(list) == 0 {
						return false
					}
				}
				return true
			})
		}
		late := w.add(0, nodes[0])
		late.adjust = few
		late.run()
		w.ready(late)
		w.inRing(append(nodes[:3:3], late)...)
		doc, v := late.c.Load().State().History.Current()
		if v.Number != version || len(doc.Subjects) != 1 || len(doc.Subjects[0].Subjects) != subjects {
			t.Errorf("have version %d, want %d", v.Number, version)
		}
		if !testing.Short() {
			if low, _ := late.store.FirstIndex(); low < 2 {
				t.Errorf("its log begins at %d: it got the entries and no snapshot", low)
			}
		}
	})
}

func TestMachineSnapshots(t *testing.T) {
	woken := 0
	m := newMachine(agreement.ThisBuild, func() { woken++ })
	entry := func(e agreement.Entry) []byte {
		b, err := agreement.ThisBuild.Encode(e)
		expect.NoError(t, err)
		return b
	}
	r, ok := m.Apply(&raft.Log{Index: 3,
		Data: entry(agreement.WriteRules{Change: changeTo(7), By: "me"})}).(agreement.Result)
	if !ok || r.Err != nil || r.Version != 1 || woken != 1 {
		t.Fatalf("have %+v", r)
	}
	if r := m.Apply(&raft.Log{Index: 4, Data: entry(agreement.SettleMove{Epoch: 9})}).(agreement.Result); r.Err == nil {
		t.Error("nonsense was accepted")
	}
	snap, err := m.Snapshot()
	expect.NoError(t, err)
	m.Apply(&raft.Log{Index: 5, Data: entry(agreement.WriteRules{Change: changeTo(8), By: "me"})})
	s := &store{disk: newDisk()}
	sink, _ := s.Create(1, 4, 1, raft.Configuration{}, 1, nil)
	expect.NoError(t, snap.Persist(sink))
	expect.NoError(t, sink.Close())
	_, data, err := s.Open(sink.ID())
	expect.NoError(t, err)
	other := newMachine(agreement.ThisBuild, func() {})
	expect.NoError(t, other.Restore(data))
	if have := other.state.Load(); have.Index != 4 || rulesVersion(have) != 1 {
		t.Errorf("have index %d and version %d, want 4 and 1", have.Index, rulesVersion(have))
	}
	if err := other.Restore(io.NopCloser(strings.NewReader("nonsense"))); err == nil {
		t.Error("nonsense was restored")
	}
	if have := other.state.Load(); have.Index != 4 {
		t.Error("a snapshot that can't be read changed the state")
	}
}

// TestRecover: one node of three is left, and continues alone with its own data.
func TestRecover(t *testing.T) {
	var version int64
	var left *node
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.founded(3)
		version = nodes[0].mustWrite(9)
		if !nodes[2].c.Load().AwaitRevision(t.Context(), 1, version) {
			t.Fatal("the write has not arrived")
		}
		left = nodes[2]
	})
	expect.NoError(t, Recover(&store{disk: left.disk}, agreement.ThisBuild, left.id, "", nil))
	if err := Recover(&store{disk: newDisk()}, agreement.ThisBuild, left.id, "", nil); err == nil {
		t.Error("an empty node was recovered")
	}
	bubble(t, func(t *testing.T, w *world) {
		n := w.add(0)
		n.id, n.ip, n.disk = left.id, left.ip, left.disk
		n.run()
		w.inRing(n)
		expect.Equal(t, n.mustWrite(10), version+1, "version")
		fresh := w.add(0, n)
		fresh.ip = "10.0.0.9"
		fresh.id = ring.NodeID{9}
		fresh.run()
		w.inRing(n, fresh)
	})
}

// TestOnDisk: a node on persist's store, through a restart and a recovery.
func TestOnDisk(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t)
	var disk *persist.RaftStore
	n := w.add(1)
	n.adjust = func(c *Config) { c.Store = disk }
	open := func() {
		t.Helper()
		config := persist.DefaultRaftConfig()
		config.Dir, config.Logger = dir, w.log
		var err error
		if disk, err = persist.OpenRaft(config); err != nil {
			t.Fatal(err)
		}
	}
	stop := func() {
		t.Helper()
		n.stop()
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	}
	open()
	n.run()
	w.ready(n)
	id, version := n.c.Load().State().Cluster, n.mustWrite(9)
	stop()
	open()
	n.run()
	w.until(20*time.Second, "what was written", func() bool { return rulesVersion(n.c.Load().State()) == version })
	if have := n.c.Load().State().Cluster; have != id {
		t.Errorf("it was cluster %s and is now %s", id, have)
	}
	stop()
	open()
	if err := Recover(disk, agreement.ThisBuild, n.id, "10.0.0.1:7947", nil); err != nil {
		t.Error(err)
	}
	if err := disk.Close(); err != nil {
		t.Error(err)
	}
}
