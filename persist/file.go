package persist

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// file is an open bbolt database whose pages have been verified.
type file struct {
	db   *bolt.DB
	path string
	// handle is bbolt's file. Closing it releases the lock when bbolt can't.
	handle    *os.File
	usedBytes atomic.Int64 // bytes in use when the last write transaction began: a lower bound of those in use now
}

// openFile verifies and opens the database at path, creating it if it is
// missing. The error wraps errEngineFailed or errPages if the file is damaged,
// and is ErrInUse if another process has the file. openFile sets the options
// that all files share.
func openFile(path string, opts bolt.Options, need metaRequirement) (*file, error) {
	if err := createFile(path); err != nil {
		return nil, err
	}
	if err := verifyFile(path, need); err != nil {
		return nil, err
	}

	f := &file{path: path}
	// The free list is not stored: writing it in every transaction would cost more
	// than the walk by which bbolt rebuilds it when it opens the file.
	opts.Timeout = lockTimeout
	opts.FreelistType = bolt.FreelistMapType
	opts.NoFreelistSync = true
	opts.OpenFile = func(name string, flag int, mode os.FileMode) (*os.File, error) {
		handle, err := os.OpenFile(name, flag, mode)
		f.handle = handle
		return handle, err
	}

	err := guard(func() (err error) {
		f.db, err = bolt.Open(path, 0o600, &opts)
		if err != nil {
			return err
		}
		return f.db.View(func(tx *bolt.Tx) error {
			f.usedBytes.Store(tx.Size())
			return nil
		})
	})
	if err == nil {
		return f, nil
	}

	if f.handle != nil {
		// After a panic the file is still open. Closing it twice is harmless.
		_ = f.handle.Close()
	}

	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, ErrInUse
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrVersionMismatch),
		errors.Is(err, berrors.ErrChecksum):
		return nil, fmt.Errorf("%w: %w", errPages, err)
	}
	return nil, err
}

// createFile creates an empty database at path, unless a file is there. The
// database appears complete or not at all. Created in its place, it would look
// damaged if the process were killed before bbolt has written the first pages.
func createFile(path string) error {
	_, err := os.Stat(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return createOnce(path, func(temp string) error {
		return guard(func() error {
			db, err := bolt.Open(temp, 0o600, &bolt.Options{Timeout: lockTimeout})
			if err != nil {
				return err
			}
			return db.Close()
		})
	})
}

// verifyFile checks the pages of the file at path. It holds the lock meanwhile,
// because another process may be writing. An empty file counts as damaged.
func verifyFile(path string, need metaRequirement) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}

	defer f.Close()

	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}

	if err := lockFile(f, lockTimeout); err != nil {
		return err
	}

	// The file may have grown while this process waited for the lock.
	info, err = f.Stat()
	if err != nil {
		return err
	}
	return verifyPages(f, info.Size(), need)
}

// hasDamagedMeta reports whether a meta page is damaged. If so, the file may
// have lost its last transaction. It returns false if the file can't be read.
func (f *file) hasDamagedMeta() bool {
	info, err := f.handle.Stat()
	if err != nil {
		return false
	}
	m, err := readMeta(f.handle, info.Size())
	return err == nil && m.verifyBoth(f.handle) != nil
}

var (
	// errContent: the pages form a database, but what it holds contradicts itself,
	// or rlnode does not write such a thing.
	errContent = errors.New("inconsistent content")

	// errUnreadable: a snapshot is damaged, or an entry of Raft's log can't be
	// read.
	errUnreadable = errors.New("stored data is damaged")
)

func contentError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errContent, fmt.Sprintf(format, args...))
}

// isDamaged reports whether err says that what is stored can't be trusted.
func isDamaged(err error) bool {
	for _, damage := range []error{errPages, errEngineFailed, errContent, errChecksum, errUnreadable} {
		if errors.Is(err, damage) {
			return true
		}
	}
	return false
}

// update makes a change in one guarded transaction. It does not use bbolt's own
// Update, which rolls back after a panic: the rollback walks the damaged file
// again, in a goroutine where another panic would end the process. After a
// panic here, the transaction stays open, and the caller abandons the file.
func (f *file) update(change func(tx *bolt.Tx) error) error {
	return guard(func() error {
		if err := f.checkSize(); err != nil {
			return err
		}

		tx, err := f.db.Begin(true)
		if err != nil {
			return err
		}

		used := tx.Size()
		if err := change(tx); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if err := tx.Commit(); err != nil {
			return err
		}

		f.usedBytes.Store(used)
		return nil
	})
}

// view runs read in one guarded read transaction.
func (f *file) view(read func(tx *bolt.Tx) error) error {
	return guard(func() error {
		if err := f.checkSize(); err != nil {
			return err
		}
		return f.db.View(read)
	})
}

// diskTime returns the total time that transactions have waited for the disk.
func (f *file) diskTime() time.Duration {
	stats := f.db.Stats()
	return stats.TxStats.GetWriteTime()
}

func (f *file) close() error {
	err := guard(f.db.Close)
	if errors.Is(err, errEngineFailed) {
		f.abandon()
	}
	return err
}

// abandon gives up a database after a panic inside bbolt. bbolt's locks may be
// held forever, so abandon closes only the file handle, which releases the
// file's lock. The map stays until the process ends, but takes up only address
// space.
func (f *file) abandon() { _ = f.handle.Close() }

// checkSize returns an error if the file is shorter than what the database
// uses. Reading past the end would fault, and bbolt also reads in goroutines of
// its own, where guard can't catch a fault.
func (f *file) checkSize() error {
	info, err := f.handle.Stat()
	if err != nil {
		return err
	}

	used := f.usedBytes.Load()
	if info.Size() < used {
		return fmt.Errorf("%w: the file was truncated from %d to %d bytes", errEngineFailed, used, info.Size())
	}
	return nil
}

const maxSetAside = 3 // bounds the number of files set aside for the same reason

// setAside renames an unusable file, adding why and the time to its name, and
// removes the oldest such files beyond maxSetAside. It returns the new name.
func setAside(path, why string, now time.Time, log *slog.Logger) (string, error) {
	aside := path + "." + why + "-" + now.UTC().Format("20060102T150405.000000000Z")
	if err := os.Rename(path, aside); err != nil {
		return "", fmt.Errorf("set damaged file aside: %w", err)
	}

	if err := syncDir(filepath.Dir(path)); err != nil {
		log.Warn("can't sync directory", "error", err)
	}

	// The names sort by time.
	old, err := filepath.Glob(globEscape(path) + "." + why + "-*")
	if err != nil {
		return aside, nil
	}

	slices.Sort(old)
	for len(old) > maxSetAside {
		if err := os.Remove(old[0]); err != nil {
			log.Warn("can't remove an old file that was set aside", "error", err)
		}
		old = old[1:]
	}
	return aside, nil
}

// globEscape escapes path so that, as a pattern, it matches only itself.
func globEscape(path string) string {
	var b []byte
	for i := range len(path) {
		switch path[i] {
		case '*', '?', '[', '\\':
			b = append(b, '\\')
		}
		b = append(b, path[i])
	}
	return string(b)
}

// compact rewrites the database without its free pages and replaces the old
// file. It closes the database, even if it fails. If it fails before the final
// rename, the old file is unchanged.
func (f *file) compact(opts bolt.Options) (err error) {
	temp := f.path + ".compact"
	defer func() { err = errors.Join(err, f.close()) }()

	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	opts.NoSync = true // the file is synced once, at the end
	fresh, err := openFile(temp, opts, anyMeta)
	if err != nil {
		return err
	}

	err = guard(func() error { return bolt.Compact(fresh.db, f.db, 1<<20) })
	if err == nil {
		err = guard(fresh.db.Sync)
	}

	if errors.Is(err, errEngineFailed) {
		fresh.abandon()
	} else {
		err = errors.Join(err, fresh.close())
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}

	if err := os.Rename(temp, f.path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(f.path))
}
