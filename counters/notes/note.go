package notes

import (
	"encoding/binary"
	"math"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// Kind says what a note is about.
type Kind uint8

// The kinds. See yieldsTo for the order of two notes of one key.
const (
	// Reservation: a reservation was made, at this home. Rank is Open, Ended or
	// Settled. While it is open, Minor is how long after At it ends, in
	// nanoseconds, and Body says what to do at its end, if that is more than to
	// charge it. Once it is settled or its end was carried out, Body is the
	// answer, for AnswerRetention, and Minor is 1 if it was settled late.
	Reservation Kind = iota
	// Rate: the part of a bucket's past that the bucket's state lacks. Rank is the
	// highest rate, in units per window, at which the bucket has drained since the
	// oldest of its reservations was made; 0 if it has no reservation. Minor is how
	// many units were put back into the bucket since the note was made. ID is the
	// counter's.
	Rate
	// Answer: the answer to a check with a request id, in Body. Rank is the hash of the request.
	Answer
	// Write: the answer to a write with a request id, with the fields of an Answer.
	Write
	// Retry: the answer to a request that a node repeats by itself, with the fields
	// of an Answer.
	Retry
	// Reset: a subject was reset at At, or only its counter ID; ID is 0 if all
	// counters were. It was the Rank-th reset in its partition.
	Reset
	// Resets: a partition has had Rank resets. Minor is a reset's number: of the
	// resets up to it, some have been forgotten. At is when the partition last forgot rates that late
	// settlements may still need. Key is PartitionKey.
	Resets
	// Debtor: the counters of a partition include all debts of a node up to the number Rank, Minor.
	Debtor
	// Slot: a slot of a limit is held. Rank identifies the limit, as Key.Counter
	// of a counter does. Minor is how long after At it ends, in nanoseconds. Body
	// has its units and nonce, and then who holds it. See slots.go.
	Slot
	// Lost: slots of a partition may have been lost at At, together with all copies
	// of them. Key is PartitionKey.
	Lost
	numKinds
)

// Ranks of a reservation. An Open one becomes Ended when its end is carried
// out. An Open or Ended one becomes Settled when it is settled, which is final.
const (
	Open  = iota
	Ended // it may still be settled late
	Settled
)

// Bounds of a note.
const (
	// MaxBody bounds the body of a note, in bytes. The answer of a reservation of
	// 256 limits fits, unless names are very long.
	MaxBody = 64 << 10
	// Overhead is what a note takes of its budget, besides its body. It is the most
	// memory that a note can take: a map doubles when it grows, so most notes take
	// less.
	Overhead = 256
	// dueBytes is the most memory that a reservation takes in the schedule, a slice
	// that doubles when it grows.
	dueBytes = 64
	// maxSlotTime bounds how long a slot may be held, renewed again and again: nanoseconds.
	maxSlotTime = math.MaxInt64 / 4
)

// Key identifies a note.
type Key struct {
	Subject uint64 // of the counters that the note concerns; it selects the partition
	ID      uint64 // tells the notes of a kind and a subject apart
	Kind    Kind
}

// Partition returns the partition of k.
func (k Key) Partition() int { return ring.PartitionOf(k.Subject) }

// PartitionKey returns the key of a note about a whole partition.
func PartitionKey(kind Kind, p int, id uint64) Key {
	return Key{Subject: uint64(p) << (64 - ring.PartitionBits), ID: id, Kind: kind}
}

// Note is a fact kept with the counters of its partition until it expires.
type Note struct {
	Key
	// The meaning of Rank and Minor depends on the Kind: see its constants. They
	// also decide, in yieldsTo, which of two copies of a note stays if neither is
	// known to be newer.
	Rank, Minor uint64
	At          int64  // when it was made, or settled: steady nanoseconds
	UntilSecond int64  // when it expires: Unix seconds on the steady clock; 0 if it was removed
	Group       uint32 // identifies the rule, if it concerns one
	Inline      bool   // its subject came with its limits
	Body        string
}

// size returns how many bytes n takes of its budget.
func (n *Note) size() int64 {
	size := Overhead + int64(len(n.Body))
	if n.schedules() {
		size += dueBytes
	}
	if n.Kind == Slot {
		size += slotBytes
	}
	return size
}

// end returns when n ends, in steady nanoseconds. n must be an open reservation
// or a slot, whose Minor is how long after At that is.
func (n *Note) end() int64 { return n.At + int64(n.Minor) }

// yieldsTo reports whether m replaces n if neither of the two copies of a note
// is known to be newer.
func (n *Note) yieldsTo(m *Note) bool {
	switch n.Kind {
	case Slot:
		return n.end() < m.end()
	case Lost:
		return n.At < m.At
	}
	return n.Rank < m.Rank || n.Rank == m.Rank && n.Minor < m.Minor
}

// The encoding of a note, for another node or for disk: Rank, Minor, the
// seconds until it expires (0 if it was removed or has expired), how long ago
// it was made, Group, Inline and the body. Numbers are varints, Inline is a
// byte, and a varint before the body has its length.

// Append appends n, except for its key, as of steady.
func (n *Note) Append(b []byte, steady int64) []byte {
	left := uint64(0)
	if second := steady / 1e9; n.UntilSecond > second {
		left = uint64(min(n.UntilSecond, math.MaxUint32) - second)
	}
	b = binary.AppendUvarint(b, n.Rank)
	b = binary.AppendUvarint(b, n.Minor)
	b = binary.AppendUvarint(b, left)
	b = binary.AppendUvarint(b, uint64(max(0, steady-n.At)))
	b = binary.AppendUvarint(b, uint64(n.Group))
	b = wire.AppendBool(b, n.Inline)
	return wire.AppendText(b, n.Body)
}

// Decode reads, as of steady, what Append wrote. n must have its key. Decode
// reads the times as counted from now, so a note that was in transit expires
// late, never early.
func (n *Note) Decode(d *wire.Decoder, steady int64) {
	if n.Kind >= numKinds {
		d.Fail()
		return
	}

	n.Rank = d.Uvarint()
	n.Minor = d.Uvarint()
	n.UntilSecond = 0
	if left := d.UpTo(math.MaxUint32); left > 0 {
		n.UntilSecond = min((steady+1e9-1)/1e9+left, math.MaxUint32)
	}
	n.At = steady - d.UpTo(math.MaxInt64/2)
	n.Group = uint32(d.UpTo(math.MaxUint32))
	n.Inline = d.Bool()
	n.Body = d.Text(MaxBody)
	if n.Kind == Slot && n.Minor > maxSlotTime {
		d.Fail()
	}
}
