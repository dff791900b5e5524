package persist

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// On a full disk, checkpoints fail, which is logged once. Nothing is lost once there is room again.
func TestDiskFull(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	src, log := newTable(), &process.Output{}
	config := testConfig(dir, src, clk.Now)
	config.Logger = slog.New(slog.NewTextHandler(log, nil))
	config.MaxSize = 1 << 20
	c, _ := openLoaded(t, config)
	src.set(sample(clk.Now(), 1)[0])
	mustCheckpoint(t, c)
	good := c.Status()
	all := sample(clk.Now(), 30_000)
	for _, r := range all {
		src.set(r)
	}
	for i := range 3 {
		if err := c.Checkpoint(t.Context()); !errors.Is(err, berrors.ErrMaxSizeReached) {
			t.Fatalf("have %v, want a full disk", err)
		}
		s := c.Status()
		if s.Failures != i+1 || s.Err == nil || s.Completed != good.Completed || s.SetAside != 0 {
			t.Fatalf("status is %+v", s)
		}
	}
	expect.Equal(t, log.Count("checkpoint failed"), 1, "lines about the failure")
	if err := c.Close(t.Context()); !errors.Is(err, berrors.ErrMaxSizeReached) {
		t.Errorf("Close: have %v, want a full disk", err)
	}

	// Another start, with room.
	config.MaxSize = 0
	c, _ = openLoaded(t, config)
	mustCheckpoint(t, c)
	mustClose(t, c)
	again := newTable()
	c, stats := openLoaded(t, testConfig(dir, again, clk.Now))
	defer mustClose(t, c)
	if int(stats.Restored) != len(all) {
		t.Errorf("have %+v, want %d restored", stats, len(all))
	}
}

// The same on a real file system, with recovery at run time.
func TestTinyFileSystem(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("needs root on Linux to mount a small file system")
	}
	dir, clk := t.TempDir(), newClock()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("mount: %v: %s", err, out)
	}
	defer func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	}()
	ballast := filepath.Join(dir, "ballast")
	fill := func() {
		f, err := os.Create(ballast)
		expect.NoError(t, err)
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
	}
	src, log := newTable(), &process.Output{}
	config := testConfig(dir, src, clk.Now)
	config.Logger = slog.New(slog.NewTextHandler(log, nil))

	// Not even an empty file fits.
	fill()
	c, _ := openLoaded(t, config)
	defer mustClose(t, c)
	if s := c.Status(); s.Err == nil || s.Failures != 1 {
		t.Errorf("status is %+v", s)
	}
	all := sample(clk.Now(), 10_000)
	for _, r := range all {
		src.set(r)
	}
	if err := c.Checkpoint(t.Context()); err == nil {
		t.Fatal("a checkpoint on a full disk succeeded")
	}
	expect.NoError(t, os.Remove(ballast))
	mustCheckpoint(t, c)

	fill()
	for _, r := range all {
		r.State.Count++
		src.set(r)
	}
	if err := c.Checkpoint(t.Context()); err == nil {
		t.Fatal("a checkpoint on a full disk succeeded")
	}
	expect.NoError(t, os.Remove(ballast))
	mustCheckpoint(t, c)
	if s := c.Status(); s.Failures != 0 || s.Err != nil || s.SetAside != 0 || s.Counters != 10_000 {
		t.Errorf("status is %+v", s)
	}
	expect.Equal(t, log.Count("written again"), 2, "lines about the recovery")
	if left, _ := filepath.Glob(filepath.Join(dir, "*.corrupt-*")); len(left) > 0 {
		t.Errorf("files set aside: %v", left)
	}
}

// A file that is damaged while the node runs is set aside, and all counters are
// written to a new one.
func TestBreaksWhileRunning(t *testing.T) {
	tests := map[string]func(t *testing.T, c *CounterFile){
		"cut to nothing": func(t *testing.T, c *CounterFile) {
			expect.NoError(t, os.Truncate(c.path, 0))
		},
		"cut in half": func(t *testing.T, c *CounterFile) {
			expect.NoError(t, os.Truncate(c.path, c.file.usedBytes.Load()/2))
		},
		"noise": func(t *testing.T, c *CounterFile) {
			f, err := os.OpenFile(c.path, os.O_WRONLY, 0)
			expect.NoError(t, err)
			defer f.Close()
			noise := make([]byte, c.file.usedBytes.Load()-8192)
			for i := range noise {
				noise[i] = byte(mix(uint64(i)))
			}
			if _, err := f.WriteAt(noise, 8192); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, harm := range tests {
		t.Run(name, func(t *testing.T) {
			dir, clk := t.TempDir(), newClock()
			src := newTable()
			c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
			all := sample(clk.Now(), 5000)
			for _, r := range all {
				src.set(r)
			}
			mustCheckpoint(t, c)
			src.set(all[0])
			mustCheckpoint(t, c)
			harm(t, c)
			for _, r := range all[:100] {
				src.set(r)
			}
			if err := c.Checkpoint(t.Context()); !isDamaged(err) {
				t.Fatalf("have %v, want a damaged file", err)
			}
			if s := c.Status(); s.SetAside != 1 || s.Failures != 1 {
				t.Errorf("status is %+v", s)
			}
			mustClose(t, c)
			again := newTable()
			c, stats := openLoaded(t, testConfig(dir, again, clk.Now))
			defer mustClose(t, c)
			if stats.Restored != 5000 {
				t.Errorf("have %+v", stats)
			}
		})
	}
}

// As above, but at the last checkpoint: Close begins a new file and writes everything.
func TestBreaksAtClose(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	src := newTable()
	c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
	for _, r := range sample(clk.Now(), 5000) {
		src.set(r)
	}
	mustCheckpoint(t, c)
	expect.NoError(t, os.Truncate(c.path, 4096))
	src.set(sample(clk.Now(), 1)[0])
	mustClose(t, c)
	c, stats := openLoaded(t, testConfig(dir, newTable(), clk.Now))
	defer mustClose(t, c)
	if stats.Restored != 5000 {
		t.Errorf("have %+v", stats)
	}
}

// A new file is incomplete until a checkpoint has written the whole table to
// it, whether nothing was written before or only a part was.
func TestNewFileIsIncomplete(t *testing.T) {
	const all, batch = 5000, 1000
	dir, clk := t.TempDir(), newClock()
	records := sample(clk.Now(), all)
	src := &crashingSource{table: newTable(), crash: func() {}}
	src.batch = batch
	reopened := func(dir string, wantIncomplete bool, wantRestored int64, what string) {
		t.Helper()
		c, stats := openLoaded(t, testConfig(dir, newTable(), clk.Now))
		expect.Equal(t, stats.Incomplete, wantIncomplete, "%s: incomplete", what)
		expect.Equal(t, stats.Restored, wantRestored, "%s: restored", what)
		expect.NoError(t, c.file.close()) // as a kill would
	}
	// crashes copies the file after each batch that the checkpoint writes.
	crashes := func(c *CounterFile) (copies []string) {
		t.Helper()
		src.crash = func() {
			data, err := os.ReadFile(c.path)
			expect.NoError(t, err)
			copied := t.TempDir()
			expect.NoError(t, os.WriteFile(filepath.Join(copied, countersFile), data, 0o600))
			copies = append(copies, copied)
		}
		mustCheckpoint(t, c)
		src.crash = func() {}
		return copies
	}

	reopened(dir, true, 0, "there was no file")
	reopened(dir, true, 0, "there was an empty one")
	c, stats := openLoaded(t, testConfig(dir, src, clk.Now))
	expect.Equal(t, stats.Incomplete, true, "no checkpoint was made: incomplete")
	mustCheckpoint(t, c)
	expect.NoError(t, c.file.close())
	reopened(dir, false, 0, "after a checkpoint of an empty table")

	c, _ = openLoaded(t, testConfig(dir, src, clk.Now))
	for _, r := range records {
		src.set(r)
	}
	for i, copied := range crashes(c) {
		reopened(copied, false, int64(i+1)*batch, "killed during a later checkpoint")
	}
	expect.NoError(t, os.Truncate(c.path, 0))
	src.set(records[0])
	if err := c.Checkpoint(t.Context()); !isDamaged(err) {
		t.Fatalf("have %v, want a damaged file", err)
	}
	copies := crashes(c)
	expect.Equal(t, len(copies), all/batch, "batches of a whole checkpoint")
	for i, copied := range copies {
		reopened(copied, true, int64(i+1)*batch, "killed while the file was replaced")
		if i > 0 {
			continue
		}

		// A process that begins with a part completes the file, too.
		next := newTable()
		c, _ := openLoaded(t, testConfig(copied, next, clk.Now))
		mustCheckpoint(t, c)
		expect.NoError(t, c.file.close())
		reopened(copied, false, batch, "after a checkpoint of what was left")
	}
	mustClose(t, c)
	reopened(dir, false, all, "after the replacement")
}

// editFrames changes the frames of a closed file.
func editFrames(t testing.TB, dir string, change func(tx *bolt.Tx, frames *bolt.Bucket) error) {
	t.Helper()
	db, err := bolt.Open(filepath.Join(dir, countersFile), 0o600, nil)
	expect.NoError(t, err)
	err = db.Update(func(tx *bolt.Tx) error { return change(tx, tx.Bucket(framesBucket)) })
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// A damaged frame loses only its own counters, and the next base does not contain it.
func TestDamagedFrames(t *testing.T) {
	const each, many = 40, 5
	for name, harm := range map[string]func(frames *bolt.Bucket, number, frame []byte) error{
		"cut":    func(b *bolt.Bucket, number, frame []byte) error { return b.Put(number, frame[:len(frame)-1]) },
		"empty":  func(b *bolt.Bucket, number, frame []byte) error { return b.Put(number, nil) },
		"header": func(b *bolt.Bucket, number, frame []byte) error { return b.Put(number, frame[:frameHeader-1]) },
		"noise": func(b *bolt.Bucket, number, frame []byte) error {
			return b.Put(number, append(slices.Clone(frame[:20]), make([]byte, len(frame)-20)...))
		},
		"another's": func(b *bolt.Bucket, number, frame []byte) error {
			_, first := b.Cursor().First()
			return b.Put(number, slices.Clone(first))
		},
		"of another number": func(b *bolt.Bucket, number, frame []byte) error {
			return errors.Join(b.Put(append(slices.Clone(number), 0), slices.Clone(frame)), b.Delete(number))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, clk := t.TempDir(), newClock()
			src := newTable()
			c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
			all := sample(clk.Now(), each*many)
			for i, r := range all {
				src.set(r)
				if (i+1)%each == 0 {
					mustCheckpoint(t, c)
				}
			}
			// The last frame repeats counters of the previous one. If it is damaged, they
			// are as in that one.
			for _, r := range all[each*(many-1):] {
				r.State.Count += 1000
				src.set(r)
			}
			mustClose(t, c)
			editFrames(t, dir, func(_ *bolt.Tx, b *bolt.Bucket) error {
				for _, n := range []uint64{3, many + 1} {
					number := binary.BigEndian.AppendUint64(nil, n)
					if err := harm(b, number, b.Get(number)); err != nil {
						return err
					}
				}
				return nil
			})
			log := &process.Output{}
			again := newTable()
			config := testConfig(dir, again, clk.Now)
			config.Logger = slog.New(slog.NewTextHandler(log, nil))
			c, stats := openLoaded(t, config)
			if s := c.Status(); s.Damaged != 2 || s.SetAside != 0 || stats.DamagedFrames != 2 ||
				stats.SetAside || log.Count("damaged frames") != 1 {
				t.Errorf("have %+v, %+v, %s", s, stats, log.String())
			}
			for i, want := range all {
				have, found := again.all[want.Key]
				if lost := i/each == 2; found == lost || found &&
					want.Kind != algorithms.SlidingLog && have.State.Count != want.State.Count {
					t.Errorf("counter %d of frame %d: have %+v (%t), want %+v", i, i/each+1, have, found, want)
				}
			}
			mustClose(t, c)
			c, stats = openLoaded(t, testConfig(dir, newTable(), clk.Now))
			if stats.DamagedFrames != 0 || stats.Restored != each*(many-1) {
				t.Errorf("in the next base: have %+v", stats)
			}
			mustClose(t, c)
		})
	}
}

func TestGuard(t *testing.T) {
	var none *counters.Record
	tests := map[string]func() error{
		"panic":       func() error { panic("no") },
		"nil pointer": func() error { none.Fullness = 1; return nil },
	}
	for name, f := range tests {
		expect.ErrorIs(t, guard(f), errEngineFailed, "%s", name)
	}
	plain := errors.New("plain")
	if err := guard(func() error { return plain }); err != plain {
		t.Errorf("have %v", err)
	}
}
