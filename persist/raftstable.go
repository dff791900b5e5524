package persist

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"
	berrors "go.etcd.io/bbolt/errors"
)

// stable keeps Raft's term and vote. Raft takes a term that can't be saved as a reason to end the process, so a write
// does not fail because the disk is full: it gives up the ballast, then waits for room. The node takes no part in Raft
// meanwhile, and is cut off. Behind a disk that hangs a write waits as well: without the term on disk there is nothing
// that this node could do.
type stable struct {
	inner   raft.StableStore
	path    string
	timeout time.Duration
	ballast *ballast
	crew    *crew
	log     *slog.Logger
	written func() // called after each write
	health  health

	// parked is where writes stay that wait for room when the store is closed: an error would make Raft end the
	// process in the middle of its shutdown. Closed by tests only.
	parked chan struct{}
}

// Set saves a value. It returns when the value is on disk, or ErrCorrupt, or ErrClosed if the store was closed before.
func (s *stable) Set(key, value []byte) error {
	return s.write(func() error { return s.inner.Set(key, value) })
}

// SetUint64 saves a number, as Set does.
func (s *stable) SetUint64(key []byte, n uint64) error {
	return s.write(func() error { return s.inner.SetUint64(key, n) })
}

func (s *stable) write(do func() error) error {
	select {
	case <-s.crew.ending:
		return ErrClosed
	default:
	}
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := s.try(do)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errBroken):
			return fmt.Errorf("%w: %s: %w", ErrCorrupt, s.path, err)
		case errors.Is(err, berrors.ErrDatabaseNotOpen):
			return ErrClosed
		case s.ballast.free():
			continue
		}
		if !s.crew.rest(pause) {
			<-s.parked
			return ErrClosed
		}
	}
}

func (s *stable) try(do func() error) error {
	s.health.begin()
	err := guard(do)
	if first := s.health.end(err); first {
		s.log.Error("Raft's term or vote can't be saved: this node waits", "path", s.path, "error", err)
	}
	if err == nil && s.health.succeed() {
		s.log.Info("Raft's term and vote are saved again", "path", s.path)
	}
	s.written()
	return err
}

// Get returns a value, or the error "not found", by which Raft knows that there is none.
func (s *stable) Get(key []byte) (value []byte, err error) {
	err = guard(func() (err error) {
		value, err = s.inner.Get(key)
		return err
	})
	return value, err
}

// GetUint64 returns a number, as Get does.
func (s *stable) GetUint64(key []byte) (n uint64, err error) {
	err = guard(func() (err error) {
		n, err = s.inner.GetUint64(key)
		return err
	})
	return n, err
}
