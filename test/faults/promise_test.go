//go:build faults

package faults

import (
	"time"
)

const (
	term = 2020 * time.Millisecond // the life of authority, plus 1 %
	// unpushed is the age that a debit may have without the standby's
	// acknowledgement: an interval of 100 ms, plus the time of a push on a loaded
	// machine.
	unpushed = 300 * time.Millisecond
	// edge is the time around the turn of a window in which the window of a hit is uncertain.
	edge = 5 * time.Millisecond
	// settling is how long after a node's return others may still decide in its
	// place, or without it.
	settling = 5 * time.Second
	// unsaved is the age that a hit may have without being in a completed
	// checkpoint: one begins each second, and takes a while.
	unsaved = 2 * time.Second
	// seenOwner is how long an owner's own decision proves who the owner is.
	seenOwner = 3 * time.Second
)

// fault is a fault of a node, on boottime.
type fault struct {
	kind     faultKind
	node     int
	from     int64 // its start began
	made     int64 // it was in effect
	eased    int64 // its end began; 0: not ended
	to       int64 // it was over
	observed bool  // caused as stated; otherwise a possible consequence of something else
}

type faultKind int

const (
	// or stopped for so long that its standby is promoted: what was not pushed is forgotten for now
	killed   faultKind = iota
	cutOff             // from all others, who are a majority
	split              // no majority: no node replaces an owner
	together           // killed with others, a minority: owners and standbys at once
	saved              // killed with all others: the last checkpoint comes back
	// the owner and its replacement are down, or can't act, for a moment: nothing is forgotten
	neither
	stepped // its wall clock was set
	apart   // one of its links is cut: a third node relays, so nothing is excused
)

// promise is what one limit of one subject may admit, and what a checker needs to judge it.
type promise struct {
	rule   *rule
	nodes  int64
	wall   int64 // from boottime to the wall clock
	faults []fault
	moves  []move // rings agreed on
	steps  []step // steps of wall clocks

	owners []hit // decided by an owner itself, sorted by got
}

// share returns the most that one node may admit alone of n: it divides by the
// nodes in its last ring, which nodes that were killed together leave.
func (p *promise) share(n int64) int64 {
	nodes := p.nodes
	for i := range p.faults {
		if p.faults[i].kind == together {
			nodes--
		}
	}
	nodes = max(1, nodes)
	return (n + nodes - 1) / nodes
}

// see records who was the owner.
func (p *promise) see(hits []hit) {
	p.owners = p.owners[:0]
	for _, h := range hits {
		if h.by == "owner" {
			p.owners = append(p.owners, h)
		}
	}
}

// ownerAt returns the node that owned the subject at a time; -1 if that is uncertain.
func (p *promise) ownerAt(at int64) int {
	last := hit{node: -1}
	for _, h := range p.owners {
		if h.got < at && h.got > last.got {
			last = h
		}
	}
	if last.node < 0 || at-last.got > int64(seenOwner) {
		return -1
	}
	for _, m := range p.moves {
		if m.began <= at && last.sent <= m.ended {
			return -1
		}
	}
	for _, f := range p.faults {
		if f.from < at && last.sent <= f.to && f.kind != apart && f.kind != stepped {
			return -1
		}
	}
	return last.node
}

// concerns reports whether f may have affected the subject's owner.
func (p *promise) concerns(f *fault) bool {
	owner := p.ownerAt(f.from)
	return owner == f.node || owner < 0
}

// excuse is the reason why a hit may be missing in the counters that decided others.
type excuse int

const (
	none    excuse = iota
	tail           // an owner was killed just after the debit
	cutTail        // a cut-off node decided as the owner while its authority lasted
)

// excuseOf returns what excuses h. A lease may be spent at another node for as
// long as it lives after its debit.
func (p *promise) excuseOf(h hit) excuse {
	life := int64(edge)
	if h.by == "lease" {
		life += int64(p.rule.ttl())
	}
	for i := range p.faults {
		f := &p.faults[i]
		if f.from > h.got+int64(unsaved) || h.sent > f.made+int64(term+unpushed)+life || !p.concerns(f) {
			continue
		}
		lost := int64(unpushed)
		if f.kind == saved {
			lost = int64(unsaved)
		}
		switch f.kind {
		case killed, together, cutOff, saved:
			if h.got >= f.from-lost && h.sent <= f.made+life {
				return tail
			}
		case stepped:
			if h.got >= f.from && h.sent <= f.made+int64(stepTime) {
				return tail // its window is unknown
			}
		}
		if f.kind == cutOff && h.node == f.node && h.got >= f.from && h.sent <= f.made+int64(term+unpushed) {
			return cutTail
		}
	}
	return none
}

// restarts returns the times from which the counters may have begun anew: an
// owner and its standby were lost together.
func (p *promise) restarts() (list []fault) {
	for i := range p.faults {
		if f := &p.faults[i]; f.kind == together && p.concerns(f) {
			list = append(list, *f)
		}
	}
	return list
}
