package partitions

// version is how new a copy of a partition is. Only copies of the same lineage can be compared.
type version struct {
	lineage uint64
	// tenure counts the hand-overs of the lineage's token. Each owner numbers its own rounds.
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
