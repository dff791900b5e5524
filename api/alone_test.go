package api

import (
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/ring"
)

// Alone is the Cluster of a single node.
type Alone struct {
	Name, Address, Region, Zone string
	ID                          ring.NodeID
}

// View has one member, which owns everything.
func (a Alone) View() ClusterView {
	return ClusterView{
		Epoch:   1,
		Settled: true,
		View:    "connected",
		Leader:  a.Name,
		Members: []Member{{
			Member: cluster.Member{
				Name: a.Name, ID: a.ID, Address: a.Address, Region: a.Region, Zone: a.Zone,
				Voter: true, Leader: true, InRing: true, Partitions: ring.Partitions,
			},
			Reachable: true,
		}},
		Regions: []Region{{Name: a.Region, Primary: true, Reachable: true, Members: 1}},
	}
}

// Owner always returns this node.
func (a Alone) Owner(int) (owner, standby string, epoch int64) { return a.Name, "", 1 }
