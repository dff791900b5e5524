package cluster

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/ring"
)

const (
	// nodeRetryPause is how long to wait after a failure before trying again to add
	// or move a node.
	nodeRetryPause = 5 * time.Second
	// changeTimeout bounds one change of Raft's configuration, the members or the feature level.
	changeTimeout = 5 * time.Second
)

// changeKind is a kind of change to Raft's configuration or the members.
type changeKind uint8

const (
	noChange changeKind = iota
	addNode             // as a non-voter
	moveNode            // to another address
	promoteNode
	demoteNode
	removeNode // from Raft's configuration
	forgetNode // from the members
)

// change is the leader's next action.
type change struct {
	kind changeKind
	node member
	why  string // of removeNode, for the log
}

// planner decides the leader's next change from what it knows of the members.
type planner struct {
	now     time.Time
	self    ring.NodeID
	members []member // sorted by ID
	timings Timings

	// Derived from the members:
	voters, failedVoters int            // number of voters, and how many of them have failed
	votersByZone         map[string]int // voters by zone
	nextVoter            *member        // the node to make a voter next; nil if there is none
}

// next returns the one change to make now. Each change results in a new
// configuration, from which the next one is planned.
func (pl *planner) next() change {
	pl.countVoters()
	for _, step := range []func() change{
		pl.planMove, pl.planRemoval, pl.planForget, pl.planAddition, pl.planDemotion, pl.planPromotion, pl.planSpread,
	} {
		c := step()
		if c.kind != noChange {
			return c
		}
	}
	return change{}
}

// changeFirst returns a change of the given kind to the first member that fits.
func (pl *planner) changeFirst(kind changeKind, fits func(*member) bool) change {
	for i := range pl.members {
		if fits(&pl.members[i]) {
			return change{kind: kind, node: pl.members[i]}
		}
	}
	return change{}
}

// planMove updates the address of a node that has moved. After a failure it
// waits for nodeRetryPause.
func (pl *planner) planMove() change {
	return pl.changeFirst(moveNode, func(m *member) bool {
		return m.inRaft && m.isAlive() && m.peerAddress != m.raftAddress &&
			pl.now.Sub(m.health.changeFailedAt) >= nodeRetryPause
	})
}

// planRemoval removes a node from Raft if whyRemove gives a reason. It never
// removes a node that is in a ring.
func (pl *planner) planRemoval() change {
	for i := range pl.members {
		m := &pl.members[i]
		if !m.inRaft || m.ID == pl.self || m.InRing {
			continue
		}

		why := pl.whyRemove(m)
		if why != "" {
			return change{removeNode, *m, why}
		}
	}
	return change{}
}

// whyRemove returns why a node has to go; empty if it may stay.
func (pl *planner) whyRemove(m *member) string {
	switch {
	case m.excluded:
		return "by command"
	case m.inGossip && m.State == gossip.Left:
		return "it has left"
	case !m.health.failed:
		return ""
	case pl.now.Sub(m.health.failedSince) >= pl.timings.ForgetAfter:
		return "it was away for too long"
	}

	// Raft can have only one server at an address.
	taken := slices.ContainsFunc(pl.members, func(o member) bool {
		return o.ID != m.ID && o.peerAddress == m.raftAddress && o.isAlive()
	})
	if taken && (pl.failedVoters == 0 || pl.canDropFailedVoter()) {
		return "another node has its address"
	}
	return ""
}

// planForget removes a member that is not in Raft's configuration, if it has
// failed or is excluded.
func (pl *planner) planForget() change {
	return pl.changeFirst(forgetNode, func(m *member) bool {
		return m.inState && !m.inRaft && !m.InRing && m.ID != pl.self &&
			(m.excluded || !(m.isAlive()) && m.health.failed)
	})
}

// planAddition adds a node that is alive, unless a server still has its address.
func (pl *planner) planAddition() change {
	return pl.changeFirst(addNode, func(m *member) bool {
		return !m.inRaft && m.isAlive() && !m.excluded && pl.now.Sub(m.health.changeFailedAt) >= nodeRetryPause &&
			!slices.ContainsFunc(pl.members, func(o member) bool { return o.inRaft && o.raftAddress == m.peerAddress })
	})
}

// countVoters counts the voters and picks the next one: from the zone with the
// fewest voters, then by ID.
func (pl *planner) countVoters() {
	pl.voters = 0
	pl.failedVoters = 0
	pl.votersByZone = map[string]int{}
	pl.nextVoter = nil

	for _, m := range pl.members {
		if m.Voter {
			pl.voters++
			pl.votersByZone[m.Zone]++
			if m.health.failed {
				pl.failedVoters++
			}
		}
	}

	for i := range pl.members {
		m := &pl.members[i]
		fits := m.inRaft && !m.Voter && m.isAlive() && !m.excluded && m.health.healthy &&
			pl.now.Sub(m.health.healthySince) >= pl.timings.Stable
		if fits && (pl.nextVoter == nil || pl.votersByZone[m.Zone] < pl.votersByZone[pl.nextVoter.Zone]) {
			pl.nextVoter = m
		}
	}
}

// canDropFailedVoter reports whether the live voters are enough to agree on dropping a failed one.
func (pl *planner) canDropFailedVoter() bool { return pl.voters-pl.failedVoters >= (pl.voters-1)/2+1 }

// planDemotion demotes a failed voter if the live ones can agree to it, and
// either the next voter can take its place or the number of voters is even: with
// one voter fewer, a smaller majority suffices.
func (pl *planner) planDemotion() change {
	mayDemote := pl.failedVoters > 0 && pl.canDropFailedVoter()
	helps := pl.nextVoter != nil || pl.voters%2 == 0
	if !mayDemote || !helps {
		return change{}
	}

	return pl.changeFirst(demoteNode, func(m *member) bool {
		return m.Voter && m.ID != pl.self && m.health.failed && pl.now.Sub(m.health.failedSince) >= pl.timings.Stable
	})
}

// planPromotion promotes the next voter while there are fewer voters than
// maxVoters. If a voter has failed, it waits until planDemotion has demoted
// that voter, because an additional voter would enlarge the majority needed.
func (pl *planner) planPromotion() change {
	if pl.nextVoter == nil || pl.voters >= maxVoters || pl.failedVoters > 0 {
		return change{}
	}
	return change{kind: promoteNode, node: *pl.nextVoter}
}

// planSpread demotes a voter in a zone that has at least two more voters than
// the zone of the next voter. planPromotion then promotes that one, which
// spreads the voters better over the zones.
func (pl *planner) planSpread() change {
	if pl.nextVoter == nil || pl.voters < maxVoters || pl.failedVoters > 0 {
		return change{}
	}
	return pl.changeFirst(demoteNode, func(m *member) bool {
		return m.Voter && m.ID != pl.self && pl.votersByZone[m.Zone] >= pl.votersByZone[pl.nextVoter.Zone]+2
	})
}
