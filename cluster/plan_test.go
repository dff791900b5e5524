package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/gossip"
)

func TestPlan(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	long := now.Add(-time.Minute)
	good := nodeHealth{healthy: true, healthySince: long}
	failed := nodeHealth{failed: true, failedSince: long}
	voter := func(n byte, change ...func(*member)) member {
		at := fmt.Sprintf("10.0.0.%d:1", n)
		m := member{Member: Member{ID: id(n), Voter: true, InRing: true}, peerAddress: at,
			raftAddress: at, inGossip: true, inRaft: true, inState: true, health: good}
		for _, c := range change {
			c(&m)
		}
		return m
	}
	follows := func(m *member) { m.Voter = false }
	dead := func(m *member) { m.State, m.health, m.InRing = gossip.Failed, failed, false }
	zone := func(z string) func(*member) { return func(m *member) { m.Zone = z } }
	five := []member{voter(1), voter(2), voter(3), voter(4), voter(5)}
	with := func(list []member, more ...member) []member {
		out := append([]member{}, list...)
		for _, m := range more {
			if i := int(m.ID[0]) - 1; i < len(out) {
				out[i] = m
			} else {
				out = append(out, m)
			}
		}
		return out
	}
	for _, test := range []struct {
		name    string
		members []member
		want    changeKind
		node    byte
	}{
		{"all is well", five, noChange, 0},
		{"a newcomer",
			with(five, member{Member: Member{ID: id(6)}, inGossip: true, peerAddress: "10.0.0.6:1"}),
			addNode, 6},
		{"a newcomer at the address of a server",
			with(five, member{Member: Member{ID: id(6)}, inGossip: true, peerAddress: "10.0.0.2:1"}),
			noChange, 0},
		{"a newcomer at the address of one that failed",
			with(five, voter(2, dead), member{Member: Member{ID: id(6)}, inGossip: true, peerAddress: "10.0.0.2:1"}),
			removeNode, 2},
		{"a newcomer at the address of one that failed, and is in the ring", with(five,
			voter(2, dead, func(m *member) { m.InRing = true }),
			member{Member: Member{ID: id(6)}, inGossip: true, peerAddress: "10.0.0.2:1"}), noChange, 0},
		{"a newcomer at the address of one of too many that failed", with(five[:3], voter(1, dead),
			voter(2, dead), member{Member: Member{ID: id(6)}, inGossip: true, peerAddress: "10.0.0.2:1"}), noChange, 0},
		{"a newcomer that refused just now",
			with(five, member{Member: Member{ID: id(6)}, inGossip: true, health: nodeHealth{changeFailedAt: now}}),
			noChange, 0},
		{"a newcomer that is gone",
			with(five, member{Member: Member{ID: id(6), State: gossip.Failed}, inGossip: true}),
			noChange, 0},
		{"a newcomer that is being removed",
			with(five, member{Member: Member{ID: id(6)}, inGossip: true, excluded: true}), noChange, 0},
		{"another address", with(five, voter(2, func(m *member) { m.peerAddress = "b:1" })), moveNode, 2},
		{"another address, and not alive",
			with(five, voter(2, dead, func(m *member) { m.peerAddress = "b:1" })), noChange, 0},
		{"has left", with(five, voter(2, dead, func(m *member) { m.State = gossip.Left })), removeNode, 2},
		{"has left, and is in the ring", with(five, voter(2, func(m *member) { m.State = gossip.Left })), noChange, 0},
		{"failed", with(five, voter(2, dead)), noChange, 0},
		{"failed long ago",
			with(five, voter(2, dead, func(m *member) { m.health.failedSince = now.Add(-73 * time.Hour) })),
			removeNode, 2},
		{"failed long ago, and is in the ring", with(five, voter(2, dead, func(m *member) {
			m.health.failedSince, m.InRing = now.Add(-73*time.Hour), true
		})), noChange, 0},
		{"removed by hand", with(five, voter(2, dead, func(m *member) { m.excluded = true })), removeNode, 2},
		{"out of Raft",
			with(five, voter(2, dead, func(m *member) { m.inRaft, m.Voter = false, false })),
			forgetNode, 2},
		{"failed voter, and one to replace it", with(five, voter(2, dead), voter(6, follows)), demoteNode, 2},
		{"failed just now",
			with(five, voter(2, dead, func(m *member) { m.health.failedSince = now }), voter(6, follows)),
			noChange, 0},
		{"too many failed", with(five, voter(2, dead), voter(3, dead), voter(4, dead), voter(6, follows)), noChange, 0},
		{"one of four failed", with(five[:4], voter(2, dead)), demoteNode, 2},
		{"one of three failed", with(five[:3], voter(2, dead)), noChange, 0},
		{"failed just now, and room for a voter",
			with(five[:3], voter(2, dead, func(m *member) { m.health.failedSince = now }),
				voter(4, follows)), noChange, 0},
		{"two failed", with(five, voter(2, dead), voter(3, dead), voter(6, follows)), demoteNode, 2},
		{"room for a voter", []member{voter(1), voter(2), voter(3, follows)}, promoteNode, 3},
		{"room, and not caught up",
			[]member{voter(1), voter(2), voter(3, follows, func(m *member) { m.health = nodeHealth{} })},
			noChange, 0},
		{"room, and good just now",
			[]member{voter(1), voter(2), voter(3, follows, func(m *member) { m.health.healthySince = now })},
			noChange, 0},
		{"room, and zones",
			[]member{voter(1, zone("a")), voter(2, zone("b")), voter(3, follows, zone("a")),
				voter(4, follows, zone("c"))},
			promoteNode, 4},
		{"no room", with(five, voter(6, follows)), noChange, 0},
		{"no room, and another zone", with(five, voter(6, follows, zone("b"))), demoteNode, 2},
		{"no room, and a zone that has as many", []member{voter(1, zone("a")), voter(2, zone("a")), voter(3, zone("b")),
			voter(4, zone("b")), voter(5, zone("c")), voter(6, follows, zone("c"))}, noChange, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := planner{now: now, self: id(1), members: test.members, timings: DefaultTimings()}
			have := p.next()
			if have.kind != test.want || test.node != 0 && have.node.ID != id(test.node) {
				t.Errorf("have change %d of %s, want %d of node %d", have.kind, have.node.ID, test.want, test.node)
			}
		})
	}
}
