package admin

import "github.com/rlnode/rlnode/cluster"

// Cluster reports the members and the owners.
type Cluster interface {
	// View returns the cluster as this node sees it. The caller may modify the result.
	View() ClusterView
	// Owner returns the names of a partition's owner and standby ("" if there is none), and the epoch of that assignment.
	Owner(partition int) (owner, standby string, epoch int64)
}

// ClusterView is the cluster as one node sees it.
type ClusterView struct {
	Epoch   int64  `json:"epoch"`
	Settled bool   `json:"settled"` // this epoch's ring has replaced the previous one everywhere
	View    string `json:"view"`    // connected or cut-off
	// Starting is why the node does not decide checks yet; filled in here.
	Starting     string `json:"starting,omitempty"`
	Leader       string `json:"leader"`
	RulesVersion int64  `json:"rules_version"` // filled in here
	// Recorded is the newest version of the rules that all regions are known to use; 0 for none.
	Recorded int64    `json:"recorded_version"`
	Members  []Member `json:"members"`
	Regions  []Region `json:"regions"`
	// Decided counts the subjects of checks decided here in the last ten seconds, by the values of decided_by.
	Decided map[string]int64 `json:"decided,omitempty"`
}

// Member is a node of the cluster, as this one sees it.
type Member struct {
	cluster.Member
	Reachable bool   `json:"reachable"`     // from this node
	Via       string `json:"via,omitempty"` // the node that relays to it, if the direct path is broken
}

// Region is a region that the cluster knows of.
type Region struct {
	Name      string `json:"name"`
	Primary   bool   `json:"primary"`   // rules are written there; true for each region that claims it
	Reachable bool   `json:"reachable"` // from this region
	Members   int    `json:"members"`   // the region's own count of its nodes; 0 if it has not been heard of
	Committed bool   `json:"committed"` // limits with scope: global are shared with it
}
