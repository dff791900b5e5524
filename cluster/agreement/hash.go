package agreement

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/rlnode/rlnode/ring"
)

// HashEvery is the interval, in indices of Raft's log, at which nodes compare hashes.
const HashEvery = 16

// Hash is a SHA-256 hash.
type Hash [sha256.Size]byte

// MarshalText returns hexadecimal digits.
func (h Hash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText is the inverse of MarshalText.
func (h *Hash) UnmarshalText(text []byte) error { return decodeHex(h[:], text) }

// HashAt is State.Hash before the entry with a given index. The index is a
// multiple of HashEvery: so nodes that have applied different numbers of
// entries can be compared. A node that has been idle reports the hash before the
// next entry instead. The zero value is no hash.
type HashAt struct {
	Index uint64 `json:"index"` // all entries below it have been applied
	Hash  Hash   `json:"hash"`
}

// setHash sets next.Hash to the hash of s extended by the entry and its outcome.
func (next *State) setHash(s *State, entry []byte, r Result) {
	// Raft's own entries have indices, too, and are not applied here: the entry
	// whose index is the multiple may be one of them. s has all entries below it.
	if next.Index/HashEvery != s.Index/HashEvery {
		next.ComparedHash = HashAt{Index: next.Index / HashEvery * HashEvery, Hash: s.Hash}
	}

	h := sha256.New()
	h.Write(s.Hash[:])
	h.Write(entry)
	rulesHash := next.History.Hash()
	h.Write(rulesHash[:])
	_, v := next.History.Current()
	fmt.Fprintln(h, len(entry), next.Index, r.Version, r.Err != nil, v.Number, next.Level,
		next.Revision, next.Epoch, next.Settled,
		next.LastEnded, next.Reign, next.Regions.PrimaryEpoch, next.Regions.Revision,
		len(next.Regions.Held), len(next.Members), len(next.Processes),
		len(next.Generations), len(next.Answers), next.Entries.Version(), next.Entries.Len(), next.Entries.Digest())

	for _, t := range []*ring.Table{next.From, next.To} {
		if t.Equal(s.From) || t.Equal(s.To) {
			continue // already hashed
		}
		for p := range ring.Partitions {
			owner, standby := t.Owner(p), t.Standby(p)
			h.Write(owner[:])
			h.Write(standby[:])
		}
	}

	h.Sum(next.Hash[:0])
}
