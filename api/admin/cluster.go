package admin

import "github.com/rlnode/rlnode/cluster"

// Cluster reports the members and the owners.
type Cluster interface {
	// View returns the cluster as this node sees it. The caller may modify the result.
	View() ClusterView
	// Owner returns the names of a partition's owner and standby ("" if there is
	// none), and the epoch of that assignment.
	Owner(partition int) (owner, standby string, epoch int64)
}

// ClusterView is the cluster as one node sees it.
type ClusterView struct {
	Epoch   int64  `json:"epoch"`
	Settled bool   `json:"settled"` // all partitions have moved to their places in this epoch's ring
	View    string `json:"view"`    // connected or cut-off
	// Starting is why the node does not decide checks yet. The admin plane sets it.
	Starting     string `json:"starting,omitempty"`
	Leader       string `json:"leader"`
	RulesVersion int64  `json:"rules_version"` // set by the admin plane
	// Recorded is the newest version of the rules that all regions are known to use; 0: none.
	Recorded int64    `json:"recorded_version"`
	Members  []Member `json:"members"`
	Regions  []Region `json:"regions"`
	// Decided counts the subjects of the checks that this node decided in the last
	// ten seconds, by decided_by.
	Decided map[string]int64 `json:"decided,omitempty"`
}

// Member is a node of the cluster, as this one sees it.
type Member struct {
	cluster.Member
	Reachable bool   `json:"reachable"`     // from this node
	Via       string `json:"via,omitempty"` // the node that relays messages to it, if the direct path is broken
	// ClockOffset is how far its wall clock is ahead of the median of all, in
	// milliseconds; nil if it is not known.
	ClockOffset *int64 `json:"clock_offset_ms,omitempty"`
}

// Region is a region that the cluster knows of.
type Region struct {
	Name      string `json:"name"`
	Primary   bool   `json:"primary"`   // rules are written there; true for each region that claims it
	Reachable bool   `json:"reachable"` // from this region
	Members   int    `json:"members"`   // how many nodes the region says that it has; 0 if it has not reported
	// Address is that of a node of another region; empty if none is known.
	Address   string `json:"address,omitempty"`
	Committed bool   `json:"committed"` // limits with scope: global are shared with it
}
