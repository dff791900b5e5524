package node

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
)

// clusters counts the nodes of each cluster.
func (p *testCluster) clusters() map[agreement.ClusterID]int {
	list := map[agreement.ClusterID]int{}
	for _, v := range p.nodes {
		if id := v.node.cluster.State().Cluster; !id.IsZero() {
			list[id]++
		}
	}
	return list
}

// Twice as many nodes as --bootstrap-expect are split in halves at their first
// start. They don't found two clusters: if
// --join names all of them, they found none, and the reason names the flag. If --bootstrap-expect is more than half, the
// larger part founds one.
func TestD10_SplitAtTheFirstStartInOneProcess(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ nodes, expect, part, clusters int }{{6, 3, 3, 0}, {2, 1, 1, 0}, {5, 3, 3, 1}} {
		synctest.Test(t, func(t *testing.T) {
			p := newTestNetwork(t).newCluster("default", "default", 0)
			p.expect = test.expect
			for i := range test.part {
				for j := test.part; j < test.nodes; j++ {
					p.net.Cut(p.address(i), p.address(j))
				}
			}
			p.startNodes(test.nodes, exactRules(1000))
			time.Sleep(20 * time.Second)
			p.net.HealAll()
			time.Sleep(20 * time.Second)
			if have := p.clusters(); len(have) != test.clusters {
				t.Errorf("%+v: nodes by cluster: %v", test, have)
			}
			err := p.nodes[0].node.cluster.ReadyError()
			if test.clusters == 0 && (err == nil || !strings.Contains(err.Error(), "--bootstrap-expect")) {
				t.Errorf("%+v: have %v as the reason for not being ready", test, err)
			}
		})
	}
}
