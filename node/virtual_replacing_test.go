package node

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/ring"
)

// isProbedReady reports whether a probe of the node's readiness succeeds.
func (v *testNode) isProbedReady() bool { return v.ready.Load() && v.node.probeError() == nil }

// replaceDisk kills the node and starts it with an empty disk and a new
// identity, and at another address if move is set.
func (v *testNode) replaceDisk(move bool) {
	v.endProcess(false)
	c := v.settings
	if move {
		v.ip = v.cluster.address(100 + int(v.id[0]))
		c.ClusterBind = v.ip
	}
	c.Join = nil
	for _, other := range v.cluster.nodes {
		if other != v {
			c.Join = append(c.Join, other.ip)
		}
	}
	v.memory = &testDisk{InmemStore: raft.NewInmemStore(), snapshots: raft.NewInmemSnapshotStore()}
	v.id = ring.NodeID{v.id[0], v.id[1], v.id[2] + 1}
	v.startProcess()
}

// All nodes lose their disks one after another, each as soon as the previous
// one is ready. The cluster never loses its quorum.
func TestD9_RollingRestartWithoutDisksInOneProcess(t *testing.T) {
	t.Parallel()
	tests := []struct {
		nodes int
		move  bool
		join  bool // without --bootstrap-expect
	}{{4, true, true}, {3, true, false}, {3, false, true}, {7, true, true}, {4, false, false}}
	for _, test := range tests[:casesToRun(len(tests))] {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newTestCluster(t, test.nodes, exactRules(1000))
				for _, v := range p.nodes {
					if test.join {
						v.settings.BootstrapExpect = 0
					}
					began := time.Now()
					v.replaceDisk(test.move)
					p.eventually("a node that lost its disk is ready", v.isProbedReady)
					t.Logf("%s ready after %v", v.settings.Name, time.Since(began).Round(100*time.Millisecond))
				}
				p.awaitWhole()
			})
		})
	}
}

// A starting node does not wait for a dead node that none can replace, nor when
// a cluster is founded or grows, or a node leaves as planned.
func TestReadyWithoutAReplacementInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		soon := func(what string, v *testNode, bound time.Duration) {
			t.Helper()
			p := v.cluster
			p.eventually(what, v.isProbedReady)
			if took := time.Since(began); took > bound {
				t.Errorf("%s after %v", what, took)
			}
		}
		p := newTestCluster(t, 3, exactRules(1000))
		for _, v := range p.nodes {
			soon("a first start is over", v, 6*time.Second)
		}
		p.nodes[2].endProcess(false)
		time.Sleep(20 * time.Second)
		p.nodes[1].endProcess(false)
		began = time.Now()
		p.nodes[1].startProcess()
		soon("a voter is ready though another one is gone", p.nodes[1], 6*time.Second)
		p.nodes[2].startProcess()
		p.awaitWhole()
		began = time.Now()
		soon("a newcomer is ready", p.joinNode(), 6*time.Second)
	})
}
