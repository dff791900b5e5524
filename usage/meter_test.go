package usage

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"

	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var november = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// config is that of a node in dir, whose clock stands at november unless it is moved.
func config(dir string) (Config, *atomic.Int64) {
	now := &atomic.Int64{}
	now.Store(november.UnixNano())
	shm := filepath.Join(dir, "shm")
	_ = os.MkdirAll(shm, 0o700) // else months are counted in pages of files, which tests notice
	return Config{Dir: dir, SharedMemory: shm, Self: ring.NodeID{1}, Name: "n1", Now: now.Load, Months: 13, Rows: 1000, Logger: quiet()}, now
}

// everywhere runs a test on meters that count in shared memory, and on those that count in pages of their files.
func everywhere(t *testing.T, test func(t *testing.T, c Config, now *atomic.Int64)) {
	t.Run("shared memory", func(t *testing.T) {
		c, now := config(t.TempDir())
		t.Cleanup(func() { // after meters are closed
			if left, err := os.ReadDir(c.SharedMemory); err != nil || len(left) > 0 {
				t.Errorf("in shared memory %v is left, %v", left, err)
			}
		})
		test(t, c, now)
	})
	t.Run("pages", func(t *testing.T) {
		c, now := config(t.TempDir())
		c.SharedMemory = ""
		test(t, c, now)
	})
}

// written brings what is counted to the files.
func (m *Meter) written(t testing.TB) *Meter {
	t.Helper()
	m.turn(m.cfg.Now())
	if err := m.copyOut(); err != nil {
		t.Fatal(err)
	}
	return m
}

func open(t testing.TB, c Config) *Meter {
	t.Helper()
	m, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func hashOf(rule string, key ...string) rules.Hash {
	h := xxh3.HashString128(fmt.Sprint(rule, key))
	return rules.Hash{Hi: h.Hi, Lo: h.Lo}
}

// count is what the limiter does.
func (m *Meter) count(wall time.Time, rule string, key []string, unit string, cost int64) {
	h := hashOf(rule, key...)
	if !m.Add(wall.UnixNano(), h, unit, cost, 1) {
		m.Enter(wall.UnixNano(), h, rule, key, unit, cost, 1)
	}
}

// rowsOf reads all rows of a month from the files in dir.
func rowsOf(t testing.TB, dir string, month string) map[string][2]int64 {
	t.Helper()
	list, err := entries(filepath.Join(dir, Folder))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][2]int64{}
	for _, e := range list {
		if e.month.String() != month {
			continue
		}
		l, err := openListing(e.path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range l.order {
			var r Row
			l.row(i, &r)
			name := fmt.Sprint(r.Rule, r.Key, r.Unit, r.Other)
			out[name] = [2]int64{out[name][0] + r.Cost, out[name][1] + r.Checks}
		}
		l.close()
	}
	return out
}

func expectRows(t testing.TB, have, want map[string][2]int64) {
	t.Helper()
	for name, w := range want {
		if have[name] != w {
			t.Errorf("%s: have %v, want %v", name, have[name], w)
		}
	}
	for name, h := range have {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: have %v, want no row", name, h)
		}
	}
}

func TestMeterCounts(t *testing.T) {
	everywhere(t, func(t *testing.T, c Config, _ *atomic.Int64) {
		dir := c.Dir
		m := open(t, c)
		m.count(november, "tenant", []string{"acme"}, "requests", 1)
		m.count(november, "tenant", []string{"acme"}, "requests", 4)
		m.count(november, "tenant", []string{"acme"}, "tokens", 900)
		m.count(november, "pair", []string{"a:b", "c"}, "requests", 1)
		m.count(november, "pair", []string{"a", "b:c"}, "requests", 2)
		m.count(november, "all", []string{}, "requests", 7)
		m.Enter(november.UnixNano(), hashOf("tenant", "acme"), "tenant", nil, "tokens", -100, 0) // known by its hash
		m.Enter(november.UnixNano(), hashOf("tenant", "nobody"), "tenant", nil, "tokens", -5, 0) // not known
		m.count(time.Date(2026, 10, 31, 23, 59, 59, 999_999_999, time.UTC), "tenant", []string{"acme"}, "requests", 3)
		m.count(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC), "tenant", []string{"acme"}, "requests", 5)
		m.count(november, "tenant", []string{"acme"}, "requests", 1) // late
		m.written(t)
		expectRows(t, rowsOf(t, dir, "2026-10"), map[string][2]int64{"tenant[acme]requestsfalse": {3, 1}})
		expectRows(t, rowsOf(t, dir, "2026-12"), map[string][2]int64{"tenant[acme]requestsfalse": {5, 1}})
		want := map[string][2]int64{
			"tenant[acme]requestsfalse": {6, 3}, "tenant[acme]tokensfalse": {800, 1}, "pair[a:b c]requestsfalse": {1, 1},
			"pair[a b:c]requestsfalse": {2, 1}, "all[]requestsfalse": {7, 1}, "tenant[]tokenstrue": {-5, 0},
		}
		m.written(t)
		expectRows(t, rowsOf(t, dir, "2026-11"), want)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}

		m = open(t, c) // goes on
		m.count(november, "tenant", []string{"acme"}, "requests", 1)
		want["tenant[acme]requestsfalse"] = [2]int64{7, 4}
		m.written(t)
		expectRows(t, rowsOf(t, dir, "2026-11"), want)
	})
}

// At the bound on rows, and for names that are too long, counts go to one row of others; the sums stay right.
func TestMeterAtItsBound(t *testing.T) {
	everywhere(t, func(t *testing.T, c Config, _ *atomic.Int64) {
		dir := c.Dir
		c.Rows = 10
		m := open(t, c)
		for i := range 100 {
			for range 2 {
				m.count(november, "r", []string{fmt.Sprint(i)}, "requests", 3)
			}
		}
		m.count(november, "r", []string{string(make([]byte, 70<<10))}, "tokens", 5)
		m.written(t)
		have := rowsOf(t, dir, "2026-11")
		if len(have) != 12 || have["r[]requeststrue"] != [2]int64{540, 180} || have["r[]tokenstrue"] != [2]int64{5, 1} {
			t.Errorf("have %d rows, others %v, %v", len(have), have["r[]requeststrue"], have["r[]tokenstrue"])
		}
		if s := m.Stats(); s.Rows != 10 || s.Others != 181 || s.Lost != 0 {
			t.Errorf("have %+v", s)
		}
		m.Close()
		m = open(t, c)
		m.count(november, "r", []string{"another"}, "requests", 1)
		if s := m.Stats(); s.Rows != 10 || s.Others != 1 {
			t.Errorf("after a restart: have %+v", s)
		}
	})
}

func TestMeterConcurrently(t *testing.T) {
	everywhere(t, func(t *testing.T, c Config, _ *atomic.Int64) {
		dir := c.Dir
		c.Rows = 100_000
		m := open(t, c)
		var group sync.WaitGroup
		const workers, rounds, subjects = 8, 20_000, 5000
		for w := range workers {
			group.Go(func() {
				for i := range rounds {
					m.count(november, "r", []string{fmt.Sprint((i*7 + w) % subjects)}, "requests", 1)
				}
			})
		}
		group.Wait()
		var cost, checks int64
		m.written(t)
		have := rowsOf(t, dir, "2026-11")
		for _, r := range have {
			cost, checks = cost+r[0], checks+r[1]
		}
		if len(have) != subjects || cost != workers*rounds || checks != workers*rounds {
			t.Errorf("have %d rows, cost %d, %d checks; want %d, %d", len(have), cost, checks, subjects, workers*rounds)
		}
	})
}

// A damaged file is set aside, and its whole rows go on.
func TestMeterDamaged(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"header":  func(b []byte) []byte { b[20] ^= 1; return b },
		"row":     func(b []byte) []byte { b[headerSize+30] ^= 0x40; return b },
		"length":  func(b []byte) []byte { b[headerSize+4] = 0xff; return b },
		"cut":     func(b []byte) []byte { return b[:headerSize+70] },
		"rubbish": func(b []byte) []byte { return []byte(strings.Repeat("rubbish in place of a file", 50)) },
		"hole":    func(b []byte) []byte { clear(b[headerSize : headerSize+56]); return b },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c, _ := config(dir)
			m := open(t, c)
			for i := range 50 {
				m.count(november, "r", []string{fmt.Sprint(i)}, "requests", 1)
			}
			m.Close()
			path := filepath.Join(dir, Folder, fileName(MonthOf(november.UnixNano()), c.Self))
			b, _ := os.ReadFile(path)
			os.WriteFile(path, damage(b), 0o600)
			m = open(t, c)
			m.written(t)
			have := rowsOf(t, dir, "2026-11")
			least := map[string]int{"header": 50, "row": 49, "length": 49, "cut": 1, "rubbish": 0, "hole": 49}[name]
			if s := m.Stats(); int(s.Rows) != least || len(have) != least || s.SetAside != 1 || s.InMemory {
				t.Errorf("have %d rows, %+v, want %d rows and a file set aside", len(have), s, least)
			}
			m.count(november, "r", []string{"new"}, "requests", 1)
			if aside, _ := filepath.Glob(path + ".corrupt-*"); len(aside) != 1 {
				t.Errorf("have %v set aside, want 1", aside)
			}
			m.Close()
			m = open(t, c)
			if s := m.Stats(); int(s.Rows) != least+1 || s.SetAside != 0 {
				t.Errorf("opened again: have %+v, want %d rows", s, least+1)
			}
		})
	}
}

// The months that are over are kept, as many as asked for, and read as they were.
func TestMonthsTurn(t *testing.T) {
	everywhere(t, func(t *testing.T, c Config, now *atomic.Int64) {
		dir := c.Dir
		c.Months = 3
		m := open(t, c)
		at := november
		for month := range 5 {
			now.Store(at.UnixNano())
			m.turn(at.UnixNano())
			m.count(at, "r", []string{"k"}, "requests", int64(month+1))
			at = at.AddDate(0, 1, 0)
		}
		for range graceRounds + 1 {
			m.turn(now.Load())
		}
		m.mu.Lock()
		live, going := len(m.live), len(m.going)
		m.mu.Unlock()
		if live != 1 || going != 0 {
			t.Errorf("have %d months open and %d on their way out, want 1 and 0", live, going)
		}
		m.count(november.AddDate(0, 3, 0), "r", []string{"k"}, "requests", 10) // a late one
		m.Close()
		m = open(t, c)
		for month, want := range map[string]int64{"2026-11": 0, "2026-12": 0, "2027-01": 3, "2027-02": 14, "2027-03": 5} {
			m.written(t)
			if have := rowsOf(t, dir, month)["r[k]requestsfalse"][0]; have != want {
				t.Errorf("%s: have %d, want %d", month, have, want)
			}
		}
		// The last hour of a month makes the file of the next one.
		end := (MonthOf(now.Load()) + 1).Begin()
		m.turn(end - int64(time.Minute))
		if _, err := os.Stat(filepath.Join(dir, Folder, fileName(MonthOf(end), c.Self))); err != nil {
			t.Error(err)
		}
	})
}

// A month without a file is counted in memory, and moves into its file when there can be one.
func TestMeterWithoutDisk(t *testing.T) {
	everywhere(t, func(t *testing.T, c Config, now *atomic.Int64) {
		dir := c.Dir
		blocker := filepath.Join(dir, Folder)
		os.WriteFile(blocker, nil, 0o600) // a file where the folder should be
		m := open(t, c)
		m.count(november, "r", []string{"k"}, "requests", 2)
		if m.Sync(); !m.Stats().InMemory {
			t.Errorf("have %+v, want it to be in memory", m.Stats())
		}
		os.Remove(blocker)
		old := m.current.Load()
		m.turn(now.Load())
		m.count(november, "r", []string{"k"}, "requests", 3)
		old.find(place(hashOf("r", "k"), "requests")).add(100, 1) // a straggler's
		m.turn(now.Load())
		m.written(t)
		expectRows(t, rowsOf(t, dir, "2026-11"), map[string][2]int64{"r[k]requestsfalse": {105, 3}})
		if err := m.Sync(); err != nil || m.Stats().InMemory {
			t.Errorf("have %+v, %v", m.Stats(), err)
		}
	})
}

func TestMonth(t *testing.T) {
	for text, want := range map[string]bool{"2026-11": true, "1970-01": true, "2199-12": true, "2026-13": false, "2026-1": false,
		"": false, "1969-12": false, "2200-01": false, "2026-11-01": false, "../etc": false} {
		m, err := ParseMonth(text)
		if (err == nil) != want || want && m.String() != text {
			t.Errorf("%q: have %v, %v", text, m, err)
		}
	}
	m, _ := ParseMonth("2026-12")
	if MonthOf(m.Begin()) != m || MonthOf(m.Begin()-1) != m-1 || (m+1).String() != "2027-01" {
		t.Errorf("have %v, %v", MonthOf(m.Begin()), MonthOf(m.Begin()-1))
	}
	if MonthOf(-1<<63).String() != "1970-01" || MonthOf(1<<63-1).String() != "2199-12" {
		t.Errorf("have %v and %v", MonthOf(-1<<63), MonthOf(1<<63-1))
	}
}

func BenchmarkAdd(b *testing.B) {
	c, _ := config(b.TempDir())
	c.Rows = 1_000_000
	m := open(b, c)
	for _, n := range []int{1, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			hashes := make([]rules.Hash, n)
			for i := range hashes {
				key := []string{fmt.Sprint(i)}
				m.count(november, "r", key, "requests", 1)
				hashes[i] = hashOf("r", key...)
			}
			wall := november.UnixNano()
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				m.Add(wall, hashes[i%n], "requests", 1, 1)
			}
		})
	}
}
