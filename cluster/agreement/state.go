package agreement

import (
	"maps"
	"slices"

	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// Bounds of a State.
const (
	// MaxKnown bounds State.Members. Nodes that are gone for good have to be forgotten before more can come.
	MaxKnown = 4096
	// MaxBoots bounds State.Boots: of members, and of as many that have yet to become some.
	MaxBoots = 2 * MaxKnown
	// KeptRequests is how many writes of rules are remembered.
	KeptRequests = 4096
	// KeptStrangers is of how many nodes that are not in State.Members the generation is remembered. That of another
	// one begins at 0 again; by then it is long gone, or KeptStrangers others were ended and forgotten after it.
	KeptStrangers = 4096
)

// State is what is agreed. It is immutable: its fields, and what they point to, are only read.
type State struct {
	Cluster ClusterID `json:"cluster"`          // zero before Found
	Secret  []byte    `json:"secret,omitempty"` // 32 bytes, for signatures; nil before Found
	Index   uint64    `json:"index"`            // of the last entry applied
	// Hash is chained over all entries and what came of them: nodes with the same Index and another Hash have gone different
	// ways. Check is what it was a moment ago.
	Hash  Hash  `json:"hash"`
	Check Check `json:"check"`
	Level Level `json:"level"` // the feature level; from 1, and never lower than it was
	// Revision is the index of the last entry that changed who may own what: a ring, what is settled, an end or a boot.
	Revision uint64 `json:"revision"`
	Epoch    int64  `json:"epoch"`   // 0 before the first ring
	Settled  bool   `json:"settled"` // every member has settled Epoch; also before the first ring
	// From is the ring that is settled, To the one being moved to. Invariant: both are nil before the first ring and
	// never again; they are the same pointer while Settled; their members are in Members.
	From *ring.Table `json:"-"`
	To   *ring.Table `json:"-"`
	// Members is everyone that ever was in a ring and was not forgotten.
	Members     map[ring.NodeID]Member `json:"members"`
	Generations map[ring.NodeID]int64  `json:"generations"` // how often a node was ended; those that were not are left out
	LastEnded   uint64                 `json:"last_ended"`  // index of the last Ended; 0 if there was none
	// Boots are the processes that may have authority. What earlier ones held in memory is gone.
	Boots   map[ring.NodeID]Booted `json:"boots"`
	Reign   uint64                 `json:"reign"` // of the leader that marked its begin last; 0 before the first
	History *rules.History         `json:"-"`     // never nil
	Regions *Regions               `json:"regions"`

	memory
}

// memory is what a State remembers of what is over.
type memory struct {
	// Answers are those to the last writes of rules, oldest first.
	Answers []*answer `json:"answers"`
	// Strangers have a generation and are not in Members: those forgotten, or ended before they were in a ring. The
	// oldest comes first.
	Strangers []ring.NodeID `json:"strangers"`
	// Removed are the processes that operators removed, the last KeptRemoved, oldest first.
	Removed []uint64 `json:"removed"`
}

// Booted is a node's process.
type Booted struct {
	Boot  uint64 `json:"boot"`
	Index uint64 `json:"index"` // of the entry that named it
	// Former are the processes before it, the last ones, oldest first.
	Former []uint64 `json:"former,omitempty"`
	// What it knows; see Boot.
	Level   Level  `json:"level,omitempty"`
	Release string `json:"release,omitempty"`
	Zones   string `json:"zones,omitempty"`
	// Suspension is of a member that was taken out of the ring though it lives.
	Suspension Suspension `json:"suspension,omitzero"`
}

// New returns the state before the first entry.
func New() *State {
	return &State{
		Level: 1, Settled: true, Members: map[ring.NodeID]Member{}, Generations: map[ring.NodeID]int64{},
		Boots:   map[ring.NodeID]Booted{},
		History: rules.NewHistory(), Regions: &Regions{sets: &sets{}},
	}
}

// Generation is how often a node was ended.
func (s *State) Generation(id ring.NodeID) int64 { return s.Generations[id] }

// Boot is the process of a node that may have authority, 0 if none was named.
func (s *State) Boot(id ring.NodeID) uint64 { return s.Boots[id].Boot }

// Owner returns the node where the token of partition p starts and the one that it moves to. Both are zero before the
// first ring, and the same if p doesn't move.
func (s *State) Owner(p int) (from, to ring.NodeID) { return s.From.Owner(p), s.To.Owner(p) }

// Knows is the newest feature level that the process of a node knows, 0 if it has none.
func (s *State) Knows(id ring.NodeID) Level {
	if b, ok := s.Boots[id]; ok {
		return b.knows()
	}
	return 0
}

// InRing reports whether id is a member of the settled ring, or of the one that partitions are moving to.
func (s *State) InRing(id ring.NodeID) bool { return s.From.Rank(id) >= 0 || s.To.Rank(id) >= 0 }

// move makes to the ring to be moved to. It is settled if there is nothing to move.
func (s *State) move(from, to *ring.Table) {
	s.From, s.To, s.Settled, s.Revision = from, to, false, s.Index
	if from == nil || from.Equal(to) {
		s.From, s.Settled = to, true
	}
}

// setGeneration gives s a map of its own, and forgets the stranger that is one too many.
func (s *State) setGeneration(id ring.NodeID, generation int64) {
	s.Generations = maps.Clone(s.Generations)
	s.Generations[id] = generation
	if _, member := s.Members[id]; !member {
		s.addStranger(id)
	}
}

// addStranger is for a node that has a generation and isn't in Members. Generations must be the state's own.
func (s *State) addStranger(id ring.NodeID) {
	s.Strangers = append(without(s.Strangers, id), id)
	if len(s.Strangers) > KeptStrangers {
		delete(s.Generations, s.Strangers[0])
		s.Strangers = slices.Delete(s.Strangers, 0, 1)
	}
}

// without returns a copy of ids that lacks id.
func without(ids []ring.NodeID, id ring.NodeID) []ring.NodeID {
	return slices.DeleteFunc(slices.Clone(ids), func(other ring.NodeID) bool { return other == id })
}
