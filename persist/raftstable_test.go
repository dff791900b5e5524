package persist

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// fullStable is a key-value store on a full disk.
type fullStable struct {
	raft.StableStore
	room func() bool

	mu    sync.Mutex // guards tries
	tries int
}

func (f *fullStable) SetUint64(key []byte, n uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tries++
	if !f.room() {
		return syscall.ENOSPC
	}
	return f.StableStore.SetUint64(key, n)
}

func (f *fullStable) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tries
}

// The ballast makes room for a term, once. It is created again when there is room.
func TestRaftBallast(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ballastFile)
	synctest.Test(t, func(t *testing.T) {
		log := &process.Output{}
		config := raftConfig(dir)
		config.Logger = slog.New(slog.NewTextHandler(log, nil))
		r, err := OpenRaft(config)
		expect.NoError(t, err)
		info, err := os.Stat(path)
		if err != nil || info.Size() != config.Ballast || !r.Status().Ballast {
			t.Fatalf("ballast: %v, %v", info, err)
		}
		free := int64(scarceFactor*config.Ballast - 1)
		r.ballast.freeBytes = func(string) (int64, bool) { return free, true }
		r.stable.inner = &fullStable{StableStore: r.stable.inner, room: func() bool {
			_, err := os.Stat(path)
			return err != nil
		}}
		begin := time.Now()
		if err := r.Stable().SetUint64(termKey, 9); err != nil || time.Since(begin) != 0 {
			t.Fatalf("have %v after %v", err, time.Since(begin))
		}
		time.Sleep(10 * refillPause) // synthetic
		if r.Status().Ballast {
			t.Error("the ballast was created on a nearly full disk")
		}
		r.ballast.mu.Lock()
		free++
		r.ballast.mu.Unlock()
		time.Sleep(refillPause) // synthetic
		synctest.Wait()
		if info, err := os.Stat(path); err != nil || info.Size() != config.Ballast || !r.Status().Ballast {
			t.Errorf("ballast: %v, %v", info, err)
		}
		if n, err := r.Stable().GetUint64(termKey); n != 9 || err != nil {
			t.Errorf("have %d, %v", n, err)
		}
		if a, b := log.Count("was deleted"), log.Count("is back"); a != 1 || b != 1 {
			t.Errorf("%d and %d lines, want one each", a, b)
		}
		closeRaft(t, r)
	})
	// A truncated ballast is filled again, one of another size is recreated, and
	// one of size zero is removed.
	for _, size := range []int64{1 << 16, 1 << 15, 0} {
		expect.NoError(t, os.Truncate(path, 100))
		config := raftConfig(dir)
		config.Ballast = size
		r, err := OpenRaft(config)
		expect.NoError(t, err)
		closeRaft(t, r)
		if info, err := os.Stat(path); size == 0 != os.IsNotExist(err) || err == nil && info.Size() != size {
			t.Errorf("ballast: %v, %v, want %d bytes", info, err, size)
		}
	}
}

// Saving a term waits for room with growing pauses, and logs that once.
func TestRaftTermWaitsForRoom(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		log := &process.Output{}
		config := raftConfig(dir)
		config.Logger = slog.New(slog.NewTextHandler(log, nil))
		r, err := OpenRaft(config)
		expect.NoError(t, err)
		begin := time.Now()
		room := func() bool { return time.Since(begin) > time.Minute }
		inner := &fullStable{StableStore: r.stable.inner, room: room}
		r.stable.inner = inner
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := r.Stable().SetUint64(termKey, 5); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(30 * time.Second) // synthetic
		if s := r.Status(); !s.FailingSince.Equal(begin) || !errors.Is(s.Err, syscall.ENOSPC) ||
			!s.HungSince.IsZero() || s.Ballast {
			t.Errorf("status is %+v", s)
		}
		wg.Wait()
		if took := time.Since(begin); took > time.Minute+maxPause {
			t.Errorf("took %v", took)
		}
		if n := inner.count(); n > 30 {
			t.Errorf("%d tries in a minute", n)
		}
		if s := r.Status(); !s.FailingSince.IsZero() || s.Err != nil {
			t.Errorf("status is %+v", s)
		}
		expect.Equal(t, log.Count("can't be saved"), 1, "lines")
		closeRaft(t, r)
	})
}

// Close does not wait for a term that waits for room. Raft does not learn of
// the failure, because it would end the process.
func TestRaftCloseWhileFull(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := openRaft(t, dir)
		r.stable.inner = &fullStable{StableStore: r.stable.inner, room: func() bool { return false }}
		returned := make(chan error, 1)
		var wg sync.WaitGroup
		wg.Go(func() { returned <- r.Stable().SetUint64(termKey, 5) })
		time.Sleep(time.Minute) // synthetic
		closeRaft(t, r)
		time.Sleep(time.Minute) // synthetic
		select {
		case err := <-returned:
			t.Errorf("returned %v", err)
		default:
		}
		close(r.stable.parked)
		wg.Wait()
	})
	closeRaft(t, openRaft(t, dir))
}

// On a disk that is really full, entries fail, the term is saved, and
// everything is there afterwards.
func TestRaftOnTinyFileSystem(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("needs root on Linux to mount a small file system")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("mount: %v: %s", err, out)
	}
	defer func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	}()
	r := openRaft(t, dir)
	mustSave(t, r, 1)
	var want []*raft.Log
	store := func() error {
		l := logEntry(uint64(len(want)+1), 1)
		l.Data = make([]byte, 20_000)
		err := r.Logs().StoreLog(l)
		if err == nil {
			want = append(want, l)
		}
		return err
	}
	for range 50 {
		expect.NoError(t, store())
	}
	filler, err := os.Create(filepath.Join(dir, "filler"))
	expect.NoError(t, err)
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	filler.Close()
	for range 200 {
		if err = store(); err != nil {
			break
		}
	}
	if !strings.Contains(fmt.Sprint(err), "no space") {
		t.Fatalf("have %v on a full disk", err)
	}
	// Each save needs new pages; the file has some free ones.
	for n := uint64(2); n < 50; n++ {
		mustSave(t, r, n)
	}
	checkLog(t, r.Logs(), want)
	closeRaft(t, r)
	r = openRaft(t, dir)
	checkLog(t, r.Logs(), want)
	if n, err := r.Stable().GetUint64(termKey); n != 49 || err != nil {
		t.Errorf("term is %d, %v", n, err)
	}
	expect.NoError(t, os.Remove(filler.Name()))
	if err := store(); err != nil {
		t.Error(err)
	}
	closeRaft(t, r)
}

func TestRaftStableBreaks(t *testing.T) {
	r := openRaft(t, t.TempDir())
	defer closeRaft(t, r)
	r.stable.inner = nil // every call panics
	expect.ErrorIs(t, r.Stable().SetUint64(termKey, 5), ErrCorrupt, "r.Stable().SetUint64(termKey, 5)")
	if _, err := r.Stable().GetUint64(termKey); !errors.Is(err, errEngineFailed) {
		t.Errorf("have %v", err)
	}
}
