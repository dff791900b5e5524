package persist

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/internal/expect"
)

// childRaft stores, replaces and compacts entries and takes snapshots, as Raft does.
func childRaft(dir string) error {
	r, err := OpenRaft(raftConfig(dir))
	if err != nil {
		return err
	}
	last, err := r.Logs().LastIndex()
	if err != nil {
		return err
	}
	term, err := r.Stable().GetUint64(termKey)
	if err != nil && err.Error() != "not found" {
		return err
	}
	for {
		term++
		err := errors.Join(
			r.Stable().SetUint64(termKey, term),
			r.Logs().StoreLogs(logEntries(last+1, last+4, term)),
			// The next leader has replaced two of them.
			r.Logs().DeleteRange(last+3, last+4),
			r.Stable().SetUint64(termKey, term+1),
			r.Logs().StoreLogs(logEntries(last+3, last+5, term+1)),
		)
		if err != nil {
			return err
		}
		term++
		last += 5
		fmt.Println(last)
		if last%50 == 0 {
			if err := childSnapshot(r, last-20, term); err != nil {
				return err
			}
		}
	}
}

// childSnapshot takes a snapshot and removes most of the entries before it.
func childSnapshot(r *RaftStore, index, term uint64) error {
	first, err := r.Logs().FirstIndex()
	if err != nil || index <= first {
		return err
	}
	_, trans := raft.NewInmemTransport("")
	sink, err := r.Snapshots().Create(1, index, term, raft.Configuration{}, 1, trans)
	if err != nil {
		return err
	}
	_, err = io.WriteString(sink, "the state")
	if err := errors.Join(err, sink.Close()); err != nil {
		return err
	}
	return r.Logs().DeleteRange(first, index-10)
}

// TestG9_KilledWhileLogging: an acknowledged entry survives a kill at any moment.
func TestG9_KilledWhileLogging(t *testing.T) {
	t.Parallel()
	dir, done := t.TempDir(), uint64(0)
	for round := range killRounds() {
		life := time.Duration(20+rand.IntN(200)) * time.Millisecond
		if done == 0 {
			life *= time.Duration(round + 1) // the machine is busy
		}
		done = max(done, uint64(runAndKill(t, "raft:"+dir, life)))
		r := openRaft(t, dir)
		// Opening has checked that the entries are intact and none is missing.
		last, err := r.Logs().LastIndex()
		if err != nil || last < done {
			t.Fatalf("the log ends with %d after %d was acknowledged: %v", last, done, err)
		}
		done = last
		closeRaft(t, r)
	}
	if done == 0 {
		t.Error("no child stored an entry")
	}
}

// BenchmarkRaftRead measures what the guard adds to a read that misses the cache.
func BenchmarkRaftRead(b *testing.B) {
	r := openRaft(b, b.TempDir())
	defer closeRaft(b, r)
	mustStore(b, r, logEntries(1, 1000, 1))
	for _, logs := range []struct {
		name  string
		store raft.LogStore
	}{{"bare", r.store}, {"checked", checkedLogs{r.store}}, {"guarded", r.logs}} {
		b.Run(logs.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				var l raft.Log
				expect.NoError(b, logs.store.GetLog(uint64(1+i%900), &l))
			}
		})
	}
}

func BenchmarkRaftStore(b *testing.B) {
	r := openRaft(b, b.TempDir())
	defer closeRaft(b, r)
	for i := range b.N {
		mustStore(b, r, logEntries(uint64(i+1), uint64(i+1), 1))
	}
}
