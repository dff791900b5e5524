package usage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// crash ends a meter as a kill does.
func (m *Meter) crash() {
	m.cancel()
	m.done.Wait()
	m.turning.Lock() // what tests do afterwards does nothing
	m.closed = true
	m.turning.Unlock()
}

// inMemory lists the files in shared memory.
func inMemory(t *testing.T, c Config) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(c.SharedMemory, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func total(m map[string][2]int64) (checks int64) {
	for _, r := range m {
		checks += r[1]
	}
	return checks
}

// What a killed process has counted is in shared memory, months that are over too. The next one goes on there.
func TestSharedMemoryOutlivesTheProcess(t *testing.T) {
	c, now := config(t.TempDir())
	m := open(t, c)
	m.turn(now.Load())
	m.count(november.AddDate(0, 1, 0), "r", []string{"k"}, "requests", 1)
	m.turn(now.Load()) // which gives December its file
	for i := range 300 {
		m.count(november, "r", []string{fmt.Sprint(i)}, "requests", 1)
		m.count(november.AddDate(0, 1, 0), "r", []string{"k"}, "requests", 1)
	}
	m.crash()
	if list := inMemory(t, c); len(list) != 2 {
		t.Errorf("have %v, want a file for each month", list)
	}
	if onDisk := total(rowsOf(t, c.Dir, "2026-11")); onDisk == 300 {
		t.Error("all is on the disk: this test finds out nothing")
	}

	now.Store(november.AddDate(0, 3, 0).UnixNano()) // the two months are over
	m = open(t, c)
	for month, want := range map[string]int64{"2026-11": 300, "2026-12": 301} {
		m.written(t)
		if have := total(rowsOf(t, c.Dir, month)); have != want {
			t.Errorf("%s: have %d checks, want %d", month, have, want)
		}
	}
	for range graceRounds + 1 {
		m.turn(now.Load())
	}
	if list := inMemory(t, c); len(list) != 1 {
		t.Errorf("have %v, want the current month's file only", list)
	}
	m.Close()
	if list := inMemory(t, c); len(list) != 0 {
		t.Errorf("closed: have %v, want nothing left", list)
	}
	for month, want := range map[string]int64{"2026-11": 300, "2026-12": 301} {
		if have := total(rowsOf(t, c.Dir, month)); have != want {
			t.Errorf("%s: have %d checks, want %d", month, have, want)
		}
	}
}

// What was once given up is never taken for the newer of the two again.
func TestStaleSharedMemory(t *testing.T) {
	for name, elsewhere := range map[string]func(t *testing.T) string{
		"pages":         func(*testing.T) string { return "" },
		"another place": func(t *testing.T) string { return t.TempDir() },
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := config(t.TempDir())
			m := open(t, c)
			m.count(november, "r", []string{"a"}, "requests", 1)
			m.written(t).crash()
			stale := c.SharedMemory

			c.SharedMemory = elsewhere(t)
			m = open(t, c)
			m.count(november, "r", []string{"a"}, "requests", 10)
			m.written(t).crash()

			c.SharedMemory = stale
			m = open(t, c)
			m.count(november, "r", []string{"b"}, "requests", 100)
			m.Close()
			expectRows(t, rowsOf(t, c.Dir, "2026-11"), map[string][2]int64{"r[a]requestsfalse": {11, 2}, "r[b]requestsfalse": {100, 1}})
		})
	}
}

// Shared memory that is damaged, half made, of others, or not there costs what was not on the disk, and nothing else.
func TestSharedMemoryDamaged(t *testing.T) {
	for name, harm := range map[string]func(path string) error{
		"gone":     os.Remove,
		"empty":    func(path string) error { return os.Truncate(path, 0) },
		"headless": func(path string) error { return os.WriteFile(path, make([]byte, leastGrowth), 0o600) },
		"half": func(path string) error {
			b, err := os.ReadFile(path)
			if err == nil {
				clear(b[:headerSize])
				err = os.WriteFile(path, b, 0o600)
			}
			return err
		},
		"a row": func(path string) error {
			b, err := os.ReadFile(path)
			if err == nil {
				b[headerSize+recordHead+1] ^= 4
				err = os.WriteFile(path, b, 0o600)
			}
			return err
		},
		"of another": func(path string) error {
			h := header{month: MonthOf(november.UnixNano()), node: "n2", shm: shmID{1}}
			return os.WriteFile(path, append(h.append(nil), make([]byte, leastGrowth)...), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := config(t.TempDir())
			m := open(t, c)
			for i := range 100 {
				m.count(november, "r", []string{fmt.Sprint(i)}, "requests", 1)
			}
			m.written(t).crash()
			if err := harm(inMemory(t, c)[0]); err != nil {
				t.Fatal(err)
			}
			m = open(t, c)
			m.count(november, "r", []string{"0"}, "requests", 1)
			if s := m.Stats(); s.SetAside != 0 || s.InMemory || s.Rows != 100 {
				t.Errorf("have %+v, want 100 rows", s)
			}
			m.crash()
			m = open(t, c)
			m.Close()
			if have := total(rowsOf(t, c.Dir, "2026-11")); have != 101 {
				t.Errorf("have %d checks, want 101", have)
			}
		})
	}
}

// Shared memory that is there, and can't be had just now, is waited for.
func TestSharedMemoryIsNotGivenUp(t *testing.T) {
	c, now := config(t.TempDir())
	m := open(t, c)
	m.count(november, "r", []string{"a"}, "requests", 1)
	m.crash()
	path := inMemory(t, c)[0]
	if err := errors.Join(os.Rename(path, path+".aside"), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	m = open(t, c)
	m.count(november, "r", []string{"a"}, "requests", 10)
	if !m.Stats().InMemory {
		t.Error("it was given up")
	}
	m.turning.Lock() // so that nobody looks in between
	if err := errors.Join(os.Remove(path), os.Rename(path+".aside", path)); err != nil {
		t.Error(err)
	}
	m.turning.Unlock()
	m.turn(now.Load())
	m.count(november, "r", []string{"b"}, "requests", 100)
	if m.Stats().InMemory {
		t.Error("it has no file yet")
	}
	m.Close()
	expectRows(t, rowsOf(t, c.Dir, "2026-11"), map[string][2]int64{"r[a]requestsfalse": {11, 2}, "r[b]requestsfalse": {100, 1}})
}

// A month that is over and can't be brought to the disk stays where it is counted until it can.
func TestMonthThatCantLand(t *testing.T) {
	c, now := config(t.TempDir())
	m := open(t, c)
	m.written(t)
	m.count(november, "r", []string{"a"}, "requests", 1)
	l := m.current.Load()
	disk := l.mirror.file
	broken, err := os.Open(os.DevNull) // nothing can be written to it
	if err != nil {
		t.Fatal(err)
	}
	l.mirror.file = broken
	now.Store(november.AddDate(0, 1, 0).UnixNano())
	for range 2 * graceRounds {
		m.turn(now.Load())
	}
	e := entry{path: "on the disk", month: l.month, source: c.Self}
	if err := m.Sync(); err == nil || m.readable(e) != l.file.Name() {
		t.Errorf("have %v, read from %s; want an error, and shared memory", err, m.readable(e))
	}
	l.mirror.mu.Lock()
	l.mirror.file = disk
	l.mirror.mu.Unlock()
	broken.Close()
	for range 2 {
		m.turn(now.Load())
	}
	if m.readable(e) != e.path {
		t.Error("it is in shared memory still")
	}
	m.Close()
	expectRows(t, rowsOf(t, c.Dir, "2026-11"), map[string][2]int64{"r[a]requestsfalse": {1, 1}})
}

// After a power cut what was not synced may be there in part, and is no damage; what was synced is.
func TestPowerCut(t *testing.T) {
	for _, synced := range []bool{false, true} {
		c, _ := config(t.TempDir())
		m := open(t, c)
		m.count(november, "r", []string{"a"}, "requests", 1)
		if err := m.Sync(); err != nil {
			t.Fatal(err)
		}
		from := m.current.Load().used
		for i := range 100 {
			m.count(november, "r", []string{fmt.Sprint(i)}, "requests", 1)
		}
		want := int64(1)
		if m.written(t); synced {
			if err := m.Sync(); err != nil {
				t.Fatal(err)
			}
			want = 100 // all but the one that is damaged
		}
		m.crash()
		path := filepath.Join(c.Dir, Folder, fileName(MonthOf(november.UnixNano()), c.Self))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err == nil {
			_, err = f.WriteAt(make([]byte, 40), from)
		}
		if err = errors.Join(err, f.Close(), os.Remove(inMemory(t, c)[0])); err != nil {
			t.Fatal(err)
		}
		m = open(t, c)
		if s := m.Stats(); s.Rows != want || (s.SetAside > 0) != synced {
			t.Errorf("synced %v: have %+v, want %d rows", synced, s, want)
		}
	}
}

// Without a place in memory months are counted in pages of files.
func TestNoSharedMemory(t *testing.T) {
	c, _ := config(t.TempDir())
	c.SharedMemory = filepath.Join(c.Dir, "missing")
	m := open(t, c)
	m.count(november, "r", []string{"k"}, "requests", 1)
	expectRows(t, rowsOf(t, c.Dir, "2026-11"), map[string][2]int64{"r[k]requestsfalse": {1, 1}})
	m.crash()
	m = open(t, c)
	m.count(november, "r", []string{"k"}, "requests", 1)
	expectRows(t, rowsOf(t, c.Dir, "2026-11"), map[string][2]int64{"r[k]requestsfalse": {2, 2}})
}

// While the disk hangs, whoever opens, copies or syncs waits for it; nobody who counts does, nor for a month that no one
// has counted in yet.
func TestCountingWaitsForNoDisk(t *testing.T) {
	c, _ := config(t.TempDir())
	m := open(t, c)
	m.count(november, "r", []string{"k"}, "requests", 1)
	m.turning.Lock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 100 {
			m.count(november, "r", []string{"k"}, "requests", 1)
			m.count(november, "r", []string{fmt.Sprint(i)}, "requests", 1)
			m.count(november.AddDate(0, 1, 0), "r", []string{fmt.Sprint(i)}, "requests", 1)
		}
		m.Stats()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("counting waits")
	}
	m.turning.Unlock()
	<-done
	m.Close()
	if have := total(rowsOf(t, c.Dir, "2026-11")); have != 201 {
		t.Errorf("have %d checks, want 201", have)
	}
	if have := total(rowsOf(t, c.Dir, "2026-12")); have != 100 {
		t.Errorf("the month to come: have %d checks, want 100", have)
	}
}

// A mirror that is copied to while rows are entered and added to has whole rows at every moment, and all of them at last.
func TestMirrorKeepsUp(t *testing.T) {
	c, _ := config(t.TempDir())
	c.Rows = 100_000
	m := open(t, c)
	stop := make(chan struct{})
	var group sync.WaitGroup
	for w := range 3 {
		group.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				m.count(november, "r", []string{fmt.Sprint(w, " ", i%4000)}, "requests", 1)
			}
		})
	}
	path := filepath.Join(c.Dir, Folder, fileName(MonthOf(november.UnixNano()), c.Self))
	for range 20 {
		if err := m.copyOut(); err != nil {
			t.Fatal(err)
		}
		l, err := openListing(path)
		if err != nil {
			t.Fatal(err)
		}
		if l.bad > 0 {
			t.Errorf("%d bytes can't be read", l.bad)
		}
		l.close()
	}
	close(stop)
	group.Wait()
	m.mu.Lock()
	shm := m.live[MonthOf(november.UnixNano())].file.Name()
	m.mu.Unlock()
	l, err := openListing(shm)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	want := map[string][2]int64{}
	for i := range l.order {
		var r Row
		l.row(i, &r)
		want[fmt.Sprint(r.Rule, r.Key, r.Unit, r.Other)] = [2]int64{r.Cost, r.Checks}
	}
	m.Close()
	expectRows(t, rowsOf(t, c.Dir, "2026-11"), want)
}

// Months that a clock leaves and comes back to are one each.
func TestClockBackAndForth(t *testing.T) {
	everywhere(t, clockBackAndForth)
}

func clockBackAndForth(t *testing.T, c Config, now *atomic.Int64) {
	m := open(t, c)
	want := int64(0)
	for i := range 20 {
		at := november.AddDate(0, i%2*2, 0)
		now.Store(at.UnixNano())
		m.turn(at.UnixNano())
		if i%3 == 0 {
			m.turn(at.UnixNano())
		}
		if i%4 != 1 { // else nobody counts in November while the clock is beyond it
			m.count(november, "r", []string{fmt.Sprint(i)}, "requests", 1)
			m.count(november, "r", []string{fmt.Sprint(i % 3)}, "requests", 1)
			want += 2
		}
	}
	m.Close()
	if have := total(rowsOf(t, c.Dir, "2026-11")); have != want {
		t.Errorf("have %d checks, want %d", have, want)
	}
}

// A copy that was broken off in the middle of a row leaves no damage, the first one neither.
func TestCopyBrokenOff(t *testing.T) {
	for before := range 3 { // copies that were not
		c, _ := config(t.TempDir())
		m := open(t, c)
		for i := range before {
			m.count(november, "r", []string{fmt.Sprint(i)}, "requests", 1)
			m.written(t)
		}
		m.count(november, "r", []string{"another"}, "requests", 1)
		l := m.current.Load()
		end := int64(l.mirror.head.end)
		if _, err := l.mirror.file.WriteAt(l.data[end:l.used-8], end); err != nil {
			t.Fatal(err)
		}
		m.crash()
		if err := os.Remove(inMemory(t, c)[0]); err != nil {
			t.Fatal(err)
		}
		m = open(t, c)
		if s := m.Stats(); s.SetAside != 0 || s.Rows != int64(before) {
			t.Errorf("after %d copies: have %+v, want as many rows and no damage", before, s)
		}
	}
}

func BenchmarkCopyOut(b *testing.B) {
	for _, rows := range []int{10_000, 1_000_000} {
		c, _ := config(b.TempDir())
		c.Rows = rows
		m := open(b, c)
		for i := range rows {
			m.count(november, "tenant", []string{fmt.Sprint("subject number ", i)}, "requests", 1)
		}
		l := m.current.Load()
		for _, changed := range []int{0, 1000, rows} {
			b.Run(fmt.Sprintf("rows=%d/changed=%d", rows, changed), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					done := 0
					l.each(func(r *record, _ *Row) {
						if done++; changed > 0 && done%(rows/changed) == 0 {
							r.add(1, 1)
						}
					})
					b.StartTimer()
					if err := m.copyOut(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// Files and shared memory are given back.
func TestMeterGivesFilesBack(t *testing.T) {
	files := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(list)
	}
	everywhere(t, func(t *testing.T, c Config, now *atomic.Int64) {
		before := files()
		for range 3 {
			m := open(t, c)
			for range 4 {
				now.Add(int64(31 * 24 * time.Hour))
				m.turn(now.Load())
				m.count(time.Unix(0, now.Load()), "r", []string{"k"}, "requests", 1)
			}
			m.Close()
		}
		if after := files(); after > before {
			t.Errorf("%d files are open, %d were before", after, before)
		}
	})
}
