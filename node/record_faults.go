//go:build faults

package node

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/limiter"
)

// The file of records begins with a header of a record's length. Its first
// eight bytes hold the number of records. The records follow, in the machine's
// byte order. Package faults reads it.
const (
	recordSize  = int(unsafe.Sizeof(decision{}))
	recordLimit = 1 << 21 // records; the file is sparse
)

// decision is one record.
type decision struct {
	began, ended int64
	lineage      uint64
	partition    uint32
	by           uint8
	complete     uint8 // 1 once the record is complete; written last
	_            [2]byte
}

// record is a file of decisions. It is a shared mapping, so that a kill -9
// loses nothing that was written.
type record struct {
	file  []byte
	count *atomic.Uint64
}

// recorder records to the file that RLNODE_RECORD names. The file must not
// exist: each process has its own.
func recorder() limiter.Recorder {
	path := os.Getenv("RLNODE_RECORD")
	if path == "" {
		return nil
	}
	r, err := openRecord(path)
	if err != nil {
		panic(fmt.Sprintf("can't record decisions: %v", err)) // a test that records nothing proves nothing
	}
	return r
}

// applyFaultSettings applies the fault tests' environment variables.
// RLNODE_LEVEL is the feature level that this build claims to know.
// RLNODE_SNAPSHOTS is the number of entries after which Raft takes a snapshot.
// Raft then keeps only one entry from before the snapshot, so that tests see in
// seconds what otherwise takes hours.
func applyFaultSettings(config *cluster.Config) {
	number := func(name string) uint64 {
		text := os.Getenv(name)
		if text == "" {
			return 0
		}
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			panic(name + ": " + err.Error())
		}
		return n
	}
	if level := number("RLNODE_LEVEL"); level > 0 {
		config.Build.Level = cluster.Level(level)
	}

	if n := number("RLNODE_SNAPSHOTS"); n > 0 {
		config.SnapshotEntries = n
		config.TrailingEntries = 1
		config.Timings.Snapshot = time.Second
	}
}

func openRecord(path string) (*record, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}

	defer f.Close()

	size := recordSize * (recordLimit + 1)
	if err := f.Truncate(int64(size)); err != nil {
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
		return time.Now().UnixNano() // no such clock: the reader rejects these times as absurd
	}
	return t.Nano()
}

// Decided writes a record. Beyond recordLimit it only counts, and the reader fails.
func (r *record) Decided(by limiter.DecidedBy, partition int, lineage uint64, began, ended int64) {
	n := r.count.Add(1)
	if n > recordLimit {
		return
	}
	d := (*decision)(unsafe.Pointer(&r.file[int(n)*recordSize]))
	d.began = began
	d.ended = ended
	d.lineage = lineage
	d.partition = uint32(partition)
	d.by = uint8(by)
	d.complete = 1
}
