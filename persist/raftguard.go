package persist

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/internal/tasks"
)

const (
	readFactor = 5  // the number of timeouts that a read may take
	maxReads   = 64 // bounds concurrent reads of the log; further reads wait

	firstPause = 50 * time.Millisecond // between attempts; doubles up to maxPause
	maxPause   = 5 * time.Second       // the longest pause between attempts
)

// errHung: the disk does not respond.
var errHung = errors.New("disk does not respond")

// guardedLogs is a log whose writes fail when the disk hangs. A leader steps
// down when StoreLogs fails. Raft itself does not notice a hung disk: without
// guardedLogs, a leader would stay leader for as long as it can send
// heartbeats.
//
// A write that timed out may still succeed, and even a write that returned an
// error may have reached the disk. But Raft 1.7.3 continues with the log as it
// was before. It keeps the last entry's index and term in memory, and reads
// them from the store only at startup. Memory and store must not differ, for
// two reasons:
//
//   - A follower that stores an entry does not delete entries that may follow it.
//     Suppose that the store has entries that Raft does not know of. In term 4,
//     the follower then stores entry 16:
//
//     Raft believes: … 15 (term 2)   16 (term 4)
//     the store has: … 15 (term 2)   16 (term 4)   17 (term 3)   18 (term 3)
//
//     After a restart, Raft would take 18 of term 3 for its last entry. It would
//     then vote for a candidate that lacks 16 of term 4, which this follower had
//     acknowledged.
//
//   - A follower deletes entries 10 to 15 of term 2, and then fails to store those
//     of term 3. It still believes that its log ends with 15 of term 2. If a
//     leader that has those entries comes back, the follower tells it that it has
//     them too, and stores 16 behind the gap. It refuses the entries of other
//     leaders until a restart, because it can't read entry 10.
//
// So the end of the log is not deleted when Raft deletes it, but when Raft
// stores what replaces it (see deletedFrom): the two are one write, which
// succeeds or fails as a whole. Should that write never begin, the store still
// holds what Raft believes in.
//
// And if a write was reported to Raft as failed, the goroutine that made it
// undoes it before anything else is written. Undoing deletes the entries from
// the first of the write on, and stores again those that the write replaced.
//
// Until the undo succeeds, every write fails at once, and so does reading an
// entry in doubt, because Raft would acknowledge the entry. If the process ends
// before the undo, no missing entry has been acknowledged. Raft then starts
// with the log it finds, as after a crash between writing and answering.
//
// Raft ends the process when it can't read an entry that it must apply. So a
// hung read gets a long time before it fails. After a failed deletion, no entry
// is in doubt. Raft does not need the old entries, which were to be deleted. The
// later entries stay as they are, and Raft may have to read them here to apply
// them, because the cache in front is empty by then.
//
// Undoing can't bring back the configuration. When Raft deletes an entry that
// holds one, it goes back to the last committed configuration. It learns the
// deleted one with the next configuration entry, or at the next start.
//
// An undone entry never returns as a different entry with the same index and
// term. A leader that failed to store it has stepped down and leads next in
// another term. A follower receives the same entry again.
//
// Raft reads through a cache in front of this log (see raft.go). The cache never
// holds an entry that is missing here: it adds entries after they were stored,
// and drops all of them before any is deleted.
type guardedLogs struct {
	inner      raft.LogStore
	timeout    time.Duration
	workers    *workers
	log        *slog.Logger
	afterWrite func() // called after each write
	health     health

	writing chan struct{} // capacity 1: full while a write is in progress
	reads   chan struct{} // capacity maxReads: one item per read in progress

	mu          sync.Mutex // guards what follows
	writeErr    error      // if not nil, writes fail at once with this error
	doubtFrom   uint64     // entries from this index on can't be read; math.MaxUint64 if none are in doubt
	deletedFrom uint64     // Raft has deleted the entries from this index on, which are still here; 0 if none
}

func newGuardedLogs(inner raft.LogStore, timeout time.Duration, workers *workers, log *slog.Logger) *guardedLogs {
	return &guardedLogs{
		inner: inner, timeout: timeout, workers: workers, log: log, afterWrite: func() {},
		writing: make(chan struct{}, 1), reads: make(chan struct{}, maxReads), doubtFrom: math.MaxUint64,
	}
}

// logWrite is one write of the log.
type logWrite struct {
	// do makes the write. It runs once.
	do func() error
	// undo restores the end of the log that Raft believes in. It may run several times.
	undo func() error
	// doubtFrom is the first entry that is in doubt if the write fails; math.MaxUint64 if none is.
	doubtFrom uint64

	// abandoned means that the write timed out, so Raft was told that it failed.
	// done means that the write has returned, with err, before that. Only one of
	// the two is ever set. guardedLogs.mu guards the three.
	abandoned, done bool
	err             error
}

// StoreLog stores one entry.
func (g *guardedLogs) StoreLog(l *raft.Log) error { return g.StoreLogs([]*raft.Log{l}) }

// StoreLogs stores entries, or fails if the disk hangs. If Raft has just deleted
// the end of the log, they replace it.
func (g *guardedLogs) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}

	first := logs[0].Index
	replaces := g.takeDeletedFrom() != 0

	// Both are set when the write begins.
	var before []*raft.Log // the end of the log that Raft believes in, from first on
	begun := false

	return g.write(&logWrite{
		doubtFrom: first,
		do: func() error {
			last, err := g.inner.LastIndex()
			if err != nil {
				return err
			}

			before, err = g.readFrom(first, last)
			if err != nil {
				return err
			}

			begun = true
			if replaces {
				if err := g.deleteFrom(first); err != nil {
					return err
				}
			}
			return g.inner.StoreLogs(logs)
		},
		undo: func() error {
			if !begun {
				return nil
			}
			if err := g.deleteFrom(first); err != nil || len(before) == 0 {
				return err
			}
			return g.inner.StoreLogs(before)
		},
	})
}

// takeDeletedFrom returns and clears deletedFrom. Clearing it is safe even if
// the write fails: before the next attempt, Raft deletes at least as much again.
func (g *guardedLogs) takeDeletedFrom() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	from := g.deletedFrom
	g.deletedFrom = 0
	return from
}

// deleteFrom deletes all entries from index on.
func (g *guardedLogs) deleteFrom(index uint64) error {
	last, err := g.inner.LastIndex()
	if err != nil || last < index {
		return err
	}
	return g.inner.DeleteRange(index, last)
}

// DeleteRange deletes entries at the start of the log, or fails if the disk
// hangs. Entries at the end stay until StoreLogs replaces them, or until the
// store closes.
func (g *guardedLogs) DeleteRange(low, high uint64) error {
	isEnd := false

	err := g.write(&logWrite{
		doubtFrom: math.MaxUint64,
		do: func() error {
			last, err := g.inner.LastIndex()
			if err != nil {
				return err
			}

			isEnd = high >= last
			if isEnd {
				return nil
			}
			return g.inner.DeleteRange(low, high)
		},
		undo: func() error { return nil }, // Raft does not care whether old entries are there
	})
	if err != nil {
		return err
	}

	if isEnd {
		g.mu.Lock()
		g.deletedFrom = low
		g.mu.Unlock()
	}
	return nil
}

// close deletes the end of the log that Raft has deleted and not replaced: a
// recovery deletes the whole log, and stores nothing. Raft must have ended. It
// reads the log that it finds when it starts again.
func (g *guardedLogs) close() error {
	from := g.takeDeletedFrom()
	if from == 0 || g.checkWritable() != nil {
		return nil
	}
	return guard(func() error { return g.deleteFrom(from) })
}

// readFrom reads the entries from low to last, the end of the log. There are at
// most as many as a cut-off leader could append.
func (g *guardedLogs) readFrom(low, last uint64) ([]*raft.Log, error) {
	var entries []*raft.Log
	for i := low; i <= last; i++ {
		l := new(raft.Log)
		err := g.inner.GetLog(i, l)
		switch {
		case errors.Is(err, raft.ErrLogNotFound):
			// The entry is before the start of the log, or in a gap left by a snapshot.
		case err != nil:
			return nil, err
		default:
			entries = append(entries, l)
		}
	}

	return entries, nil
}

// write waits for its turn and makes a write.
func (g *guardedLogs) write(w *logWrite) error {
	timer := time.NewTimer(g.timeout)
	defer timer.Stop()

	// Check for the error before waiting for a turn: the goroutine that undoes a
	// failed write keeps the turn until it has succeeded.
	if err := g.checkWritable(); err != nil {
		return err
	}

	select {
	case g.writing <- struct{}{}:
	case <-g.workers.closing:
		return ErrClosed
	case <-timer.C:
		return errHung
	}

	// An earlier write may have failed meanwhile.
	if err := g.checkWritable(); err != nil {
		<-g.writing
		return err
	}

	// The write gets a goroutine of its own. On a hung disk, the goroutine can't be
	// ended, only left behind.
	result := make(chan error, 1)
	started := g.workers.Go(func() {
		defer func() { <-g.writing }()
		g.runWrite(w, result)
	})
	if !started {
		<-g.writing
		return ErrClosed
	}

	select {
	case err := <-result:
		return err
	case <-timer.C:
	}

	g.mu.Lock()
	defer g.mu.Unlock()

	// If the write returned just before the lock was taken, its outcome counts, not
	// the timeout.
	if w.done {
		return w.err
	}

	w.abandoned = true
	g.writeErr = errHung
	g.doubtFrom = w.doubtFrom
	g.log.Error("the disk hangs: Raft's log can't be written", "after", g.timeout)
	return errHung
}

func (g *guardedLogs) checkWritable() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.writeErr
}

// runWrite makes the write, and undoes it if Raft learns that it failed.
func (g *guardedLogs) runWrite(w *logWrite, result chan<- error) {
	err := g.runMeasured(w.do)
	recovered := false

	g.mu.Lock()
	inTime := !w.abandoned
	if inTime {
		w.done = true
		w.err = err
	}
	if inTime && err == nil {
		recovered = g.health.succeed() // an undo would not prove that there is room
	}

	// If the write failed, or Raft was told so, its entries are in doubt until the
	// undo succeeds.
	if err != nil || !inTime {
		g.writeErr = g.writeErrorAfter(err)
		g.doubtFrom = w.doubtFrom
	}
	g.mu.Unlock()

	if recovered {
		g.log.Info("Raft's log is written again")
	}

	// After errEngineFailed nothing may touch the file, so nothing is undone.
	if err == nil && inTime || errors.Is(err, errEngineFailed) {
		result <- err
		return
	}

	g.undoUntilDone(w, sync.OnceFunc(func() { result <- err }))
}

// writeErrorAfter returns the error of all writes that follow one that failed
// with err or, if err is nil, timed out.
func (g *guardedLogs) writeErrorAfter(err error) error {
	switch {
	case err == nil:
		return errHung
	case errors.Is(err, errEngineFailed):
		return fmt.Errorf("%w: Raft's log: %w", ErrCorrupt, err)
	}
	return fmt.Errorf("undo the last write of Raft's log: %w", err)
}

// undoUntilDone undoes w, however long it takes, and then allows writes again.
// It calls afterTry after each attempt.
func (g *guardedLogs) undoUntilDone(w *logWrite, afterTry func()) {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := g.runMeasured(w.undo)

		if err == nil {
			g.mu.Lock()
			g.writeErr = nil
			g.doubtFrom = math.MaxUint64
			hung := w.abandoned
			g.mu.Unlock()

			if hung {
				g.log.Info("the disk responds again: Raft's log can be written")
			}
		} else if errors.Is(err, errEngineFailed) {
			g.mu.Lock()
			g.writeErr = g.writeErrorAfter(err)
			g.mu.Unlock()
		}

		// A write that failed in time is reported only after the first attempt to undo
		// it. So in the usual case, no entry is in doubt when Raft learns of it.
		afterTry()
		if err == nil || errors.Is(err, errEngineFailed) || !g.workers.sleep(pause) {
			return
		}
	}
}

// runMeasured makes or undoes a write, and records how long it takes and whether it fails.
func (g *guardedLogs) runMeasured(do func() error) error {
	g.health.begin()
	err := guard(do)
	isFirst := g.health.end(err)
	if isFirst {
		g.log.Error("Raft's log can't be written", "error", err)
	}
	g.afterWrite()
	return err
}

// FirstIndex returns the first entry's index, or zero if there is none.
func (g *guardedLogs) FirstIndex() (uint64, error) {
	return readBounded(g, g.inner.FirstIndex)
}

// LastIndex returns the last entry's index, or zero if there is none.
func (g *guardedLogs) LastIndex() (uint64, error) {
	// While any entry is in doubt, the end of the log may not be what Raft
	// believes in.
	if err := g.checkTrusted(math.MaxUint64); err != nil {
		return 0, err
	}
	return readBounded(g, g.inner.LastIndex)
}

func (g *guardedLogs) GetLog(index uint64, into *raft.Log) error {
	if err := g.checkTrusted(index); err != nil {
		return err
	}

	l, err := readBounded(g, func() (*raft.Log, error) {
		l := new(raft.Log) // after a timeout, the caller owns into again
		return l, g.inner.GetLog(index, l)
	})
	if err != nil {
		return err
	}

	// The entry may have come into doubt in the meantime. The value that was read
	// may then differ from what Raft believes in.
	if err := g.checkTrusted(index); err != nil {
		return err
	}

	*into = *l
	return nil
}

// checkTrusted returns an error if entry index may differ from the one Raft believes in.
func (g *guardedLogs) checkTrusted(index uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.doubtFrom != math.MaxUint64 && index >= g.doubtFrom {
		return g.writeErr
	}
	return nil
}

// readBounded runs read, but waits no longer than readFactor timeouts.
func readBounded[T any](g *guardedLogs, read func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}

	var none T
	timer := time.NewTimer(readFactor * g.timeout)
	defer timer.Stop()

	select {
	case g.reads <- struct{}{}:
	case <-g.workers.closing:
		return none, ErrClosed
	case <-timer.C:
		return none, errHung
	}

	// The channel has room for the answer, so the read can end even if nobody waits
	// for it any more.
	result := make(chan answer, 1)
	started := g.workers.Go(func() {
		defer func() { <-g.reads }()
		var a answer
		a.err = guard(func() (err error) {
			a.value, err = read()
			return err
		})
		result <- a
	})

	if !started {
		<-g.reads
		return none, ErrClosed
	}

	select {
	case a := <-result:
		return a.value, a.err
	case <-timer.C:
		return none, errHung
	}
}

// workers tracks the goroutines of a store that may be stuck waiting for the disk.
type workers struct {
	tasks.Group
	closing   chan struct{} // closed when the store begins to close
	finishing sync.WaitGroup
}

func newWorkers() *workers { return &workers{closing: make(chan struct{})} }

// closeAfter tells the goroutines to stop, and runs f after the last of them
// has ended. It does not wait.
func (w *workers) closeAfter(f func()) {
	ended := w.Close()
	close(w.closing)
	w.finishing.Go(func() {
		<-ended
		f()
	})
}

// sleep waits for d, or returns false once the store is closing.
func (w *workers) sleep(d time.Duration) bool {
	select {
	case <-w.closing:
		return false
	case <-time.After(d):
		return true
	}
}

// health records the outcome of writes to a disk.
type health struct {
	mu           sync.Mutex // guards what follows
	writeBegan   time.Time  // when the write in progress began; zero if there is none
	failingSince time.Time  // when writes began to fail; zero if the last one succeeded
	err          error      // of the last failed write
}

func (h *health) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writeBegan = time.Now()
}

// end records that the write has returned, with err if it failed. It returns
// true on the first of several failures.
func (h *health) end(err error) (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writeBegan = time.Time{}
	if err == nil {
		return false
	}

	first = h.failingSince.IsZero()
	if first {
		h.failingSince = time.Now()
	}
	h.err = err
	return first
}

// succeed records that a write succeeded. It returns true if the previous one had failed.
func (h *health) succeed() (recovered bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	recovered = !h.failingSince.IsZero()
	h.failingSince = time.Time{}
	h.err = nil
	return recovered
}

func (h *health) report(timeout time.Duration) (hung, failing time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.writeBegan.IsZero() && time.Since(h.writeBegan) > timeout {
		hung = h.writeBegan
	}
	return hung, h.failingSince, h.err
}
