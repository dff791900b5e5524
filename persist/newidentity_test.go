package persist

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// RenewIdentity gives a data directory another identity, once until that one is
// refused, and sets aside what belonged to the old one. Bills, addresses and
// other people's files stay. It does nothing to a directory that is in use, or
// new.
func TestRejoin(t *testing.T) {
	dir := t.TempDir()
	rejoin := func(what string, acts bool) (id ring.NodeID) {
		t.Helper()
		aside, err := RenewIdentity(dir)
		if err != nil || (aside != "") != acts {
			t.Fatalf("%s: got %q, %v", what, aside, err)
		}
		if id, err = OpenDir(dir); err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := rejoin("a new directory", false)
	kept := []string{"usage.db", "usage.db.corrupt-1", "peers", "peers-wan", "tokens.yaml"}
	moved := []string{"counters.db", "counters.db.corrupt-1", "fallback.db", "debts", "applied"}
	for _, name := range append(append([]string{}, kept...), moved...) {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
	config := DefaultRaftConfig()
	config.Dir = dir
	store, err := OpenRaft(config)
	expect.NoError(t, err)
	if _, err := RenewIdentity(dir); !errors.Is(err, ErrInUse) {
		t.Errorf("a directory in use: got %v", err)
	}
	expect.NoError(t, store.Close())

	second := rejoin("the first time", true)
	if second == first {
		t.Error("the identity is the old one")
	}
	folders, _ := filepath.Glob(filepath.Join(dir, "before-rejoin-*"))
	if len(folders) != 1 {
		t.Fatalf("got folders %v", folders)
	}
	for _, name := range kept {
		if !exists(filepath.Join(dir, name)) {
			t.Errorf("%s is gone", name)
		}
	}
	for _, name := range append(moved, "raft.db", "snapshots", "node.json") {
		if !exists(filepath.Join(folders[0], name)) || name != "node.json" && exists(filepath.Join(dir, name)) {
			t.Errorf("%s is not set aside", name)
		}
	}
	if old, err := OpenDir(folders[0]); err != nil || old != first {
		t.Errorf("the old identity: got %v, %v; want %v", old, err, first)
	}

	expect.Equal(t, rejoin("a second time", false), second, "a second time")
	expect.NoError(t, MarkDeparted(dir))
	time.Sleep(2 * time.Millisecond) // the folder's name has milliseconds
	if third := rejoin("after a refusal", true); third == second {
		t.Error("after a refusal: the identity is the same")
	}
	rejoin("once more", false)
}
