package partitions

// order says how new a copy of a partition is. Copies of one lineage can be compared; those of different lineages can't.
type order struct {
	lineage uint64
	// tenure counts the hand-overs of the lineage's token. Each owner numbers its own rounds.
	tenure uint64
	// round is the last round of changes that the copy has, with all rounds before it.
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

// passOn is for a token that is handed over: what is here is what the next owner begins with.
func (o *order) passOn() { o.tenure, o.round = o.tenure+1, 0 }
