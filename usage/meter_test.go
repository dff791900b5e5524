package usage

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var november = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func discardLogs() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// config returns the configuration of a node in dir, and its clock, which stands still at november.
func config(dir string) (Config, *atomic.Int64) {
	now := &atomic.Int64{}
	now.Store(november.UnixNano())
	return Config{Dir: dir, Self: ring.NodeID{1}, Name: "n1", Now: now.Load, Months: 13, Rows: 1000,
		Logger: discardLogs()}, now
}

func open(t testing.TB, c Config) *Meter {
	t.Helper()
	c.Boot = rand.Uint64() | 1
	m, err := Open(c)
	expect.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// kill ends a meter as a kill of the process would.
func (m *Meter) kill(t testing.TB) {
	t.Helper()
	m.cancel()
	m.done.Wait()
	m.writing.Lock()
	defer m.writing.Unlock()
	m.closed = true
	if err := m.file.Close(); err != nil {
		t.Error(err)
	}
}

func hashOf(rule string, key ...string) rules.Hash {
	h := xxh3.HashString128(fmt.Sprint(rule, key))
	return rules.Hash{Hi: h.Hi, Lo: h.Lo}
}

// count counts a check as the limiter does.
func (m *Meter) count(wall time.Time, rule string, key []string, unit string, cost int64) {
	h := hashOf(rule, key...)
	if !m.Add(wall.UnixNano(), h, unit, cost, 1) {
		m.AddNamed(wall.UnixNano(), h, rule, key, unit, cost, 1)
	}
}

// rows reads what this node counted in a month.
func (m *Meter) rows(t testing.TB, month string) map[string][2]int64 {
	t.Helper()
	c := NewTotals(m, nil, nil)
	id, err := ParseMonth(month)
	expect.NoError(t, err)
	s, err := c.Read(t.Context(), Query{Month: id, Here: true})
	expect.NoError(t, err)
	out := map[string][2]int64{}
	for {
		r, ok := s.Next()
		if !ok {
			return out
		}
		name := fmt.Sprint(r.Rule, r.Key, r.Unit, r.Other)
		if _, twice := out[name]; twice {
			t.Errorf("%s appears twice", name)
		}
		out[name] = [2]int64{r.Cost, r.Checks}
	}
}

func expectRows(t testing.TB, have, want map[string][2]int64) {
	t.Helper()
	if !maps.Equal(have, want) {
		t.Errorf("have %v\nwant %v", have, want)
	}
}

func total(m map[string][2]int64) (cost, checks int64) {
	for _, r := range m {
		cost, checks = cost+r[0], checks+r[1]
	}
	return cost, checks
}

// inFile lists the ledgers in the file.
func (m *Meter) inFile(t testing.TB) (list []bucketID) {
	t.Helper()
	if err := m.file.View(func(tx persist.Tx) (err error) {
		list, err = listBuckets(tx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

// open returns the number of ledgers in the file that are open.
func (m *Meter) open(t testing.TB) (n int) {
	for _, id := range m.inFile(t) {
		if id.round == 0 {
			n++
		}
	}
	return n
}

func TestMeterCounts(t *testing.T) {
	c, _ := config(t.TempDir())
	m := open(t, c)
	m.count(november, "tenant", []string{"acme"}, "requests", 1)
	m.count(november, "tenant", []string{"acme"}, "requests", 4)
	m.count(november, "tenant", []string{"acme"}, "tokens", 900)
	m.count(november, "pair", []string{"a:b", "c"}, "requests", 1)
	m.count(november, "pair", []string{"a", "b:c"}, "requests", 2)
	m.count(november, "all", []string{}, "requests", 7)
	m.AddNamed(november.UnixNano(), hashOf("tenant", "acme"), "tenant", nil, "tokens", -100, 0) // known by its hash
	m.AddNamed(november.UnixNano(), hashOf("tenant", "nobody"), "tenant", nil, "tokens", -5, 0) // unknown
	m.count(time.Date(2026, 10, 31, 23, 59, 59, 999_999_999, time.UTC), "tenant", []string{"acme"}, "requests", 3)
	m.count(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC), "tenant", []string{"acme"}, "requests", 5)
	m.count(november, "tenant", []string{"acme"}, "requests", 1) // late
	want := map[string][2]int64{
		"tenant[acme]requestsfalse": {6, 3}, "tenant[acme]tokensfalse": {800, 1}, "pair[a:b c]requestsfalse": {1, 1},
		"pair[a b:c]requestsfalse": {2, 1}, "all[]requestsfalse": {7, 1}, "tenant[]tokenstrue": {-5, 0},
	}
	for range 3 { // the last two times, continued from the file
		expectRows(t, m.rows(t, "2026-10"), map[string][2]int64{"tenant[acme]requestsfalse": {3, 1}})
		expectRows(t, m.rows(t, "2026-12"), map[string][2]int64{"tenant[acme]requestsfalse": {5, 1}})
		expectRows(t, m.rows(t, "2026-11"), want)
		expect.NoError(t, m.Close())
		m = open(t, c)
		m.count(november, "tenant", []string{"acme"}, "requests", 1)
		r := want["tenant[acme]requestsfalse"]
		want["tenant[acme]requestsfalse"] = [2]int64{r[0] + 1, r[1] + 1}
	}
	if err := m.Sync(); err != nil { // closes what earlier processes have left open
		t.Fatal(err)
	}
	if list := m.inFile(t); len(list) != 3+3 || m.open(t) != 1 {
		t.Errorf("have %v, want a ledger for each month, and one for each restart", list)
	}
	if left, _ := os.ReadDir(c.Dir); len(left) != 1 || left[0].Name() != fileName {
		t.Errorf("have files %v", left)
	}
}

// A Meter that counts nothing has no file, no rows and no work.
func TestMeterThatCountsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := config(t.TempDir())
		m := open(t, c)
		time.Sleep(time.Minute)
		if m.hasWork() || len(m.rows(t, "2026-11")) > 0 {
			t.Error("the meter has work or rows")
		}
		m.Close()
		if left, _ := os.ReadDir(c.Dir); len(left) > 0 {
			t.Errorf("have %v", left)
		}
	})
}

// A kill loses what was counted since the last write, at most a second ago, and
// never adds to a row.
func TestKillLosesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := config(t.TempDir())
		var want [2]int64
		for kill := range 20 {
			m := open(t, c)
			have := m.rows(t, "2026-11")["r[k]requestsfalse"]
			if have != want {
				t.Fatalf("kill %d: have %v, want %v", kill, have, want)
			}
			// Everything counted more than a second ago survives the kill; in this test,
			// nothing later does.
			began := time.Now()
			for range kill*37%25 + 1 {
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
				m.count(november, "r", []string{"k"}, "requests", 3)
				have[0], have[1] = have[0]+3, have[1]+1
			}
			left := time.Since(began)
			m.kill(t)
			m = open(t, c)
			want = m.rows(t, "2026-11")["r[k]requestsfalse"]
			if lost := have[1] - want[1]; lost < 0 || lost > 11 || want[0] != 3*want[1] {
				t.Fatalf("kill %d, after %v: have %v, want at most 11 checks less than %v", kill, left, want, have)
			}
			m.Close()
		}
		if want[1] < 50 {
			t.Errorf("only %d checks were kept", want[1])
		}
	})
}

// At the bound on rows, and for names that are too long, counts go to a row of
// others. The sums stay right.
func TestMeterAtItsBound(t *testing.T) {
	c, _ := config(t.TempDir())
	c.Rows = 10
	m := open(t, c)
	for i := range 100 {
		for range 2 {
			m.count(november, "r", []string{fmt.Sprint(i)}, "requests", 3)
		}
	}
	m.count(november, "r", []string{string(make([]byte, 70<<10))}, "tokens", 5)
	have := m.rows(t, "2026-11")
	if len(have) != 12 || have["r[]requeststrue"] != [2]int64{540, 180} || have["r[]tokenstrue"] != [2]int64{5, 1} {
		t.Errorf("have %d rows, others %v, %v", len(have), have["r[]requeststrue"], have["r[]tokenstrue"])
	}
	if s := m.Stats(); s.Rows != 10 || s.Others != 181 || s.Lost != 0 {
		t.Errorf("have %+v", s)
	}
	m.Close()
	m = open(t, c)
	m.count(november, "r", []string{"another"}, "requests", 1)
	if s := m.Stats(); s.Rows != 1 || s.Others != 0 { // what an earlier process counted is in the file alone
		t.Errorf("after a restart: have %+v", s)
	}
	if cost, checks := total(m.rows(t, "2026-11")); cost != 606 || checks != 202 {
		t.Errorf("after a restart: have cost %d and %d checks", cost, checks)
	}
	m.Close()

	// The rows of others are bounded, too.
	c.Rows = 3
	m = open(t, c)
	for i := range maxOthers + 100 {
		m.count(november, fmt.Sprint("rule ", i), []string{"k"}, "requests", 1)
	}
	if s := m.Stats(); s.Lost != 97 { // three had rows of their own
		t.Errorf("have %+v", s)
	}
}

// The total size of all names is bounded, too.
func TestMeterBoundsNames(t *testing.T) {
	c, _ := config(t.TempDir())
	c.Rows = 1
	m := open(t, c)
	l := m.ledgerOf(november.UnixNano())
	l.maxRows = 1000
	for i := range 1000 {
		m.count(november, "r", []string{fmt.Sprint(i, strings.Repeat("x", 20<<10))}, "requests", 1)
	}
	if bound := int64(maxOthers+1000) * rowBytes; l.nameBytes.Load() > bound || l.rowCount.Load() >= 1000 {
		t.Errorf("have %d rows with names of %d bytes, want at most %d bytes", l.rowCount.Load(), l.nameBytes.Load(), bound)
	}
	if cost, checks := total(m.rows(t, "2026-11")); cost != 1000 || checks != 1000 {
		t.Errorf("have cost %d and %d checks, want 1000", cost, checks)
	}
}

// A subject's counts are right, however many goroutines count, write and read at once.
func TestMeterConcurrently(t *testing.T) {
	c, _ := config(t.TempDir())
	c.Rows = 100_000
	m := open(t, c)
	var group, others sync.WaitGroup
	stop := make(chan struct{})
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := m.Sync(); err != nil {
				t.Error(err)
			}
			m.rows(t, "2026-11")
		}
	})
	const workers, rounds, subjects = 8, 20_000, 5000
	for w := range workers {
		group.Go(func() {
			for i := range rounds {
				m.count(november, "r", []string{fmt.Sprint((i*7 + w) % subjects)}, "requests", 1)
			}
		})
	}
	group.Wait()
	close(stop)
	others.Wait()
	want := m.rows(t, "2026-11")
	if cost, checks := total(want); len(want) != subjects || cost != workers*rounds || checks != workers*rounds {
		t.Errorf("have %d rows, cost %d, %d checks; want %d, %d", len(want), cost, checks, subjects, workers*rounds)
	}
	m.Close()
	expectRows(t, open(t, c).rows(t, "2026-11"), want)
}

// The Meter closes a past month once nothing was counted in it for a while. Its
// rows stay the same, and later counts are added. The oldest months are
// dropped.
func TestMonthsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, now := config(t.TempDir())
		c.Months = 3
		m := open(t, c)
		at := november
		for month := range 5 {
			now.Store(at.UnixNano())
			for i := range 300 { // enough for several blocks and shards
				m.count(at, "r", []string{fmt.Sprint(i)}, "requests", int64(month+1))
			}
			time.Sleep(closeAfter + 10*time.Second)
			at = at.AddDate(0, 1, 0)
		}
		expect.Equal(t, len(m.inMemory()), 1, "months in memory")
		for round := range 3 {
			m.count(november.AddDate(0, 3, 0), "r", []string{"1"}, "requests", 10) // a late one
			time.Sleep(time.Second * 2)
			for month, want := range map[string]int64{"2026-11": 0, "2026-12": 0, "2027-01": 900,
				"2027-02": 1200 + 10*int64(round+1), "2027-03": 1500} {
				if cost, _ := total(m.rows(t, month)); cost != want {
					t.Errorf("round %d: %s: have %d, want %d", round, month, cost, want)
				}
			}
			if round == 1 {
				time.Sleep(closeAfter + 10*time.Second)
			}
			m.Close()
			m = open(t, c)
		}
		// Each process counted in a ledger of its own for February, and the second one
		// in two: it closed one.
		if n := len(m.inFile(t)); n != 6 {
			t.Errorf("have %d ledgers in the file: %v, want 6", n, m.inFile(t))
		}
	})
}

// A count made while a ledger is being closed goes to that ledger or to the next one.
func TestCloseWhileCounting(t *testing.T) {
	c, now := config(t.TempDir())
	m := open(t, c)
	now.Store(november.AddDate(0, 1, 0).UnixNano())
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			for i := range 5000 {
				m.count(november, "r", []string{fmt.Sprint(w, i%50)}, "requests", 1)
			}
		})
	}
	for range 5 {
		m.writing.Lock()
		for _, l := range m.inMemory() {
			if err := m.closeLedger(l); err != nil {
				t.Error(err)
			}
		}
		m.writing.Unlock()
	}
	group.Wait()
	if cost, checks := total(m.rows(t, "2026-11")); cost != 20_000 || checks != 20_000 {
		t.Errorf("have cost %d and %d checks, want 20000", cost, checks)
	}
}

// Without a file the Meter counts in memory, and adds the counts to those in
// the file once it can open it.
func TestMeterWithoutDisk(t *testing.T) {
	c, _ := config(t.TempDir())
	m := open(t, c)
	m.count(november, "r", []string{"k"}, "requests", 2)
	m.Close()
	path := filepath.Join(c.Dir, fileName)
	os.Rename(path, path+".away")
	os.Mkdir(path, 0o700) // a directory where the file should be
	m = open(t, c)
	m.count(november, "r", []string{"k"}, "requests", 3)
	if err := m.Sync(); err == nil || !m.Stats().InMemory || m.Stats().SyncFailures < 2 {
		t.Errorf("have %v, %+v; want it to be in memory", err, m.Stats())
	}
	m.writing.Lock() // keeps the meter from opening the file in between
	os.Remove(path)
	os.Rename(path+".away", path)
	m.writing.Unlock()
	for range 2 {
		if err := m.Sync(); err != nil || m.Stats().InMemory || m.Stats().SyncFailures != 0 {
			t.Errorf("have %v, %+v", err, m.Stats())
		}
		expectRows(t, m.rows(t, "2026-11"), map[string][2]int64{"r[k]requestsfalse": {5, 2}})
		m.Close()
		m = open(t, c)
	}
}

// After a failed write, the next one writes everything.
func TestFailedWrite(t *testing.T) {
	c, _ := config(t.TempDir())
	m := open(t, c)
	path := filepath.Join(c.Dir, fileName)
	expect.NoError(t, os.Mkdir(path, 0o700))
	for i := range 200 {
		m.count(november, "r", []string{fmt.Sprint(i)}, "requests", 1)
	}
	if m.Sync() == nil {
		t.Error("want an error")
	}
	expect.NoError(t, os.Remove(path))
	if err := m.Sync(); err != nil {
		t.Error(err)
	}
	want := m.rows(t, "2026-11")
	m.kill(t)
	if have := open(t, c).rows(t, "2026-11"); len(have) != 200 || !maps.Equal(have, want) {
		t.Errorf("have %d rows, want 200", len(have))
	}
}

// Counting does not wait for a goroutine that holds Meter.writing.
func TestCountingNeverWaitsForDisk(t *testing.T) {
	c, _ := config(t.TempDir())
	m := open(t, c)
	m.writing.Lock()
	for i := range 100 {
		m.count(november, "r", []string{fmt.Sprint(i % 10)}, "requests", 1)
		m.count(november.AddDate(0, 1, 0), "r", []string{fmt.Sprint(i)}, "requests", 1)
	}
	m.Stats()
	m.writing.Unlock()
	if _, checks := total(m.rows(t, "2026-11")); checks != 100 {
		t.Errorf("have %d checks, want 100", checks)
	}
}

// Close releases the files.
func TestMeterClosesItsFiles(t *testing.T) {
	files := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(list)
	}
	before := files()
	for range 3 {
		c, _ := config(t.TempDir())
		m := open(t, c)
		m.count(november, "r", []string{"k"}, "requests", 1)
		m.Close()
	}
	if after := files(); after > before {
		t.Errorf("%d files are open, %d were before", after, before)
	}
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

func BenchmarkWrite(b *testing.B) {
	for _, rows := range []int{10_000, 1_000_000} {
		c, _ := config(b.TempDir())
		c.Rows = rows
		m := open(b, c)
		m.cancel() // so that nothing else writes
		m.done.Wait()
		hashes := make([]rules.Hash, rows)
		for i := range rows {
			key := []string{fmt.Sprint("subject number ", i)}
			hashes[i] = hashOf("tenant", key...)
			m.count(november, "tenant", key, "requests", 1)
		}
		expect.NoError(b, m.Sync())
		for _, changed := range []int{1000, rows / 2} {
			b.Run(fmt.Sprintf("rows=%d/changed=%d", rows, changed), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					for i := range changed {
						m.Add(november.UnixNano(), hashes[i*(rows/changed)], "requests", 1, 1)
					}
					b.StartTimer()
					expect.NoError(b, m.Sync())
				}
			})
		}
	}
}
