package agreement

import (
	"maps"
	"slices"

	"github.com/rlnode/rlnode/ring"
)

// maxFormer is how many former processes of a node are remembered. A remembered
// process can't be registered again.
const maxFormer = 16

// Reign marks the beginning of a leader's reign. From then on, entries that
// carry another reign's number are rejected. So once another node has led, a
// decision from before that can't take effect, even if the former leader leads
// again.
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

// checkReign rejects a decision of another reign than the current one. 0: any.
func (s *State) checkReign(reign uint64) Result {
	if reign != 0 && reign != s.Reign {
		return rejected("the leader that decided this has lost the lead since")
	}
	return Result{}
}

// WasFormer reports whether boot is one of the node's remembered former processes.
func (p Process) WasFormer(boot uint64) bool { return slices.Contains(p.Former, boot) }

// knownLevel returns the newest feature level that the process knows.
func (p Process) knownLevel() Level { return max(1, p.Level) }

// successor returns the next process. It copies Former, which states share.
func (p Process) successor(e RegisterProcess, index uint64) Process {
	former := slices.Clone(p.Former)
	if p.Boot != 0 {
		former = append(former, p.Boot)
	}
	return Process{
		Boot: e.Boot, Index: index, Former: former[max(0, len(former)-maxFormer):],
		Level: e.Level, Release: e.Release, Zones: e.Zones, Suspension: p.Suspension.afterRestart(),
	}
}

// setProcess sets a node's process in a fresh copy of the map.
func (s *State) setProcess(id ring.NodeID, p Process) {
	s.Processes = maps.Clone(s.Processes)
	s.Processes[id] = p
}

// dropOldestProcess drops the process that was registered first among those of
// nodes outside Members. Such a node owns nothing and has no copies. If its
// process still runs, it is registered again. s must have its own copy of
// Processes.
func (s *State) dropOldestProcess() {
	var oldest ring.NodeID
	for id, p := range s.Processes {
		_, member := s.Members[id]
		if !member && (oldest.IsZero() || p.Index < s.Processes[oldest].Index) {
			oldest = id
		}
	}
	delete(s.Processes, oldest)
}

// isPossible reports whether entries up to index last could have produced p,
// which was read from a snapshot.
func (p Process) isPossible(last uint64) bool {
	return p.Boot != 0 && p.Index <= last && len(p.Former) <= maxFormer && !p.WasFormer(p.Boot) && !p.WasFormer(0) &&
		p.Suspension.Times >= 0 && p.Suspension.Times <= maxSuspended
}
