package agreement

import (
	"maps"
	"slices"

	"github.com/rlnode/rlnode/ring"
)

// keptFormer is how many former processes of a node are remembered, and never named again.
const keptFormer = 16

// Reign marks that a leader begins to lead. From here on entries that carry the number of another reign are rejected: so
// what a leader decided before it lost the lead can't happen after another one has led, even if it leads again by then.
type Reign struct {
	Number uint64 `json:"number"` // made at random; not zero
}

func (e Reign) apply(next *State) Result {
	if e.Number == 0 {
		return rejected("the reign has no number")
	}
	next.Reign = e.Number
	return Result{}
}

// mayReign rejects what was decided in another reign than the present one. Zero stands for any.
func (s *State) mayReign(reign uint64) Result {
	if reign != 0 && reign != s.Reign {
		return rejected("the leader that decided it was deposed since")
	}
	return Result{}
}

// Was reports whether boot is one of the node's last processes before this one.
func (b Booted) Was(boot uint64) bool { return slices.Contains(b.Former, boot) }

// knows is the newest feature level that the process knows.
func (b Booted) knows() Level { return max(1, b.Level) }

// next is what takes b's place. The slice is copied: other states have it.
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

// setBoot gives s a map of its own.
func (s *State) setBoot(id ring.NodeID, b Booted) {
	s.Boots = maps.Clone(s.Boots)
	s.Boots[id] = b
}

// possible holds processes that were read to what entries could have made.
func (b Booted) possible(last uint64) bool {
	return b.Boot != 0 && b.Index <= last && len(b.Former) <= keptFormer && !b.Was(b.Boot) && !b.Was(0) &&
		b.Suspension.Times >= 0 && b.Suspension.Times <= maxSuspended
}
