package persist

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/rlnode/rlnode/ring"
)

const (
	promiseFile    = "promise.json"
	promiseVersion = 1
	maxPromise     = 64 << 10 // bytes of promise.json
	maxPromised    = 1024     // nodes in a promise
)

// Promise is what this node has promised before there was a cluster: to be begun with by this proposer, with this
// set, and by nobody else.
type Promise struct {
	Proposer ring.NodeID   `json:"proposer"`
	Set      []ring.NodeID `json:"set"` // at most 1,024
	Attempt  uint64        `json:"attempt"`
}

// storedPromise is promise.json.
type storedPromise struct {
	Version int             `json:"version"`
	Promise json.RawMessage `json:"promise"`
	Sum     uint32          `json:"sum"` // CRC-32C of Promise
}

// promises keeps a promise in a file that is replaced whole.
type promises struct {
	path string
	mu   sync.Mutex // guards the file
}

// Promise returns the promise that was made, and whether there is one. The error wraps ErrCorrupt if it is damaged.
func (r *Raft) Promise() (Promise, bool, error) {
	r.promises.mu.Lock()
	defer r.promises.mu.Unlock()
	return r.promises.read()
}

// SetPromise makes a promise in place of the one before. It is on disk when SetPromise returns; after an error it is
// not known which of the two is. When the disk hangs, so does SetPromise.
func (r *Raft) SetPromise(p Promise) error {
	r.promises.mu.Lock()
	defer r.promises.mu.Unlock()
	if err := r.usable(); err != nil {
		return err
	}
	if err := r.promises.write(p); err != nil {
		return fmt.Errorf("write promise: %w", err)
	}
	return nil
}

// ClearPromise forgets the promise. That is on disk when it returns.
func (r *Raft) ClearPromise() error {
	r.promises.mu.Lock()
	defer r.promises.mu.Unlock()
	if err := r.usable(); err != nil {
		return err
	}
	if err := os.Remove(r.promises.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove promise: %w", err)
	}
	if err := syncDir(filepath.Dir(r.promises.path)); err != nil {
		return fmt.Errorf("remove promise: %w", err)
	}
	return nil
}

// usable: the lock on the data directory is held.
func (r *Raft) usable() error {
	select {
	case <-r.crew.ending:
		return ErrClosed
	default:
		return nil
	}
}

func (s *promises) write(p Promise) (err error) {
	if len(p.Set) > maxPromised {
		return fmt.Errorf("%d nodes, more than %d", len(p.Set), maxPromised)
	}
	inner, err := json.Marshal(p)
	if err != nil {
		return err
	}
	whole, err := json.Marshal(storedPromise{
		Version: promiseVersion, Promise: inner, Sum: crc32.Checksum(inner, castagnoli),
	})
	if err != nil {
		return err
	}
	temp := s.path + ".new"
	if err := os.WriteFile(temp, append(whole, '\n'), 0o600); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	if err := syncFile(temp); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	if err := os.Rename(temp, s.path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(s.path))
}

func (s *promises) read() (Promise, bool, error) {
	var p Promise
	info, err := os.Stat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, false, nil
	}
	if err != nil {
		return p, false, fmt.Errorf("read promise: %w", err)
	}
	damaged := func(what any) error {
		return fmt.Errorf("%w: %s: %v; restore it from a backup, or remove it if this node is part of no cluster yet",
			ErrCorrupt, s.path, what)
	}
	if !info.Mode().IsRegular() || info.Size() > maxPromise {
		return p, false, damaged(fmt.Sprintf("not a file of at most %d bytes", maxPromise))
	}
	whole, err := os.ReadFile(s.path)
	if err != nil {
		return p, false, fmt.Errorf("read promise: %w", err)
	}
	var stored storedPromise
	switch err := json.Unmarshal(whole, &stored); {
	case err != nil:
		return p, false, damaged(err)
	case stored.Version != promiseVersion:
		return p, false, damaged(fmt.Sprintf("version is %d, not %d", stored.Version, promiseVersion))
	case stored.Sum != crc32.Checksum(stored.Promise, castagnoli):
		return p, false, damaged(errSeal)
	}
	if err := json.Unmarshal(stored.Promise, &p); err != nil {
		return Promise{}, false, damaged(err)
	}
	return p, true, nil
}
