package persist

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// killLoads are the changes that the killed processes make: 50 counters again
// and again, one of many at random, or logs at their bound between a few hot
// counters.
var killLoads = []string{"hot", "random", "logs"}

// child is the process to be killed. It works until then, and reports on its
// output whatever is safely stored.
func child(job string) {
	kind, dir, _ := strings.Cut(job, ":")
	var err error
	if kind == "raft" {
		err = childRaft(dir)
	} else {
		err = childCounters(kind, dir)
	}
	fmt.Println("error:", err)
	os.Exit(1)
}

// wallClock is for tests that span several processes.
func wallClock() algorithms.Instant { return algorithms.At(time.Now()) }

// killKey returns the counter that the n-th change of a load affects.
func killKey(load string, n int) (k counters.Key, log bool) {
	x := mix(uint64(n))
	switch {
	case load == "logs" && x%100 == 0:
		return counters.Key{Subject: 1<<63 + x>>10%4}, true
	case load == "random":
		return counters.Key{Subject: mix(50 + x>>10%30_000)}, false
	}
	return counters.Key{Subject: mix(x >> 10 % 50)}, false
}

// killRecord returns the record of a counter after change n.
func killRecord(load string, n int) counters.Record {
	now := wallClock()
	k, log := killKey(load, n)
	r := counters.Record{Key: k, Kind: algorithms.TokenBucket, State: algorithms.State{Count: int64(n), At: now.Steady}}
	if log {
		r = fullLog(now, k)
		r.Log[len(r.Log)-1].N = int64(n)
	}
	r.Fullness, r.ExpiresAt = 255, now.Steady/1e9+86_400 // longer than any run
	return r
}

// changeOf returns the change that produced r.
func changeOf(r counters.Record) int {
	if n := len(r.Log); n > 0 {
		return int(r.Log[n-1].N)
	}
	return int(r.State.Count)
}

// childCounters changes counters one after the other while checkpoints run.
// Every second checkpoint rests like those of the loop. After each checkpoint,
// it reports the last change made before that checkpoint began.
func childCounters(load, dir string) error {
	src := counters.New(100_000)
	c, last, err := openKilled(dir, src)
	if err != nil {
		return err
	}
	var changes atomic.Int64
	changes.Store(int64(last))
	go func() {
		for {
			n := changes.Load() + 1
			if !src.Put(wallClock(), killRecord(load, int(n))) {
				panic("no room")
			}
			changes.Store(n)
		}
	}()
	for paced := false; ; paced = !paced {
		before := changes.Load()
		if err := c.lockAndCheckpoint(context.Background(), paced); err != nil {
			return err
		}
		fmt.Println(before)
	}
}

// openKilled opens the store, with a new base every few checkpoints, and
// returns the last change it holds.
func openKilled(dir string, src *counters.Table) (*CounterFile, int, error) {
	c, err := OpenCounterFile(testConfig(dir, src, wallClock))
	if err != nil {
		return nil, 0, err
	}
	c.minLogSize, c.minBaseStep = 1<<18, 500
	if _, err = c.Load(wallClock()); err != nil {
		return nil, 0, err
	}
	last := 0
	for p := range ring.Partitions {
		err = errors.Join(err, src.Copy(p, func(batch []counters.Record) error {
			for _, r := range batch {
				last = max(last, changeOf(r))
			}
			return nil
		}))
	}
	return c, last, err
}

// runAndKill runs a child, kills it after life, and returns the last number it reported.
func runAndKill(t *testing.T, job string, life time.Duration) int {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+job)
	out, err := cmd.StdoutPipe()
	expect.NoError(t, err)
	expect.NoError(t, cmd.Start())
	timer := time.AfterFunc(life, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	last := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Fatalf("child: %s", lines.Text())
		}
		last = n
	}
	_ = cmd.Wait() // killed, as it should be
	return last
}

var kills = flag.Int("kills", 0, "how often the tests of kill -9 kill; 0: 15 times, or 5 if short")

func killRounds() int {
	switch {
	case *kills > 0:
		return *kills
	case testing.Short():
		return 5
	}
	return 15
}

// TestG7_KilledWhileCheckpointing: after a kill at any moment, even while a new
// base is being written, the file opens and is intact. Each counter is as it
// was when the last completed checkpoint began, or later. If a frame of that
// file is damaged, only that frame is lost.
func TestG7_KilledWhileCheckpointing(t *testing.T) {
	t.Parallel()
	for _, load := range killLoads {
		rounds := killRounds()
		if *kills == 0 {
			rounds = (rounds + len(killLoads) - 1) / len(killLoads)
		}
		t.Run(load, func(t *testing.T) { killWhileCheckpointing(t, load, rounds) })
	}
}

func killWhileCheckpointing(t *testing.T, load string, rounds int) {
	dir, done, bases, damaged := t.TempDir(), 0, 0, 0
	floor := map[counters.Key]int{} // the earliest change that each counter may have
	from := 0                       // the last change in floor
	var first uint64
	// On a slow machine, nothing gets done in that time; then the next child lives longer.
	for life, round := 150, 0; round < rounds || done == 0 && life < 20_000; round++ {
		last := runAndKill(t, load+":"+dir, time.Duration(20+rand.IntN(life))*time.Millisecond)
		done = max(done, last)
		if last == 0 {
			life += life / 10
		}
		for n := from + 1; n <= last; n++ {
			k, _ := killKey(load, n)
			floor[k] = n
		}
		damaged += loseOneFrame(t, filepath.Join(dir, countersFile))
		src := newTable()
		c, stats := openLoaded(t, testConfig(dir, src, wallClock))
		if s := c.Status(); s.SetAside != 0 || stats.DamagedFrames != 0 {
			t.Fatalf("a kill damaged the file: %+v, %+v", s, stats)
		}
		before := first
		first = firstFrame(t, c)
		if first > before {
			bases++
		}
		for k, n := range floor {
			if have := changeOf(src.all[k]); have < n {
				t.Fatalf("round %d: counter %v has change %d, want at least %d; %d were reported safe", round, k, have, n, last)
			}
		}
		for k, r := range src.all {
			n := changeOf(r)
			if own, log := killKey(load, n); own != k || log != (len(r.Log) == algorithms.MaxLogEntries) {
				t.Fatalf("round %d: change %d never left counter %v with %d entries", round, n, k, len(r.Log))
			}
			floor[k], from = n, max(from, n)
		}
		mustClose(t, c)
	}
	if done == 0 {
		t.Error("no child completed a checkpoint")
	}
	t.Logf("%d changes of %d counters; the file had a new base after %d of %d kills; %d times a frame was damaged, too",
		from, len(floor), bases, rounds, damaged)
}

// loseOneFrame damages one frame of a copy of a file. All counters must be as
// in the other frames. It returns how many frames it damaged.
func loseOneFrame(t *testing.T, path string) (damaged int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0 // killed before it began
	}
	dir := t.TempDir()
	if err = errors.Join(err, os.WriteFile(filepath.Join(dir, countersFile), data, 0o600)); err != nil {
		t.Fatal(err)
	}
	want := map[counters.Key]int{}
	editFrames(t, dir, func(_ *bolt.Tx, b *bolt.Bucket) error {
		if b == nil || b.Stats().KeyN == 0 {
			return nil
		}
		var number, frame []byte
		victim, c := rand.IntN(b.Stats().KeyN), b.Cursor()
		for n, f := c.First(); n != nil; n, f = c.Next() {
			if victim == 0 {
				number, frame = slices.Clone(n), slices.Clone(f)
			} else if !readFrame(n, f, wallClock(), func(r *counters.Record, _ int64,
				_ int) {
				want[r.Key] = changeOf(*r)
			}) {
				return fmt.Errorf("frame %x is damaged", n)
			}
			victim--
		}
		frame[rand.IntN(len(frame))] ^= 1
		damaged = 1
		return b.Put(number, frame)
	})
	again := newTable()
	c, stats := openLoaded(t, testConfig(dir, again, wallClock))
	defer func() {
		mustClose(t, c)
		if err := os.RemoveAll(dir); err != nil { // hundreds of copies
			t.Error(err)
		}
	}()
	if stats.DamagedFrames != int64(damaged) || stats.SetAside || len(again.all) != len(want) {
		t.Fatalf("with one damaged frame: %+v; %d counters, want %d", stats, len(again.all), len(want))
	}
	for k, n := range want {
		if have := changeOf(again.all[k]); have != n {
			t.Fatalf("counter %v has change %d; the intact frames have %d", k, have, n)
		}
	}
	return damaged
}

// firstFrame returns the number of the file's first frame, or 0 if it has none.
func firstFrame(t *testing.T, c *CounterFile) (first uint64) {
	t.Helper()
	if err := c.file.view(func(tx *bolt.Tx) error {
		b := tx.Bucket(framesBucket)
		if b == nil {
			return nil
		}
		number, _ := b.Cursor().First()
		if number != nil {
			first = binary.BigEndian.Uint64(number)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return first
}

// crashingSource is a table that simulates a crash after each of its batches,
// which is then on disk.
type crashingSource struct {
	*table
	crash func()
}

func (c *crashingSource) DrainChanges(yield func([]counters.Record) error) error {
	return c.table.DrainChanges(func(batch []counters.Record) error {
		err := yield(batch)
		c.crash()
		return err
	})
}

// TestG7_CrashAtEachStep: in a copy of the file taken after any transaction,
// each counter is as it was when the last completed checkpoint began, or later.
// The transactions include those that write a new base and drop the old one.
func TestG7_CrashAtEachStep(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	src := &crashingSource{table: newTable(), crash: func() {}}
	src.batch = 60
	c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
	c.minLogSize, c.minBaseStep = 40_000, 50
	steps, bases, crashes := 24, 0, 0
	switch {
	case *kills > 0:
		steps = 40
	case testing.Short():
		steps = 12
	}
	log := fullLog(clk.Now(), counters.Key{Subject: 1})
	saved, current := map[counters.Key]int64{}, map[counters.Key]int64{}
	src.crash = func() {
		crashes++
		data, err := os.ReadFile(c.path)
		expect.NoError(t, err)
		copied, again := t.TempDir(), newTable()
		expect.NoError(t, os.WriteFile(filepath.Join(copied, countersFile), data, 0o600))
		found, stats := openLoaded(t, testConfig(copied, again, clk.Now))
		defer mustClose(t, found)
		if stats.DamagedFrames > 0 || stats.SetAside {
			t.Fatalf("have %+v", stats)
		}
		for k, least := range saved {
			if n := int64(changeOf(again.all[k])); n < least || n > current[k] {
				t.Fatalf("crash %d: counter %v is from step %d, want %d to %d", crashes, k, n, least, current[k])
			}
		}
	}
	set := func(r counters.Record, step int) {
		src.set(r)
		current[r.Key] = int64(step)
	}
	for step := 1; step <= steps; step++ {
		clk.add(time.Second)
		now := clk.Now()
		for i := range 400 {
			if i < 20 || step == 1 || mix(uint64(step*1000+i))%8 == 0 {
				set(counters.Record{
					Key: counters.Key{Subject: mix(uint64(i))}, Kind: algorithms.TokenBucket,
					State: algorithms.State{Count: int64(step), At: now.Steady}, ExpiresAt: now.Steady/1e9 + 600,
				}, step)
			}
		}
		if step%10 == 2 {
			changed := log
			changed.Log = slices.Clone(log.Log)
			changed.Log[len(changed.Log)-1].N = int64(step)
			set(changed, step)
		}
		begun, first := maps.Clone(current), c.base.firstFrame
		mustCheckpoint(t, c)
		saved = begun
		src.crash()
		if first > 0 && c.base.firstFrame == 0 {
			bases++
		}
	}
	mustClose(t, c)
	if bases < steps/12 {
		t.Errorf("only %d new bases in %d steps", bases, steps)
	}
	t.Logf("%d crashes, %d new bases", crashes, bases)
}
