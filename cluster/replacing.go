package cluster

import (
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/raftio"
)

// ReplacingError returns an error if a rolling restart must wait: a voter is
// gone, perhaps along with its disk, and no live node has taken its place. If
// another voter were lost for good now, the majority might be lost.
// ReplacingError returns nil if there are as many live voters as before, or if
// no further live node could become a voter.
//
// The number before is the highest of three, and at most maxVoters: the number
// of voters that this process has seen, --bootstrap-expect, and the number that
// the leader sent when it added this node, which may include a voter removed by
// then. A node counts as live if it is reachable: gossip takes some seconds to
// notice that a node is gone, and a node that restarts with a new identity is
// back sooner.
func (c *core) ReplacingError() error {
	if c.reliesOnMemory() {
		return nil // there is no other node to ask
	}

	conf, _ := c.configuration()
	voters := 0
	liveVoters := 0
	liveServers := 0
	for _, s := range conf.Servers {
		if s.Suffrage == raft.Voter {
			voters++
		}

		id := raftio.NodeID(s.ID)
		if id != c.config.Self.ID && !c.config.Peers.Reachable(id) {
			continue
		}

		liveServers++
		if s.Suffrage == raft.Voter {
			liveVoters++
		}
	}

	// This estimates what planDemotion will do. It leaves out how long the leader
	// waits first.
	wanted := min(c.mostVotersKnown(), liveServers)
	willDemote := liveServers > 2 && liveVoters < voters && (liveServers > liveVoters || voters%2 == 0)
	if liveVoters < wanted || willDemote {
		return fmt.Errorf("replacing: %d of %d voters are live, and the leader has not replaced the others yet",
			liveVoters, max(voters, wanted))
	}
	return nil
}

// mostVotersKnown returns the highest number of voters that this process has
// noted, including the number of now.
func (c *core) mostVotersKnown() int {
	c.RecordVoters()
	return int(c.mostVoters.Load())
}

// RecordVoters records how many voters there are now. ReplacingError compares later
// numbers with the highest.
func (c *core) RecordVoters() { c.recordReportedVoters(0) }

// recordReportedVoters records how many voters there are now, and how many another
// node has just reported, for mostVotersKnown.
func (c *core) recordReportedVoters(reported int) {
	voters := len(c.voterIDs())
	for {
		old := c.mostVoters.Load()
		most := max(old, int64(min(max(reported, voters, c.config.BootstrapExpect), maxVoters)))
		if c.mostVoters.CompareAndSwap(old, most) {
			return
		}
	}
}
