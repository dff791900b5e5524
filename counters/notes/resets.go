package notes

// A reset begins a new life of a subject's counters: what was taken in an earlier life does not come back. So a partition numbers
// its resets. What may come back carries the number as of its taking, and is dropped if its subject was reset since.

// Reset records that a subject of the partition was reset at steady. It is known until the given time, in Unix seconds on the
// steady clock, by when nothing that was taken before may come back any more.
func (h Held) Reset(subject uint64, inline bool, steady, until int64) {
	numbers, _ := h.Get(h.resetsKey(subject))
	numbers.Key = h.resetsKey(subject)
	numbers.Rank++
	numbers.Until = forever
	h.Put(&numbers)
	h.Put(&Note{
		Key: Key{Subject: subject, Kind: Reset}, Rank: numbers.Rank,
		At: steady, Until: until, Inline: inline,
	})
}

// forever is a time at which no note expires.
const forever = 1<<32 - 1

func (h Held) resetsKey(subject uint64) Key {
	return PartitionKey(Resets, Key{Subject: subject}.Partition(), 0)
}

// IsResetSince reports whether a subject of the partition was reset after its partition had had that many resets, or may have been.
func (h Held) IsResetSince(subject, resets uint64) bool {
	numbers, some := h.Get(h.resetsKey(subject))
	if !some {
		return false
	}
	last, _ := h.Get(Key{Subject: subject, Kind: Reset})
	return last.Rank > resets || numbers.Minor > resets
}

// IsResetAfter reports whether a subject of the partition is known to have been reset after a steady time.
func (h Held) IsResetAfter(subject uint64, steady int64) bool {
	last, found := h.Get(Key{Subject: subject, Kind: Reset})
	return found && last.At > steady
}

// raiseFloor records that resets of the partition of subject, up to the given one, are no longer all known.
func (h Held) raiseFloor(subject, number uint64) {
	numbers, found := h.Get(h.resetsKey(subject))
	if found {
		numbers.Minor = max(numbers.Minor, number)
		h.Put(&numbers)
	}
}

// forgetRates records that, of the partition of subject, rates of buckets are being forgotten that late settlings may need.
func (h Held) forgetRates(subject uint64, steady int64) {
	numbers, _ := h.Get(h.resetsKey(subject))
	numbers.Key = h.resetsKey(subject)
	numbers.At = steady
	numbers.Until = forever
	h.Put(&numbers)
}

// HasForgottenRates reports whether the partition of subject has forgotten, at or after a steady time, rates that late settlings may
// need.
func (h Held) HasForgottenRates(subject uint64, since int64) bool {
	numbers, some := h.Get(h.resetsKey(subject))
	return some && numbers.At >= since
}
