package api

import "github.com/rlnode/rlnode/rules"

// Partitions is how many slices the key space has.
const Partitions = 4096

// PartitionOf is the partition of the subject with hash h: its top 12 bits.
func PartitionOf(h rules.Hash) int { return int(h.Hi >> 52) }

// Cluster tells who is there and who owns what.
type Cluster interface {
	// View is the cluster as this node sees it. The caller may change what is returned.
	View() ClusterView
	// Owner returns the names of a partition's owner and standby ("" without one), and the epoch that says so.
	Owner(partition int) (owner, standby string, epoch int64)
}

// ClusterView is the cluster as one node sees it.
type ClusterView struct {
	Epoch        int64    `json:"epoch"`
	Settled      bool     `json:"settled"` // the ring of this epoch has taken the last one's place everywhere
	View         string   `json:"view"`    // connected or cut-off
	Leader       string   `json:"leader"`
	RulesVersion int64    `json:"rules_version"` // filled in here
	Members      []Member `json:"members"`
	Regions      []Region `json:"regions"`
}

// Member is a node of the cluster.
type Member struct {
	Name       string `json:"name"`
	ID         string `json:"id"`
	Address    string `json:"address"`
	Region     string `json:"region"`
	Zone       string `json:"zone"`
	State      string `json:"state"` // alive, suspect, left or failed
	Voter      bool   `json:"voter"`
	Leader     bool   `json:"leader"`
	InRing     bool   `json:"in_ring"`
	Partitions int    `json:"partitions"` // owned
}

// Region is a region that the cluster knows of.
type Region struct {
	Name      string `json:"name"`
	Primary   bool   `json:"primary"`
	Reachable bool   `json:"reachable"`
	Members   int    `json:"members"`
}

// Alone is the Cluster of a node by itself.
type Alone struct {
	Name, ID, Address, Region, Zone string
}

// View has the one member, which is and owns everything.
func (a Alone) View() ClusterView {
	return ClusterView{
		Epoch:   1,
		Settled: true,
		View:    "connected",
		Leader:  a.Name,
		Members: []Member{{
			Name: a.Name, ID: a.ID, Address: a.Address, Region: a.Region, Zone: a.Zone, State: "alive",
			Voter: true, Leader: true, InRing: true, Partitions: Partitions,
		}},
		Regions: []Region{{Name: a.Region, Primary: true, Reachable: true, Members: 1}},
	}
}

// Owner is always this node.
func (a Alone) Owner(int) (owner, standby string, epoch int64) { return a.Name, "", 1 }
