package persist

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/rlnode/rlnode/internal/wire"
)

// checksumSize is the size, in bytes, of the checksum of each stored entry and
// value. Neither bbolt nor raft-boltdb checks what it reads. A flipped bit in
// an entry would make this node apply something different from the other nodes.
// A flipped bit in the vote could let it vote twice.
const checksumSize = 4

// errChecksum: a stored entry or value differs from what was written.
var errChecksum = errors.New("checksum does not match")

// checkedLogs is raft-boltdb's log with a checksum in each entry's Extensions,
// after the bytes that Raft put there.
type checkedLogs struct{ *raftboltdb.BoltStore }

func (cl checkedLogs) StoreLog(l *raft.Log) error { return cl.StoreLogs([]*raft.Log{l}) }

func (cl checkedLogs) StoreLogs(logs []*raft.Log) error {
	stored := make([]*raft.Log, 0, len(logs))
	for _, l := range logs {
		with := *l // Raft keeps using l
		with.Extensions = make([]byte, 0, len(l.Extensions)+checksumSize)
		with.Extensions = append(with.Extensions, l.Extensions...)
		with.Extensions = binary.BigEndian.AppendUint32(with.Extensions, sumEntry(l))
		stored = append(stored, &with)
	}
	return cl.BoltStore.StoreLogs(stored)
}

func (cl checkedLogs) GetLog(index uint64, into *raft.Log) error {
	// The entry is read into a local value: into is set only once the entry is
	// known to be right.
	var l raft.Log
	err := cl.BoltStore.GetLog(index, &l)
	if errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	if err != nil {
		return fmt.Errorf("read entry %d: %w", index, err)
	}

	n := len(l.Extensions) - checksumSize
	if n < 0 || l.Index != index {
		return fmt.Errorf("%w: entry %d", errChecksum, index)
	}

	sum := binary.BigEndian.Uint32(l.Extensions[n:])
	l.Extensions = l.Extensions[:n:n]
	if n == 0 {
		l.Extensions = nil
	}

	if sum != sumEntry(&l) {
		return fmt.Errorf("%w: entry %d", errChecksum, index)
	}

	*into = l
	return nil
}

// sumEntry returns the checksum of everything in an entry that Raft uses.
// AppendedAt is left out, because it is for information only.
func sumEntry(l *raft.Log) uint32 {
	var head [25]byte
	e := binary.BigEndian
	e.PutUint64(head[:], l.Index)
	e.PutUint64(head[8:], l.Term)
	e.PutUint64(head[16:], uint64(len(l.Data)))
	head[24] = byte(l.Type)
	return wire.Sum(0, head[:], l.Data, l.Extensions)
}

// checkedStable is raft-boltdb's key-value store with a checksum after each value.
type checkedStable struct{ store *raftboltdb.BoltStore }

func (s checkedStable) Set(key, value []byte) error {
	return s.store.Set(key, withChecksum(key, value))
}

// Get returns raft-boltdb's own error for a missing key, unwrapped, because Raft compares its text.
func (s checkedStable) Get(key []byte) ([]byte, error) {
	value, err := s.store.Get(key)
	if err != nil {
		return nil, err
	}
	return verifyChecksum(key, value)
}

func (s checkedStable) SetUint64(key []byte, n uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, n))
}

func (s checkedStable) GetUint64(key []byte) (uint64, error) {
	value, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	if len(value) != 8 {
		return 0, fmt.Errorf("%w: %s has %d bytes", errChecksum, key, len(value))
	}
	return binary.BigEndian.Uint64(value), nil
}

func withChecksum(key, value []byte) []byte {
	out := make([]byte, 0, len(value)+checksumSize)
	out = append(out, value...)
	return binary.BigEndian.AppendUint32(out, sumValue(key, value))
}

func verifyChecksum(key, stored []byte) ([]byte, error) {
	n := len(stored) - checksumSize
	if n < 0 || binary.BigEndian.Uint32(stored[n:]) != sumValue(key, stored[:n]) {
		return nil, fmt.Errorf("%w: value of %q", errChecksum, key)
	}
	return stored[:n:n], nil
}

func sumValue(key, value []byte) uint32 {
	return wire.Sum(uint32(len(key)), key, value)
}
