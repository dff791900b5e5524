package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/buraksezer/consistent"
	"github.com/zeebo/xxh3"
)

const (
	// Partitions is the number of slices of the key space. The first PartitionBits
	// bits of a hash are its partition.
	Partitions    = 1 << PartitionBits
	PartitionBits = 12
	// MaxMembers bounds the members of a table. Computing a table takes
	// milliseconds for up to 50 members, and seconds at this bound.
	MaxMembers = 1024

	noStandby = 0xffff
)

// ErrMembers means that no table can have these members.
var ErrMembers = errors.New("members can't form a ring")

// PartitionOf returns the partition of a subject whose hash has hi as its upper half.
func PartitionOf(hi uint64) int { return int(hi >> (64 - PartitionBits)) }

// Table is the assignment of all partitions to nodes.
type Table struct {
	settings  Settings
	canonical bool
	members   []NodeID // ascending, at least one, at most MaxMembers
	// Invariant: owner[p] and standby[p] are indexes of members, and differ. With a
	// single member, standby[p] is noStandby.
	owner, standby [Partitions]uint16
}

// New computes the table of members, which may be in any order. The error wraps
// [ErrMembers] or [ErrSettings].
func New(members []NodeID, s Settings) (*Table, error) {
	if err := s.CheckSupported(); err != nil {
		return nil, err
	}

	t := &Table{settings: s, canonical: true, members: slices.Clone(members)}
	slices.SortFunc(t.members, NodeID.Compare)

	if err := checkMembers(t.members); err != nil {
		return nil, err
	}

	recentTables.mu.Lock()
	defer recentTables.mu.Unlock()

	for _, cached := range recentTables.tables {
		if cached != nil && cached.settings == s && slices.Equal(cached.members, t.members) {
			return cached, nil
		}
	}

	// The table is computed under the lock, so another caller that needs the same
	// table waits for it.
	t.compute()
	recentTables.tables[recentTables.next] = t
	recentTables.next = (recentTables.next + 1) % len(recentTables.tables)
	return t, nil
}

// recentTables caches the last tables that New computed. A restarting node
// needs its last tables twice, because it reads its log before Raft applies it.
// In tests, the nodes of one process all need the same tables.
var recentTables struct {
	mu     sync.Mutex // guards the fields below
	tables [8]*Table
	next   int // index of the oldest
}

// compute fills in owners and standbys.
func (t *Table) compute() {
	members := make([]consistent.Member, len(t.members))
	for i, id := range t.members {
		members[i] = member{rank: uint16(i), name: id.String()}
	}

	c := consistent.New(members, consistent.Config{
		Hasher: hasher{}, PartitionCount: t.settings.Partitions,
		ReplicationFactor: t.settings.Factor, Load: t.settings.Load,
	})

	for p := range Partitions {
		t.owner[p] = c.GetPartitionOwner(p).(member).rank
		t.standby[p] = t.bestStandby(p)
	}
}

// checkMembers requires 1 to MaxMembers IDs, ascending, distinct and none zero.
func checkMembers(members []NodeID) error {
	n := len(members)
	switch {
	case n == 0:
		return fmt.Errorf("%w: there are none", ErrMembers)
	case n > MaxMembers:
		return fmt.Errorf("%w: %d exceed the maximum of %d", ErrMembers, n, MaxMembers)
	case members[0].IsZero():
		return fmt.Errorf("%w: one of them has no ID", ErrMembers)
	}

	for i := 1; i < len(members); i++ {
		c := members[i-1].Compare(members[i])
		switch {
		case c == 0:
			return fmt.Errorf("%w: %s is listed twice", ErrMembers, members[i])
		case c > 0:
			return fmt.Errorf("%w: they are not in order", ErrMembers)
		}
	}

	return nil
}

// member is a node as the library sees it. The name determines its points on
// the library's ring; rank saves looking up the name.
type member struct {
	rank uint16
	name string
}

func (m member) String() string { return m.name }

type hasher struct{}

func (hasher) Sum64(b []byte) uint64 { return xxh3.Hash(b) }

// bestStandby returns the rank of p's standby: the member with the highest
// score, other than the owner, or noStandby if there is none. A member that
// joins or leaves changes only the standbys of the partitions where it scores
// highest.
func (t *Table) bestStandby(p int) uint16 {
	rank := uint16(noStandby)
	bestScore := uint64(0)
	for i, id := range t.members {
		if uint16(i) == t.owner[p] {
			continue
		}
		// Among equal scores, the first member wins.
		s := score(p, id)
		if rank == noStandby || s > bestScore {
			rank = uint16(i)
			bestScore = s
		}
	}
	return rank
}

// score ranks a member as p's standby; the highest wins.
func score(p int, id NodeID) uint64 {
	var b [2 + len(id)]byte
	binary.LittleEndian.PutUint16(b[:], uint16(p))
	copy(b[2:], id[:])
	return xxh3.Hash(b[:])
}

// Without returns the table without gone. Its partitions go to their standbys.
// Partitions that are left without a standby get the next best one. Nothing
// else moves. It returns t itself if gone is not a member or the only one: some
// node must own the partitions.
func (t *Table) Without(gone NodeID) *Table {
	goneRank := t.Rank(gone)
	if goneRank < 0 || len(t.members) == 1 {
		return t
	}

	next := &Table{settings: t.settings, members: slices.Delete(slices.Clone(t.members), goneRank, goneRank+1)}
	newRank := func(old uint16) uint16 {
		if int(old) > goneRank {
			return old - 1
		}
		return old
	}

	for p := range Partitions {
		owner, standby := t.owner[p], t.standby[p]
		switch goneRank {
		case int(owner):
			next.owner[p] = newRank(standby)
			next.standby[p] = next.bestStandby(p)
		case int(standby):
			next.owner[p] = newRank(owner)
			next.standby[p] = next.bestStandby(p)
		default:
			next.owner[p] = newRank(owner)
			next.standby[p] = newRank(standby)
		}
	}

	return next
}

// Owner returns the node that owns partition p, or the zero ID if t is nil or
// there is no such partition.
func (t *Table) Owner(p int) NodeID {
	if t == nil || uint(p) >= Partitions {
		return NodeID{}
	}
	return t.members[t.owner[p]]
}

// Standby returns the node that holds a copy of partition p, or the zero ID if there is none.
func (t *Table) Standby(p int) NodeID {
	if t == nil || uint(p) >= Partitions || t.standby[p] == noStandby {
		return NodeID{}
	}
	return t.members[t.standby[p]]
}

// Members returns the members in ascending order; nil if t is nil. The slice is
// shared and must not be changed.
func (t *Table) Members() []NodeID {
	if t == nil {
		return nil
	}
	return t.members
}

// Canonical reports whether New computed the table and no member was removed since.
func (t *Table) Canonical() bool { return t != nil && t.canonical }

// Settings returns the settings that t was computed with; zero if t is nil.
func (t *Table) Settings() Settings {
	if t == nil {
		return Settings{}
	}
	return t.settings
}

// Rank returns the index of id among the members, or -1.
func (t *Table) Rank(id NodeID) int {
	if t == nil {
		return -1
	}
	i, found := slices.BinarySearchFunc(t.members, id, NodeID.Compare)
	if !found {
		return -1
	}
	return i
}

// CountOwned returns the number of partitions that id owns.
func (t *Table) CountOwned(id NodeID) int {
	rank := t.Rank(id)
	if rank < 0 {
		return 0
	}
	n := 0
	for _, o := range t.owner {
		if int(o) == rank {
			n++
		}
	}
	return n
}

// Equal reports whether both tables have the same members, owners and standbys,
// however they were computed.
func (t *Table) Equal(other *Table) bool {
	if t == nil || other == nil || t == other {
		return t == other
	}
	return slices.Equal(t.members, other.members) && t.owner == other.owner && t.standby == other.standby
}
