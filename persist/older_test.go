package persist

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/internal/expect"
)

// A file in the format before frames, with a bucket for each expiry time, does
// not stop a node. It is set aside as a whole, the log says what to do about
// it, and a new file begins.
func TestOlderCountersAreSetAside(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	path := filepath.Join(dir, countersFile)
	db, err := bolt.Open(path, 0o600, nil)
	expect.NoError(t, err)
	if err := db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucket(binary.BigEndian.AppendUint64(nil, 1_800_000_000))
		if err != nil {
			return err
		}
		return b.Put(make([]byte, 16), []byte{2, 1, 2, 3, 4, 0, 9})
	}); err != nil {
		t.Fatal(err)
	}
	expect.NoError(t, db.Close())
	before, err := os.ReadFile(path)
	expect.NoError(t, err)

	var log bytes.Buffer
	again := newTable()
	config := testConfig(dir, again, clk.Now)
	config.Logger = slog.New(slog.NewTextHandler(&log, nil))
	c, stats := openLoaded(t, config)
	if stats.Restored != 0 || stats.DamagedFrames != 0 || c.Status().SetAside != 0 ||
		!strings.Contains(log.String(), "rename the file back") {
		t.Errorf("have %+v, %d set aside, logged %s", stats, c.Status().SetAside, log.String())
	}
	aside, _ := filepath.Glob(path + ".older-*")
	if len(aside) != 1 {
		t.Fatalf("have %q", aside)
	}
	if after, err := os.ReadFile(aside[0]); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file has changed, or %v", err)
	}
	for _, r := range sample(clk.Now(), 10) {
		again.set(r)
	}
	mustCheckpoint(t, c)
	mustClose(t, c)
	c, stats = openLoaded(t, testConfig(dir, newTable(), clk.Now))
	if stats.Restored != 10 {
		t.Errorf("afterwards: have %+v", stats)
	}
	mustClose(t, c)
}
