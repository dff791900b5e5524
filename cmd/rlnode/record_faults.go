//go:build faults

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rlnode/rlnode/limiter"
)

// The file of records: a header whose first eight bytes count what was recorded, then records of recordSize bytes:
// began, ended, lineage (eight bytes each), the partition (four), by (one) and 1 for "complete". Package faults reads it.
const (
	recordSize  = 32
	recordLimit = 1 << 21 // records; the file is sparse
)

// record is a file of decisions. It is mapped and shared, so that a kill -9 loses nothing that was written.
type record struct {
	file  []byte
	count *atomic.Uint64
}

// recorder records to the file that RLNODE_RECORD names. It must not exist: each process has a file of its own.
func recorder() limiter.Recorder {
	path := os.Getenv("RLNODE_RECORD")
	if path == "" {
		return nil
	}
	r, err := openRecord(path)
	if err != nil {
		panic(fmt.Sprintf("no decision can be recorded: %v", err)) // a test that records nothing proves nothing
	}
	return r
}

func openRecord(path string) (*record, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const size = recordSize * (recordLimit + 1)
	if err := f.Truncate(size); err != nil {
		return nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return &record{file: b, count: (*atomic.Uint64)(unsafe.Pointer(&b[0]))}, nil
}

// Clock reads CLOCK_BOOTTIME, which all processes of a machine share.
func (r *record) Clock() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return time.Now().UnixNano() // no such clock: the reader will see that the times make no sense
	}
	return t.Nano()
}

// Decided writes a record. One too many is only counted, which the reader takes for an error.
func (r *record) Decided(by limiter.DecidedBy, partition int, lineage uint64, began, ended int64) {
	n := r.count.Add(1)
	if n > recordLimit {
		return
	}
	b := r.file[n*recordSize:][:recordSize]
	binary.LittleEndian.PutUint64(b[0:], uint64(began))
	binary.LittleEndian.PutUint64(b[8:], uint64(ended))
	binary.LittleEndian.PutUint64(b[16:], lineage)
	binary.LittleEndian.PutUint32(b[24:], uint32(partition))
	b[28], b[29] = byte(by), 1
}
