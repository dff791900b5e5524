package persist

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
)

func TestSmallFiles(t *testing.T) {
	dir := t.TempDir()
	n := NewSmallFile(dir, "applied")
	if b, err := n.Read(); b != nil || err != nil {
		t.Errorf("no note: have %q, %v", b, err)
	}
	for i, write := range []func([]byte) error{n.Write, n.WriteSynced, n.Write} {
		want := "some text"[i:]
		expect.NoError(t, write([]byte(want)))
		if b, err := n.Read(); string(b) != want || err != nil {
			t.Errorf("have %q, %v", b, err)
		}
	}
	path := filepath.Join(dir, "applied")
	whole, err := os.ReadFile(path)
	expect.NoError(t, err)
	for i := range whole {
		bent := append([]byte(nil), whole...)
		bent[i] ^= 0x10
		for _, bad := range [][]byte{bent, whole[:i]} {
			expect.NoError(t, os.WriteFile(path, bad, 0o600))
			if b, err := n.Read(); b != nil || !errors.Is(err, ErrCorrupt) {
				t.Fatalf("byte %d: have %q, %v", i, b, err)
			}
		}
	}
}

// Two tables in one directory don't interfere: damage to one file does not affect the other.
func TestTwoCounterFiles(t *testing.T) {
	dir := t.TempDir()
	open := func(file string) (*CounterFile, *counters.Table) {
		table := counters.New(1000)
		t.Cleanup(table.Close)
		config := DefaultCounterFileConfig()
		config.Dir, config.Source, config.Now, config.File = dir, table, func() algorithms.Instant { return algorithms.At(time.Now()) }, file
		c, err := OpenCounterFile(config)
		if err == nil {
			_, err = c.Load(config.Now())
		}
		expect.NoError(t, err)
		return c, table
	}
	limit := &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 10, Window: 24 * time.Hour}
	key := counters.Key{Subject: 7, Counter: 8}
	for i, file := range []string{countersFile, FallbackFile} {
		c, table := open(file)
		table.Take(algorithms.At(time.Now()), []counters.Op{{Key: key, Limit: limit, Cost: int64(3 + i)}})
		expect.NoError(t, c.Close(t.Context()))
	}
	bad := filepath.Join(dir, FallbackFile)
	for round, want := range [][2]int64{{3, 4}, {3, 0}} {
		for i, file := range []string{countersFile, FallbackFile} {
			c, table := open(file)
			if used, _ := table.Usage(algorithms.At(time.Now()), key, limit); used != want[i] {
				t.Errorf("round %d: %s has %d, want %d", round, file, used, want[i])
			}
			expect.NoError(t, c.Close(t.Context()))
		}
		if round == 0 {
			expect.NoError(t, os.WriteFile(bad, []byte("scribbled"), 0o600))
		}
	}
	if aside, err := filepath.Glob(bad + ".corrupt-*"); len(aside) != 1 {
		t.Errorf("have %v set aside, %v", aside, err)
	}
	config := DefaultCounterFileConfig()
	config.Dir, config.Source, config.Now, config.File = dir, counters.New(1), func() algorithms.Instant { return algorithms.Instant{} }, "../x"
	if err := config.Validate(); err == nil {
		t.Error("a path was accepted as a name")
	}
}
