package replay

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/rlnode/rlnode/internal/wire"
)

// spool sorts records by time and keeps the order of records with equal times. It holds them in chunks of memory without
// pointers, so that the garbage collector does not scan them. When chunks and index exceed their bound, spool sorts them
// and writes them to a temporary file as a run. each merges the runs.
type spool struct {
	memoryBound int    // of chunks and index, in bytes
	dir         string // of the temporary file; empty for the system's
	chunks      [][]byte
	index       []entry
	sorted      bool // the index is already in order

	file    *os.File // of the runs; nil until the first one
	written int64
	runs    []*run
}

// entry locates a packed record. Earlier records have lower offsets.
type entry struct {
	time   int64
	offset int64 // chunk × chunkSize + offset in the chunk
}

const (
	chunkSize = 1 << 20
	maxRuns   = 4096 // merging takes runBuffer bytes for each
	runBuffer = 64 << 10
	// maxPacked bounds the packed form of a line of maxLine bytes.
	maxPacked = 2 * maxLine
)

func newSpool(bound int, dir string) *spool {
	return &spool{memoryBound: bound, dir: dir, sorted: true}
}

// add stores a copy of r. scratch is a buffer that add returns, possibly grown, for the next call.
func (s *spool) add(r *record, scratch []byte) ([]byte, error) {
	scratch = r.appendPacked(scratch[:0])
	if len(s.chunks)*chunkSize+len(s.index)*16 > s.memoryBound {
		if err := s.writeRun(); err != nil {
			return scratch, err
		}
	}

	last := len(s.chunks) - 1
	if last < 0 || chunkSize-len(s.chunks[last]) < len(scratch)+binary.MaxVarintLen64 {
		s.addChunk()
		last++
	}

	place := int64(last*chunkSize + len(s.chunks[last]))
	s.chunks[last] = wire.AppendText(s.chunks[last], scratch)

	if n := len(s.index); n > 0 && r.time < s.index[n-1].time {
		s.sorted = false
	}

	s.index = append(s.index, entry{time: r.time, offset: place})
	return scratch, nil
}

// addChunk adds an empty chunk. If possible, it reuses one whose records are already in a run.
func (s *spool) addChunk() {
	n := len(s.chunks)
	if n < cap(s.chunks) && cap(s.chunks[:n+1][n]) > 0 {
		s.chunks = s.chunks[:n+1]
		s.chunks[n] = s.chunks[n][:0]
		return
	}
	s.chunks = append(s.chunks, make([]byte, 0, chunkSize))
}

// packedAt returns the packed record at an offset.
func (s *spool) packedAt(place int64) []byte {
	b := s.chunks[place/chunkSize][place%chunkSize:]
	return wire.NewDecoder(b).View(len(b))
}

func (s *spool) sort() {
	if !s.sorted {
		slices.SortFunc(s.index, func(a, b entry) int {
			return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.offset, b.offset))
		})
	}
	s.sorted = true
}

// writeRun moves the records in memory to the file.
func (s *spool) writeRun() (err error) {
	if len(s.runs) == maxRuns {
		return fmt.Errorf("sort records: more than %d runs of %d bytes", maxRuns, s.memoryBound)
	}

	if s.file == nil {
		if s.file, err = os.CreateTemp(s.dir, "rlnode-replay-*"); err != nil {
			return fmt.Errorf("sort records: create a temporary file: %w", err)
		}
	}

	s.sort()
	w := bufio.NewWriterSize(io.NewOffsetWriter(s.file, s.written), runBuffer)

	start, frame := s.written, make([]byte, 0, 16)
	for _, e := range s.index {
		packed := s.packedAt(e.offset)
		frame = binary.AppendVarint(frame[:0], e.time)
		frame = binary.AppendUvarint(frame, uint64(len(packed)))
		w.Write(frame) // Flush returns the writer's first error
		w.Write(packed)
		s.written += int64(len(frame) + len(packed))
	}

	if err := w.Flush(); err != nil {
		return fmt.Errorf("sort records: write a run: %w", err)
	}

	s.runs = append(s.runs, &run{order: len(s.runs), from: start, to: s.written})
	s.index = s.index[:0]
	s.sorted = true
	s.chunks = s.chunks[:0]

	return nil
}

// each calls yield with all records in order. The bytes are valid only during the call.
func (s *spool) each(yield func(time int64, packed []byte) error) error {
	if len(s.runs) == 0 {
		s.sort()
		for _, e := range s.index {
			if err := yield(e.time, s.packedAt(e.offset)); err != nil {
				return err
			}
		}
		return nil
	}

	if len(s.index) > 0 {
		if err := s.writeRun(); err != nil {
			return err
		}
	}

	s.index, s.chunks = nil, nil
	return s.merge(yield)
}

func (s *spool) merge(yield func(time int64, packed []byte) error) error {
	var runs []*run // sorted by their current records
	enter := func(r *run) error {
		switch err := r.advance(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}

		at, _ := slices.BinarySearchFunc(runs, r, func(a, b *run) int {
			return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.order, b.order))
		})
		runs = slices.Insert(runs, at, r)
		return nil
	}
	for _, r := range s.runs {
		r.reader = bufio.NewReaderSize(io.NewSectionReader(s.file, r.from, r.to-r.from), runBuffer)
		if err := enter(r); err != nil {
			return err
		}
	}

	for len(runs) > 0 {
		first := runs[0]
		if err := yield(first.time, first.packed); err != nil {
			return err
		}
		runs = slices.Delete(runs, 0, 1)
		if err := enter(first); err != nil {
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

// run is a sorted part of the records in the file.
type run struct {
	order    int // earlier runs have a lower order
	from, to int64

	reader *bufio.Reader
	time   int64  // of the current record
	packed []byte // the current record
}

// advance moves on to the next record. At the end of the run it returns io.EOF.
func (r *run) advance() error {
	t, err := binary.ReadVarint(r.reader)
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	if err != nil {
		return fmt.Errorf("sort records: read a run: %w", err)
	}

	n, err := binary.ReadUvarint(r.reader)
	if err == nil && n > maxPacked {
		err = fmt.Errorf("a record has %d bytes; at most %d are possible", n, maxPacked)
	}

	if err != nil {
		return fmt.Errorf("sort records: read a run: %w", err)
	}

	r.time, r.packed = t, slices.Grow(r.packed[:0], int(n))[:n]
	if _, err := io.ReadFull(r.reader, r.packed); err != nil {
		return fmt.Errorf("sort records: read a run: %w", err)
	}

	return nil
}
