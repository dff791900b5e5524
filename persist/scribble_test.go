package persist

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
)

// frameOf is the number of counters in a frame of counterFile.
const frameOf = 100

// counterFile creates a large counters.db with free pages and many frames, and returns its bytes.
func counterFile(t testing.TB, clk *clock, n int) []byte {
	t.Helper()
	dir, src := t.TempDir(), newTable()
	src.batch = frameOf
	c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
	all := sample(clk.Now(), n)
	for _, r := range all {
		src.set(r)
	}
	mustCheckpoint(t, c)
	for _, r := range all[:n/5] {
		src.set(r)
	}
	mustCheckpoint(t, c)
	mustClose(t, c)
	data, err := os.ReadFile(filepath.Join(dir, countersFile))
	expect.NoError(t, err)
	return data
}

var damages = flag.Int("damages", 0, "how many damaged files tests open; 0: a few hundred")

// damageRounds returns how many damaged files a test opens: few, or even fewer if short.
func damageRounds(few, short int) int {
	switch {
	case *damages > 0:
		return *damages
	case testing.Short():
		return short
	}
	return few
}

// TestDamagedFile scribbles on files and truncates them at random. Whatever is
// left, the store opens within seconds, works, and returns only what was
// written. If the file was not set aside, only counters of damaged frames are
// lost.
func TestDamagedFile(t *testing.T) {
	rounds := damageRounds(200, 60)
	clk := newClock()
	const n = 3000
	good := counterFile(t, clk, n)
	want := map[uint64]int64{}
	for _, r := range sample(clk.Now(), n) {
		want[r.Key.Subject] = r.State.Count
	}
	dir := t.TempDir()
	aside := 0
	for round := range rounds {
		rnd := rand.New(rand.NewPCG(uint64(round), 1))
		data, what := damage(rnd, bytes.Clone(good))
		expect.NoError(t, os.WriteFile(filepath.Join(dir, countersFile), data, 0o600))
		begin := time.Now()
		src := newTable()
		config := testConfig(dir, src, clk.Now)
		c, stats := openLoaded(t, config)
		for k, r := range src.all {
			if count, ok := want[k.Subject]; !ok || count != r.State.Count && r.Kind != algorithms.SlidingLog {
				t.Fatalf("round %d, %s: %+v was never written", round, what, r)
			}
		}
		src.set(sample(clk.Now(), n+1)[n])
		mustCheckpoint(t, c)
		set := c.Status().SetAside
		if set == 0 && stats.Restored < n-frameOf*stats.DamagedFrames {
			t.Errorf("round %d, %s: %+v from a file that was not set aside", round, what, stats)
		}
		aside += int(set)
		mustClose(t, c)
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("round %d, %s: %v", round, what, took)
		}
		again := newTable()
		c, stats = openLoaded(t, testConfig(dir, again, clk.Now))
		mustClose(t, c)
		if stats.DamagedFrames == 0 && again.len() != src.len() && set == 0 || again.len() == 0 {
			t.Errorf("round %d, %s: %d counters after reopening, want %d", round, what, again.len(), src.len())
		}
		expect.NoError(t, os.Remove(filepath.Join(dir, countersFile)))
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*.corrupt-*"))
	if len(left) > maxSetAside {
		t.Errorf("%d damaged files are kept", len(left))
	}
	t.Logf("%d of %d files were set aside", aside, rounds)
}

func damage(rnd *rand.Rand, data []byte) ([]byte, string) {
	scribble := func(at, n int) {
		for i := at; i < min(at+n, len(data)); i++ {
			data[i] = byte(rnd.Uint32())
		}
	}
	switch rnd.IntN(8) {
	case 0:
		n := rnd.IntN(len(data))
		return data[:n], fmt.Sprintf("cut to %d bytes", n)
	case 1:
		n := rnd.IntN(5) * 4096
		return data[:n], fmt.Sprintf("cut to %d bytes", n)
	case 2:
		// A small number in a page's header, where a scribble is most likely to look valid.
		at := rnd.IntN(len(data)/4096)*4096 + rnd.IntN(64)
		data[at] = byte(rnd.IntN(8))
		return data, fmt.Sprintf("byte %d set to %d", at, data[at])
	case 3:
		from, to := rnd.IntN(len(data)/4096)*4096, rnd.IntN(len(data)/4096)*4096
		copy(data[to:to+4096], data[from:from+4096])
		return data, fmt.Sprintf("page at %d copied to %d", from, to)
	case 4:
		at := rnd.IntN(len(data))
		clear(data[at:min(at+4096, len(data))])
		return data, fmt.Sprintf("zeros at %d", at)
	default:
		at, n := rnd.IntN(len(data)), 1+rnd.IntN(4096)
		scribble(at, n)
		return data, fmt.Sprintf("%d bytes scribbled at %d", n, at)
	}
}

func TestGarbageFiles(t *testing.T) {
	clk := newClock()
	tests := map[string][]byte{
		"empty": {}, "one byte": {1}, "text": []byte("hello\n"),
		"zeros": make([]byte, 1<<16), "a page of noise": bytes.Repeat([]byte{0xA5}, 4096),
	}
	for name, data := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			expect.NoError(t, os.WriteFile(filepath.Join(dir, countersFile), data, 0o600))
			c, _ := openLoaded(t, testConfig(dir, newTable(), clk.Now))
			defer mustClose(t, c)
			if c.Status().SetAside != 1 {
				t.Errorf("have %+v", c.Status())
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*.corrupt-*")); len(left) != 1 {
				t.Errorf("files set aside: %v", left)
			}
		})
	}
}

// A bbolt file with other buckets is not ours.
func TestForeignFile(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	db, err := bolt.Open(filepath.Join(dir, countersFile), 0o600, nil)
	expect.NoError(t, err)
	expect.NoError(t, db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("logs")); return err }))
	expect.NoError(t, db.Close())
	c, _ := openLoaded(t, testConfig(dir, newTable(), clk.Now))
	defer mustClose(t, c)
	if c.Status().SetAside != 1 {
		t.Errorf("have %+v", c.Status())
	}
}

// FuzzVerifyPages: bbolt can open, iterate and write to any file that passes.
func FuzzVerifyPages(f *testing.F) {
	good := counterFile(f, newClock(), 200)
	f.Add(uint32(0), []byte{}, uint32(0), []byte{}, uint32(0))
	f.Add(uint32(2*4096+10), []byte{1, 0}, uint32(3*4096), []byte{4}, uint32(0))
	f.Add(uint32(16), []byte{1, 2, 3}, uint32(4096+16+8), []byte{0, 8}, uint32(0))
	f.Add(uint32(4096+32), []byte{3}, uint32(5*4096+12), []byte{1}, uint32(8192))
	f.Add(uint32(40), []byte{9}, uint32(4096+48), []byte{2, 0, 0, 0, 0, 0, 0, 0}, uint32(0))
	f.Fuzz(func(t *testing.T, at uint32, patch []byte, at2 uint32, patch2 []byte, cut uint32) {
		data := bytes.Clone(good)
		copy(data[int(at)%len(data):], patch)
		copy(data[int(at2)%len(data):], patch2)
		// Metas with a correct checksum get further.
		for _, page := range [][]byte{data[:4096], data[4096:8192]} {
			sum := fnv.New64a()
			sum.Write(page[pageHeader : pageHeader+metaSum])
			binary.NativeEndian.PutUint64(page[pageHeader+metaSum:], sum.Sum64())
		}
		data = data[:len(data)-int(cut)%len(data)]
		if verifyPages(bytes.NewReader(data), int64(len(data)), anyMeta) != nil {
			return
		}
		path := filepath.Join(t.TempDir(), "f.db")
		expect.NoError(t, os.WriteFile(path, data, 0o600))
		db, err := bolt.Open(path, 0o600,
			&bolt.Options{NoFreelistSync: true, NoSync: true, FreelistType: bolt.FreelistMapType})
		if err != nil {
			t.Fatalf("verified, but does not open: %v", err)
		}
		defer db.Close()
		err = db.Update(func(tx *bolt.Tx) error {
			return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
				if b == nil {
					return nil
				}
				n := 0
				for c, k := b.Cursor(), []byte(nil); n < 100_000; n++ {
					if n == 0 {
						k, _ = c.First()
					} else {
						k, _ = c.Next()
					}
					if k == nil {
						break
					}
				}
				return b.Put([]byte("new"), []byte("value"))
			})
		})
		expect.NoError(t, err)
	})
}

// bbolt silently falls back to the older meta page; the log reports it.
func TestDamagedMetaIsLogged(t *testing.T) {
	for page := range int64(2) {
		dir, clk := t.TempDir(), newClock()
		src := newTable()
		c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
		for _, r := range sample(clk.Now(), 3) {
			src.set(r)
			mustCheckpoint(t, c)
		}
		mustClose(t, c)
		for _, damaged := range []bool{false, true} {
			if damaged {
				f, err := os.OpenFile(filepath.Join(dir, countersFile), os.O_RDWR, 0)
				expect.NoError(t, err)
				if _, err := f.WriteAt([]byte{0xff, 0xff}, page*int64(os.Getpagesize())+64); err != nil {
					t.Fatal(err)
				}
				f.Close()
			}
			var log bytes.Buffer
			config := testConfig(dir, newTable(), clk.Now)
			config.Logger = slog.New(slog.NewTextHandler(&log, nil))
			c, _ := openLoaded(t, config)
			if have := strings.Contains(log.String(), "meta page"); have != damaged {
				t.Errorf("page %d, damaged %v: have %q", page, damaged, log.String())
			}
			mustClose(t, c)
		}
	}
}
