package notes

// A reset begins a new life of a subject's counters, or of one of them: what
// was taken in an earlier life does not come back. So a partition numbers its
// resets. A cost that may come back carries the number as of its Take, and is
// dropped if its subject was reset since.

// ResetKey returns the key of the note of a reset: of one counter of a subject
// or, if counter is 0, of all of them.
func ResetKey(subject, counter uint64) Key { return Key{Subject: subject, ID: counter, Kind: Reset} }

// RecordReset records a reset at steady, under a ResetKey, for which MakeRoom
// made room. The note is kept until the given time, in Unix seconds on the
// steady clock. By then, nothing can come back any more that was taken before
// the reset.
func (lp LockedPartition) RecordReset(k Key, inline bool, steady, until int64) {
	numbers, _ := lp.Get(lp.resetsKey(k.Subject))
	numbers.Key = lp.resetsKey(k.Subject)
	numbers.Rank++
	numbers.UntilSecond = forever
	lp.Put(&numbers)
	n := Note{Key: k, Rank: numbers.Rank, At: steady, UntilSecond: until, Inline: inline}
	lp.Put(&n)
	lp.store.AddEvictable(&n)
}

// forever is a time at which no note expires.
const forever = 1<<32 - 1

func (lp LockedPartition) resetsKey(subject uint64) Key {
	return PartitionKey(Resets, Key{Subject: subject}.Partition(), 0)
}

// MayBeResetSince reports whether a counter was, or may have been, reset after
// its partition's reset number resets.
func (lp LockedPartition) MayBeResetSince(subject, counter, resets uint64) bool {
	numbers, found := lp.Get(lp.resetsKey(subject))
	if !found {
		return false
	}
	ofCounter, _ := lp.Get(ResetKey(subject, counter))
	all, _ := lp.Get(ResetKey(subject, 0))
	return max(ofCounter.numResets(), all.numResets(), numbers.forgottenResets()) > resets
}

// IsKnownResetAfter reports whether a counter is known to have been reset after a steady time.
func (lp LockedPartition) IsKnownResetAfter(subject, counter uint64, steady int64) bool {
	ofCounter, found := lp.Get(ResetKey(subject, counter))
	if found && ofCounter.At > steady {
		return true
	}
	all, found := lp.Get(ResetKey(subject, 0))
	return found && all.At > steady
}

// markResetsForgotten records that of the resets of subject's partition, up to
// the given number, some are no longer known.
func (lp LockedPartition) markResetsForgotten(subject, number uint64) {
	numbers, found := lp.Get(lp.resetsKey(subject))
	if found {
		numbers.Minor = max(numbers.Minor, number)
		lp.Put(&numbers)
	}
}

// markRatesForgotten records that the partition of subject is forgetting rates that
// late settlements may need.
func (lp LockedPartition) markRatesForgotten(subject uint64, steady int64) {
	numbers, _ := lp.Get(lp.resetsKey(subject))
	numbers.Key = lp.resetsKey(subject)
	numbers.At = steady
	numbers.UntilSecond = forever
	lp.Put(&numbers)
}

// mergeForgotten makes n, of kind Resets, also say what another copy of it says
// was forgotten.
func (n *Note) mergeForgotten(other *Note) {
	n.Minor = max(n.Minor, other.Minor)
	n.At = max(n.At, other.At)
}

// HasForgottenRates reports whether the partition of subject has forgotten, at
// or after a steady time, rates that late settlements may need.
func (lp LockedPartition) HasForgottenRates(subject uint64, since int64) bool {
	numbers, found := lp.Get(lp.resetsKey(subject))
	return found && numbers.At >= since
}
