package agreement

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// Reason is why a leader takes a node out of the ring that has not asked for it.
type Reason string

// The reasons. An entry without one gives none.
const (
	Silent      Reason = "silent"      // it asks for no authority
	Unreachable Reason = "unreachable" // most nodes can't reach it, or only by way of another one
	Behind      Reason = "behind"      // it asks, and can't be given any
	Removed     Reason = "removed"     // an operator removes it; its process gets no authority any more
)

// known reports whether r is one of the above, or none.
func (r Reason) known() bool {
	return slices.Contains([]Reason{"", Silent, Unreachable, Behind, Removed}, r)
}

// Suspension is how often a node was taken out of the ring though its process lives.
type Suspension struct {
	Times int   `json:"times"` // 1 to 16
	Last  int64 `json:"last"`  // Unix milliseconds, by the leader's clock
	// Silent: the last time it was silent. If another process follows, this one was killed, and that does not count.
	Silent bool `json:"silent,omitempty"`
}

const (
	// maxSuspended bounds Suspension.Times.
	maxSuspended = 16
	// forgiven is how long after the last suspension the count begins anew.
	forgiven = time.Hour
	// shortest and longest bound Suspension.Patience.
	shortest = 10 * time.Second
	longest  = 10 * time.Minute
	// KeptRemoved is how many removed processes are remembered.
	KeptRemoved = 256
)

// Patience is how long a node has to do well before it is taken into the ring again: 10 s after the first time, twice as
// long after each further one, at most 10 min; 0 if it was never taken out.
func (s Suspension) Patience() time.Duration {
	if s.Times == 0 {
		return 0
	}
	return min(shortest<<(s.Times-1), longest)
}

// suspend takes note that a member was taken out of the ring.
func (s *State) suspend(id ring.NodeID, why Reason, when int64) {
	b, booted := s.Boots[id]
	if _, member := s.Members[id]; !member || !booted || why == "" || why == Removed {
		return
	}
	times := b.Suspension.Times
	if when-b.Suspension.Last >= forgiven.Milliseconds() {
		times = 0
	}
	b.Suspension = Suspension{Times: min(times+1, maxSuspended), Last: when, Silent: why == Silent}
	s.setBoot(id, b)
}

// restarted is what remains of a suspension for a node's next process: if the last one was silent, it was killed.
func (s Suspension) restarted() Suspension {
	if s.Silent {
		s.Silent = false
		if s.Times--; s.Times == 0 {
			return Suspension{}
		}
	}
	return s
}

// remove takes note that the process of a node was removed.
func (s *State) remove(id ring.NodeID) {
	boot := s.Boot(id)
	if boot == 0 || s.WasRemoved(boot) {
		return
	}
	s.Removed = append(slices.Clone(s.Removed[max(0, len(s.Removed)+1-KeptRemoved):]), boot)
}

// WasRemoved reports whether an operator has removed a process.
func (s *State) WasRemoved(boot uint64) bool { return slices.Contains(s.Removed, boot) }
