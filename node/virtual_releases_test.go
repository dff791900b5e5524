package node

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules/document"
)

// oneState waits until all nodes have applied the same state.
func (p *testCluster) oneState() {
	p.t.Helper()
	p.eventually("all nodes have the same state", func() bool {
		var first []byte
		for _, v := range p.nodes {
			b, err := v.node.cluster.State().AppendBinary(nil)
			expect.NoError(p.t, err)
			if first != nil && !bytes.Equal(first, b) {
				return false
			}
			first = b
		}
		return true
	})
}

// A node whose release lacks a kind of entry stops at the first such entry, and
// the others continue with the whole limit. It has no authority and, because
// the entry was about rules, decides alone. With the next release it catches
// up.
func TestUnknownEntryInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit, keys = 400, 6
		var lacks [3]atomic.Bool
		p := newTestNetwork(t).newCluster("default", "default", 0)
		p.build = func(i int) cluster.Build {
			return cluster.Build{Lacks: func(kind string) bool { return lacks[i].Load() && kind == "agreement.WriteRules" }}
		}
		p.startNodes(3, exactRules(limit))
		p.awaitWhole()
		i := 0
		for p.nodes[i].node.cluster.Leader() == p.nodes[i].node.id {
			i++ // a leader does not propose what it can't read
		}
		odd, others := p.nodes[i], slices.Delete(slices.Clone(p.nodes), i, i+1)
		crowd := p.startLoad("year", keys, 6)
		lacks[i].Store(true)
		change := document.Change{Part: document.TierPart, Name: "new", Body: []byte("limits: [{limit: 1, per: 1m}]")}
		for _, v := range others {
			if _, err := v.admin().Write(t.Context(), change, cluster.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		c := odd.node.cluster
		p.eventually("the outdated node stops applying entries",
			func() bool { return c.StuckError() != nil && !c.Authority() })
		p.eventually("the others continue without it", func() bool {
			s := others[0].node.cluster.State()
			return s.Settled && len(s.To.Members()) == 2
		})
		time.Sleep(time.Second)
		_, by, slowest := odd.ask("year", p.keyOwnedBy("year", others[0], nil, 0), 100)
		// its rules are old, and no owner uses them
		if by[limiter.ByFallback] != 100 || slowest > 100*time.Millisecond {
			t.Errorf("the outdated node does not decide alone: %v, the slowest in %v", by, slowest)
		}
		if f := odd.node.clusterHealth(); f.Connected || f.Stuck == nil || !odd.ready.Load() {
			t.Errorf("have %+v", f)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := odd.admin().Write(ctx, change, cluster.WriteOptions{}); err == nil {
			t.Error("the outdated node reports a write as in force")
		}
		odd.endProcess(true)
		lacks[i].Store(false)
		odd.startProcess()
		p.awaitWhole()
		p.oneState()
		decided := crowd.stopLoad()
		if crowd.failed.Load() > 0 || crowd.slow.Load() > 0 {
			t.Errorf("%d checks failed, %d were slow", crowd.failed.Load(), crowd.slow.Load())
		}
		// Between the end of its authority and its eviction, its standbys and the node
		// itself decide within a share.
		for i := range crowd.admitted {
			if n := crowd.admitted[i].Load(); n < limit || n > limit+limit/3 {
				t.Errorf("subject %d: %d admitted of %d; all were decided by %v", i, n, limit, decided)
			}
		}
	})
}

// A cluster is upgraded to the next release, downgraded and upgraded again,
// under load: nothing is forgotten and no check fails. Once the level has
// risen, a downgraded node is kept out until it has the next release again.
func TestRollingReleasesInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit, keys = 300, 6
		p := newTestNetwork(t).newCluster("default", "default", 0)
		old := cluster.Build{Level: cluster.Newest, Release: "old"}
		young := cluster.Build{Level: cluster.Newest + 1, Release: "young"}
		p.build = func(int) cluster.Build { return old }
		p.startNodes(3, exactRules(limit))
		p.awaitWhole()
		crowd := p.startLoad("year", keys, 6)
		roll := func(v *testNode, to cluster.Build) {
			v.endProcess(true)
			v.build = to
			v.startProcess()
		}
		for i, to := range []cluster.Build{young, young, old, young, young} {
			roll(p.nodes[[]int{0, 1, 0, 0, 2}[i]], to)
			p.awaitWhole()
			expect.NoError(t, p.nodes[i%3].deny(fmt.Sprint("203.0.113.", i), 0))
		}
		level := p.nodes[2].admin().Levels()
		if level.Agreed != old.Level || level.Highest != young.Level || level.Members[0].Release != "young" {
			t.Errorf("have %+v", level)
		}
		if have, err := p.nodes[2].admin().Raise(t.Context(), 0); err != nil || have != young.Level {
			t.Fatalf("have %d, %v", have, err)
		}
		decided := crowd.stopLoad()
		for i := range crowd.admitted {
			if n := crowd.admitted[i].Load(); n != limit {
				t.Errorf("subject %d: %d admitted of %d; all were decided by %v", i, n, limit, decided)
			}
		}
		if crowd.failed.Load() > 0 {
			t.Errorf("%d checks failed", crowd.failed.Load())
		}
		roll(p.nodes[1], old)
		time.Sleep(5 * time.Second)
		c := p.nodes[1].node.cluster
		if p.nodes[1].ready.Load() || c.Authority() || c.StuckError() == nil {
			t.Errorf("a node with an old release takes part: %v", c.StuckError())
		}
		roll(p.nodes[1], young)
		p.awaitWhole()
		p.oneState()
		for i := range 5 {
			p.denied(time.Second, fmt.Sprint("203.0.113.", i), true)
		}
	})
}
