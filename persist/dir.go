package persist

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// Errors of a data directory.
var (
	// ErrInUse means that another process is using the data directory.
	ErrInUse = errors.New("the data directory is used by another process")
	// ErrCorrupt means that a file or a value in it is damaged. A node that needs
	// the file must not start. It can do without a SmallFile or Buckets.
	ErrCorrupt = errors.New("the file is damaged")
)

const (
	lockTimeout = 2 * time.Second       // how long to wait for another process to release a file
	lockRetry   = 50 * time.Millisecond // between attempts

	identityFile    = "node.json"
	identityVersion = 1
	maxIdentity     = 4096 // bytes of node.json
)

// identity is the content of node.json.
type identity struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	// Rejoined means that RenewIdentity made the identity in place of another.
	Rejoined bool `json:"rejoined,omitempty"`
}

// HasIdentity reports whether a node has used the data directory before.
func HasIdentity(path string) bool {
	_, err := os.Stat(filepath.Join(path, identityFile))
	return err == nil
}

// OpenDir creates the data directory if it is missing, accessible to its owner
// only. It returns the node identity stored there, or creates one. The error
// wraps ErrCorrupt if the identity is damaged. OpenDir takes no lock.
func OpenDir(path string) (ring.NodeID, error) {
	var none ring.NodeID
	if path == "" {
		return none, errors.New("no data directory given")
	}
	if err := makeDir(path); err != nil {
		return none, fmt.Errorf("make data directory: %w", err)
	}

	file := filepath.Join(path, identityFile)
	id, err := readIdentity(file)
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}

	if err := createIdentity(file); err != nil {
		return none, fmt.Errorf("create node identity: %w", err)
	}

	// The identity is read back, because another process may have created it first.
	return readIdentity(file)
}

// makeDir creates path and its parents, and syncs so that path survives a power failure.
func makeDir(path string) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return &fs.PathError{Op: "mkdir", Path: path, Err: errors.New("not a directory")}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}

	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	return syncDir(filepath.Dir(filepath.Clean(path)))
}

func readIdentity(file string) (ring.NodeID, error) {
	var id ring.NodeID
	info, err := os.Stat(file)
	if err != nil {
		return id, fmt.Errorf("read node identity: %w", err)
	}

	damaged := func(what string) error {
		return fmt.Errorf("%w: %s: %s; restore it from a backup, or remove it to make this a new node",
			ErrCorrupt, file, what)
	}

	if !info.Mode().IsRegular() || info.Size() > maxIdentity {
		return id, damaged(fmt.Sprintf("not a file of at most %d bytes", maxIdentity))
	}

	text, err := os.ReadFile(file)
	if err != nil {
		return id, fmt.Errorf("read node identity: %w", err)
	}

	var have identity
	if err := json.Unmarshal(text, &have); err != nil {
		return id, damaged(err.Error())
	}

	if have.Version != identityVersion {
		return id, damaged(fmt.Sprintf("version is %d, not %d", have.Version, identityVersion))
	}

	id, err = ring.ParseNodeID(have.ID)
	if err != nil || id.IsZero() {
		return ring.NodeID{}, damaged("id is not 32 hexadecimal digits")
	}
	return id, nil
}

func createIdentity(file string) error {
	return createOnce(file, func(temp string) error { return os.WriteFile(temp, newIdentity(false), 0o600) })
}

// createOnce creates file atomically, with the content that write puts into a
// temporary file beside it. If another process creates file meanwhile, that
// file stays, and createOnce returns no error.
func createOnce(file string, write func(temp string) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".new-*")
	if err != nil {
		return err
	}

	temp := f.Name()
	defer func() { err = errors.Join(err, os.Remove(temp)) }()
	if err := f.Close(); err != nil {
		return err
	}

	if err := write(temp); err != nil {
		return err
	}

	// The file is synced before it gets its name. Otherwise, a power failure could
	// leave an empty file under that name.
	if err := syncFile(temp); err != nil {
		return err
	}

	// Unlike a rename, a link never replaces an existing file.
	if err := os.Link(temp, file); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(file))
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
