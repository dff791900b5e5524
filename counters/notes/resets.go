package notes

// A reset begins a new life of a subject's counters, or of one of them: what
// was taken in an earlier life does not come back. So a partition numbers its
// resets. What may come back carries the number as of its taking, and is
// dropped if its subject was reset since.

// ResetKey returns the key of the note of a reset: of one counter of a subject
// or, if counter is 0, of all of them.
func ResetKey(subject, counter uint64) Key { return Key{Subject: subject, ID: counter, Kind: Reset} }

// Reset records a reset at steady, under a ResetKey, for which MakeRoom made
// room. It is kept until the given time, in Unix seconds on the steady clock:
// after that, nothing that was taken before the reset can come back.
func (h Held) Reset(k Key, inline bool, steady, until int64) {
	numbers, _ := h.Get(h.resetsKey(k.Subject))
	numbers.Key = h.resetsKey(k.Subject)
	numbers.Rank++
	numbers.Until = forever
	h.Put(&numbers)
	n := Note{Key: k, Rank: numbers.Rank, At: steady, Until: until, Inline: inline}
	h.Put(&n)
	h.store.Made(&n)
}

// forever is a time at which no note expires.
const forever = 1<<32 - 1

func (h Held) resetsKey(subject uint64) Key {
	return PartitionKey(Resets, Key{Subject: subject}.Partition(), 0)
}

// IsResetSince reports whether a counter was reset after its partition had had
// that many resets, or may have been.
func (h Held) IsResetSince(subject, counter, resets uint64) bool {
	numbers, found := h.Get(h.resetsKey(subject))
	if !found {
		return false
	}
	ofCounter, _ := h.Get(ResetKey(subject, counter))
	all, _ := h.Get(ResetKey(subject, 0))
	return max(ofCounter.Rank, all.Rank, numbers.Minor) > resets
}

// IsResetAfter reports whether a counter is known to have been reset after a steady time.
func (h Held) IsResetAfter(subject, counter uint64, steady int64) bool {
	ofCounter, found := h.Get(ResetKey(subject, counter))
	if found && ofCounter.At > steady {
		return true
	}
	all, found := h.Get(ResetKey(subject, 0))
	return found && all.At > steady
}

// raiseFloor records that resets of the partition of subject, up to the given
// one, are no longer all known.
func (h Held) raiseFloor(subject, number uint64) {
	numbers, found := h.Get(h.resetsKey(subject))
	if found {
		numbers.Minor = max(numbers.Minor, number)
		h.Put(&numbers)
	}
}

// forgetRates records that, of the partition of subject, rates of buckets are
// being forgotten that late settlements may need.
func (h Held) forgetRates(subject uint64, steady int64) {
	numbers, _ := h.Get(h.resetsKey(subject))
	numbers.Key = h.resetsKey(subject)
	numbers.At = steady
	numbers.Until = forever
	h.Put(&numbers)
}

// HasForgottenRates reports whether the partition of subject has forgotten, at
// or after a steady time, rates that late settlements may need.
func (h Held) HasForgottenRates(subject uint64, since int64) bool {
	numbers, found := h.Get(h.resetsKey(subject))
	return found && numbers.At >= since
}
