package agreement

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// Reason is why a leader takes out of the ring a node that did not ask to
// leave.
type Reason string

// The reasons. "" gives none.
const (
	Silent      Reason = "silent"      // the node does not ask for authority
	Unreachable Reason = "unreachable" // most nodes can't reach it, or only through another node
	Behind      Reason = "behind"      // the node asks without success, lags, or does not ask although it can be reached
	Removed     Reason = "removed"     // an operator removes the node; its process never gets authority again
)

// isKnown reports whether r is one of the reasons above, or empty.
func (r Reason) isKnown() bool {
	return slices.Contains([]Reason{"", Silent, Unreachable, Behind, Removed}, r)
}

// Suspension records how many times a leader took the node out of the ring
// while its process seemed to be alive, and the node had not asked to leave.
type Suspension struct {
	Times int   `json:"times"` // 1 to 16
	Last  int64 `json:"last"`  // Unix milliseconds, by the leader's clock
	// Silent means that the last reason was Silent. If the node then starts a new
	// process, the old one was dead, and that time does not count.
	Silent bool `json:"silent,omitempty"`
}

const (
	// maxSuspended bounds Suspension.Times.
	maxSuspended = 16
	// suspensionReset is how long after the last suspension Times starts over.
	suspensionReset = time.Hour
	// minRejoinDelay and maxRejoinDelay bound Suspension.RejoinDelay.
	minRejoinDelay = 10 * time.Second
	maxRejoinDelay = 10 * time.Minute
	// KeptRemoved is how many removed processes are remembered.
	KeptRemoved = 256
)

// RejoinDelay returns how long a node must stay healthy before it rejoins the
// ring: 10 s after the first suspension, doubling with each further one up to
// 10 min, or 0 if the node was never suspended.
func (sus Suspension) RejoinDelay() time.Duration {
	if sus.Times == 0 {
		return 0
	}
	return min(minRejoinDelay<<(sus.Times-1), maxRejoinDelay)
}

// suspend counts a suspension of a member with a process: see Suspension.
func (s *State) suspend(id ring.NodeID, why Reason, when int64) {
	p, booted := s.Processes[id]
	if _, member := s.Members[id]; !member || !booted || why == "" || why == Removed {
		return
	}

	times := p.Suspension.Times
	if when-p.Suspension.Last >= suspensionReset.Milliseconds() {
		times = 0
	}
	p.Suspension = Suspension{Times: min(times+1, maxSuspended), Last: when, Silent: why == Silent}
	s.setProcess(id, p)
}

// afterRestart returns the suspension of the node's next process. If the last
// reason was silence, the earlier process was dead, and that time does not
// count.
func (sus Suspension) afterRestart() Suspension {
	if sus.Silent {
		sus.Silent = false
		sus.Times--
		if sus.Times == 0 {
			return Suspension{}
		}
	}
	return sus
}

// recordRemoved records that an operator removed the current process of a node.
func (s *State) recordRemoved(id ring.NodeID) {
	boot := s.Boot(id)
	if boot == 0 || s.WasRemoved(boot) {
		return
	}
	s.Removed = append(slices.Clone(s.Removed[max(0, len(s.Removed)+1-KeptRemoved):]), boot)
}

// WasRemoved reports whether an operator has removed a process.
func (s *State) WasRemoved(boot uint64) bool { return slices.Contains(s.Removed, boot) }
