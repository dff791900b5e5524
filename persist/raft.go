package persist

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/internal/hashilog"
	"github.com/rlnode/rlnode/internal/metrics"
)

const (
	raftFile     = "raft.db"
	snapshotsDir = "snapshots" // the library's name

	// CachedEntries is how many of the latest entries of Raft's log are kept in
	// memory. A batch that Raft appends at once should be no larger, so that Raft
	// can apply it without reading the disk.
	CachedEntries = 32

	keptSnapshots = 2 // the number of snapshots that the library keeps
)

// RaftConfig says where and how Raft's state is stored.
type RaftConfig struct {
	// Dir is the data directory. It must exist.
	Dir string
	// Logger receives messages for the operator; slog.Default() by default.
	Logger *slog.Logger
	// Timeout is how long a write of the log may take before it counts as failed,
	// 10 ms to 1 min; 2 s by default. Reads get five times as long, because Raft
	// ends the process when it can't read an entry that it must apply.
	Timeout time.Duration
	// Ballast is the size, in bytes, of a file that is deleted when the disk is
	// full, so that a term and a vote can still be saved. Zero means none; 16 MiB
	// by default.
	Ballast int64
	// MaxSize bounds raft.db, in bytes; beyond it, writes fail. Zero means no bound.
	MaxSize int
}

// DefaultRaftConfig returns a RaftConfig with all fields set except Dir.
func DefaultRaftConfig() RaftConfig {
	return RaftConfig{Logger: slog.Default(), Timeout: 2 * time.Second, Ballast: 16 << 20}
}

// Validate reports the first invalid field.
func (c *RaftConfig) Validate() error {
	switch {
	case c.Dir == "":
		return errors.New("persist: Dir is empty")
	case c.Logger == nil:
		return errors.New("persist: Logger is nil")
	case c.Timeout < 10*time.Millisecond || c.Timeout > time.Minute:
		return fmt.Errorf("persist: Timeout is %v, not 10ms to 1m", c.Timeout)
	case c.Ballast < 0 || c.Ballast > 1<<40:
		return fmt.Errorf("persist: Ballast is %d, not 0 to 1 TiB", c.Ballast)
	case c.MaxSize < 0:
		return fmt.Errorf("persist: MaxSize is %d, below 0", c.MaxSize)
	}

	return nil
}

// RaftStore stores Raft's state in raft.db and snapshots/. It holds the data
// directory's lock while it is open. All methods may be called concurrently.
type RaftStore struct {
	config    RaftConfig
	path      string
	store     *raftboltdb.BoltStore
	handle    *os.File // bbolt's own
	logs      *guardedLogs
	cache     *raft.LogCache
	stable    *guardedStable
	snapshots raft.SnapshotStore
	ballast   *ballast
	probe     *probe
	workers   *workers
	size      atomic.Int64 // of raft.db after the last write, in bytes

	closeOnce sync.Once
	closeErr  error // of Close
}

// OpenRaft opens Raft's state in the data directory, or creates it if there is
// none. The error wraps ErrInUse if another process has the directory. It wraps
// ErrCorrupt if the state is damaged or partly missing. A node with such state
// must not start, because it may have acknowledged what is lost.
func OpenRaft(config RaftConfig) (*RaftStore, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}

	r := &RaftStore{config: config, path: filepath.Join(config.Dir, raftFile), workers: newWorkers()}
	if err := r.create(); err != nil {
		return nil, err
	}
	if err := r.open(); err != nil {
		return nil, err
	}

	// The open file locks the directory. So what follows never reads a running
	// node's log, nor removes its temporary files.
	if err := r.checkContent(); err != nil {
		return nil, errors.Join(err, r.abandon())
	}
	if err := r.assemble(); err != nil {
		return nil, errors.Join(err, r.abandon())
	}

	return r, nil
}

// assemble creates the stores that the methods return.
func (r *RaftStore) assemble() error {
	log := r.config.Logger
	var err error
	r.snapshots, err = raft.NewFileSnapshotStoreWithLogger(r.config.Dir, keptSnapshots, hashilog.New(log))
	if err != nil {
		return fmt.Errorf("open snapshots: %w", err)
	}

	r.ballast = newBallast(filepath.Join(r.config.Dir, ballastFile), r.config.Ballast, r.workers, log)

	r.stable = &guardedStable{
		inner: checkedStable{r.store}, path: r.path, ballast: r.ballast,
		workers: r.workers, log: log,
		afterWrite: r.recordSize, parked: make(chan struct{}),
	}

	r.logs = newGuardedLogs(checkedLogs{r.store}, r.config.Timeout, r.workers, log)
	r.logs.afterWrite = r.recordSize
	r.cache, err = raft.NewLogCache(CachedEntries, r.logs)
	if err != nil {
		return fmt.Errorf("make log cache: %w", err)
	}

	r.probe, err = openProbe(filepath.Join(r.config.Dir, probeFile), r.config.Timeout, r.workers, log)
	if err != nil {
		return err
	}

	r.ballast.prepare()
	r.recordSize()
	return nil
}

func (r *RaftStore) recordSize() {
	if info, err := r.handle.Stat(); err == nil {
		r.size.Store(info.Size())
	}
}

// abandon closes a store that will not be used.
func (r *RaftStore) abandon() error { return guard(r.store.Close) }

func (r *RaftStore) boltOptions() *bolt.Options {
	return &bolt.Options{
		Timeout: lockTimeout, FreelistType: bolt.FreelistMapType, NoFreelistSync: true, MaxSize: r.config.MaxSize,
	}
}

// Logs returns Raft's log. A write that takes longer than the timeout fails.
// Every later write then fails as well, until the slow one has returned and
// been undone.
func (r *RaftStore) Logs() raft.LogStore { return r.cache }

// Stable returns the store of Raft's term and vote. When the disk is full, its
// writes don't fail but wait for room.
func (r *RaftStore) Stable() raft.StableStore { return r.stable }

// Snapshots returns the store of the last two snapshots.
func (r *RaftStore) Snapshots() raft.SnapshotStore { return r.snapshots }

// Probe writes a page of its own and waits until the page is on disk. It fails
// if that takes longer than the timeout, or if the disk is nearly full. Without
// Probe, a hung disk would go unnoticed while nothing is written to the log.
func (r *RaftStore) Probe() error { return r.probe.check() }

// Empty reports whether Raft has no state: no log entry, no snapshot, no term.
func (r *RaftStore) Empty() (bool, error) {
	exists, err := raft.HasExistingState(r.cache, r.stable, r.snapshots)
	if err != nil {
		return false, fmt.Errorf("check for Raft's state: %w", err)
	}
	return !exists, nil
}

// Metrics reports the state of the store.
func (rs RaftStatus) Metrics(s metrics.Sink) {
	s.Gauge("raft_log_bytes", "Size of the file with Raft's log.", float64(rs.Size))
	s.Flag("raft_store_hung", "1 while a write of Raft's log takes too long, else 0.", !rs.HungSince.IsZero())
	s.Flag("raft_store_failing",
		"1 while writes of Raft's log fail, because the disk is full or for another reason; otherwise 0.",
		!rs.FailingSince.IsZero())
}

// RaftStatus describes the state of the store.
type RaftStatus struct {
	// Size is raft.db's size in bytes.
	Size int64
	// HungSince is when the current write began, if it has run longer than the
	// timeout; otherwise zero.
	HungSince time.Time
	// FailingSince is when writes began to fail, for lack of room or another reason;
	// zero if the last one succeeded.
	FailingSince time.Time
	// Err is why writes fail.
	Err error
	// Ballast reports whether the ballast file exists.
	Ballast bool
}

// Status returns the state of the store, without touching the disk.
func (r *RaftStore) Status() RaftStatus {
	s := RaftStatus{Size: r.size.Load(), Ballast: r.ballast.exists.Load()}
	for _, h := range []*health{&r.logs.health, &r.stable.health, &r.probe.health} {
		hung, failing, err := h.report(r.config.Timeout)
		if !hung.IsZero() && (s.HungSince.IsZero() || hung.Before(s.HungSince)) {
			s.HungSince = hung
		}
		if !failing.IsZero() && (s.FailingSince.IsZero() || failing.Before(s.FailingSince)) {
			s.FailingSince = failing
			s.Err = err
		}
	}
	return s
}

// Close closes the store and releases the data directory. Shut Raft down first.
// If the disk hangs, Close gives up after the timeout, and the directory stays
// locked until the disk responds or the process ends. Later calls return the
// first call's result.
func (r *RaftStore) Close() error {
	r.closeOnce.Do(func() { r.closeErr = r.close() })
	return r.closeErr
}

func (r *RaftStore) close() error {
	closed := make(chan error, 1)
	r.workers.closeAfter(func() { closed <- errors.Join(r.logs.close(), guard(r.store.Close), r.probe.close()) })
	select {
	case err := <-closed:
		if err != nil {
			return fmt.Errorf("close Raft's store: %w", err)
		}
		return nil
	case <-time.After(r.config.Timeout):
		return fmt.Errorf("close Raft's store: %w", errHung)
	}
}
