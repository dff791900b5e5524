package persist

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

const (
	probeFile = "probe"
	probeSize = 4096 // one page
	minFree   = 1 << 20
	// spareRoom must be free on the disk for files that a node can do without.
	spareRoom = 16 << 20
)

// HasSpareRoom reports whether the disk of a directory has room for files that
// a node can do without. If the free space is unknown, it returns true.
func HasSpareRoom(dir string) bool {
	free, known := FreeSpace(dir)
	return !known || free >= spareRoom
}

// errFull: there may be too little room for an entry of Raft's log.
var errFull = fmt.Errorf("less than %d bytes are free on the disk", minFree)

// probe checks, while nothing else is written, whether the disk responds and has room.
type probe struct {
	path    string
	write   func() error // returns when the page is on disk
	close   func() error
	timeout time.Duration
	workers *workers
	log     *slog.Logger
	health  health
	busy    chan struct{} // capacity 1: full while a write is in progress
}

func openProbe(path string, timeout time.Duration, workers *workers, log *slog.Logger) (*probe, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the disk probe file: %w", err)
	}

	page := make([]byte, probeSize)
	write := func() error {
		if free, ok := FreeSpace(filepath.Dir(path)); ok && free < minFree {
			return errFull // the page itself needs no more room, so the write would succeed
		}
		_, err := f.WriteAt(page, 0)
		return errors.Join(err, syncData(f))
	}

	return &probe{
		path: path, write: write, close: f.Close, timeout: timeout, workers: workers, log: log,
		busy: make(chan struct{}, 1),
	}, nil
}

// check writes the file's only page and waits until the page is on disk. It
// fails if that takes longer than the timeout. Later calls then fail at once,
// until the write has returned.
func (p *probe) check() error {
	select {
	case p.busy <- struct{}{}:
	default:
		return errHung
	}

	result := make(chan error, 1)
	write := func() {
		p.health.begin()
		err := p.write()
		isFirst := p.health.end(err)
		if isFirst {
			p.log.Error("can't write to the disk", "path", p.path, "error", err)
		} else if err == nil && p.health.succeed() {
			p.log.Info("can write to the disk again", "path", p.path)
		}

		// busy is emptied before the result is sent: the caller may check again as soon
		// as it has the result.
		<-p.busy
		result <- err
	}

	started := p.workers.Go(write)
	if !started {
		<-p.busy
		return ErrClosed
	}

	select {
	case err := <-result:
		return err
	case <-time.After(p.timeout):
		p.log.Error("the disk hangs", "path", p.path, "after", p.timeout)
		return errHung
	}
}
