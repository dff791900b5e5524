package persist

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/internal/expect"
)

var errDisk = errors.New("disk failed")

// faultyLogs is a log whose next writes fail as the test prescribes.
type faultyLogs struct {
	raft.LogStore

	mu     sync.Mutex // guards what follows
	faults []fault    // of the next writes, in order
	reads  *fault     // of every read
}

// fault is the fate of one write: it may hang until released, and may fail
// before or after taking effect.
type fault struct {
	hang   chan struct{} // nil if it does not hang
	before error
	after  error
}

func (f *faultyLogs) next(faults ...fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = faults
}

func (f *faultyLogs) run(do func() error) error {
	f.mu.Lock()
	var now fault
	if len(f.faults) > 0 {
		now, f.faults = f.faults[0], f.faults[1:]
	}
	f.mu.Unlock()
	if now.hang != nil {
		<-now.hang
	}
	if now.before != nil {
		return now.before
	}
	if err := do(); err != nil {
		return err
	}
	return now.after
}

func (f *faultyLogs) StoreLogs(logs []*raft.Log) error {
	return f.run(func() error { return f.LogStore.StoreLogs(logs) })
}

func (f *faultyLogs) DeleteRange(low, high uint64) error {
	return f.run(func() error { return f.LogStore.DeleteRange(low, high) })
}

func (f *faultyLogs) GetLog(i uint64, l *raft.Log) error {
	f.mu.Lock()
	reads := f.reads
	f.mu.Unlock()
	if reads != nil {
		<-reads.hang
	}
	return f.LogStore.GetLog(i, l)
}

// newFaultyLogs returns a guarded log in memory, with the cache that Raft uses.
func newFaultyLogs(t *testing.T) (*guardedLogs, *raft.LogCache, *faultyLogs) {
	t.Helper()
	inner := &faultyLogs{LogStore: raft.NewInmemStore()}
	g := newGuardedLogs(inner, 2*time.Second, newWorkers(), quiet)
	cache, err := raft.NewLogCache(CachedEntries, g)
	expect.NoError(t, err)
	t.Cleanup(func() {
		done := make(chan struct{})
		g.workers.closeAfter(func() { close(done) })
		<-done
	})
	return g, cache, inner
}

// A write that hangs fails after the timeout, and the next ones fail at once.
// Once the disk responds, none of its effects remain.
func TestRaftWriteHangs(t *testing.T) {
	appends := func(l raft.LogStore) error { return l.StoreLogs(logEntries(11, 13, 2)) }
	replacesFrom := func(first uint64) func(raft.LogStore) error {
		return func(l raft.LogStore) error {
			if err := l.DeleteRange(first, 10); err != nil {
				return err
			}
			return l.StoreLogs(logEntries(first, first+2, 2))
		}
	}
	tests := map[string]struct {
		faults []fault // the last one hangs
		write  func(raft.LogStore) error
	}{
		"append, written late":   {[]fault{{}}, appends},
		"append, failed late":    {[]fault{{before: errDisk}}, appends},
		"append, unclear":        {[]fault{{after: errDisk}}, appends},
		"deletion, written late": {[]fault{{}}, replacesFrom(5)},
		"deletion, failed late":  {[]fault{{before: errDisk}}, replacesFrom(5)},
		"deletion, unclear":      {[]fault{{after: errDisk}}, replacesFrom(5)},
		"replace, written late":  {[]fault{{}, {}}, replacesFrom(5)},
		"replace, failed late":   {[]fault{{}, {before: errDisk}}, replacesFrom(5)},
		"replace, unclear":       {[]fault{{}, {after: errDisk}}, replacesFrom(5)},
		"replace all":            {[]fault{{}, {after: errDisk}}, replacesFrom(1)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, cache, inner := newFaultyLogs(t)
				want := logEntries(1, 10, 1)
				expect.NoError(t, cache.StoreLogs(want))
				hang := make(chan struct{})
				tt.faults[len(tt.faults)-1].hang = hang
				inner.next(tt.faults...)
				for i, wait := range []time.Duration{2 * time.Second, 0, 0} {
					begin := time.Now()
					if err := tt.write(cache); err == nil {
						t.Fatal("a hung write succeeded")
					}
					expect.Equal(t, time.Since(begin), wait, "write %d failed after", i)
				}
				if err := g.GetLog(4, new(raft.Log)); err != nil && name != "replace all" {
					t.Errorf("reading an entry that is not in doubt: %v", err)
				}
				if err := cache.GetLog(11, new(raft.Log)); err == nil {
					t.Error("an entry in doubt was read")
				}
				if hung, _, _ := g.health.report(g.timeout - 1); !hung.Before(time.Now()) || hung.IsZero() {
					t.Errorf("hung since %v", hung)
				}
				close(hang)
				synctest.Wait()
				checkLog(t, cache, want)
				checkLog(t, inner, want)
				next := logEntries(11, 12, 3)
				expect.NoError(t, cache.StoreLogs(next))
				checkLog(t, inner, slices.Concat(want, next))
			})
		})
	}
}

// A write that succeeds too late does not end a failure: Raft was told that it
// failed, too, and it is undone.
func TestRaftWriteSucceedsTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _, inner := newFaultyLogs(t)
		failing := func() bool {
			_, since, _ := g.health.report(g.timeout)
			return !since.IsZero()
		}

		inner.next(fault{before: errDisk})
		if err := g.StoreLogs(logEntries(1, 3, 1)); err == nil || !failing() {
			t.Fatalf("got %v, failing %v; want a failure", err, failing())
		}

		hang := make(chan struct{})
		inner.next(fault{hang: hang})
		if err := g.StoreLogs(logEntries(1, 3, 1)); !errors.Is(err, errHung) {
			t.Fatalf("got %v, want %v", err, errHung)
		}
		close(hang)
		synctest.Wait()
		if !failing() {
			t.Error("a write that was undone ended the failure")
		}

		expect.NoError(t, g.StoreLogs(logEntries(1, 3, 1)))
		if failing() {
			t.Error("a write that succeeded did not end the failure")
		}
	})
}

// While old entries can't be deleted, all later ones can be read: Raft may still
// have to apply them, and ends the process if it can't.
func TestRaftDeletionOfOldEntriesHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, cache, inner := newFaultyLogs(t)
		stored := logEntries(1, 10, 1)
		expect.NoError(t, cache.StoreLogs(stored))
		hang := make(chan struct{})
		release := sync.OnceFunc(func() { close(hang) })
		defer release()
		inner.next(fault{hang: hang, before: errDisk})

		if err := cache.DeleteRange(1, 5); !errors.Is(err, errHung) {
			t.Fatalf("got %v, want %v", err, errHung)
		}
		checkLog(t, cache, stored)
		if err := g.StoreLogs(logEntries(11, 11, 1)); err == nil {
			t.Error("an entry was stored while the disk hangs")
		}

		release()
		synctest.Wait()
		expect.NoError(t, cache.DeleteRange(1, 5))
		checkLog(t, cache, stored[5:])
	})
}

// A follower deletes the end of its log, and does not get to storing what replaces
// it: a deletion of old entries hangs. Raft still believes in the end.
func TestRaftReplacingNeverBegins(t *testing.T) {
	for _, begun := range []time.Duration{0, time.Second, 3 * time.Second} {
		t.Run(fmt.Sprint("the other began ", begun, " before"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, cache, inner := newFaultyLogs(t)
				want := logEntries(1, 15, 2)
				expect.NoError(t, cache.StoreLogs(want))
				expect.NoError(t, cache.DeleteRange(10, 15))

				hang := make(chan struct{})
				inner.next(fault{hang: hang, before: errDisk})
				compacted := make(chan error, 1)
				go func() { compacted <- cache.DeleteRange(1, 5) }()
				synctest.Wait()
				time.Sleep(begun) // synthetic

				if err := cache.StoreLogs(logEntries(10, 12, 3)); err == nil {
					t.Fatal("have no error")
				}
				checkLog(t, cache, want)
				close(hang)
				<-compacted
				synctest.Wait()
				checkLog(t, cache, want)

				// The old leader is back, and then the new one.
				expect.NoError(t, cache.StoreLogs(logEntries(16, 16, 2)))
				checkLog(t, inner, slices.Concat(want, logEntries(16, 16, 2)))
				expect.NoError(t, errors.Join(cache.DeleteRange(10, 16), cache.StoreLogs(logEntries(10, 12, 3))))
				checkLog(t, inner, slices.Concat(want[:9], logEntries(10, 12, 3)))
			})
		})
	}
}

// A follower that could delete but not store still has its old log.
func TestRaftReplacingFails(t *testing.T) {
	tests := map[string][]fault{
		"clearly":          {{before: errDisk}},
		"unclear":          {{after: errDisk}},
		"undo fails too":   {{after: errDisk}, {before: errDisk}, {}, {after: errDisk}, {before: errDisk}},
		"hangs":            {{}},
		"hangs and fails":  {{before: errDisk}},
		"hangs and unsure": {{after: errDisk}, {after: errDisk}},
	}
	for name, faults := range tests {
		for _, from := range []uint64{1, 5} {
			t.Run(fmt.Sprint(name, " from ", from), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					_, cache, inner := newFaultyLogs(t)
					want := logEntries(1, 10, 1)
					expect.NoError(t, cache.StoreLogs(want))
					expect.NoError(t, cache.DeleteRange(from, 10))
					hang := make(chan struct{})
					own := slices.Clone(faults)
					if name[0] == 'h' {
						own[0].hang = hang
					}
					inner.next(append([]fault{{}}, own...)...) // the deletion succeeds
					next := logEntries(from, from+3, 2)
					if err := cache.StoreLogs(next); err == nil {
						t.Fatal("have no error")
					}
					close(hang)
					time.Sleep(time.Minute) // synthetic
					checkLog(t, cache, want)
					checkLog(t, inner, want)
					// The leader sends them again.
					expect.NoError(t, errors.Join(cache.DeleteRange(from, 10), cache.StoreLogs(next)))
					want = slices.Concat(want[:from-1], next)
					checkLog(t, cache, want)
					checkLog(t, inner, want)
				})
			})
		}
	}
}

// Whatever fails, and in whatever way, the log is what Raft believes in once the disk responds.
func TestRaftLogIsWhatRaftBelieves(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	for round := range rounds {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(uint64(round), 5))
			_, cache, inner := newFaultyLogs(t)
			believed, term, failures := logEntries(1, 3, 1), uint64(1), 0
			expect.NoError(t, cache.StoreLogs(believed))
			for range 60 {
				hang := make(chan struct{})
				inner.next(someFaults(rnd, hang)...)
				first, last := believed[0].Index, believed[len(believed)-1].Index
				term++
				var err error
				switch rnd.IntN(3) {
				case 0: // append
					next := logEntries(last+1, last+1+rnd.Uint64N(4), term)
					if err = cache.StoreLogs(next); err == nil {
						believed = slices.Concat(believed, next)
					}
				case 1: // replace
					at := first + rnd.Uint64N(last-first+1)
					next := logEntries(at, at+rnd.Uint64N(6), term)
					if err = cache.DeleteRange(at, last); err == nil {
						err = cache.StoreLogs(next)
					}
					if err == nil {
						believed = slices.Concat(believed[:at-first], next)
					}
				case 2: // compact
					if first < last {
						err = cache.DeleteRange(first, first+rnd.Uint64N(last-first))
					}
				}
				if err != nil {
					failures++
				}
				close(hang)
				time.Sleep(time.Minute) // synthetic
				// Compaction may or may not have happened: Raft does not remember it.
				have, err := inner.FirstIndex()
				if err != nil || have < first || have > last {
					t.Fatalf("round %d: the log begins at %d, %v", round, have, err)
				}
				believed = believed[have-first:]
				checkLog(t, cache, believed)
				checkLog(t, inner, believed)
			}
			if failures == 0 {
				t.Errorf("round %d: nothing failed", round)
			}
		})
	}
}

func someFaults(rnd *rand.Rand, hang chan struct{}) []fault {
	var out []fault
	hangs := false
	for range rnd.IntN(5) {
		var f fault
		switch rnd.IntN(6) {
		case 0:
			f.before = errDisk
		case 1:
			f.after = errDisk
		case 2, 3:
			// Only one hangs.
			if !hangs {
				f.hang, hangs = hang, true
			}
		}
		out = append(out, f)
	}
	return out
}

// A hung read times out, and so does the next one after many of them.
func TestRaftReadHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, cache, inner := newFaultyLogs(t)
		expect.NoError(t, cache.StoreLogs(logEntries(1, 2*CachedEntries, 1)))
		hang := make(chan struct{})
		inner.mu.Lock()
		inner.reads = &fault{hang: hang}
		inner.mu.Unlock()
		var wg sync.WaitGroup
		begin := time.Now()
		for range maxReads + 10 {
			wg.Go(func() {
				var l raft.Log
				if err := cache.GetLog(1, &l); !errors.Is(err, errHung) || l.Index != 0 {
					t.Errorf("have %v, %+v", err, l)
				}
			})
		}
		wg.Wait()
		expect.Equal(t, time.Since(begin), readFactor*g.timeout, "took")
		// The latest entries are read without the disk, and writes are not delayed.
		if err := cache.GetLog(2*CachedEntries, new(raft.Log)); err != nil {
			t.Error(err)
		}
		if err := cache.StoreLogs(logEntries(2*CachedEntries+1, 2*CachedEntries+2, 1)); err != nil {
			t.Error(err)
		}
		close(hang)
		synctest.Wait()
		checkLog(t, cache, logEntries(1, 2*CachedEntries+2, 1))
	})
}

// A panic inside the storage engine ends the use of the log, not the process.
func TestRaftLogBreaks(t *testing.T) {
	g, cache, inner := newFaultyLogs(t)
	expect.NoError(t, cache.StoreLogs(logEntries(1, 3, 1)))
	inner.LogStore = nil // every call panics
	for range 2 {
		if err := g.StoreLogs(logEntries(4, 4, 1)); err == nil || !errors.Is(err, errEngineFailed) &&
			!errors.Is(err, ErrCorrupt) {
			t.Errorf("have %v", err)
		}
	}
	expect.ErrorIs(t, g.GetLog(2, new(raft.Log)), errEngineFailed, "g.GetLog(2, new(raft.Log))")
}

// recordingFSM is a state machine that records what was applied.
type recordingFSM struct {
	mu      sync.Mutex // guards applied
	applied []string
}

func (m *recordingFSM) Apply(e *raft.Log) any {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.applied = append(m.applied, string(e.Data))
	return nil
}

func (m *recordingFSM) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.applied)
}

func (m *recordingFSM) Snapshot() (raft.FSMSnapshot, error) { return nil, errors.New("none") }
func (m *recordingFSM) Restore(io.ReadCloser) error         { return errors.New("none") }

// A leader whose disk hangs steps down within the timeout plus a second, and
// leads again once the disk responds. After a restart, the same entries are
// applied as before.
func TestRaftLeaderWhoseDiskHangs(t *testing.T) {
	dir := t.TempDir()
	var want []string
	synctest.Test(t, func(t *testing.T) {
		store := openRaft(t, dir)
		disk := &faultyLogs{LogStore: store.logs.inner}
		store.logs.inner = disk
		fsm := &recordingFSM{}
		node := startNode(t, store, fsm, firstStart)
		waitForLeader(t, node)
		apply(t, node, 0, 100)
		hang := make(chan struct{})
		disk.next(fault{hang: hang})
		begin := time.Now()
		outcome := node.Apply([]byte("late"), 0)
		if err := outcome.Error(); err == nil {
			t.Error("an entry that is not on disk was acknowledged")
		}
		for node.State() == raft.Leader {
			time.Sleep(time.Millisecond) // synthetic
		}
		if took := time.Since(begin); took > store.config.Timeout+time.Second {
			t.Errorf("still leader after %v with a hung disk", took)
		}
		time.Sleep(30 * time.Second) // synthetic
		if node.VerifyLeader().Error() == nil {
			t.Error("leader with a hung disk")
		}
		if s := store.Status(); s.HungSince.IsZero() || s.HungSince.Before(begin) {
			t.Errorf("status is %+v", s)
		}
		close(hang)
		waitForLeader(t, node)
		apply(t, node, 100, 200)
		want = fsm.all()
		expect.Equal(t, len(want), 200, "applied")
		stopNode(t, node)
		closeRaft(t, store)
	})
	synctest.Test(t, func(t *testing.T) {
		store := openRaft(t, dir)
		fsm := &recordingFSM{}
		node := startNode(t, store, fsm, restart)
		waitForLeader(t, node)
		apply(t, node, 200, 201)
		if have := fsm.all(); !slices.Equal(have[:len(have)-1], want) {
			t.Errorf("%d applied after a restart, want %d and one", len(have), len(want))
		}
		stopNode(t, node)
		closeRaft(t, store)
	})
}

// Close returns although the disk hangs, and the directory is free once the disk responds.
func TestRaftCloseWhileHung(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		store := openRaft(t, dir)
		disk := &faultyLogs{LogStore: store.logs.inner}
		store.logs.inner = disk
		mustSave(t, store, 1)
		mustStore(t, store, logEntries(1, 5, 1))
		hang := make(chan struct{})
		disk.next(fault{hang: hang})
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := store.Logs().StoreLog(logEntry(6, 1)); err == nil {
				t.Error("a hung write succeeded")
			}
		})
		synctest.Wait()
		begin := time.Now()
		for range 2 {
			expect.ErrorIs(t, store.Close(), errHung, "store.Close()")
		}
		if took := time.Since(begin); took > store.config.Timeout {
			t.Errorf("took %v", took)
		}
		wg.Wait()
		close(hang)
	})
	r := openRaft(t, dir)
	defer closeRaft(t, r)
	last, err := r.Logs().LastIndex()
	if err != nil || last < 5 || last > 6 {
		t.Errorf("have %d, %v", last, err)
	}
}

type startMode bool

const (
	firstStart startMode = true
	restart    startMode = false
)

func startNode(t *testing.T, store *RaftStore, fsm raft.FSM, how startMode) *raft.Raft {
	t.Helper()
	address, trans := raft.NewInmemTransport("node")
	config := raft.DefaultConfig()
	config.LocalID, config.Logger = "node", hclog.NewNullLogger()
	config.HeartbeatTimeout, config.ElectionTimeout, config.LeaderLeaseTimeout = 400*time.Millisecond, 400*time.Millisecond, 200*time.Millisecond
	config.MaxAppendEntries = CachedEntries
	if how == firstStart {
		servers := raft.Configuration{Servers: []raft.Server{{ID: "node", Address: address}}}
		expect.NoError(t,
			raft.BootstrapCluster(config, store.Logs(), store.Stable(), store.Snapshots(), trans, servers))
	}
	node, err := raft.NewRaft(config, fsm, store.Logs(), store.Stable(), store.Snapshots(), trans)
	expect.NoError(t, err)
	return node
}

func stopNode(t *testing.T, node *raft.Raft) {
	t.Helper()
	expect.NoError(t, node.Shutdown().Error())
}

// waitForLeader waits until the node is leader and has applied everything. The clock is synthetic.
func waitForLeader(t *testing.T, node *raft.Raft) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for node.Barrier(time.Second).Error() != nil {
		if time.Now().After(deadline) {
			t.Fatal("no leader")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func apply(t *testing.T, node *raft.Raft, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if err := node.Apply(fmt.Append(nil, i), time.Second).Error(); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
}
