package partitions

// order says how new a copy of a partition is. Only copies of the same lineage can be compared.
type order struct {
	lineage uint64
	// tenure counts the hand-overs of the lineage's token. Each owner numbers its own rounds.
	tenure uint64
	// round is the last round of changes in the copy, which has all rounds before it.
	round uint64
}

// after reports whether o is of the same lineage as other, and newer.
func (o order) after(other order) bool {
	switch {
	case o.lineage != other.lineage:
		return false
	case o.tenure != other.tenure:
		return o.tenure > other.tenure
	}
	return o.round > other.round
}

// passOn records a hand-over of the token: the next owner begins with the counters here.
func (o *order) passOn() { o.tenure, o.round = o.tenure+1, 0 }
