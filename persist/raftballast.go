package persist

import (
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

const (
	ballastFile = "ballast"
	// scarce: the disk is nearly full when less than this many times the ballast is free.
	scarce = 4
	// refillPause is how long to wait before trying to make the ballast again.
	refillPause = time.Minute
)

// ballast is a file that reserves disk space until Raft needs it.
type ballast struct {
	path  string
	size  int64
	crew  *crew
	log   *slog.Logger
	space func(dir string) (free int64, ok bool)
	pause time.Duration

	made atomic.Bool

	mu        sync.Mutex // guards the file and refilling
	refilling bool       // a goroutine is waiting to make the file again
}

func newBallast(path string, size int64, crew *crew, log *slog.Logger) *ballast {
	return &ballast{path: path, size: size, crew: crew, log: log, space: freeSpace, pause: refillPause}
}

// prepare makes the file if it does not exist. If there is no room, it is made later.
func (b *ballast) prepare() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.make(); err != nil {
		b.log.Warn("the disk is nearly full: no room is set aside for Raft's term and vote",
			"path", b.path, "size", b.size, "error", err)
		b.refillLater()
	}
}

var errScarce = errors.New("too little room")

// make makes the file, with disk blocks of its own. mu must be held.
func (b *ballast) make() error {
	if b.size == 0 {
		err := os.Remove(b.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if info, err := os.Stat(b.path); err == nil && info.Size() == b.size {
		b.made.Store(true)
		return nil
	}
	if free, ok := b.space(filepath.Dir(b.path)); ok && free/scarce < b.size {
		return errScarce
	}
	if err := b.fill(); err != nil {
		return errors.Join(err, os.Remove(b.path))
	}
	b.made.Store(true)
	return nil
}

// fill writes random bytes to the file: some file systems store zeros or repeated data without using up space.
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

// free deletes the ballast, and reports whether that made room.
func (b *ballast) free() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.made.Load() {
		return false
	}
	b.made.Store(false)
	err := errors.Join(os.Remove(b.path), syncDir(filepath.Dir(b.path)))
	b.log.Warn("the room set aside is given up, so that Raft's term and vote can be saved",
		"path", b.path, "size", b.size, "error", err)
	b.refillLater()
	return err == nil
}

// refillLater starts trying to make the file again. mu must be held.
func (b *ballast) refillLater() {
	if b.refilling {
		return
	}
	b.refilling = b.crew.start(func() {
		for b.crew.rest(b.pause) {
			if b.refill() {
				return
			}
		}
	})
}

func (b *ballast) refill() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.make(); err != nil {
		return false
	}
	b.refilling = false
	b.log.Info("room is set aside again for Raft's term and vote", "path", b.path, "size", b.size)
	return true
}
