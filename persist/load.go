package persist

import (
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// LoadStats describes what Load found.
type LoadStats struct {
	Restored      int64 // counters put back into the table
	Expired       int64 // records skipped because they have expired
	Older         int64 // records skipped in favour of a newer one
	DamagedFrames int64 // frames skipped because they were damaged
	NoRoom        int64 // records skipped because the table was full
	Duration      time.Duration
	// Incomplete means that the file never had a complete base, so counters may be
	// missing. The file is new, or the last process was killed before it had
	// written the whole table to its new file.
	Incomplete bool
	// SetAside means that the file was damaged and was set aside; the next
	// checkpoint begins a new one. Counters restored before that stay in the table.
	SetAside bool
}

const (
	forgetPagesEvery = 16 << 20 // bytes that Load reads between two calls of forgetPages
	maxReaders       = 8        // bounds the goroutines of Load
	// restoreBytes is how many bytes of records a reader collects before it puts
	// them back. It may collect one frame more.
	restoreBytes = 1 << 20
)

// Load puts the counters of the file back into the table. Call it before the
// table's first use. If the clock by which a partition counted its windows was
// ahead of this node's clock now, the partition follows that clock (see
// Source.FollowClock). Load fails with ErrClosed after Close.
func (cf *CounterFile) Load(now algorithms.Instant) (LoadStats, error) {
	var stats LoadStats
	if err := cf.lockUntil(cf.ctx); err != nil {
		return stats, ErrClosed
	}
	defer cf.unlock()

	if cf.closed {
		return stats, ErrClosed
	}

	stats.Incomplete = !cf.complete
	begin := time.Now()
	if cf.file != nil {
		err := cf.readFrames(now, &stats)
		if isDamaged(err) {
			stats.SetAside = true
			err = cf.setAside(err)
		}
		if err != nil {
			return stats, fmt.Errorf("load counters: %w", err)
		}
	}

	cf.loaded = true
	cf.wallLead = now.Wall - now.Steady

	cf.statusMu.Lock()
	cf.status.Damaged += stats.DamagedFrames
	cf.statusMu.Unlock()

	stats.Duration = time.Since(begin)
	return stats, nil
}

// readFrames reads all frames, with one reader per core but at most maxReaders.
func (cf *CounterFile) readFrames(now algorithms.Instant, stats *LoadStats) error {
	readers := make([]frameReader, min(runtime.GOMAXPROCS(0), maxReaders))
	errs := make([]error, len(readers))

	var group sync.WaitGroup
	for i := range readers {
		readers[i] = frameReader{CounterFile: cf, now: now, part: uint64(i),
			parts: uint64(len(readers)), resets: map[counters.RecordID]struct{}{},
			walls: map[int]int64{}}
		group.Go(func() { errs[i] = cf.file.view(readers[i].read) })
	}

	group.Wait()
	cf.file.forgetPages()

	live := int64(0)
	for i := range readers {
		r := &readers[i]
		stats.Restored += r.Restored
		stats.NoRoom += r.NoRoom
		stats.Expired += r.Expired
		stats.Older += r.Older
		live += r.liveBytes
	}

	// Each reader reads all frames, so each has counted the same bytes and the same
	// damaged frames.
	cf.base = base{size: live, logSize: readers[0].totalBytes - live}
	stats.DamagedFrames = readers[0].DamagedFrames
	if stats.DamagedFrames > 0 {
		cf.config.Logger.Error("the counter file has damaged frames; some counters lost their latest changes, and others begin anew",
			"path", cf.path, "frames", stats.DamagedFrames)
		cf.beginBase() // rewrite the file without the damaged frames
	}

	return errors.Join(errs...)
}

// frameReader restores one part of the key space. Each reader reads all frames.
type frameReader struct {
	*CounterFile
	now         algorithms.Instant
	part, parts uint64
	// resets holds the counters that were reset and the slots that were released.
	// They are not in the table, so nothing else keeps older records of them from
	// coming back. They are few.
	resets map[counters.RecordID]struct{}
	// walls holds the partitions that must follow a clock that is ahead of this
	// node's, with the reading of that clock.
	walls map[int]int64
	batch []counters.Record // records to put back, newest first
	bytes int64             // of batch
	LoadStats
	liveBytes, totalBytes int64 // bytes of restored records; bytes of all frames
}

// read goes from the newest frame to the oldest. So a counter that is already
// in the table is newer than any record read later. read puts back many records
// at once: a base is in the order of the table's shards, so each shard grows
// only a few times.
func (fr *frameReader) read(tx *bolt.Tx) error {
	frames := tx.Bucket(framesBucket)
	if frames == nil {
		return nil
	}

	cursor := frames.Cursor()
	forgotten := int64(0) // bytes read at the last call of forgetPages
	for number, frame := cursor.Last(); number != nil; number, frame = cursor.Prev() {
		if !readFrame(number, frame, fr.now, fr.collect) {
			fr.DamagedFrames++
		}

		if fr.bytes >= restoreBytes {
			fr.restore()
		}

		fr.totalBytes += int64(len(frame))
		if fr.totalBytes-forgotten >= forgetPagesEvery {
			fr.file.forgetPages()
			forgotten = fr.totalBytes
		}
	}

	for p, wall := range fr.walls {
		fr.config.Source.FollowClock(fr.now, p, wall)
	}
	fr.restore()
	return nil
}

// collect adds a record of size bytes to the batch, if it belongs to this
// reader's part and no later record reset its counter. wall is as in readFrame.
func (fr *frameReader) collect(r *counters.Record, wall int64, size int) {
	part, _ := bits.Mul64(r.Key.Subject, fr.parts)
	if part != fr.part {
		return
	}

	// Older frames can't bring the counter back: an expiry only moves to later
	// times.
	if r.ExpiresAt <= fr.now.Steady/1e9 {
		fr.Expired++
		// A released slot is the exception: an older frame may have it as held, with a
		// later end.
		if r.IsReleasedSlot() {
			fr.resets[r.ID()] = struct{}{}
		}
		return
	}

	if _, wasReset := fr.resets[r.ID()]; wasReset {
		fr.Older++
		return
	}
	if r.Note == nil && r.State.Fresh() && len(r.Log) == 0 {
		fr.resets[r.ID()] = struct{}{}
		return
	}

	if wall > fr.now.Wall {
		p := r.Key.Partition()
		fr.walls[p] = max(fr.walls[p], wall)
	}

	fr.bytes += int64(size)
	fr.batch = append(fr.batch, *r)
	// The log is copied, because the next record reuses its memory.
	fr.batch[len(fr.batch)-1].Log = slices.Clone(r.Log)
}

// restore puts the batch into the table.
func (fr *frameReader) restore() {
	if len(fr.batch) == 0 {
		return
	}

	restored, noRoom := fr.config.Source.Restore(fr.now, fr.batch)
	fr.Restored += int64(restored)
	fr.NoRoom += int64(noRoom)
	fr.Older += int64(len(fr.batch) - restored - noRoom)
	fr.liveBytes += fr.bytes * int64(restored) / int64(len(fr.batch))

	clear(fr.batch) // release the logs, which are large
	fr.batch = fr.batch[:0]
	fr.bytes = 0
}
