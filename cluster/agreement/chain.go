package agreement

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"github.com/rlnode/rlnode/ring"
)

// CheckEvery is how many indices of Raft's log lie between two checks.
const CheckEvery = 16

// Hash is SHA-256.
type Hash [sha256.Size]byte

// MarshalText gives hexadecimal digits.
func (h Hash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText is the inverse of MarshalText.
func (h *Hash) UnmarshalText(text []byte) error { return decodeHex(h[:], text) }

// Check is State.Hash as of an index, a multiple of CheckEvery: nodes that have applied different amounts can be compared
// by it. The zero value is none.
type Check struct {
	Index uint64 `json:"index"` // all entries below it have been applied
	Hash  Hash   `json:"hash"`
}

// chained is next with the hash of an entry and of what came of it added to that of s.
func (next *State) chained(s *State, entry []byte, r Result) {
	if next.Index/CheckEvery != s.Index/CheckEvery {
		next.Check = Check{Index: next.Index / CheckEvery * CheckEvery, Hash: s.Hash}
	}
	h := sha256.New()
	h.Write(s.Hash[:])
	h.Write(entry)
	document := next.History.Hash()
	h.Write(document[:])
	_, v := next.History.Current()
	var b []byte
	for _, n := range []uint64{
		uint64(len(entry)), next.Index, uint64(r.Version), yes(r.Err != nil), uint64(v.Number), uint64(next.Level), next.Revision,
		uint64(next.Epoch), yes(next.Settled), next.LastEnded, next.Reign, uint64(next.Regions.Term), next.Regions.Revision,
		uint64(len(next.Regions.Held)), uint64(len(next.Members)), uint64(len(next.Boots)), uint64(len(next.Generations)),
		uint64(len(next.Answers)),
	} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	for _, t := range []*ring.Table{next.From, next.To} {
		if t.Equal(s.From) || t.Equal(s.To) {
			continue // its hash is in there already
		}
		for p := range ring.Partitions {
			owner, standby := t.Owner(p), t.Standby(p)
			b = append(append(b, owner[:]...), standby[:]...)
		}
	}
	h.Write(b)
	h.Sum(next.Hash[:0])
}

func yes(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}
