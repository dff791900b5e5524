package persist

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/metrics"
)

// Source is the table whose counters are saved.
type Source interface {
	// DrainChanges yields the records that changed since the last call. If yield
	// fails, the records passed to it and all later ones still count as changed. As
	// long as a counter stays in the table, its ExpiresAt never moves to an earlier
	// time.
	DrainChanges(yield func([]counters.Record) error) error
	// MarkPartsChanged makes at least n counters count as changed, starting at that
	// part of the table. It returns the part to continue with, zero after the last,
	// and how many counters it marked.
	MarkPartsChanged(part, n int) (next, marked int)
	// Drops returns how often counters were dropped without DrainChanges yielding
	// them. Only a new base removes such counters from the file, so one begins as
	// soon as the number grows.
	Drops() int64
	// Restore puts records back, except those of counters that the table already
	// has. So if a counter has several records, the first counts. It returns how
	// many it put back, and how many it dropped for lack of room.
	Restore(now algorithms.Instant, records []counters.Record) (restored, noRoom int)
	// MaxClockLead returns by how many nanoseconds, at most, the clocks by which
	// partitions count their windows are ahead of this node's; 0 if none is.
	MaxClockLead(now algorithms.Instant) int64
	// FollowClock makes a partition count its windows by a clock that reads at least
	// wall now.
	FollowClock(now algorithms.Instant, partition int, wall int64)
}

// CounterFileConfig says where and how often counters are saved.
type CounterFileConfig struct {
	// Dir is the data directory. It must exist.
	Dir string
	// File is the file's name in Dir; counters.db by default.
	File string
	// Source is the table.
	Source Source
	// Now reads the node's clocks.
	Now func() algorithms.Instant
	// Interval is the time from the start of one checkpoint to the start of the
	// next, 10 ms to 1 h; 1 s by default. It doubles while checkpoints fail.
	Interval time.Duration
	// Logger receives messages for the operator; slog.Default() by default.
	Logger *slog.Logger
	// MaxSize bounds the file, in bytes; beyond it, checkpoints fail. Zero means no bound.
	MaxSize int
	// CompactAbove is a file size in bytes; 64 MiB by default. A larger file of
	// which more than three quarters are free is rewritten when it is opened.
	CompactAbove int64
}

// DefaultCounterFileConfig returns a CounterFileConfig with all fields set
// except Dir, Source and Now.
func DefaultCounterFileConfig() CounterFileConfig {
	return CounterFileConfig{File: countersFile, Interval: time.Second, Logger: slog.Default(), CompactAbove: 64 << 20}
}

// Validate reports the first invalid field.
func (c *CounterFileConfig) Validate() error {
	switch {
	case c.Dir == "":
		return errors.New("persist: Dir is empty")
	case c.File == "" || c.File != filepath.Base(c.File):
		return fmt.Errorf("persist: File is %q, not a file name", c.File)
	case c.Source == nil:
		return errors.New("persist: Source is nil")
	case c.Now == nil:
		return errors.New("persist: Now is nil")
	case c.Interval < 10*time.Millisecond || c.Interval > time.Hour:
		return fmt.Errorf("persist: Interval is %v, not 10ms to 1h", c.Interval)
	case c.Logger == nil:
		return errors.New("persist: Logger is nil")
	case c.MaxSize < 0:
		return fmt.Errorf("persist: MaxSize is %d, below 0", c.MaxSize)
	case c.CompactAbove < 0:
		return fmt.Errorf("persist: CompactAbove is %d, below 0", c.CompactAbove)
	}

	return nil
}

// countersFile is the default name of the file.
const countersFile = "counters.db"

// FallbackFile is the file for the fallback counters, of what a node decides alone.
const FallbackFile = "fallback.db"

// Errors of a counter file.
var (
	// ErrNotLoaded means that Start or Checkpoint was called before Load. A
	// checkpoint would lose what the file holds.
	ErrNotLoaded = errors.New("the counters are not loaded yet")
	// ErrClosed means that a CounterFile, Buckets or RaftStore was used after Close.
	ErrClosed = errors.New("the store is closed")
)

// CounterFile saves the counters of a table in a file. All methods may be called concurrently.
type CounterFile struct {
	config CounterFileConfig
	path   string

	minLogSize  int64 // minLogSize and minBaseStep equal the constants of those names, except in tests
	minBaseStep int

	// lock is a mutex: it is full while somebody has it. It is a channel, so that a
	// caller can stop waiting when the disk hangs. It guards the file and the
	// fields up to lastResumed, so only one checkpoint, Load or Close runs at a
	// time.
	lock        chan struct{}
	file        *file // nil if the file was lost and no new one could be created; each checkpoint tries again
	loaded      bool
	complete    bool // the file has a complete base; see completeBase
	started     bool
	closed      bool
	lastFrame   uint64    // number of the newest frame
	base        base      // describes the frames
	wallLead    int64     // of the wall clock over the steady one, in nanoseconds, at Load or the last noticed step
	buffer      []byte    // reused for frames
	paced       bool      // the current checkpoint leaves nine tenths of a core to other work
	lastResumed time.Time // when the current checkpoint last resumed after a rest

	hurry chan struct{} // who waits for lock sends here, to end the holder's rest

	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	done      chan struct{} // closed when the loop that Start began has ended
	closeOnce sync.Once     // lets Close run once
	closeErr  error         // of Close; written by closeOnce

	// statusMu guards status. It is held only briefly, so Status never waits for the disk.
	statusMu sync.Mutex
	status   Status
}

// Status describes the state of checkpoints.
type Status struct {
	Completed time.Time     // when the last completed checkpoint began; zero before the first
	Duration  time.Duration // how long it took
	Counters  int64         // how many counters it wrote
	Err       error         // of the last checkpoint; nil if it completed
	Failures  int           // checkpoints that failed since the last completed one
	FileSize  int64         // bytes
	SetAside  int64         // damaged files set aside and replaced since the process began
	Damaged   int64         // frames that Load skipped because they were damaged
}

// Metrics reports the state of checkpoints.
func (cf *CounterFile) Metrics(s metrics.Sink) {
	status := cf.Status()
	s.Flag("checkpoint_ok", "1 if the last checkpoint completed, else 0.", status.Err == nil)
	s.Level("checkpoint_failures", "Checkpoints that failed since the last completed one.", status.Failures)

	if !status.Completed.IsZero() {
		s.Gauge("checkpoint_age_seconds", "Time since the last completed checkpoint began.",
			time.Since(status.Completed).Seconds())
	}
	s.Gauge("checkpoint_duration_seconds", "Time that the last completed checkpoint took.", status.Duration.Seconds())
	s.Gauge("checkpoint_counters", "Counters written by the last completed checkpoint.", float64(status.Counters))

	s.Gauge("checkpoint_file_bytes", "Size of the counter file.", float64(status.FileSize))
	s.Count("checkpoint_set_aside_total", "Damaged counter files set aside.", status.SetAside)
	s.Count("checkpoint_damaged_frames_total",
		"Damaged frames of the counter file passed over when it was loaded.", status.Damaged)
}

// OpenCounterFile opens the file in the data directory. It sets aside a damaged
// file or one of an older version, and creates a new one. If that is not
// possible, for example for lack of room, OpenCounterFile succeeds
// nevertheless, and each checkpoint tries again. The error wraps ErrInUse if
// another process has the file.
func OpenCounterFile(config CounterFileConfig) (*CounterFile, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}

	cf := &CounterFile{
		config: config, path: filepath.Join(config.Dir, config.File),
		minLogSize: minLogSize, minBaseStep: minBaseStep,
		lock: make(chan struct{}, 1), hurry: make(chan struct{}), done: make(chan struct{}),
	}
	cf.ctx, cf.cancel = context.WithCancel(context.Background())

	// A crash during compact may have left this file behind.
	_ = os.Remove(cf.path + ".compact")

	_, err := os.Stat(cf.path)
	existed := err == nil

	err = cf.open()
	if err == nil && existed && cf.file.hasDamagedMeta() {
		config.Logger.Warn("a meta page of the counter file is damaged; the last transaction may be lost", "path", cf.path)
	}
	if err == nil && existed {
		err = cf.compactIfSparse()
	}

	if isDamaged(err) || errors.Is(err, errOlderFormat) {
		if err := cf.setAside(err); err != nil {
			return nil, fmt.Errorf("open %s: %w", cf.path, err)
		}
		existed = false
		err = cf.open()
	}

	// A file that exists but can't be opened may hold counters, and only an
	// operator may decide to lose them. Only a failure to create a new file is
	// tolerated.
	if err != nil && (existed || errors.Is(err, ErrInUse) || errors.Is(err, fs.ErrPermission)) {
		if cf.file != nil {
			err = errors.Join(err, cf.file.close())
		}
		return nil, fmt.Errorf("open %s: %w", cf.path, err)
	}

	if err != nil {
		config.Logger.Error("counter file can't be created; counters are kept in memory only",
			"path", cf.path, "error", err)
		cf.status.Err = err
		cf.status.Failures = 1
	}
	return cf, nil
}

// open opens the file, or creates it, and inspects it. Call it before Load, or
// for a new file.
func (cf *CounterFile) open() error {
	f, err := openFile(cf.path, bolt.Options{MaxSize: cf.config.MaxSize}, anyMeta)
	if err != nil {
		return err
	}
	cf.file = f
	return cf.inspect()
}

// errOlderFormat: the file holds counters in an earlier version's format.
var errOlderFormat = errors.New("counters in the format of an earlier version of rlnode")

// inspect checks that the file consists of frames. It finds the newest frame's
// number, and whether the file is complete.
func (cf *CounterFile) inspect() error {
	cf.lastFrame = 0
	cf.complete = false
	cf.base = base{}
	return cf.file.view(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			switch {
			case b != nil && bytes.Equal(name, framesBucket):
				cf.lastFrame = b.Sequence()
				cf.complete = cf.lastFrame > 0
				number, _ := b.Cursor().Last()
				if len(number) == 8 {
					cf.lastFrame = max(cf.lastFrame, binary.BigEndian.Uint64(number))
				}

				// No node writes so many frames, so the number is damaged. If it were used and
				// later wrapped around, the newest frames would count as the oldest.
				if cf.lastFrame > math.MaxInt64 {
					return contentError("frame %d", cf.lastFrame)
				}
				return nil
			case b != nil && (bytes.Equal(name, olderFramesBucket) || len(name) == 8):
				// The bucket of an older version is named frames, or has a name of 8 bytes:
				// frames-2, or an expiry time.
				return errOlderFormat
			}

			return contentError("unknown bucket %x", name)
		})
	})
}

// compactIfSparse rewrites a large file that is mostly free.
func (cf *CounterFile) compactIfSparse() error {
	info, err := cf.file.handle.Stat()
	if err != nil || info.Size() <= cf.config.CompactAbove {
		return err
	}

	stats := cf.file.db.Stats()
	free := int64(stats.FreePageN+stats.PendingPageN) * int64(cf.file.db.Info().PageSize)
	// The rest of the file, past the pages in use, is room for bbolt to grow into.
	// It counts as free.
	free += info.Size() - cf.file.usedBytes.Load()
	if free <= info.Size()/4*3 {
		return nil
	}

	err = cf.file.compact(bolt.Options{MaxSize: cf.config.MaxSize})
	cf.file = nil // compact has closed it, even if it failed
	if err != nil {
		err = cf.compactionFailed(err)
	}
	return errors.Join(err, cf.open())
}

// compactionFailed returns err if it says that the file is damaged. It only
// logs any other error: the file stays large.
func (cf *CounterFile) compactionFailed(err error) error {
	if isDamaged(err) {
		return err
	}
	cf.config.Logger.Warn("counter file can't be compacted", "path", cf.path, "error", err)
	return nil
}

// setAside sets aside a file that is damaged or from an older version. The next
// open creates a new one.
func (cf *CounterFile) setAside(cause error) error {
	isOlder := errors.Is(cause, errOlderFormat)
	why := "corrupt"
	if isOlder {
		why = "older"
	}

	if cf.file != nil && isOlder {
		_ = cf.file.close() // nothing was written
	} else if cf.file != nil {
		cf.file.abandon()
	}
	cf.file = nil
	cf.lastFrame = 0
	cf.base = base{}

	aside, err := setAside(cf.path, why, time.Now(), cf.config.Logger)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	if isOlder {
		cf.config.Logger.Warn("the counter file has an older version's format: it was set aside, and its counters begin anew; "+
			"to recover them, stop this node, rename the file back and start the version that wrote it; otherwise remove it",
			"path", cf.path, "aside", aside)
		return nil
	}

	cf.statusMu.Lock()
	cf.status.SetAside++
	cf.statusMu.Unlock()

	cf.config.Logger.Error("damaged counter file was set aside; a new one begins",
		"path", cf.path, "aside", aside, "error", cause)
	return nil
}

// Status returns the state of checkpoints.
func (cf *CounterFile) Status() Status {
	cf.statusMu.Lock()
	defer cf.statusMu.Unlock()
	return cf.status
}
