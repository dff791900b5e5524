package counters

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

var blockLimit = &algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 1, Burst: 1, Window: time.Hour}

// withBlock returns a check of one limit with a block beside it.
func withBlock(n uint64, cost int64) []Op {
	limit := &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1, Window: time.Minute}
	k := key(n)
	return []Op{{Key: k, Limit: limit, Cost: cost},
		{Key: Key{Subject: k.Subject, Counter: k.Counter ^ 1}, Limit: blockLimit, Block: true}}
}

// A block reaches checkpoints and replicas like any counter, and can be restored from them.
func TestBlockIsACounter(t *testing.T) {
	table, other := New(100), New(100)
	defer table.Close()
	defer other.Close()
	if table.Take(epoch, withBlock(1, 1)) != Admitted || table.Stats().Counters != 1 {
		t.Error("an admitted check began a block")
	}
	if table.Peek(epoch, withBlock(1, 1)) != Refused || table.Stats().Counters != 1 {
		t.Error("a peek began a block")
	}
	ops := withBlock(1, 1)
	if table.Take(epoch, ops) != Refused || ops[1].Decision.RetryAfter != time.Hour || table.Stats().Counters != 2 {
		t.Errorf("have %+v, %d counters", ops[1].Decision, table.Stats().Counters)
	}
	later := after(30 * time.Minute)
	table.Sweep(later, 1)
	if err := table.Copy(key(1).Partition(), func(list []Record) error {
		for i := range list {
			var r Record
			if _, err := parseRecord(AppendRecord(nil, &list[i], later), &r, later); err != nil ||
				!other.Put(later, r) {
				t.Error(err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, at := range []*Table{table, other} {
		ops = withBlock(1, 0)
		if at.Take(later, ops) != Refused || ops[1].Decision.RetryAfter != 30*time.Minute || !ops[0].Decision.Allowed {
			t.Errorf("have %+v and %+v", ops[0].Decision, ops[1].Decision)
		}
		if at.Take(after(time.Hour), withBlock(1, 1)) != Admitted {
			t.Error("refused after the block ended")
		}
	}
}

// If a block in force is made longer, a count keeps it for as long as a check would.
func TestCountKeepsALongerBlock(t *testing.T) {
	for _, mode := range []Mode{CheckMode, CountMode} {
		table := New(100)
		table.Take(epoch, withBlock(1, 1))
		table.Take(epoch, withBlock(1, 1))
		longer := *blockLimit
		longer.Window *= 2
		ask := func(at time.Duration) Verdict {
			ops := withBlock(1, 0)
			ops[1].Limit, ops[0].Mode, ops[1].Mode = &longer, mode, mode
			v := table.Take(after(at), ops)
			if ops[1].Decision.Allowed {
				t.Errorf("mode %d: no block after %s", mode, at)
			}
			return v
		}
		if v := ask(time.Minute); v == Admitted != (mode == CountMode) {
			t.Errorf("mode %d: have %v", mode, v)
		}
		table.Sweep(after(90*time.Minute), 1000)
		ask(90 * time.Minute)
		table.Close()
	}
}

// A flood of new subjects never evicts a block. Without room for the block or
// its subject, no block begins.
func TestBlockInAFullTable(t *testing.T) {
	table := New(8)
	defer table.Close()
	blocked := func(n uint64) bool {
		ops := withBlock(n, 0)
		return table.Peek(after(2*time.Minute), ops) == Refused
	}
	for n := range uint64(100) {
		ops := withBlock(n, 1)
		table.Take(epoch, ops)
		ops = withBlock(n, 1)
		if table.Take(epoch, ops) == Admitted {
			t.Fatalf("subject %d was admitted twice", n)
		}
		if ops[0].NoRoom && !ops[1].Decision.Allowed {
			t.Errorf("subject %d: a block began without room", n)
		}
	}
	if n := table.Stats().Counters; n > 8 {
		t.Errorf("have %d counters", n)
	}
	kept := 0
	for n := range uint64(100) {
		if blocked(n) {
			kept++
		}
	}
	if kept == 0 || !blocked(0) {
		t.Errorf("%d blocks are left, the first of them: %v", kept, blocked(0))
	}
}

// A counter with a queue counts as refusing: no flood evicts it.
func TestQueueIsNotEvicted(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.SlidingWindow, algorithms.FixedWindow,
		algorithms.TokenBucket, algorithms.SlidingLog} {
		table := New(8)
		l := &algorithms.Limit{Kind: kind, Amount: 2, Burst: 2, Window: time.Minute, MaxDelay: time.Hour}
		for range 6 {
			if d := take(table, epoch, key(0), l, 1); !d.Allowed {
				t.Fatalf("%s: have %+v", kind, d)
			}
		}
		before := take(table, epoch, key(0), l, 1).Delay
		for n := range uint64(200) {
			take(table, epoch, key(n+1), l, 1)
		}
		if d := take(table, epoch, key(0), l, 2); d.Delay <= before {
			t.Errorf("%s: the queue is gone: %s, then %s", kind, before, d.Delay)
		}
		table.Close()
	}
}
