package persist

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

func raftConfig(dir string) RaftConfig {
	config := DefaultRaftConfig()
	config.Dir, config.Logger, config.Ballast = dir, quiet, 1<<16
	return config
}

func openRaft(t testing.TB, dir string) *RaftStore {
	t.Helper()
	r, err := OpenRaft(raftConfig(dir))
	expect.NoError(t, err)
	return r
}

func closeRaft(t testing.TB, r *RaftStore) {
	t.Helper()
	expect.NoError(t, r.Close())
}

// logEntry returns entry i of a term, with both in its data.
func logEntry(i, term uint64) *raft.Log {
	return &raft.Log{
		Index: i, Term: term, Type: raft.LogCommand, AppendedAt: time.Unix(1_800_000_000, int64(i)).UTC(),
		Data: fmt.Appendf(nil, "entry %d of term %d %s", i, term, strings.Repeat("x", int(i%40)*7)),
	}
}

func logEntries(first, last, term uint64) []*raft.Log {
	var out []*raft.Log
	for i := first; i <= last; i++ {
		out = append(out, logEntry(i, term))
	}
	return out
}

func mustStore(t testing.TB, r *RaftStore, logs []*raft.Log) {
	t.Helper()
	expect.NoError(t, r.Logs().StoreLogs(logs))
}

func mustSave(t testing.TB, r *RaftStore, term uint64) {
	t.Helper()
	err := errors.Join(r.Stable().SetUint64(termKey, term), r.Stable().SetUint64([]byte("LastVoteTerm"), term),
		r.Stable().Set([]byte("LastVoteCand"), []byte("node")))
	expect.NoError(t, err)
}

// snapshot takes a snapshot with text as its content.
func snapshot(t testing.TB, r *RaftStore, index, term uint64, text string) {
	t.Helper()
	peers := raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "b"}}}
	_, trans := raft.NewInmemTransport("")
	sink, err := r.Snapshots().Create(1, index, term, peers, 1, trans)
	expect.NoError(t, err)
	if _, err := io.WriteString(sink, text); err != nil {
		t.Fatal(err)
	}
	expect.NoError(t, sink.Close())
}

// checkLog checks that the log is exactly as wanted.
func checkLog(t testing.TB, logs raft.LogStore, want []*raft.Log) {
	t.Helper()
	first, err := logs.FirstIndex()
	last, err2 := logs.LastIndex()
	expect.NoError(t, errors.Join(err, err2))
	wantFirst, wantLast := uint64(0), uint64(0)
	if len(want) > 0 {
		wantFirst, wantLast = want[0].Index, want[len(want)-1].Index
	}
	if first != wantFirst || last != wantLast {
		t.Fatalf("the log is %d to %d, want %d to %d", first, last, wantFirst, wantLast)
	}
	for _, w := range want {
		var have raft.Log
		if err := logs.GetLog(w.Index, &have); err != nil {
			t.Fatalf("entry %d: %v", w.Index, err)
		}
		if !have.AppendedAt.Equal(w.AppendedAt) {
			t.Fatalf("entry %d: time %v, want %v", w.Index, have.AppendedAt, w.AppendedAt)
		}
		have.AppendedAt = w.AppendedAt
		if !reflect.DeepEqual(have, *w) {
			t.Fatalf("have %+v, want %+v", have, *w)
		}
	}
}

func TestRaftReopens(t *testing.T) {
	dir := t.TempDir()
	r := openRaft(t, dir)
	if empty, err := r.Empty(); !empty || err != nil {
		t.Fatalf("a new store: %t, %v", empty, err)
	}
	if _, err := r.Stable().Get([]byte("no")); err == nil || err.Error() != "not found" {
		t.Errorf("have %v: Raft compares the text", err)
	}
	if _, err := r.Stable().GetUint64([]byte("no")); err == nil || err.Error() != "not found" {
		t.Errorf("have %v: Raft compares the text", err)
	}
	expect.ErrorIs(t, r.Logs().GetLog(3, new(raft.Log)), raft.ErrLogNotFound, "r.Logs().GetLog(3, new(raft.Log))")
	mustSave(t, r, 7)
	want := logEntries(1, 300, 7)
	want[100].Extensions = []byte("somebody else's")
	mustStore(t, r, want)
	snapshot(t, r, 70, 7, "the state")
	// The beginning in two parts, then the end.
	for _, part := range [][2]uint64{{1, 30}, {31, 60}, {201, 300}} {
		expect.NoError(t, r.Logs().DeleteRange(part[0], part[1]))
	}
	want = slices.Concat(want[60:200], logEntries(201, 220, 8))
	mustSave(t, r, 8)
	mustStore(t, r, want[140:])
	for range 2 {
		checkLog(t, r.Logs(), want)
		if n, err := r.Stable().GetUint64(termKey); n != 8 || err != nil {
			t.Errorf("term is %d, %v", n, err)
		}
		if v, err := r.Stable().Get([]byte("LastVoteCand")); string(v) != "node" || err != nil {
			t.Errorf("vote is %q, %v", v, err)
		}
		if empty, err := r.Empty(); empty || err != nil {
			t.Errorf("have %t, %v", empty, err)
		}
		list, err := r.Snapshots().List()
		if err != nil || len(list) != 1 || list[0].Index != 70 {
			t.Fatalf("have %v, %v", list, err)
		}
		if s := r.Status(); s.Size < 1<<14 || !s.HungSince.IsZero() || !s.FailingSince.IsZero() || !s.Ballast {
			t.Errorf("status is %+v", s)
		}
		closeRaft(t, r)
		closeRaft(t, r)
		r = openRaft(t, dir)
	}
	// All of it, as after a snapshot with no trailing entries.
	expect.NoError(t, r.Logs().DeleteRange(61, 220))
	snapshot(t, r, 220, 8, "the state")
	closeRaft(t, r)
	r = openRaft(t, dir)
	checkLog(t, r.Logs(), nil)
	// Raft jumps ahead when the leader sends a snapshot.
	mustStore(t, r, logEntries(221, 225, 8))
	snapshot(t, r, 1<<40, 8, "the state")
	mustStore(t, r, logEntries(1<<40+1, 1<<40+3, 8))
	closeRaft(t, r)
	closeRaft(t, openRaft(t, dir))
}

func TestRaftInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := openRaft(t, dir)
	defer closeRaft(t, r)
	_, err := OpenRaft(raftConfig(dir))
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), dir) {
		t.Errorf("have %v, want ErrInUse and the directory's name", err)
	}
}

func TestRaftClosed(t *testing.T) {
	r := openRaft(t, t.TempDir())
	closeRaft(t, r)
	tests := map[string]error{
		"store":  r.logs.StoreLog(logEntry(1, 1)),
		"delete": r.logs.DeleteRange(1, 2),
		"read":   r.logs.GetLog(1, new(raft.Log)),
		"save":   r.Stable().SetUint64(termKey, 1),
	}
	for name, have := range tests {
		expect.ErrorIs(t, have, ErrClosed, "%s", name)
	}
}

func TestRaftConfig(t *testing.T) {
	for want, harm := range map[string]func(*RaftConfig){
		"Dir":     func(c *RaftConfig) { c.Dir = "" },
		"Logger":  func(c *RaftConfig) { c.Logger = nil },
		"Timeout": func(c *RaftConfig) { c.Timeout = time.Millisecond },
		"Ballast": func(c *RaftConfig) { c.Ballast = -1 },
		"MaxSize": func(c *RaftConfig) { c.MaxSize = -1 },
	} {
		config := raftConfig(t.TempDir())
		harm(&config)
		if _, err := OpenRaft(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("have %v, want an error about %s", err, want)
		}
	}
}

// On a full disk, a write of the log fails, and nothing stored before is lost.
func TestRaftLogFull(t *testing.T) {
	dir := t.TempDir()
	log := &process.Output{}
	config := raftConfig(dir)
	config.MaxSize, config.Logger = 1<<18, slog.New(slog.NewTextHandler(log, nil))
	r, err := OpenRaft(config)
	expect.NoError(t, err)
	mustSave(t, r, 1)
	var want []*raft.Log
	big := func(i uint64) *raft.Log {
		l := logEntry(i, 1)
		l.Data = bytes.Repeat([]byte{byte(i)}, 30_000)
		return l
	}
	for i := uint64(1); ; i++ {
		if err = r.logs.StoreLog(big(i)); err != nil {
			break
		}
		want = append(want, big(i))
	}
	if !errors.Is(err, berrors.ErrMaxSizeReached) || len(want) < 2 {
		t.Fatalf("have %v after %d", err, len(want))
	}
	checkLog(t, r.Logs(), want)
	for range 3 {
		if err := r.Logs().StoreLog(big(uint64(len(want) + 1))); err == nil {
			t.Fatal("stored on a full disk")
		}
	}
	if s := r.Status(); s.FailingSince.IsZero() || s.Err == nil || !s.HungSince.IsZero() {
		t.Errorf("status is %+v", s)
	}
	expect.Equal(t, log.Count("log can't be written"), 1, "lines")
	small := logEntry(uint64(len(want)+1), 1)
	mustStore(t, r, []*raft.Log{small})
	want = append(want, small)
	if s := r.Status(); !s.FailingSince.IsZero() || s.Err != nil {
		t.Errorf("status is %+v", s)
	}
	closeRaft(t, r)
	r = openRaft(t, dir)
	defer closeRaft(t, r)
	checkLog(t, r.Logs(), want)
}

// raftFiles creates a data directory with a log several levels deep, free pages and a snapshot.
func raftFiles(t testing.TB) (dir string, want []*raft.Log) {
	t.Helper()
	dir = t.TempDir()
	r := openRaft(t, dir)
	mustSave(t, r, 1)
	for i := uint64(1); i < 400; i += 50 {
		mustStore(t, r, logEntries(i, i+49, 1))
	}
	snapshot(t, r, 30, 1, "an older state")
	snapshot(t, r, 60, 1, strings.Repeat("the state ", 300))
	expect.NoError(t, r.Logs().DeleteRange(1, 40))
	mustSave(t, r, 2)
	mustStore(t, r, logEntries(401, 410, 2))
	closeRaft(t, r)
	return dir, slices.Concat(logEntries(41, 400, 1), logEntries(401, 410, 2))
}

// A damaged raft.db stops the node, or still holds everything that was
// acknowledged: never less, never anything else.
func TestRaftDamaged(t *testing.T) {
	rounds := damageRounds(500, 100)
	dir, want := raftFiles(t)
	path := filepath.Join(dir, raftFile)
	good, err := os.ReadFile(path)
	expect.NoError(t, err)
	refused := 0
	for round := range rounds {
		rnd := rand.New(rand.NewPCG(uint64(round), 3))
		data, what := damage(rnd, bytes.Clone(good))
		expect.NoError(t, os.WriteFile(path, data, 0o600))
		r, err := OpenRaft(raftConfig(dir))
		if err != nil {
			refused++
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "backup") ||
				!strings.Contains(err.Error(), path) {
				t.Errorf("round %d, %s: %v", round, what, err)
			}
			continue
		}
		checkLog(t, r.Logs(), want)
		if n, err := r.Stable().GetUint64(termKey); n != 2 || err != nil {
			t.Errorf("round %d, %s: term is %d, %v", round, what, n, err)
		}
		closeRaft(t, r)
		if t.Failed() {
			t.Fatalf("round %d, %s", round, what)
		}
	}
	t.Logf("%d of %d were refused", refused, rounds)
}

func TestRaftDamagedParts(t *testing.T) {
	scribble := func(name string, at int, with string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			f, err := os.OpenFile(newestOf(t, dir, name), os.O_RDWR, 0)
			expect.NoError(t, err)
			_, err = f.WriteAt([]byte(with), int64(at))
			expect.NoError(t, errors.Join(err, f.Close()))
		}
	}
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			expect.NoError(t, os.RemoveAll(newestOf(t, dir, name)))
		}
	}
	cut := func(name string, size int64) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			expect.NoError(t, os.Truncate(newestOf(t, dir, name), size))
		}
	}
	tests := map[string]func(*testing.T, string){
		"raft.db is gone":           remove(raftFile),
		"raft.db is empty":          cut(raftFile, 0),
		"raft.db is cut":            cut(raftFile, 40_000),
		"state.bin is scribbled on": scribble("snapshots/*/state.bin", 7, "oops"),
		"state.bin is cut":          cut("snapshots/*/state.bin", 100),
		"state.bin is empty":        cut("snapshots/*/state.bin", 0),
		"state.bin is gone":         remove("snapshots/*/state.bin"),
		"meta.json is scribbled on": scribble("snapshots/*/meta.json", 5, "\xff\xfe"),
		"meta.json is other text":   scribble("snapshots/*/meta.json", 0, "[1,2]"),
		"meta.json is cut":          cut("snapshots/*/meta.json", 20),
		"meta.json is empty":        cut("snapshots/*/meta.json", 0),
		"meta.json is gone":         remove("snapshots/*/meta.json"),
		"the snapshot is gone":      remove("snapshots/*"),
		"the snapshots are gone":    remove("snapshots"),
	}
	source, want := raftFiles(t)
	for name, harm := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			expect.NoError(t, os.CopyFS(dir, os.DirFS(source)))
			closeRaft(t, openRaft(t, dir))
			harm(t, dir)
			before := files(t, dir)
			for range 2 {
				_, err := OpenRaft(raftConfig(dir))
				if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), dir) ||
					!strings.Contains(err.Error(), "backup") {
					t.Errorf("have %v", err)
				}
			}
			if after := files(t, dir); !maps.Equal(before, after) {
				t.Errorf("files were %v, are %v", before, after)
			}
		})
	}
	// An older snapshot is not needed.
	expect.NoError(t, os.Truncate(filepath.Join(oldestSnapshot(t, source), "state.bin"), 1))
	r := openRaft(t, source)
	defer closeRaft(t, r)
	checkLog(t, r.Logs(), want)
}

// newestOf returns the last match in name order; the names of snapshots sort by age here.
func newestOf(t *testing.T, dir, pattern string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(globEscape(dir), filepath.FromSlash(pattern)))
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	return slices.Max(all)
}

func oldestSnapshot(t *testing.T, dir string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(globEscape(dir), snapshotsDir, "*"))
	if err != nil || len(all) < 2 {
		t.Fatal(all, err)
	}
	return slices.Min(all)
}

// files returns the files below dir and their sizes.
func files(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		out[path] = info.Size()
		return err
	})
	expect.NoError(t, err)
	return out
}

// What a crash leaves behind is removed.
func TestRaftRemovesLeftovers(t *testing.T) {
	dir, want := raftFiles(t)
	before := files(t, dir)
	left := []string{"raft.db.new-123", "counters.db.new-4", "snapshots/1-70-99.tmp/state.bin"}
	for _, name := range left {
		path := filepath.Join(dir, filepath.FromSlash(name))
		expect.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)))
	}
	r := openRaft(t, dir)
	checkLog(t, r.Logs(), want)
	closeRaft(t, r)
	if after := files(t, dir); !maps.Equal(before, after) {
		t.Errorf("files were %v, are %v", before, after)
	}
}
