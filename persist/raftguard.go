package persist

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	readFactor = 5  // a read may take so many timeouts
	maxReads   = 64 // reads of the log under way; more wait

	firstPause = 50 * time.Millisecond // between tries
	lastPause  = 5 * time.Second
)

// errHung: the disk does not answer.
var errHung = errors.New("disk does not answer")

// guardedLogs is a log whose writes fail when the disk hangs: Raft does not notice that by itself, and a leader
// whose disk hangs would stay leader for as long as it can send heartbeats. A leader steps down when StoreLogs fails.
//
// A write that was given up on may still succeed, and even one that returned an error may have reached the disk. Raft
// 1.7.3 however goes on with the log as it was before: it keeps the last entry's index and term in memory, and reads
// them from the store only when it starts. The two may not differ, for three reasons:
//
//   - A follower that stores entry 16 of term 4 does not delete what may lie behind it. If entries 16 to 18 of term 3
//     came to be there without Raft's knowing, the log would hold 16 of term 4, then 17 and 18 of term 3. After a
//     restart Raft would take 18 of term 3 for its last entry, and vote for a candidate that lacks entry 16, which it
//     had acknowledged.
//   - A follower that has deleted entries 10 to 15 of term 2 and then fails to store those of term 3 believes still
//     that its log ends with 15 of term 2. A leader that has those may come back, and be told that the follower has
//     them too. Other leaders would be refused until a restart, since entry 10 can't be read.
//   - If the deleting was given up on and succeeds later, the same.
//
// So a write that Raft was told has failed is undone, by the goroutine that made it, before anything else is written:
// what is behind the end that Raft believes in is deleted, and what Raft believes in is put back (cut has it: the
// entries that Raft has deleted off the end and not replaced). Until that has succeeded, every write
// fails at once, and so does reading an entry that is in doubt: Raft would acknowledge it. If the process ends before
// that, nothing was acknowledged that is not there, and Raft starts with the log that it finds, as after a crash between
// writing and answering.
//
// Reading an entry in doubt fails rather than waits, and a read that hangs fails late: Raft ends the process when it
// can't read an entry that is committed. Such an entry is hardly ever in doubt, since what is committed is not deleted,
// and those to be applied next are in the cache. What undoing can't bring back is the configuration: Raft has gone back
// to the last committed one when it deletes an entry that has another, and learns the other with the next one, or at
// the next start.
//
// An undone entry does not come back as another one with the same index and term: a leader that failed to store it has
// stepped down, and its next term is another; a follower gets the same one again.
//
// The cache above holds no entry that is not in the log: it takes entries in after they were stored, and forgets all
// before it deletes any.
type guardedLogs struct {
	inner   raft.LogStore
	timeout time.Duration
	crew    *crew
	log     *slog.Logger
	written func() // called after each write, if set
	health  health

	turn  chan struct{} // capacity 1: whoever has put something in may write
	reads chan struct{} // capacity maxReads: as many may read

	mu     sync.Mutex  // guards what follows
	refuse error       // why writes fail at once, or nil
	doubt  uint64      // entries from this index on can't be read; math.MaxUint64 for none
	cut    []*raft.Log // entries that Raft has deleted off the end and not replaced: it believes in them still
}

func newGuardedLogs(inner raft.LogStore, timeout time.Duration, crew *crew, log *slog.Logger) *guardedLogs {
	return &guardedLogs{
		inner: inner, timeout: timeout, crew: crew, log: log, written: func() {},
		turn: make(chan struct{}, 1), reads: make(chan struct{}, maxReads), doubt: math.MaxUint64,
	}
}

// logWrite is one write of the log.
type logWrite struct {
	// do makes the write. It runs once.
	do func() error
	// undo makes the end of the log what Raft believes. It may run several times.
	undo func() error
	// from is the first entry that is in doubt when the write fails.
	from func() uint64
	// made is called when the write has succeeded in time, undone when it was undone; guardedLogs.mu is held.
	made, undone func()

	// abandoned: Raft was told that the write has failed. done: it has come back, with err. Whichever is first counts.
	// Guarded by guardedLogs.mu.
	abandoned, done bool
	err             error
}

// StoreLog stores one entry.
func (g *guardedLogs) StoreLog(l *raft.Log) error { return g.StoreLogs([]*raft.Log{l}) }

// StoreLogs stores entries, or fails when the disk hangs.
func (g *guardedLogs) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	first := logs[0].Index
	var cut []*raft.Log // set when the write begins
	from := func() uint64 {
		if len(cut) > 0 {
			return min(first, cut[0].Index)
		}
		return first
	}
	whole := func() { g.cut = nil } // what Raft believes in is in the store
	return g.write(&logWrite{
		from: from, made: whole, undone: whole,
		do: func() error {
			g.mu.Lock()
			cut = g.cut
			g.mu.Unlock()
			return g.inner.StoreLogs(logs)
		},
		undo: func() error {
			if err := g.deleteFrom(from()); err != nil || len(cut) == 0 {
				return err
			}
			return g.inner.StoreLogs(cut)
		},
	})
}

// deleteFrom deletes the entries from index on.
func (g *guardedLogs) deleteFrom(index uint64) error {
	last, err := g.inner.LastIndex()
	if err != nil || last < index {
		return err
	}
	return g.inner.DeleteRange(index, last)
}

// DeleteRange deletes entries, at the beginning of the log or at its end, or fails when the disk hangs.
func (g *guardedLogs) DeleteRange(low, high uint64) error {
	var cut []*raft.Log
	return g.write(&logWrite{
		from: func() uint64 { return low },
		made: func() {
			if len(cut) > 0 {
				g.cut = cut
			}
		},
		undone: func() {},
		do: func() error {
			var err error
			if cut, err = g.tail(low, high); err != nil {
				return err
			}
			return g.inner.DeleteRange(low, high)
		},
		undo: func() error {
			// All are there or none: a deletion is one transaction.
			last, err := g.inner.LastIndex()
			if err != nil || len(cut) == 0 || last >= low {
				return err
			}
			return g.inner.StoreLogs(cut)
		},
	})
}

// tail reads the entries from low on, if high is at the end of the log: Raft goes on believing in them until it has
// stored others. They are as many as a leader that was cut off could add.
func (g *guardedLogs) tail(low, high uint64) ([]*raft.Log, error) {
	last, err := g.inner.LastIndex()
	if err != nil || high < last {
		return nil, err
	}
	var cut []*raft.Log
	for i := low; i <= last; i++ {
		l := new(raft.Log)
		switch err := g.inner.GetLog(i, l); {
		case errors.Is(err, raft.ErrLogNotFound):
			// In front of the log, or in a gap that a snapshot has left.
		case err != nil:
			return nil, err
		default:
			cut = append(cut, l)
		}
	}
	return cut, nil
}

// write makes a write when it is its turn.
func (g *guardedLogs) write(w *logWrite) error {
	patience := time.NewTimer(g.timeout)
	defer patience.Stop()
	if err := g.refused(); err != nil {
		return err
	}
	select {
	case g.turn <- struct{}{}:
	case <-g.crew.ending:
		return ErrClosed
	case <-patience.C:
		return errHung
	}
	if err := g.refused(); err != nil {
		<-g.turn
		return err
	}
	result := make(chan error, 1)
	started := g.crew.start(func() {
		defer func() { <-g.turn }()
		g.carryOut(w, result)
	})
	if !started {
		<-g.turn
		return ErrClosed
	}
	select {
	case err := <-result:
		return err
	case <-patience.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.done {
		return w.err
	}
	w.abandoned = true
	g.refuse, g.doubt = errHung, w.from()
	g.log.Error("the disk hangs: Raft's log can't be written", "after", g.timeout)
	return errHung
}

func (g *guardedLogs) refused() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refuse
}

// carryOut makes the write, and undoes it if Raft is told that it has failed.
func (g *guardedLogs) carryOut(w *logWrite, result chan<- error) {
	err := g.measured(w.do)
	if err == nil {
		g.recovered()
	}
	g.mu.Lock()
	told := !w.abandoned
	if told {
		w.done, w.err = true, err
		if err == nil {
			w.made()
		}
	}
	if err != nil || !told {
		g.refuse, g.doubt = g.reason(err), w.from()
	}
	g.mu.Unlock()
	if err == nil && told {
		result <- nil
		return
	}
	if !errors.Is(err, errBroken) {
		g.settle(w, func() { result <- err })
	} else {
		result <- err
	}
}

// reason says why writes fail from now on, after one that has failed with err or took too long.
func (g *guardedLogs) reason(err error) error {
	switch {
	case err == nil:
		return errHung
	case errors.Is(err, errBroken):
		return fmt.Errorf("%w: Raft's log: %w", ErrCorrupt, err)
	}
	return fmt.Errorf("undo the last write of Raft's log: %w", err)
}

// settle undoes w, however long it takes, and lets others write again. tried is called once, after the first try.
func (g *guardedLogs) settle(w *logWrite, tried func()) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := g.measured(w.undo)
		if err == nil {
			g.mu.Lock()
			g.refuse, g.doubt = nil, math.MaxUint64
			w.undone()
			hung := w.abandoned
			g.mu.Unlock()
			if hung {
				g.log.Info("the disk answers again: Raft's log can be written")
			}
		} else if errors.Is(err, errBroken) {
			g.mu.Lock()
			g.refuse = g.reason(err)
			g.mu.Unlock()
		}
		if tried != nil {
			tried()
			tried = nil
		}
		if err == nil || errors.Is(err, errBroken) || !g.crew.rest(pause) {
			return
		}
	}
}

// measured makes or undoes a write, and notes how long it takes and whether it fails.
func (g *guardedLogs) measured(do func() error) error {
	g.health.begin()
	err := guard(do)
	if first := g.health.end(err); first {
		g.log.Error("Raft's log can't be written", "error", err)
	}
	g.written()
	return err
}

// recovered notes that a write has succeeded; undoing one is no proof that there is room.
func (g *guardedLogs) recovered() {
	if g.health.succeed() {
		g.log.Info("Raft's log is written again")
	}
}

// FirstIndex is the first entry's index, 0 if there is none.
func (g *guardedLogs) FirstIndex() (uint64, error) {
	return bounded(g, g.inner.FirstIndex)
}

// LastIndex is the last entry's index, 0 if there is none.
func (g *guardedLogs) LastIndex() (uint64, error) {
	if err := g.trusted(math.MaxUint64); err != nil {
		return 0, err
	}
	return bounded(g, g.inner.LastIndex)
}

// GetLog reads an entry.
func (g *guardedLogs) GetLog(index uint64, into *raft.Log) error {
	if err := g.trusted(index); err != nil {
		return err
	}
	l, err := bounded(g, func() (*raft.Log, error) {
		l := new(raft.Log) // into is the caller's again when the read is given up
		return l, g.inner.GetLog(index, l)
	})
	if err != nil {
		return err
	}
	// It may have come to be in doubt meanwhile, and been read as Raft does not know it.
	if err := g.trusted(index); err != nil {
		return err
	}
	*into = *l
	return nil
}

// trusted returns an error if entry index may be another one than Raft believes.
func (g *guardedLogs) trusted(index uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.doubt != math.MaxUint64 && index >= g.doubt {
		return g.refuse
	}
	return nil
}

// bounded reads from the disk for a while.
func bounded[T any](g *guardedLogs, read func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	patience := time.NewTimer(readFactor * g.timeout)
	defer patience.Stop()
	select {
	case g.reads <- struct{}{}:
	case <-g.crew.ending:
		return none, ErrClosed
	case <-patience.C:
		return none, errHung
	}
	result := make(chan answer, 1)
	started := g.crew.start(func() {
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
	case <-patience.C:
		return none, errHung
	}
}
