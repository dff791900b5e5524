package notes

// The meaning of a note's two numbers, Rank and Minor, depends on its kind.
// Code that reads a note calls the methods below. Only code that makes, copies,
// compares or encodes notes uses Rank and Minor themselves.

// Status returns whether a reservation is Open, Ended or Settled.
func (n *Note) Status() uint64 { return n.Rank }

// WasLate reports whether a reservation that is over was settled late.
func (n *Note) WasLate() bool { return n.Minor > 0 }

// SetOver records that a reservation is over: Ended or Settled.
func (n *Note) SetOver(status uint64, late bool) {
	n.Rank = status
	n.Minor = 0
	if late {
		n.Minor = 1
	}
}

// MaxRate returns the highest rate, in units per window, at which a bucket has
// drained since the oldest of its reservations was made; 0 if it has none.
func (n *Note) MaxRate() uint64 { return n.Rank }

// Returned returns how many units were put back into a bucket since its Rate
// was made.
func (n *Note) Returned() uint64 { return n.Minor }

// SetPast sets both numbers of a Rate: see MaxRate and Returned.
func (n *Note) SetPast(maxRate, returned uint64) { n.Rank, n.Minor = maxRate, returned }

// RaiseMaxRate records that a bucket has drained at a rate. It changes nothing
// for a bucket without reservations, which needs no rate.
func (n *Note) RaiseMaxRate(rate uint64) {
	if n.Rank > 0 {
		n.Rank = max(n.Rank, rate)
	}
}

// ContentHash returns the hash of the request to which n keeps the answer.
func (n *Note) ContentHash() uint64 { return n.Rank }

// DebtNumber returns the number of a node's last debt that the counters of a
// partition include. Numbers are ordered by bootIndex first.
func (n *Note) DebtNumber() (bootIndex, number uint64) { return n.Rank, n.Minor }

// numResets returns how many resets a partition has had or, of a Reset, its
// number among them.
func (n *Note) numResets() uint64 { return n.Rank }

// forgottenResets returns a number of a reset: of the resets up to that one,
// some are no longer known.
func (n *Note) forgottenResets() uint64 { return n.Minor }

// limit returns what identifies the limit of a slot.
func (n *Note) limit() uint64 { return n.Rank }
