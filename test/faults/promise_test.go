//go:build faults

package faults

import (
	"time"
)

const (
	term = 2020 * time.Millisecond // authority's, and its 1 %
	// unpushed is how old a debit may be that the standby has not acknowledged: an interval of 100 ms, and what the push
	// takes on a loaded machine.
	unpushed = 300 * time.Millisecond
	// edge is how near the turn of a window a hit may be for it to be unknown to which one it belongs.
	edge = 5 * time.Millisecond
	// settling is how long after a node's return others may still decide for it, or without it.
	settling = 5 * time.Second
	// unsaved is how old a hit may be that no completed checkpoint has: one begins each second, and takes a while.
	unsaved = 2 * time.Second
	// seenOwner is how long an owner's own decision tells who the owner is.
	seenOwner = 3 * time.Second
)

// fault is what was done to a node, on boottime.
type fault struct {
	kind     faultKind
	node     int
	from     int64 // it began to be done
	made     int64 // it was done
	eased    int64 // it began to be undone; 0: it was not
	to       int64 // it was undone
	observed bool  // it was done as said; otherwise it is what may follow from something else
}

type faultKind int

const (
	killed   faultKind = iota // or stopped for so long that its standby is promoted: what was not pushed is forgotten for now
	cutOff                    // from all others, who are a majority
	split                     // there is no majority: nobody decides for an owner in its place
	together                  // killed with others, a minority: owners and standbys at once
	saved                     // killed with all others: what the last checkpoint has comes back
	neither                   // it and what would stand in for it are away, or can't act, for a moment: nothing is forgotten
	stepped                   // its wall clock was set
	apart                     // a link from or to it is cut: a third node passes questions on, so nothing is excused
)

// promise is what may be admitted of one limit of one subject, and what a checker knows to judge it.
type promise struct {
	rule   *rule
	nodes  int64
	wall   int64 // from boottime to the wall clock
	faults []fault
	moves  []move // rings agreed on
	steps  []step // of wall clocks

	owners []hit // decided by an owner itself, by got
}

// share is the most that one node may admit by itself of n: it divides by the nodes in its last ring, which those that were
// killed together leave.
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

// see takes note of who was the owner.
func (p *promise) see(hits []hit) {
	p.owners = p.owners[:0]
	for _, h := range hits {
		if h.by == "owner" {
			p.owners = append(p.owners, h)
		}
	}
}

// ownerAt is the node that owned the subject at a time, -1 if that is not certain.
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

// concerns reports whether f may have been done to the subject's owner.
func (p *promise) concerns(f *fault) bool {
	owner := p.ownerAt(f.from)
	return owner == f.node || owner < 0
}

// excuse is why a hit may be missing in the counters that decided others.
type excuse int

const (
	none    excuse = iota
	tail           // an owner was killed, just after the debit
	cutTail        // a cut-off node decided as the owner while its authority lasted
)

// excuseOf looks for what h is excused by. A lease is spent up to its life after it was debited, at another node.
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
				return tail // in which window it was is not known
			}
		}
		if f.kind == cutOff && h.node == f.node && h.got >= f.from && h.sent <= f.made+int64(term+unpushed) {
			return cutTail
		}
	}
	return none
}

// restarts are the moments from which on the counters may have begun anew: an owner and its standby were lost together.
func (p *promise) restarts() (list []fault) {
	for i := range p.faults {
		if f := &p.faults[i]; f.kind == together && p.concerns(f) {
			list = append(list, *f)
		}
	}
	return list
}
