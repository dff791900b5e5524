package cluster

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/ring"
)

// record is what the leader has noted about a node since it leads.
type record struct {
	boot     uint64
	good     bool      // alive, and it has applied nearly all
	goodFrom time.Time // since when
	bad      bool      // failed, or not seen
	badFrom  time.Time
	refused  time.Time // when it was last asked to join, in vain
}

// changeKind is a sort of change of Raft's configuration or of the members.
type changeKind uint8

const (
	noChange changeKind = iota
	addNode             // as one that follows
	moveNode            // to another address
	promoteNode
	demoteNode
	removeNode // from Raft's configuration
	forgetNode // from the members
)

// change is the next thing for a leader to do.
type change struct {
	kind changeKind
	node member
}

// plan is what a leader goes by.
type plan struct {
	now     time.Time
	self    ring.NodeID
	members []member // sorted by ID
	timings Timings

	// Of the members:
	all, failed int            // those that vote, and of them those that don't answer
	zones       map[string]int // those that vote, by zone
	candidate   *member        // the node to make a voter next; nil: there is none
}

// next is the one change to make now. One at a time: each is a configuration of its own, and the one after it is
// planned from what it has led to.
func (p *plan) next() change {
	p.count()
	for _, rule := range []func() change{p.moved, p.gone, p.forgotten, p.newcomers, p.replaced, p.promoted, p.spread} {
		if c := rule(); c.kind != noChange {
			return c
		}
	}
	return change{}
}

// first is a change of the first member that fits.
func (p *plan) first(kind changeKind, fits func(*member) bool) change {
	for i := range p.members {
		if fits(&p.members[i]) {
			return change{kind, p.members[i]}
		}
	}
	return change{}
}

// moved follows a node to another address.
func (p *plan) moved() change {
	return p.first(moveNode, func(m *member) bool {
		return m.server && m.alive() && m.peer != m.at &&
			p.now.Sub(m.record.refused) >= retryNode
	})
}

// gone takes out of Raft who has left, is removed by hand, failed long ago, or failed and has lost its address to another
// node: Raft has one server at an address at most. But nobody who is in a ring.
func (p *plan) gone() change {
	return p.first(removeNode, func(m *member) bool {
		long := m.record.bad && p.now.Sub(m.record.badFrom) >= p.timings.Forgotten
		displaced := m.record.bad && (p.failed == 0 || p.canAgree()) && slices.ContainsFunc(p.members, func(o member) bool {
			return o.ID != m.ID && o.peer == m.at && o.alive()
		})
		return m.server && m.ID != p.self && !m.InRing && (m.removing || m.seen && m.State == gossip.Left || long || displaced)
	})
}

// forgotten takes out of the members who is neither a server nor alive.
func (p *plan) forgotten() change {
	return p.first(forgetNode, func(m *member) bool {
		return m.known && !m.server && !m.InRing && m.ID != p.self && (m.removing || !(m.alive()) && m.record.bad)
	})
}

// retryNode is how long a node that did not want to be added is left alone.
const retryNode = 5 * time.Second

// newcomers adds who is alive, unless its address is still a server's.
func (p *plan) newcomers() change {
	return p.first(addNode, func(m *member) bool {
		return !m.server && m.alive() && !m.removing && p.now.Sub(m.record.refused) >= retryNode &&
			!slices.ContainsFunc(p.members, func(o member) bool { return o.server && o.at == m.peer })
	})
}

// count counts the voters, and finds the next one: in the zone with the fewest, then by ID.
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

// canAgree says whether the voters that are left can agree to be without those that failed.
func (p *plan) canAgree() bool { return p.all-p.failed >= (p.all-1)/2+1 }

// replaced demotes a voter that failed, if those that are left can agree to it, and there is one to take its place, or the
// voters are an even number: without it fewer are a majority.
func (p *plan) replaced() change {
	if p.candidate == nil && p.all%2 == 1 || p.failed == 0 || !p.canAgree() {
		return change{}
	}
	return p.first(demoteNode, func(m *member) bool {
		return m.Voter && m.ID != p.self && m.record.bad && p.now.Sub(m.record.badFrom) >= p.timings.Stable
	})
}

// promoted makes a voter while there are too few. As long as one has failed, the candidate is to take its place: beside it,
// more of the others would be needed for a majority.
func (p *plan) promoted() change {
	if p.candidate == nil || p.all >= maxVoters || p.failed > 0 {
		return change{}
	}
	return change{promoteNode, *p.candidate}
}

// spread demotes a voter of a zone that has at least two more than the candidate's: promoted then takes the candidate,
// and the voters are spread better than before.
func (p *plan) spread() change {
	if p.candidate == nil || p.all < maxVoters || p.failed > 0 {
		return change{}
	}
	return p.first(demoteNode, func(m *member) bool {
		return m.Voter && m.ID != p.self && p.zones[m.Zone] >= p.zones[p.candidate.Zone]+2
	})
}

// note brings a node's record up to date.
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
