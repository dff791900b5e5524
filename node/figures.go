package node

import (
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/gossip"
	"github.com/rlnode/rlnode/partitions"
)

// figures tells the API how this node does among others.
func (n *Node) figures() api.ClusterFigures {
	f := api.ClusterFigures{Store: n.storeFigures(), Partitions: partitionFigures(n.keeper.Stats())}
	c := n.cluster
	view, raft := c.View(), c.Stats()
	f.Relayed, f.Tunnels = n.peers.Relayed()
	f.Connected, f.Refused, f.Stuck, f.Split = view.Connected, raft.GossipRefused, c.Stuck(), c.Split()
	f.Behind, f.Suspended = c.Behind(), c.Suspended()
	for _, one := range view.Members {
		switch one.State {
		case gossip.Alive:
			f.Members.Alive++
		case gossip.Suspect:
			f.Members.Suspect++
		case gossip.Left:
			f.Members.Left++
		case gossip.Failed:
			f.Members.Failed++
		}
	}
	f.Regions = n.regionFigures()
	f.Raft = api.RaftFigures{
		State: raft.State, LeaderKnown: view.Leader != "", Term: raft.Term, Commit: raft.Commit, Applied: raft.Applied,
		Last: raft.Last, LastContact: raft.LastContact, Voters: raft.Voters, LeaderChanges: raft.LeaderChanges,
	}
	return f
}

func (n *Node) storeFigures() api.StoreFigures {
	if n.disk == nil {
		return api.StoreFigures{}
	}
	st := n.disk()
	return api.StoreFigures{Bytes: st.Size, Hung: !st.HungSince.IsZero(), Full: !st.FullSince.IsZero(), Err: st.Err}
}

func partitionFigures(st partitions.Stats) api.PartitionFigures {
	return api.PartitionFigures{
		Owned: st.Held, Standby: st.Copies, Behind: st.Behind, Lagging: st.Lagging, Pushed: st.PushedBytes, Unacked: st.Unacked,
		HandOffs: st.HandOffs, Frozen: st.Frozen, Begun: st.Begun, Debts: st.Debts, Dropped: st.Dropped,
	}
}
