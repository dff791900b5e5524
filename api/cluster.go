package api

import "github.com/rlnode/rlnode/cluster"

// Cluster tells who is there and who owns what.
type Cluster interface {
	// View is the cluster as this node sees it. The caller may change what is returned.
	View() ClusterView
	// Owner returns the names of a partition's owner and standby ("" without one), and the epoch that says so.
	Owner(partition int) (owner, standby string, epoch int64)
}

// ClusterView is the cluster as one node sees it.
type ClusterView struct {
	Epoch        int64  `json:"epoch"`
	Settled      bool   `json:"settled"` // the ring of this epoch has taken the last one's place everywhere
	View         string `json:"view"`    // connected or cut-off
	Leader       string `json:"leader"`
	RulesVersion int64  `json:"rules_version"` // filled in here
	// Recorded is the newest version of the rules that all regions are known to go by; 0 for none.
	Recorded int64    `json:"recorded_version"`
	Members  []Member `json:"members"`
	Regions  []Region `json:"regions"`
	// Decided is how many subjects of checks were decided here in the last ten seconds, by the words of decided_by.
	Decided map[string]int64 `json:"decided,omitempty"`
}

// Member is a node of the cluster, as this one sees it.
type Member struct {
	cluster.Member
	Reachable bool   `json:"reachable"`     // from this node
	Via       string `json:"via,omitempty"` // the node by way of which it is reached, where the direct way is broken
}

// Region is a region that the cluster knows of.
type Region struct {
	Name      string `json:"name"`
	Primary   bool   `json:"primary"`   // rules are written there; of several that say so of themselves, each
	Reachable bool   `json:"reachable"` // from this region
	Members   int    `json:"members"`   // nodes, as the region says itself; 0 if it has not been heard of
	Committed bool   `json:"committed"` // limits with scope: global are shared with it
}
