package persist

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// departedFile exists if the cluster has refused the identity of the data directory.
const departedFile = "departed"

// replacedOnRejoin matches the files that RenewIdentity moves away, because
// they belong to an identity: what the cluster agreed on, and counters. Bills,
// addresses of other nodes and the history stay. The file that is locked comes
// last: until then, no other process opens the directory, and after a crash the
// node has still not forgotten what it acknowledged.
var replacedOnRejoin = []string{"snapshots", "applied", "counters.db*", "fallback.db*",
	"debts", departedFile, "raft.db*"}

// MarkDeparted records that the cluster has refused this data directory's
// identity, because the node left or was removed. The next RenewIdentity then
// replaces the identity.
func MarkDeparted(dir string) error { return NewSmallFile(dir, departedFile).WriteSynced(nil) }

// RenewIdentity gives the node of a data directory another identity, and moves
// what belonged to the old one into a folder, whose path it returns. It may be
// called at each start. It does nothing, and returns no path, if the directory
// has no identity yet, or has one that RenewIdentity made and that the cluster
// has not refused. The error wraps ErrInUse if a process uses the directory.
func RenewIdentity(dir string) (aside string, err error) {
	file := filepath.Join(dir, identityFile)
	if _, err := readIdentity(file); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return "", err
	}

	// A refused identity is replaced, even if RenewIdentity made it.
	if hasRejoined(file) && !exists(filepath.Join(dir, departedFile)) {
		return "", nil
	}

	lock, err := lockStore(dir)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()

	aside = filepath.Join(dir, "before-rejoin-"+time.Now().UTC().Format("20060102T150405.000Z"))
	if err := moveAside(dir, aside); err != nil {
		return "", fmt.Errorf("set aside what the old identity had: %w", err)
	}

	// The identity comes last. After a crash before that, the node still has the
	// old identity. The cluster refuses it again, and the next call tries again.
	if err := replaceIdentity(file, filepath.Join(aside, identityFile)); err != nil {
		return "", fmt.Errorf("take a new identity: %w", err)
	}
	return aside, nil
}

// hasRejoined reports whether RenewIdentity made the identity.
func hasRejoined(file string) bool {
	var have identity
	text, err := os.ReadFile(file)
	return err == nil && json.Unmarshal(text, &have) == nil && have.Rejoined
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// lockStore takes the lock by which a running node keeps others away from its data directory.
func lockStore(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, raftFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockFile(f, lockTimeout); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s", err, dir), f.Close())
	}
	return f, nil
}

func moveAside(dir, aside string) error {
	if err := os.Mkdir(aside, 0o700); err != nil {
		return err
	}

	for _, pattern := range replacedOnRejoin {
		found, err := filepath.Glob(filepath.Join(globEscape(dir), pattern))
		if err != nil {
			return err
		}
		for _, path := range found {
			if err := os.Rename(path, filepath.Join(aside, filepath.Base(path))); err != nil {
				return err
			}
		}
	}

	return errors.Join(syncDir(aside), syncDir(dir))
}

// replaceIdentity moves the identity to another place and puts a new one into its own.
func replaceIdentity(file, old string) error {
	// The old identity gets a second name before a rename replaces it. So the
	// directory always has an identity.
	if err := os.Link(file, old); err != nil {
		return err
	}

	temp := file + ".new"
	if err := os.WriteFile(temp, newIdentity(true), 0o600); err != nil {
		return err
	}
	if err := syncFile(temp); err != nil {
		return err
	}
	if err := os.Rename(temp, file); err != nil {
		return err
	}

	return syncDir(filepath.Dir(file))
}

// newIdentity returns the content of a new node.json.
func newIdentity(rejoined bool) []byte {
	var id ring.NodeID
	_, _ = rand.Read(id[:]) // never fails
	text, _ := json.MarshalIndent(identity{
		Version: identityVersion, ID: id.String(), Created: time.Now().UTC().Truncate(time.Second), Rejoined: rejoined,
	}, "", "  ")
	return append(text, '\n')
}
