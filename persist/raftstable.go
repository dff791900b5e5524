package persist

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"
	berrors "go.etcd.io/bbolt/errors"
)

// stable stores Raft's term and vote. If a term can't be saved, Raft ends the process. So a write does not fail because the
// disk is full: it gives up the ballast, then waits for room. Meanwhile the node takes no part in Raft and is cut off. A
// write waits for a hung disk as well: without the term on disk this node could do nothing anyway.
type stable struct {
	inner   raft.StableStore
	path    string
	timeout time.Duration
	ballast *ballast
	crew    *crew
	log     *slog.Logger
	written func() // called after each write
	health  health

	// parked blocks the writes that are waiting for room when the store closes: an error would make Raft end the process in
	// the middle of its shutdown. Only tests close it.
	parked chan struct{}
}

// Set saves a value. It returns nil once the value is on disk, ErrCorrupt, or ErrClosed if the store was closed before.
func (s *stable) Set(key, value []byte) error {
	return s.write(func() error { return s.inner.Set(key, value) })
}

// SetUint64 saves a number, like Set.
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

// GetUint64 returns a number, like Get.
func (s *stable) GetUint64(key []byte) (n uint64, err error) {
	err = guard(func() (err error) {
		n, err = s.inner.GetUint64(key)
		return err
	})
	return n, err
}
