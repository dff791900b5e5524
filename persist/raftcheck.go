package persist

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"unicode/utf8"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

const (
	maxSnapshotMeta = 16 << 20 // bytes of a snapshot's meta.json
	temporarySuffix = ".tmp"   // of a snapshot's directory while it is being written; the library's suffix
)

var (
	// logsBucket and confBucket are raft-boltdb's.
	logsBucket = []byte("logs")
	confBucket = []byte("conf")

	// termKey is the key under which Raft saves its term.
	termKey = []byte("CurrentTerm")

	// formatKey is in every raft.db that rlnode creates; its value names the file's format.
	formatKey   = []byte("rlnode format")
	formatValue = []byte("1")
)

// create creates Raft's state if there is none. raft.db appears complete or not
// at all, so an empty or truncated file is always damaged. If there are
// snapshots but no file, the file was lost.
func (r *RaftStore) create() error {
	_, err := os.Stat(r.path)
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("open %s: %w", r.path, err)
	}

	// With a new file, Raft would begin a new log behind old snapshots, and the
	// node could vote twice in a term.
	names, err := snapshotNames(r.config.Dir)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		return corruptError(r.path, errors.New("the file is gone, but there are snapshots"))
	}

	err = createOnce(r.path, func(temp string) error {
		store, err := raftboltdb.New(raftboltdb.Options{Path: temp, BoltOptions: &bolt.Options{Timeout: lockTimeout}})
		if err != nil {
			return err
		}
		return errors.Join(checkedStable{store}.Set(formatKey, formatValue), store.Close())
	})
	if err != nil {
		return fmt.Errorf("create %s: %w", r.path, err)
	}
	return nil
}

// open verifies the file and opens it. It checks the buckets first, because
// raft-boltdb silently creates a missing one.
func (r *RaftStore) open() error {
	f, err := openFile(r.path, *r.boltOptions(), bothMetas)
	if err != nil {
		return r.wrapOpenError(err)
	}

	err = f.view(checkBuckets)
	if errors.Is(err, errEngineFailed) {
		f.abandon()
	} else {
		err = errors.Join(err, f.close())
	}
	if err != nil {
		return r.wrapOpenError(err)
	}

	opts := r.boltOptions()
	opts.OpenFile = func(name string, flag int, mode os.FileMode) (_ *os.File, err error) {
		r.handle, err = os.OpenFile(name, flag, mode)
		return r.handle, err
	}

	err = guard(func() (err error) {
		r.store, err = raftboltdb.New(raftboltdb.Options{Path: r.path, BoltOptions: opts})
		return err
	})

	if err != nil && r.handle != nil {
		// After a panic the file is still open. Closing it twice is harmless.
		_ = r.handle.Close()
	}

	if errors.Is(err, berrors.ErrTimeout) {
		err = ErrInUse
	}
	return r.wrapOpenError(err)
}

func (r *RaftStore) wrapOpenError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrInUse):
		return fmt.Errorf("%w: %s", ErrInUse, r.config.Dir)
	case isDamaged(err):
		return corruptError(r.path, err)
	}
	return fmt.Errorf("open %s: %w", r.path, err)
}

func corruptError(path string, cause error) error {
	return fmt.Errorf("%w: %s: %w; restore the data directory from a backup, "+
		"or, if the other nodes have a majority, remove this node from the cluster and let it join with an empty one",
		ErrCorrupt, path, cause)
}

// checkBuckets checks that the file holds what raft-boltdb needs and nothing
// else. It checks the checksums of the values in the conf bucket, and the
// length of the log's keys.
func checkBuckets(tx *bolt.Tx) error {
	buckets := 0
	err := tx.ForEach(func([]byte, *bolt.Bucket) error {
		buckets++
		return nil
	})
	if err != nil {
		return err
	}

	logs, conf := tx.Bucket(logsBucket), tx.Bucket(confBucket)
	if buckets != 2 || logs == nil || conf == nil {
		return contentError("not the buckets of a Raft log")
	}

	err = conf.ForEach(func(key, stored []byte) error {
		_, err := verifyChecksum(key, stored)
		return err
	})
	if err != nil {
		return err
	}

	format, err := verifyChecksum(formatKey, conf.Get(formatKey))
	if err != nil || string(format) != string(formatValue) {
		return contentError("format is not %s", formatValue)
	}

	return logs.ForEach(func(key, value []byte) error {
		if len(key) != 8 || value == nil {
			return contentError("a key of %d bytes in the log", len(key))
		}
		return nil
	})
}

// checkContent checks the newest snapshot and the log, and that no entry
// between the two is missing. It also removes what a crash left behind. The
// caller must hold the directory's lock.
func (r *RaftStore) checkContent() error {
	r.removeLeftovers()

	at, err := r.newestSnapshot()
	if err != nil {
		return err
	}

	err = guard(func() error { return r.checkEntries(at) })
	if isDamaged(err) {
		return corruptError(r.path, err)
	}
	return err
}

// checkEntries reads the whole log. at is the newest snapshot's position. Every
// entry after that position must be there, and terms must never decrease.
// Before it there may be gaps: when the leader sends a snapshot, Raft jumps
// ahead.
func (r *RaftStore) checkEntries(at snapshotPosition) error {
	logs := checkedLogs{r.store}
	first, err := logs.FirstIndex()
	if err != nil {
		return err
	}

	last, err := logs.LastIndex()
	if err != nil {
		return err
	}

	if last == 0 {
		return r.checkTerm(at.term)
	}

	if first > at.index+1 {
		return contentError("entries %d to %d are missing", at.index+1, first-1)
	}

	term := uint64(0)
	for i := first; i <= last; i++ {
		var l raft.Log
		err := logs.GetLog(i, &l)
		if errors.Is(err, raft.ErrLogNotFound) && i <= at.index {
			i = at.index
			continue
		}

		if err != nil {
			// Whatever the error, Raft can't do without the entry.
			return fmt.Errorf("%w: %w", errUnreadable, err)
		}

		if l.Term < term {
			return contentError("entry %d is of term %d, behind one of term %d", i, l.Term, term)
		}
		term = l.Term
	}
	return r.checkTerm(max(term, at.term))
}

// checkTerm checks that the saved term is at least term, that of the newest
// entry or snapshot: Raft saves the term before it stores an entry.
func (r *RaftStore) checkTerm(term uint64) error {
	have, err := checkedStable{r.store}.GetUint64(termKey)
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return err
	}
	if have < term {
		return contentError("term %d was saved, but there is an entry of term %d", have, term)
	}
	return nil
}

// removeLeftovers removes what a crash left behind: of all files in the data
// directory, since this store holds its lock.
func (r *RaftStore) removeLeftovers() {
	for _, pattern := range []string{
		filepath.Join(globEscape(r.config.Dir), "*.db.new-*"), // of createOnce
		filepath.Join(globEscape(filepath.Join(r.config.Dir, snapshotsDir)), "*"+temporarySuffix),
	} {
		left, err := filepath.Glob(pattern)
		if err != nil {
			continue
		}
		for _, name := range left {
			// A failure must not stop the node: the next start tries again.
			_ = os.RemoveAll(name)
		}
	}
}

// snapshotPosition is the log position at which a snapshot was taken; zero if there is no snapshot.
type snapshotPosition struct{ index, term uint64 }

// snapshotNames returns the names of the finished snapshots in the data directory.
func snapshotNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, snapshotsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read snapshots: %w", err)
	}

	var names []string
	for _, e := range entries {
		if _, ok := parseSnapshotName(e.Name()); ok && e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// parseSnapshotName parses "term-index-milliseconds", the library's name for a finished snapshot.
func parseSnapshotName(name string) (snapshotPosition, bool) {
	var at snapshotPosition
	var ms uint64
	n, err := fmt.Sscanf(name, "%d-%d-%d", &at.term, &at.index, &ms)
	return at, err == nil && n == 3 && fmt.Sprintf("%d-%d-%d", at.term, at.index, ms) == name
}

// newestSnapshot returns the position of the newest snapshot, which must be
// intact. The library would skip a damaged one and use an older one. But the
// log entries between the two have since been removed.
func (r *RaftStore) newestSnapshot() (snapshotPosition, error) {
	var newest snapshotPosition
	names, err := snapshotNames(r.config.Dir)
	if err != nil {
		return newest, err
	}

	name := ""
	for _, n := range names {
		at, _ := parseSnapshotName(n)
		if name == "" || at.term > newest.term || at.term == newest.term && at.index > newest.index ||
			at == newest && n > name {
			newest = at
			name = n
		}
	}

	if name == "" {
		return newest, nil
	}

	dir := filepath.Join(r.config.Dir, snapshotsDir, name)
	if err := checkSnapshot(dir, name, newest); err != nil {
		if errors.Is(err, errUnreadable) || errors.Is(err, fs.ErrNotExist) {
			return newest, corruptError(dir, err)
		}
		return newest, fmt.Errorf("check snapshot: %w", err)
	}
	return newest, nil
}

// snapshotMeta is a snapshot's meta.json.
type snapshotMeta struct {
	raft.SnapshotMeta
	CRC []byte
}

func checkSnapshot(dir, name string, at snapshotPosition) error {
	broken := func(what any) error { return fmt.Errorf("%w: %v", errUnreadable, what) }

	text, err := readBoundedFile(filepath.Join(dir, "meta.json"), maxSnapshotMeta)
	if err != nil {
		return err
	}

	var meta snapshotMeta
	if err := json.Unmarshal(text, &meta); err != nil {
		return broken(err)
	}

	if meta.ID != name || meta.Index != at.index || meta.Term != at.term || !utf8.Valid(text) ||
		meta.Version < raft.SnapshotVersionMin || meta.Version > raft.SnapshotVersionMax {
		return broken("meta.json does not match the snapshot")
	}

	f, err := os.Open(filepath.Join(dir, "state.bin"))
	if err != nil {
		return err
	}
	defer f.Close()

	sum := crc64.New(crc64.MakeTable(crc64.ECMA))
	n, err := io.Copy(sum, f)
	if err != nil {
		return err
	}

	if n != meta.Size || string(sum.Sum(nil)) != string(meta.CRC) {
		return broken("state.bin does not match meta.json")
	}
	return nil
}

// readBoundedFile reads a file of at most bound bytes.
func readBoundedFile(path string, bound int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > bound {
		return nil, fmt.Errorf("%w: %s is not a file of at most %d bytes", errUnreadable, path, bound)
	}
	return os.ReadFile(path)
}
