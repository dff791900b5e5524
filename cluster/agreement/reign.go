package agreement

import (
	"maps"
	"slices"

	"github.com/rlnode/rlnode/ring"
)

// keptFormer is how many former processes of a node are remembered. A remembered one can't be named again.
const keptFormer = 16

// Reign marks that a leader begins to lead. From here on, entries that carry another reign's number are rejected. So a
// decision that a leader made before it lost the lead can't take effect after another leader, even if it leads again by
// then.
type Reign struct {
	Number uint64 `json:"number"` // random; not zero
}

func (e Reign) apply(next *State) Result {
	if e.Number == 0 {
		return rejected("the reign has no number")
	}
	next.Reign = e.Number
	return Result{}
}

// mayReign rejects a decision of another reign than the current one. Zero stands for any.
func (s *State) mayReign(reign uint64) Result {
	if reign != 0 && reign != s.Reign {
		return rejected("the leader that decided it was deposed since")
	}
	return Result{}
}

// Was reports whether boot is one of the node's remembered former processes.
func (b Booted) Was(boot uint64) bool { return slices.Contains(b.Former, boot) }

// knows returns the newest feature level that the process knows.
func (b Booted) knows() Level { return max(1, b.Level) }

// next returns the successor of b. It copies the slice, which other states share.
func (b Booted) next(e Boot, index uint64) Booted {
	former := slices.Clone(b.Former)
	if b.Boot != 0 {
		former = append(former, b.Boot)
	}
	return Booted{
		Boot: e.Boot, Index: index, Former: former[max(0, len(former)-keptFormer):],
		Level: e.Level, Release: e.Release, Zones: e.Zones, Suspension: b.Suspension.restarted(),
	}
}

// setBoot sets b in a fresh copy of the map.
func (s *State) setBoot(id ring.NodeID, b Booted) {
	s.Boots = maps.Clone(s.Boots)
	s.Boots[id] = b
}

// possible reports whether entries could have produced b, which was read from a snapshot.
func (b Booted) possible(last uint64) bool {
	return b.Boot != 0 && b.Index <= last && len(b.Former) <= keptFormer && !b.Was(b.Boot) && !b.Was(0) &&
		b.Suspension.Times >= 0 && b.Suspension.Times <= maxSuspended
}
