package persist

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	berrors "go.etcd.io/bbolt/errors"
)

// guardedStable stores Raft's term and vote. If Raft can't save a term, it ends
// the process. So when the disk is full, a write does not fail: it gives up the
// ballast, then waits for room. In the meantime, the node takes no part in Raft
// and is cut off. A write waits for a hung disk as well: without the term on
// disk, this node could do nothing anyway.
type guardedStable struct {
	inner      raft.StableStore
	path       string
	timeout    time.Duration
	ballast    *ballast
	workers    *workers
	log        *slog.Logger
	afterWrite func() // called after each write
	health     health

	// parked blocks the writes that wait for room when the store closes: an error
	// would make Raft end the process during its shutdown. Only tests close it.
	parked chan struct{}
}

// Set saves a value. It returns nil once the value is on disk. Otherwise the
// error wraps ErrCorrupt, or is ErrClosed if the store was closed before.
func (s *guardedStable) Set(key, value []byte) error {
	return s.write(func() error { return s.inner.Set(key, value) })
}

// SetUint64 saves a number, like Set.
func (s *guardedStable) SetUint64(key []byte, n uint64) error {
	return s.write(func() error { return s.inner.SetUint64(key, n) })
}

func (s *guardedStable) write(do func() error) error {
	select {
	case <-s.workers.closing:
		return ErrClosed
	default:
	}

	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := s.tryWrite(do)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errBroken):
			return fmt.Errorf("%w: %s: %w", ErrCorrupt, s.path, err)
		case errors.Is(err, berrors.ErrDatabaseNotOpen):
			return ErrClosed
		}

		// Without the ballast there is room again, so the next try needs no pause.
		if s.ballast.release() {
			continue
		}

		if !s.workers.sleep(pause) {
			<-s.parked
			return ErrClosed
		}
	}
}

func (s *guardedStable) tryWrite(do func() error) error {
	s.health.begin()
	err := guard(do)

	isFirst := s.health.end(err)
	if isFirst {
		s.log.Error("Raft's term or vote can't be saved; this node waits", "path", s.path, "error", err)
	}
	if err == nil && s.health.succeed() {
		s.log.Info("Raft's term and vote are saved again", "path", s.path)
	}

	s.afterWrite()
	return err
}

// Get returns a value. If there is none, the error is "not found", a text that Raft compares.
func (s *guardedStable) Get(key []byte) (value []byte, err error) {
	err = guard(func() (err error) {
		value, err = s.inner.Get(key)
		return err
	})
	return value, err
}

// GetUint64 returns a number, like Get.
func (s *guardedStable) GetUint64(key []byte) (n uint64, err error) {
	err = guard(func() (err error) {
		n, err = s.inner.GetUint64(key)
		return err
	})
	return n, err
}

const (
	ballastFile = "ballast"
	// scarceFactor: the disk is nearly full when less than this many times the ballast is free.
	scarceFactor = 4
	// refillPause is how long to wait before trying to create the ballast again.
	refillPause = time.Minute
)

// ballast is a file that reserves disk space until Raft needs it.
type ballast struct {
	path      string
	size      int64
	workers   *workers
	log       *slog.Logger
	freeBytes func(dir string) (free int64, ok bool)
	pause     time.Duration

	exists atomic.Bool

	mu        sync.Mutex // guards the file and refilling
	refilling bool       // a goroutine waits to create the file again
}

func newBallast(path string, size int64, workers *workers, log *slog.Logger) *ballast {
	return &ballast{path: path, size: size, workers: workers, log: log, freeBytes: FreeSpace, pause: refillPause}
}

// prepare creates the file if it does not exist. If there is no room, the file is created later.
func (b *ballast) prepare() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.create(); err != nil {
		b.log.Warn("the disk is nearly full; there is no ballast for Raft's term and vote",
			"path", b.path, "size", b.size, "error", err)
		b.refillLater()
	}
}

var errScarce = errors.New("too little room")

// create creates the file, with disk blocks of its own. The caller must hold mu.
func (b *ballast) create() error {
	if b.size == 0 {
		err := os.Remove(b.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}

	if info, err := os.Stat(b.path); err == nil && info.Size() == b.size {
		b.exists.Store(true)
		return nil
	}

	// On a nearly full disk, the ballast itself would take the last room.
	free, known := b.freeBytes(filepath.Dir(b.path))
	if known && free/scarceFactor < b.size {
		return errScarce
	}

	if err := b.fill(); err != nil {
		return errors.Join(err, os.Remove(b.path))
	}
	b.exists.Store(true)
	return nil
}

// fill writes random bytes to the file, because some file systems store zeros
// or repeated data without using up space.
func (b *ballast) fill() (err error) {
	f, err := os.OpenFile(b.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()

	noise := rand.NewChaCha8([32]byte{})
	buf := make([]byte, 1<<16)
	for left := b.size; left > 0; {
		n := min(left, int64(len(buf)))
		_, _ = noise.Read(buf[:n]) // never fails
		if _, err := f.Write(buf[:n]); err != nil {
			return err
		}
		left -= n
	}

	return f.Sync()
}

// release deletes the ballast and reports whether that made room.
func (b *ballast) release() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.exists.Load() {
		return false
	}

	// Whatever becomes of the removal, there is no second one: the next attempt
	// waits for room.
	b.exists.Store(false)
	err := errors.Join(os.Remove(b.path), syncDir(filepath.Dir(b.path)))
	b.log.Warn("the ballast was deleted so that Raft's term and vote can be saved",
		"path", b.path, "size", b.size, "error", err)
	b.refillLater()
	return err == nil
}

// refillLater starts a goroutine that tries to create the file again. The caller must hold mu.
func (b *ballast) refillLater() {
	if b.refilling {
		return
	}
	b.refilling = b.workers.Go(func() {
		for b.workers.sleep(b.pause) {
			if b.refill() {
				return
			}
		}
	})
}

func (b *ballast) refill() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.create(); err != nil {
		return false
	}
	b.refilling = false
	b.log.Info("the ballast for Raft's term and vote is back", "path", b.path, "size", b.size)
	return true
}
