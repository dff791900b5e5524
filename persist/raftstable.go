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
// the process. So when the disk is full, a write does not fail: it deletes the
// ballast, and then waits for room. Meanwhile the node takes no part in Raft
// and is cut off. A write waits for a hung disk as well, because the node can
// do nothing without the term on disk.
type guardedStable struct {
	inner      raft.StableStore
	path       string
	ballast    *ballast
	workers    *workers
	log        *slog.Logger
	afterWrite func() // called after each write
	health     health

	// parked blocks the writes that still wait for room when the store closes. If
	// they returned an error, Raft would end the process during its shutdown. Only
	// tests close the channel.
	parked chan struct{}
}

// Set saves a value. It returns nil once the value is on disk. Otherwise the
// error wraps ErrCorrupt, or is ErrClosed if the store was closed before.
func (gs *guardedStable) Set(key, value []byte) error {
	return gs.write(func() error { return gs.inner.Set(key, value) })
}

// SetUint64 saves a number, like Set.
func (gs *guardedStable) SetUint64(key []byte, n uint64) error {
	return gs.write(func() error { return gs.inner.SetUint64(key, n) })
}

func (gs *guardedStable) write(do func() error) error {
	select {
	case <-gs.workers.closing:
		return ErrClosed
	default:
	}

	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := gs.tryWrite(do)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errEngineFailed):
			return fmt.Errorf("%w: %s: %w", ErrCorrupt, gs.path, err)
		case errors.Is(err, berrors.ErrDatabaseNotOpen):
			return ErrClosed
		}

		// If the ballast was deleted, there is room, so the next try needs no pause.
		if gs.ballast.release() {
			continue
		}

		if !gs.workers.sleep(pause) {
			<-gs.parked
			return ErrClosed
		}
	}
}

func (gs *guardedStable) tryWrite(do func() error) error {
	gs.health.begin()
	err := guard(do)

	isFirst := gs.health.end(err)
	if isFirst {
		gs.log.Error("Raft's term or vote can't be saved; this node waits", "path", gs.path, "error", err)
	}
	if err == nil && gs.health.succeed() {
		gs.log.Info("Raft's term and vote are saved again", "path", gs.path)
	}

	gs.afterWrite()
	return err
}

// Get returns a value. If there is none, the error is "not found", a text that Raft compares.
func (gs *guardedStable) Get(key []byte) (value []byte, err error) {
	err = guard(func() (err error) {
		value, err = gs.inner.Get(key)
		return err
	})
	return value, err
}

// GetUint64 returns a number, like Get.
func (gs *guardedStable) GetUint64(key []byte) (n uint64, err error) {
	err = guard(func() (err error) {
		n, err = gs.inner.GetUint64(key)
		return err
	})
	return n, err
}

const (
	ballastFile = "ballast"
	// scarceFactor says when the disk is nearly full: less than that many times the
	// ballast's size is free.
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
func (bl *ballast) prepare() {
	bl.mu.Lock()
	defer bl.mu.Unlock()
	if err := bl.create(); err != nil {
		bl.log.Warn("the disk is nearly full; there is no ballast for Raft's term and vote",
			"path", bl.path, "size", bl.size, "error", err)
		bl.refillLater()
	}
}

var errScarce = errors.New("too little room")

// create creates the file, with disk blocks of its own. The caller must hold mu.
func (bl *ballast) create() error {
	if bl.size == 0 {
		err := os.Remove(bl.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}

	if info, err := os.Stat(bl.path); err == nil && info.Size() == bl.size {
		bl.exists.Store(true)
		return nil
	}

	// On a nearly full disk, the ballast itself would take the last room.
	free, known := bl.freeBytes(filepath.Dir(bl.path))
	if known && free/scarceFactor < bl.size {
		return errScarce
	}

	if err := bl.fill(); err != nil {
		return errors.Join(err, os.Remove(bl.path))
	}
	bl.exists.Store(true)
	return nil
}

// fill writes random bytes to the file, because some file systems store zeros
// or repeated data without using up space.
func (bl *ballast) fill() (err error) {
	f, err := os.OpenFile(bl.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()

	noise := rand.NewChaCha8([32]byte{})
	buf := make([]byte, 1<<16)
	for left := bl.size; left > 0; {
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
func (bl *ballast) release() bool {
	bl.mu.Lock()
	defer bl.mu.Unlock()
	if !bl.exists.Load() {
		return false
	}

	// exists is false even if the removal fails: the next attempt then waits for
	// room, and does not try to remove the file again.
	bl.exists.Store(false)
	err := errors.Join(os.Remove(bl.path), syncDir(filepath.Dir(bl.path)))
	bl.log.Warn("the ballast was deleted so that Raft's term and vote can be saved",
		"path", bl.path, "size", bl.size, "error", err)
	bl.refillLater()
	return err == nil
}

// refillLater starts a goroutine that tries to create the file again. The caller must hold mu.
func (bl *ballast) refillLater() {
	if bl.refilling {
		return
	}
	bl.refilling = bl.workers.Go(func() {
		for bl.workers.sleep(bl.pause) {
			if bl.refill() {
				return
			}
		}
	})
}

func (bl *ballast) refill() bool {
	bl.mu.Lock()
	defer bl.mu.Unlock()
	if err := bl.create(); err != nil {
		return false
	}
	bl.refilling = false
	bl.log.Info("the ballast for Raft's term and vote is back", "path", bl.path, "size", bl.size)
	return true
}
