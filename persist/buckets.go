package persist

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/internal/wire"
)

// Buckets is a file of named buckets of keys and values, each value with a
// checksum. The first Update creates the file. A damaged file is set aside and
// replaced by a new one. As long as the file can't be opened, every Update and
// View tries again. All methods may be called concurrently.
type Buckets struct {
	path    string
	log     *slog.Logger
	current atomic.Pointer[file] // nil if the file does not exist yet or can't be opened
	lost    atomic.Int64

	writing sync.Mutex // serialises Update and Close; held during disk I/O
	opening sync.Mutex // guards closed and the replacement of current; acquired after writing
	closed  bool
}

// OpenBuckets opens the named file in a data directory, if it exists. An error
// only says why the file can't be opened now: the Buckets can be used
// nevertheless.
func OpenBuckets(dir, name string, log *slog.Logger) (*Buckets, error) {
	b := &Buckets{path: filepath.Join(dir, name), log: log}
	_, err := b.open(false)
	return b, err
}

// open returns the file, or nil if it does not exist and create is false.
func (b *Buckets) open(create bool) (*file, error) {
	if f := b.current.Load(); f != nil {
		return f, nil
	}

	b.opening.Lock()
	defer b.opening.Unlock()
	if f := b.current.Load(); f != nil {
		return f, nil
	}

	if b.closed {
		return nil, ErrClosed
	}

	if _, err := os.Stat(b.path); errors.Is(err, fs.ErrNotExist) && !create {
		return nil, nil
	}

	f, err := openFile(b.path, bolt.Options{}, anyMeta)
	if isDamaged(err) {
		err = b.setAside(err)
		if err == nil {
			f, err = openFile(b.path, bolt.Options{}, anyMeta)
		}
	}

	if err != nil {
		return nil, fmt.Errorf("open %s: %w", b.path, err)
	}

	b.current.Store(f)
	return f, nil
}

// setAside renames the damaged file. The caller must hold b.opening.
func (b *Buckets) setAside(cause error) error {
	aside, err := setAside(b.path, "corrupt", time.Now(), b.log)
	if err != nil {
		return err
	}
	b.lost.Add(1)
	b.log.Error("damaged file was set aside; a new one begins", "path", b.path, "aside", aside, "error", cause)
	return nil
}

// abandonIfDamaged abandons the file and sets it aside if err, with which a
// transaction failed, says that the file is damaged. It returns err, joined
// with any further error.
func (b *Buckets) abandonIfDamaged(file *file, err error) error {
	if !isDamaged(err) {
		return err
	}

	b.opening.Lock()
	defer b.opening.Unlock()
	if !b.current.CompareAndSwap(file, nil) {
		return err // another call has abandoned the file
	}
	file.abandon()
	return errors.Join(err, b.setAside(err))
}

// Update runs change in one transaction. If change fails, nothing is written.
// Once Update has returned nil, the transaction is on disk. The Tx is valid
// until change returns.
func (b *Buckets) Update(change func(tx Tx) error) error {
	b.writing.Lock()
	defer b.writing.Unlock()

	file, err := b.open(true)
	if err != nil {
		return err
	}

	err = file.update(func(tx *bolt.Tx) error { return change(Tx{tx}) })
	if err == nil {
		// forgetPages needs a map that does not move. Only a write transaction moves
		// it, and none can begin before Update returns.
		file.forgetPages()
	}
	return b.abandonIfDamaged(file, err)
}

// View runs read in one transaction; it does nothing if the file does not
// exist. The Tx and the values that it returns are valid until read returns.
func (b *Buckets) View(read func(tx Tx) error) error {
	file, err := b.open(false)
	if err != nil || file == nil {
		return err
	}
	return b.abandonIfDamaged(file, file.view(func(tx *bolt.Tx) error { return read(Tx{tx}) }))
}

// Lost returns how many damaged files were set aside since the process began.
// When the number grows, everything written before is lost.
func (b *Buckets) Lost() int64 { return b.lost.Load() }

// HasNoFile reports whether there is no open file to write to.
func (b *Buckets) HasNoFile() bool { return b.current.Load() == nil }

// WasSetAside reports whether any damaged file still exists that this or an earlier process set aside.
func (b *Buckets) WasSetAside() bool {
	list, err := filepath.Glob(globEscape(b.path) + ".corrupt-*")
	return err == nil && len(list) > 0
}

// Close closes the file.
func (b *Buckets) Close() error {
	b.writing.Lock()
	defer b.writing.Unlock()
	b.opening.Lock()
	defer b.opening.Unlock()

	b.closed = true
	f := b.current.Swap(nil)
	if f == nil {
		return nil
	}
	return f.close()
}

// Tx is a transaction of Buckets.
type Tx struct{ tx *bolt.Tx }

// Names returns the names of all buckets, in order.
func (t Tx) Names() (names []string, err error) {
	err = t.tx.ForEach(func(name []byte, _ *bolt.Bucket) error {
		names = append(names, string(name))
		return nil
	})
	return names, err
}

// Put writes a value into a bucket. It creates the bucket if necessary.
func (t Tx) Put(bucket string, key, value []byte) error {
	b := t.tx.Bucket([]byte(bucket))
	if b == nil {
		var err error
		b, err = t.tx.CreateBucket([]byte(bucket))
		if err != nil {
			return err
		}
	}

	// The value is copied, because appending to it might overwrite the caller's
	// memory behind it.
	return b.Put(key, binary.LittleEndian.AppendUint32(slices.Clone(value), wire.Sum(0, []byte(bucket), key, value)))
}

// Get returns a value, or nil if there is none. The error is ErrCorrupt,
// without the path, if the value is damaged. The value must not be changed.
func (t Tx) Get(bucket string, key []byte) ([]byte, error) {
	b := t.tx.Bucket([]byte(bucket))
	if b == nil {
		return nil, nil
	}
	return stripSum(bucket, key, b.Get(key))
}

// Scan calls visit, in key order, for the values of a bucket whose keys begin
// with prefix. value is nil if it is damaged.
func (t Tx) Scan(bucket string, prefix []byte, visit func(key, value []byte) error) error {
	b := t.tx.Bucket([]byte(bucket))
	if b == nil {
		return nil
	}

	c := b.Cursor()
	for key, stored := c.Seek(prefix); key != nil && bytes.HasPrefix(key, prefix); key, stored = c.Next() {
		value, err := stripSum(bucket, key, stored)
		if err != nil {
			value = nil
		}

		if err := visit(key, value); err != nil {
			return err
		}
	}
	return nil
}

// Drop removes a bucket, if it exists.
func (t Tx) Drop(bucket string) error {
	if t.tx.Bucket([]byte(bucket)) == nil {
		return nil
	}
	return t.tx.DeleteBucket([]byte(bucket))
}

// stripSum returns a value without its checksum. The checksum covers bucket and
// key too, so a value under the wrong key counts as damaged.
func stripSum(bucket string, key, stored []byte) ([]byte, error) {
	if stored == nil {
		return nil, nil
	}
	end := len(stored) - crc32.Size
	if end < 0 || binary.LittleEndian.Uint32(stored[end:]) != wire.Sum(0, []byte(bucket), key, stored[:end]) {
		return nil, ErrCorrupt
	}
	return stored[:end:end], nil
}
