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

// Buckets is a file of named buckets of keys and values, each value with a checksum. It is made by the first Update. A damaged
// file is set aside and a new one begins; a file that can't be opened is tried again by each Update and each View. All methods
// may be called concurrently.
type Buckets struct {
	path string
	log  *slog.Logger
	now  atomic.Pointer[file] // nil: there is none yet, or it can't be opened
	lost atomic.Int64

	writing sync.Mutex // serialises Update and Close; held while the disk is waited for
	opening sync.Mutex // guards opening and giving up, and closed; taken after writing
	closed  bool
}

// OpenBuckets opens the file of that name in a data directory, if there is one. The error says why it can't be opened now; the
// Buckets can be used all the same.
func OpenBuckets(dir, name string, log *slog.Logger) (*Buckets, error) {
	b := &Buckets{path: filepath.Join(dir, name), log: log}
	_, err := b.open(false)
	return b, err
}

// open is the file; nil if there is none and it is not to be made.
func (b *Buckets) open(create bool) (*file, error) {
	if f := b.now.Load(); f != nil {
		return f, nil
	}
	b.opening.Lock()
	defer b.opening.Unlock()
	if f := b.now.Load(); f != nil {
		return f, nil
	}
	if b.closed {
		return nil, ErrClosed
	}
	if _, err := os.Stat(b.path); errors.Is(err, fs.ErrNotExist) && !create {
		return nil, nil
	}
	f, err := openFile(b.path, bolt.Options{}, anyMeta)
	if damaged(err) {
		if err = b.setAside(err); err == nil {
			f, err = openFile(b.path, bolt.Options{}, anyMeta)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", b.path, err)
	}
	b.now.Store(f)
	return f, nil
}

// setAside renames the file, which is damaged. b.opening is held.
func (b *Buckets) setAside(cause error) error {
	aside, err := setAside(b.path, "corrupt", time.Now(), b.log)
	if err != nil {
		return err
	}
	b.lost.Add(1)
	b.log.Error("a file is damaged and was set aside; a new one begins", "path", b.path, "aside", aside, "error", cause)
	return nil
}

// checked gives the file up if err says that it is damaged.
func (b *Buckets) checked(file *file, err error) error {
	if !damaged(err) {
		return err
	}
	b.opening.Lock()
	defer b.opening.Unlock()
	if b.now.CompareAndSwap(file, nil) { // else another call has given it up
		file.abandon()
		err = errors.Join(err, b.setAside(err))
	}
	return err
}

// Update runs change in one transaction, which is on the disk when it returns nil.
func (b *Buckets) Update(change func(tx Tx) error) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	file, err := b.open(true)
	if err != nil {
		return err
	}
	err = file.update(func(tx *bolt.Tx) error { return change(Tx{tx}) })
	if err == nil {
		// Only a transaction that writes moves the map, and none can begin before this returns.
		file.forgetPages()
	}
	return b.checked(file, err)
}

// View runs read in one transaction, unless there is no file. Values hold until it returns.
func (b *Buckets) View(read func(tx Tx) error) error {
	file, err := b.open(false)
	if err != nil || file == nil {
		return err
	}
	return b.checked(file, file.view(func(tx *bolt.Tx) error { return read(Tx{tx}) }))
}

// Lost is how many damaged files were set aside since the process began. When it has grown, what was written is gone.
func (b *Buckets) Lost() int64 { return b.lost.Load() }

// Missing reports whether there is no file that could be written to.
func (b *Buckets) Missing() bool { return b.now.Load() == nil }

// SetAside reports whether damaged files were set aside, by whatever process, and are there still.
func (b *Buckets) SetAside() bool {
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
	if f := b.now.Swap(nil); f != nil {
		return f.close()
	}
	return nil
}

// Tx is a transaction of Buckets.
type Tx struct{ tx *bolt.Tx }

// Names are the names of all buckets, in order.
func (t Tx) Names() (names []string, err error) {
	err = t.tx.ForEach(func(name []byte, _ *bolt.Bucket) error {
		names = append(names, string(name))
		return nil
	})
	return names, err
}

// Put writes a value into a bucket, which is made if missing.
func (t Tx) Put(bucket string, key, value []byte) error {
	b := t.tx.Bucket([]byte(bucket))
	if b == nil {
		var err error
		if b, err = t.tx.CreateBucket([]byte(bucket)); err != nil {
			return err
		}
	}
	return b.Put(key, binary.LittleEndian.AppendUint32(slices.Clone(value), wire.Sum(0, []byte(bucket), key, value)))
}

// Get is a value; nil: there is none. The error is ErrCorrupt.
func (t Tx) Get(bucket string, key []byte) ([]byte, error) {
	b := t.tx.Bucket([]byte(bucket))
	if b == nil {
		return nil, nil
	}
	return unsealed(bucket, key, b.Get(key))
}

// Scan visits the values of a bucket whose keys begin with prefix, in order. value is nil for a damaged one.
func (t Tx) Scan(bucket string, prefix []byte, visit func(key, value []byte) error) error {
	b := t.tx.Bucket([]byte(bucket))
	if b == nil {
		return nil
	}
	c := b.Cursor()
	for key, sealed := c.Seek(prefix); key != nil && bytes.HasPrefix(key, prefix); key, sealed = c.Next() {
		value, err := unsealed(bucket, key, sealed)
		if err != nil {
			value = nil
		}
		if err := visit(key, value); err != nil {
			return err
		}
	}
	return nil
}

// Drop removes a bucket, if it is there.
func (t Tx) Drop(bucket string) error {
	if t.tx.Bucket([]byte(bucket)) == nil {
		return nil
	}
	return t.tx.DeleteBucket([]byte(bucket))
}

// unsealed is a value without its checksum, which is of bucket and key, too: a value under another key is damage.
func unsealed(bucket string, key, sealed []byte) ([]byte, error) {
	if sealed == nil {
		return nil, nil
	}
	end := len(sealed) - crc32.Size
	if end < 0 || binary.LittleEndian.Uint32(sealed[end:]) != wire.Sum(0, []byte(bucket), key, sealed[:end]) {
		return nil, ErrCorrupt
	}
	return sealed[:end:end], nil
}
