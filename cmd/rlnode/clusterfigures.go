package main

import (
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/gossip"
	"github.com/rlnode/rlnode/partitions"
)

// figures tells the API how this node does among others.
func (m *mates) figures() api.ClusterFigures {
	f := api.ClusterFigures{Store: m.server.storeFigures(), Partitions: partitionFigures(m.keeper.Stats())}
	c := m.cluster.Load()
	if c == nil {
		return f
	}
	view, raft := c.View(), c.Stats()
	f.Relayed, f.Tunnels = m.peers.Relayed()
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
	f.Regions = m.regionFigures(c)
	f.Raft = api.RaftFigures{
		State: raft.State, LeaderKnown: view.Leader != "", Term: raft.Term, Commit: raft.Commit, Applied: raft.Applied,
		Last: raft.Last, LastContact: raft.LastContact, Voters: raft.Voters, LeaderChanges: raft.LeaderChanges,
	}
	return f
}

func (s *server) storeFigures() api.StoreFigures {
	if s.disk == nil {
		return api.StoreFigures{}
	}
	st := s.disk()
	return api.StoreFigures{Bytes: st.Size, Hung: !st.HungSince.IsZero(), Full: !st.FullSince.IsZero(), Err: st.Err}
}

func partitionFigures(st partitions.Stats) api.PartitionFigures {
	return api.PartitionFigures{
		Owned: st.Held, Standby: st.Copies, Behind: st.Behind, Lagging: st.Lagging, Pushed: st.PushedBytes, Unacked: st.Unacked,
		HandOffs: st.HandOffs, Frozen: st.Frozen, Begun: st.Begun, Debts: st.Debts, Dropped: st.Dropped,
	}
}
