package agreement

import (
	"maps"
	"slices"

	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/entries"
)

// Bounds of a State.
const (
	// MaxKnown bounds State.Members. Once it is reached, nodes that are gone for
	// good must be forgotten before more can join.
	MaxKnown = 4096
	// MaxProcesses bounds State.Processes: the nodes in Members, and as many that
	// are not members yet, or never became members. Once it is reached, each new
	// node's registration drops the oldest process of a node that is not a member.
	MaxProcesses = 2 * MaxKnown
	// KeptAnswers is how many answers to writes of rules and entries are
	// remembered.
	KeptAnswers = 4096
	// KeptStrangers bounds the nodes outside State.Members whose generations are
	// remembered. The generation of a node that is dropped starts at 0 again. By
	// then, KeptStrangers other nodes have been ended or forgotten after it.
	KeptStrangers = 4096
)

// State is the agreed state of the cluster. It is immutable: its fields and
// everything that they point to are read-only.
type State struct {
	Cluster ClusterID `json:"cluster"` // zero before FoundCluster
	// SigningKey is 32 bytes; nil before FoundCluster. Signatures are made with it, and
	// it is the key of all hashes of subjects.
	SigningKey []byte `json:"secret,omitempty"`
	Index      uint64 `json:"index"` // index of the last entry applied
	// Hash is chained over all entries and their outcomes: nodes with the same
	// Index but different Hashes have diverged. ComparedHash is the Hash after all
	// entries below the last multiple of HashEvery. In JSON, ComparedHash and
	// Processes have older names.
	Hash         Hash   `json:"hash"`
	ComparedHash HashAt `json:"check"`
	Level        Level  `json:"level"` // the feature level; at least 1, never decreases
	// Revision is the index of the last entry that changed which node may own which
	// partition: a Ring, Leave, SettleMove, EndNode or RegisterProcess.
	Revision uint64 `json:"revision"`
	Epoch    int64  `json:"epoch"`   // 0 before the first ring
	Settled  bool   `json:"settled"` // every member has settled Epoch; also true before the first ring
	// From is the settled ring, To the one being moved to. Invariants: both are nil
	// before the first ring, and never after it. While Settled, they are the same
	// pointer. All their members are in Members.
	From *ring.Table `json:"-"`
	To   *ring.Table `json:"-"`
	// Members are all nodes that were ever in a ring and were not forgotten.
	Members     map[ring.NodeID]Member `json:"members"`
	Generations map[ring.NodeID]int64  `json:"generations"` // how many times each node was ended; zeros are left out
	LastEnded   uint64                 `json:"last_ended"`  // index of the last EndNode; 0 if there was none
	// Processes has, for each node, the one process that may have authority.
	// Everything that earlier processes held in memory is gone.
	Processes map[ring.NodeID]Process `json:"boots"`
	Reign     uint64                  `json:"reign"` // the current reign; 0 before the first
	History   *rules.History          `json:"-"`     // never nil
	Regions   *Regions                `json:"regions"`
	Entries   *entries.State          `json:"-"` // beside the rules; never nil

	past
}

// past is the part of a State that is about the past.
type past struct {
	// Answers are the answers to the last writes of rules and entries, oldest first.
	Answers []*answer `json:"answers"`
	// Strangers are nodes that have a generation but are not in Members, because
	// they were forgotten, or ended before they joined a ring. Oldest first.
	Strangers []ring.NodeID `json:"strangers"`
	// Removed are the last KeptRemoved processes that operators removed, oldest first.
	Removed []uint64 `json:"removed"`
	// Departed are the last KeptDepartures nodes that left by command or that an
	// operator removed, oldest first.
	Departed []Departure `json:"departed,omitempty"`
}

// Process describes a node's process.
type Process struct {
	Boot  uint64 `json:"boot"`
	Index uint64 `json:"index"` // of the entry that registered it
	// Former are the last processes before it, oldest first.
	Former []uint64 `json:"former,omitempty"`
	// Level, Release and Zones are copied from the RegisterProcess entry.
	Level   Level  `json:"level,omitempty"`
	Release string `json:"release,omitempty"`
	Zones   string `json:"zones,omitempty"`
	// Suspension outlives the process; zero if the node was never suspended.
	Suspension Suspension `json:"suspension,omitzero"`
}

// New returns the state before the first entry.
func New() *State {
	return &State{
		Level: 1, Settled: true, Members: map[ring.NodeID]Member{}, Generations: map[ring.NodeID]int64{},
		Processes: map[ring.NodeID]Process{},
		History:   rules.NewHistory(), Regions: &Regions{cache: &regionCache{}}, Entries: entries.New(),
	}
}

// Generation returns how many times a node was ended.
func (s *State) Generation(id ring.NodeID) int64 { return s.Generations[id] }

// Boot returns the boot of a node's registered process, or 0 if there is none.
func (s *State) Boot(id ring.NodeID) uint64 { return s.Processes[id].Boot }

// Owners returns the node where the token of partition p starts, and the node to
// which the token moves. Both are zero before the first ring, and equal if p
// doesn't move.
func (s *State) Owners(p int) (from, to ring.NodeID) { return s.From.Owner(p), s.To.Owner(p) }

// KnownLevel returns the newest feature level that a node's process knows, or 0
// if no process is registered.
func (s *State) KnownLevel(id ring.NodeID) Level {
	if p, ok := s.Processes[id]; ok {
		return p.knownLevel()
	}
	return 0
}

// InRing reports whether id is a member of the settled ring, or of the ring being moved to.
func (s *State) InRing(id ring.NodeID) bool { return s.From.Rank(id) >= 0 || s.To.Rank(id) >= 0 }

// move begins the move between two rings. If nothing moves, it is settled at
// once.
func (s *State) move(from, to *ring.Table) {
	s.From = from
	s.To = to
	s.Settled = false
	s.Revision = s.Index
	if from == nil || from.Equal(to) {
		s.From = to
		s.Settled = true
	}
}

// setGeneration sets a node's generation in a fresh copy of the map, and lists
// the node as a stranger if it is one.
func (s *State) setGeneration(id ring.NodeID, generation int64) {
	s.Generations = maps.Clone(s.Generations)
	s.Generations[id] = generation
	if _, member := s.Members[id]; !member {
		s.addStranger(id)
	}
}

// addStranger adds a node that has a generation and isn't in Members. If there
// are too many strangers, it drops the oldest, with its generation. s must have
// its own copy of Generations.
func (s *State) addStranger(id ring.NodeID) {
	s.Strangers = append(withoutID(s.Strangers, id), id)
	if len(s.Strangers) > KeptStrangers {
		delete(s.Generations, s.Strangers[0])
		s.Strangers = slices.Delete(s.Strangers, 0, 1)
	}
}

// withoutID returns a copy of ids without id.
func withoutID(ids []ring.NodeID, id ring.NodeID) []ring.NodeID {
	return slices.DeleteFunc(slices.Clone(ids), func(other ring.NodeID) bool { return other == id })
}
