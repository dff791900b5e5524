package persist

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// Counters of a version that wrote them otherwise are never taken for those of others: the file is set aside, whole,
// the log says so, and a new one begins.
func TestOlderCountersAreSetAside(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	src := newTable()
	c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
	for _, r := range sample(clk.Now(), 1000) {
		src.set(r)
	}
	mustCheckpoint(t, c)
	mustClose(t, c)
	db, err := bolt.Open(filepath.Join(dir, countersFile), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := db.Update(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bolt.Bucket) error {
			values := map[string][]byte{}
			_ = b.ForEach(func(k, v []byte) error {
				values[string(k)] = append([]byte{valueVersion - 1}, v[1:]...)
				return nil
			})
			for k, v := range values {
				n++
				if err := b.Put([]byte(k), v); err != nil {
					return err
				}
			}
			return nil
		})
	}); err != nil || n != 1000 {
		t.Fatalf("have %d, %v", n, err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	var log bytes.Buffer
	again := newTable()
	cfg := testConfig(dir, again, clk.Now)
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	c, stats := openLoaded(t, cfg)
	if stats.Restored != 0 || stats.Bad != 0 || c.Status().SetAside != 0 || !strings.Contains(log.String(), "older version") {
		t.Errorf("have %+v, %d set aside, logged %s", stats, c.Status().SetAside, log.String())
	}
	if aside, _ := filepath.Glob(filepath.Join(dir, countersFile+".older-*")); len(aside) != 1 {
		t.Errorf("have %q", aside)
	}
	for _, r := range sample(clk.Now(), 10) {
		again.set(r)
	}
	mustCheckpoint(t, c)
	mustClose(t, c)
	if c, stats = openLoaded(t, testConfig(dir, newTable(), clk.Now)); stats.Restored != 10 {
		t.Errorf("afterwards: have %+v", stats)
	}
	mustClose(t, c)
}
