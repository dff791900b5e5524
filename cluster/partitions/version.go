package partitions

import "math/rand/v2"

// version is how new a copy of a partition is. Only copies of the same lineage can be compared.
type version struct {
	lineage uint64 // see newLineage
	// tenure counts the hand-overs of the token in this lineage. Rounds begin anew
	// with each tenure.
	tenure uint64
	// round is the last round of changes in the copy, which also has all earlier rounds.
	round uint64
}

// after reports whether v is of the same lineage as other, and newer.
func (v version) after(other version) bool {
	switch {
	case v.lineage != other.lineage:
		return false
	case v.tenure != other.tenure:
		return v.tenure > other.tenure
	}
	return v.round > other.round
}

// nextTenure advances v for a hand-over of the token: the next owner begins with the counters here.
func (v *version) nextTenure() {
	v.tenure++
	v.round = 0
}

// newLineage returns a lineage that begins at a revision of the agreed state.
// Its lower bits are random: a node may begin several at one revision.
func newLineage(revision uint64) uint64 {
	return revision<<lineageBits | rand.Uint64()>>(64-lineageBits)
}

// lineageBits is the number of a lineage's random bits.
const lineageBits = 24

// beganAt returns the revision at which v's lineage began.
func (v version) beganAt() uint64 { return v.lineage >> lineageBits }
