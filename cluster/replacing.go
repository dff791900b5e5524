package cluster

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// Replacing says why a node that has just started is not to be taken as a sign that the next one may be restarted: a voter is
// gone, its disk perhaps with it, and a node that is there has not taken its place yet. If one more voter went for good
// now, the majority might go with it. nil: there are as many live voters as there were, or nobody who could be one.
//
// What there were is the most voters that this process has seen, --bootstrap-expect, or what the leader said when it added this
// node, by which time a dead voter may have been removed. A node counts as live if a path leads to it: gossip takes some
// seconds to notice that a node is gone, and one with a new identity is back in less.
func (c *core) Replacing() error {
	if c.memory.relied.Load() {
		return nil // nobody is there to ask
	}
	conf, _ := c.configuration()
	all, live, servers := 0, 0, 0
	for _, s := range conf.Servers {
		if s.Suffrage == raft.Voter {
			all++
		}
		if id := nodeID(s.ID); id != c.cfg.Self.ID && !c.cfg.Peers.Reachable(id) {
			continue
		}
		servers++
		if s.Suffrage == raft.Voter {
			live++
		}
	}
	wanted := min(c.votersBefore(0), servers)
	if live < wanted || servers > 2 && live < all && (servers > live || all%2 == 0) { // see plan.replaced
		return fmt.Errorf("replacing: %d of %d voters are live, and the leader has not replaced the rest yet", live, max(all, wanted))
	}
	return nil
}

// votersBefore is how many voters there were, as far as this process knows; told is what another node has just said.
func (c *core) votersBefore(told int) int {
	voters := len(c.voterIDs())
	for {
		old := c.voters.Load()
		most := max(old, int64(min(max(told, voters, c.cfg.Expect), maxVoters)))
		if c.voters.CompareAndSwap(old, most) {
			return int(most)
		}
	}
}
