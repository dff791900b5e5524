package replay

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/rlnode/rlnode/internal/wire"
)

// spool sorts records by time and keeps the order of records with equal times.
// It holds them in chunks of memory without pointers, so that the garbage
// collector does not scan them. The oldest chunks beyond its bound go to a
// temporary file.
type spool struct {
	most   int    // chunks to hold in memory
	dir    string // of the temporary file; empty for the system's
	chunks [][]byte
	stored int // how many of them are in the file, and nil here
	index  []entry

	file     *os.File // of chunks, each at its number × chunkSize; nil until the first one
	window   []byte   // what was last read from the file
	windowAt int64    // where it begins
}

// entry locates a packed record. Earlier records have lower offsets.
type entry struct {
	time   int64
	offset int64 // chunk × chunkSize + offset in the chunk
}

const (
	chunkSize  = 1 << 20
	windowSize = 16 << 10 // larger than most records, and little to read in vain if the log is in no order
)

func newSpool(bound int, dir string) *spool { return &spool{most: max(1, bound/chunkSize), dir: dir} }

// add stores a copy of r. scratch is a buffer that add returns, possibly grown, for the next call.
func (s *spool) add(r *record, scratch []byte) ([]byte, error) {
	scratch = r.appendPacked(scratch[:0])
	last := len(s.chunks) - 1
	if last < 0 || chunkSize-len(s.chunks[last]) < len(scratch)+binary.MaxVarintLen64 {
		if last-s.stored+1 >= s.most {
			if err := s.storeOldest(); err != nil {
				return scratch, fmt.Errorf("sort records: write a temporary file: %w", err)
			}
		}
		last++
		s.chunks = append(s.chunks, make([]byte, 0, chunkSize))
	}

	s.index = append(s.index, entry{time: r.time, offset: int64(last*chunkSize + len(s.chunks[last]))})
	s.chunks[last] = wire.AppendText(s.chunks[last], scratch)
	return scratch, nil
}

// storeOldest moves the oldest chunk in memory to the file.
func (s *spool) storeOldest() (err error) {
	if s.file == nil {
		s.file, err = os.CreateTemp(s.dir, "rlnode-replay-*")
		if err != nil {
			return err
		}
	}
	_, err = s.file.WriteAt(s.chunks[s.stored][:chunkSize], int64(s.stored)*chunkSize)
	s.chunks[s.stored] = nil
	s.stored++
	return err
}

// read returns the packed record at an offset. It is valid until the next call.
func (s *spool) read(offset int64) ([]byte, error) {
	if n := offset / chunkSize; n >= int64(s.stored) {
		b := s.chunks[n][offset%chunkSize:]
		return wire.NewDecoder(b).View(len(b)), nil
	}

	// Most records follow the one read before, and are in the window. Any other
	// needs a new window, and a very long one the largest.
	for _, size := range [...]int{0, windowSize, chunkSize} {
		if size > 0 {
			s.window = slices.Grow(s.window[:0], size)[:size]
			n, err := s.file.ReadAt(s.window, offset)
			if n == 0 {
				return nil, fmt.Errorf("sort records: read a temporary file: %w", err)
			}
			s.window, s.windowAt = s.window[:n], offset
		}

		if from := offset - s.windowAt; from >= 0 && from < int64(len(s.window)) {
			d := wire.NewDecoder(s.window[from:])
			if b := d.View(chunkSize); !d.Failed() {
				return b, nil
			}
		}
	}

	return nil, errors.New("sort records: a record in the temporary file is truncated")
}

// each calls yield with all records in order. The bytes are valid only during the call.
func (s *spool) each(yield func(time int64, packed []byte) error) error {
	slices.SortFunc(s.index, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.offset, b.offset))
	})

	for _, e := range s.index {
		packed, err := s.read(e.offset)
		if err != nil {
			return err
		}
		if err := yield(e.time, packed); err != nil {
			return err
		}
	}

	return nil
}

// close removes the temporary file.
func (s *spool) close() error {
	if s.file == nil {
		return nil
	}
	return errors.Join(s.file.Close(), os.Remove(s.file.Name()))
}
