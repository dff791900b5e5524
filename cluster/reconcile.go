package cluster

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/ring"
)

// record is the health of a node that the leader has observed since it began to lead.
type record struct {
	boot     uint64
	good     bool      // alive, and has applied nearly everything
	goodFrom time.Time // when good became true
	bad      bool      // failed or left, or gossip has not seen it
	badFrom  time.Time // when bad became true
	refused  time.Time // when a change of this node last failed
}

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
}

// plan is the input of the leader's next change.
type plan struct {
	now     time.Time
	self    ring.NodeID
	members []member // sorted by ID
	timings Timings

	// Derived from the members:
	all, failed int            // number of voters, and how many of them have failed
	zones       map[string]int // voters by zone
	candidate   *member        // the node to make a voter next; nil if there is none
}

// next returns the one change to make now. Each change results in a new configuration, from which the next one is planned.
func (p *plan) next() change {
	p.count()
	for _, rule := range []func() change{p.moved, p.gone, p.forgotten, p.newcomers, p.replaced, p.promoted, p.spread} {
		if c := rule(); c.kind != noChange {
			return c
		}
	}
	return change{}
}

// first returns a change of the given kind to the first member that fits.
func (p *plan) first(kind changeKind, fits func(*member) bool) change {
	for i := range p.members {
		if fits(&p.members[i]) {
			return change{kind, p.members[i]}
		}
	}
	return change{}
}

// moved updates the address of a node that has moved. After a failure it waits for retryNode.
func (p *plan) moved() change {
	return p.first(moveNode, func(m *member) bool {
		return m.server && m.alive() && m.peer != m.at &&
			p.now.Sub(m.record.refused) >= retryNode
	})
}

// gone removes a node from Raft if it has left, if an operator removes it, if it failed long ago, or if it failed and another
// node now has its address, because Raft can have only one server at an address. It never removes a node that is in a ring.
func (p *plan) gone() change {
	return p.first(removeNode, func(m *member) bool {
		long := m.record.bad && p.now.Sub(m.record.badFrom) >= p.timings.Forgotten
		displaced := m.record.bad && (p.failed == 0 || p.canAgree()) && slices.ContainsFunc(p.members, func(o member) bool {
			return o.ID != m.ID && o.peer == m.at && o.alive()
		})
		return m.server && m.ID != p.self && !m.InRing && (m.removing || m.seen && m.State == gossip.Left || long || displaced)
	})
}

// forgotten removes a member that is not a server of Raft and not alive.
func (p *plan) forgotten() change {
	return p.first(forgetNode, func(m *member) bool {
		return m.known && !m.server && !m.InRing && m.ID != p.self && (m.removing || !(m.alive()) && m.record.bad)
	})
}

// retryNode is how long to wait after a failure before trying again to add or move a node.
const retryNode = 5 * time.Second

// newcomers adds a node that is alive, unless a server still has its address.
func (p *plan) newcomers() change {
	return p.first(addNode, func(m *member) bool {
		return !m.server && m.alive() && !m.removing && p.now.Sub(m.record.refused) >= retryNode &&
			!slices.ContainsFunc(p.members, func(o member) bool { return o.server && o.at == m.peer })
	})
}

// count counts the voters and picks the candidate to become one: from the zone with the fewest voters, then by ID.
func (p *plan) count() {
	p.all, p.failed, p.zones, p.candidate = 0, 0, map[string]int{}, nil
	for _, m := range p.members {
		if m.Voter {
			p.all++
			p.zones[m.Zone]++
			if m.record.bad {
				p.failed++
			}
		}
	}
	for i := range p.members {
		m := &p.members[i]
		fits := m.server && !m.Voter && m.alive() && !m.removing && m.record.good && p.now.Sub(m.record.goodFrom) >= p.timings.Stable
		if fits && (p.candidate == nil || p.zones[m.Zone] < p.zones[p.candidate.Zone]) {
			p.candidate = m
		}
	}
}

// canAgree reports whether the live voters are enough to agree on dropping a failed one.
func (p *plan) canAgree() bool { return p.all-p.failed >= (p.all-1)/2+1 }

// replaced demotes a failed voter if the live ones can agree to it, and either a candidate can take its place or the number
// of voters is even: with one voter fewer, a smaller majority suffices.
func (p *plan) replaced() change {
	if p.candidate == nil && p.all%2 == 1 || p.failed == 0 || !p.canAgree() {
		return change{}
	}
	return p.first(demoteNode, func(m *member) bool {
		return m.Voter && m.ID != p.self && m.record.bad && p.now.Sub(m.record.badFrom) >= p.timings.Stable
	})
}

// promoted makes the candidate a voter while there are fewer than maxVoters. If a voter has failed, it waits until replaced
// has demoted that one, because an additional voter would enlarge the majority needed.
func (p *plan) promoted() change {
	if p.candidate == nil || p.all >= maxVoters || p.failed > 0 {
		return change{}
	}
	return change{promoteNode, *p.candidate}
}

// spread demotes a voter in a zone that has at least two more voters than the candidate's zone. promoted then makes the
// candidate a voter, which spreads the voters better over the zones.
func (p *plan) spread() change {
	if p.candidate == nil || p.all < maxVoters || p.failed > 0 {
		return change{}
	}
	return p.first(demoteNode, func(m *member) bool {
		return m.Voter && m.ID != p.self && p.zones[m.Zone] >= p.zones[p.candidate.Zone]+2
	})
}

// note returns the node's updated record.
func (r record) note(now time.Time, m *member, caughtUp bool) record {
	good := m.alive() && caughtUp
	if good && (!r.good || r.boot != m.boot) {
		r.goodFrom = now
	}
	bad := m.State == gossip.Failed || m.State == gossip.Left
	if bad && !r.bad {
		r.badFrom = now
	}
	r.good, r.bad, r.boot = good, bad, m.boot
	return r
}
