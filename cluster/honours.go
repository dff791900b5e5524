package cluster

import (
	"context"

	"github.com/rlnode/rlnode/cluster/agreement"
)

// honour is a version of the rules, of a world and a primary's term.
type honour struct {
	world   agreement.WorldID
	term    int64
	version int64
}

// same says whether two versions are of one line: the later of them has the higher number.
func (h honour) same(o honour) bool { return h.world == o.world && h.term == o.term }

// honours is how far all of this region is, as its leader knows: up to which version every node that may have authority
// has applied the rules. One version is waited for at a time, so that it is reached however fast others are written.
type honours struct {
	reached honour // zero: none under this leadership
	next    honour // waited for; zero: none
	index   uint64 // an entry as of which next is in force
}

// want says what to wait for, as the state says. Before there are rules that is nothing.
func (h *honours) want(s *agreement.State, index uint64) {
	now := honour{s.Regions.World, s.Regions.Term, rulesVersion(s)}
	if !h.reached.same(now) {
		h.reached = honour{}
	}
	if h.next.version > 0 && h.next.same(now) {
		return
	}
	h.next, h.index = honour{}, 0
	if now != h.reached && now.version > 0 {
		h.next, h.index = now, index
	}
}

// got takes note that what was waited for is reached.
func (h *honours) got() { h.reached, h.next, h.index = h.next, honour{}, 0 }

// honoured is the newest version in s's line that every node of this region that may have authority has applied, 0 for
// none. It is governRegions' alone.
//
// The index is read after the state, so that it is not before the entry that brought the version. What the leader finds
// stays true under the next one: see [authority.Giver.Honoured].
func (c *Cluster) honoured(ctx context.Context) (*agreement.State, int64) {
	h := &c.regional.honours
	s := c.State()
	h.want(s, c.machine.ruled.Load())
	if h.next.version > 0 && c.giver.Honoured(ctx, h.index) {
		h.got()
	}
	if !h.reached.same(honour{s.Regions.World, s.Regions.Term, 0}) {
		return s, 0
	}
	return s, h.reached.version
}
