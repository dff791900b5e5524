package persist

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/internal/expect"
)

func openBuckets(t *testing.T, dir string) *Buckets {
	t.Helper()
	b, err := OpenBuckets(dir, "b.db", slog.New(slog.DiscardHandler))
	expect.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

func (b *Buckets) mustUpdate(t *testing.T, change func(tx Tx) error) {
	t.Helper()
	expect.NoError(t, b.Update(change))
}

// content returns all readable values, and how many values are damaged.
func (b *Buckets) content(t *testing.T) (all map[string]string, bad int) {
	t.Helper()
	all = map[string]string{}
	if err := b.View(func(tx Tx) error {
		names, err := tx.Names()
		for _, name := range names {
			err = errors.Join(err, tx.Scan(name, nil, func(key, value []byte) error {
				if value == nil {
					bad++
				} else {
					all[name+" "+string(key)] = string(value)
				}
				return nil
			}))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all, bad
}

func TestBuckets(t *testing.T) {
	dir := t.TempDir()
	b := openBuckets(t, dir)
	if all, _ := b.content(t); len(all) > 0 || !b.HasNoFile() {
		t.Errorf("have %v", all)
	}
	if _, err := os.Stat(filepath.Join(dir, "b.db")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a View created the file: %v", err)
	}
	b.mustUpdate(t, func(tx Tx) error {
		return errors.Join(tx.Put("x", []byte("k1"), []byte("v1")), tx.Put("x", []byte("k2"), nil),
			tx.Put("x", []byte("l"), []byte("v2")), tx.Put("y", []byte("k"), []byte("v3")))
	})
	failed := errors.New("failed")
	if err := b.Update(func(tx Tx) error {
		return errors.Join(tx.Put("x", []byte("k1"),
			[]byte("no")), failed)
	}); !errors.Is(err, failed) {
		t.Errorf("have %v", err)
	}
	b.Close()
	if err := b.Update(func(Tx) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: have %v", err)
	}
	b = openBuckets(t, dir)
	want := map[string]string{"x k1": "v1", "x k2": "", "x l": "v2", "y k": "v3"}
	if all, bad := b.content(t); !maps.Equal(all, want) || bad > 0 {
		t.Errorf("have %v, %d bad", all, bad)
	}
	if err := b.View(func(tx Tx) error {
		keys := ""
		err := tx.Scan("x", []byte("k"), func(key, _ []byte) error { keys += string(key); return nil })
		one, failed := tx.Get("x", []byte("l"))
		none, failedToo := tx.Get("nothing", []byte("l"))
		if keys != "k1k2" || string(one) != "v2" || none != nil {
			t.Errorf("have keys %s, values %q and %q", keys, one, none)
		}
		return errors.Join(err, failed, failedToo)
	}); err != nil {
		t.Error(err)
	}
	b.mustUpdate(t, func(tx Tx) error { return errors.Join(tx.Drop("x"), tx.Drop("nothing")) })
	if all, _ := b.content(t); len(all) != 1 || b.Lost() != 0 || b.WasSetAside() {
		t.Errorf("have %v, %d lost", all, b.Lost())
	}
}

// A value under another key or bucket than it was written to is damaged: a bit
// of the key has changed.
func TestBucketsValuesOfOtherKeys(t *testing.T) {
	dir := t.TempDir()
	b := openBuckets(t, dir)
	b.mustUpdate(t, func(tx Tx) error {
		return errors.Join(tx.Put("x", []byte("k1"), []byte("v")), tx.Put("y", []byte("l"), []byte("w")))
	})
	b.mustUpdate(t, func(tx Tx) error {
		value := tx.tx.Bucket([]byte("x")).Get([]byte("k1"))
		return errors.Join(tx.tx.Bucket([]byte("x")).Put([]byte("k2"), value),
			tx.tx.Bucket([]byte("y")).Put([]byte("k1"), value))
	})
	all, bad := b.content(t)
	if want := map[string]string{"x k1": "v", "y l": "w"}; !maps.Equal(all, want) || bad != 2 {
		t.Errorf("have %v, %d bad", all, bad)
	}
}

// Whatever is wrong with the file, its undamaged part is read, or the file is
// set aside. Later writes are kept.
func TestBucketsDamaged(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	b := openBuckets(t, dir)
	for i := range 300 {
		b.mustUpdate(t, func(tx Tx) error {
			return tx.Put(fmt.Sprint("bucket ", i%3), fmt.Append(nil, i), bytes.Repeat([]byte{byte(i)}, i*7))
		})
	}
	want, _ := b.content(t)
	b.Close()
	path := filepath.Join(dir, "b.db")
	whole, err := os.ReadFile(path)
	expect.NoError(t, err)
	aside := 0
	for round := range 150 {
		harmed := bytes.Clone(whole)
		switch round % 3 {
		case 0:
			harmed[rng.IntN(len(harmed))] ^= byte(1 + rng.IntN(255))
		case 1:
			harmed = harmed[:rng.IntN(len(harmed))]
		case 2:
			at := rng.IntN(len(harmed) - 64)
			clear(harmed[at : at+64])
		}
		expect.NoError(t, os.WriteFile(path, harmed, 0o600))
		b := openBuckets(t, dir)
		have, _ := b.content(t)
		for key, value := range have {
			if want[key] != value {
				t.Fatalf("seed %d, round %d: %q has another value", seed, round, key)
			}
		}
		aside += int(b.Lost())
		if b.Lost() > 0 && (len(have) > 0 || !b.WasSetAside()) {
			t.Fatalf("seed %d, round %d: have %d values after the file was set aside", seed, round, len(have))
		}
		b.mustUpdate(t, func(tx Tx) error { return tx.Put("new", []byte("k"), []byte("v")) })
		if have, _ := b.content(t); have["new k"] != "v" {
			t.Fatalf("seed %d, round %d: a written value is missing", seed, round)
		}
		b.Close()
	}
	if left, _ := filepath.Glob(path + ".corrupt-*"); aside == 0 || len(left) != maxSetAside {
		t.Errorf("%d were set aside, %d are left, want %d", aside, len(left), maxSetAside)
	}
}

// A file that is truncated, or makes bbolt panic, while in use is set aside,
// and the next call begins a new one.
func TestBucketsLostInUse(t *testing.T) {
	for name, harm := range map[string]func(b *Buckets) error{
		"cut": func(b *Buckets) error { return os.Truncate(b.path, 4096) },
		"panic": func(b *Buckets) error {
			err := b.View(func(tx Tx) error { panic("as bbolt does") })
			if errors.Is(err, errEngineFailed) {
				return nil
			}
			return fmt.Errorf("have %w", err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := openBuckets(t, t.TempDir())
			for range 3 {
				b.mustUpdate(t, func(tx Tx) error { return tx.Put("x", []byte("k"), make([]byte, 100_000)) })
			}
			expect.NoError(t, harm(b))
			put := func(tx Tx) error { return tx.Put("x", []byte("k"), []byte("again")) }
			if err := b.Update(put); err != nil {
				b.mustUpdate(t, put)
			}
			if all, _ := b.content(t); all["x k"] != "again" || b.Lost() != 1 || !b.WasSetAside() {
				t.Errorf("have %v, %d lost", all, b.Lost())
			}
		})
	}
}

// Opening waits for a file that another process has, and leaves the file alone.
func TestBucketsInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other, err := bolt.Open(filepath.Join(dir, "b.db"), 0o600, nil)
	expect.NoError(t, err)
	b, err := OpenBuckets(dir, "b.db", slog.New(slog.DiscardHandler))
	if !errors.Is(err, ErrInUse) || !b.HasNoFile() || b.Lost() > 0 {
		t.Errorf("have %v, %d lost", err, b.Lost())
	}
	other.Close()
	b.mustUpdate(t, func(tx Tx) error { return tx.Put("x", []byte("k"), nil) })
	b.Close()
}
