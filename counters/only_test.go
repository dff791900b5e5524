package counters

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
)

// randomCheck returns a check of one to three subjects, each with several
// limits of all kinds, and sometimes a block.
func randomCheck(rng *rand.Rand) []Op {
	var ops []Op
	first := rng.Uint64N(6)
	for subject := range 1 + rng.Uint64N(3) {
		hi, shadow := key((first+subject)%6).Subject, rng.IntN(8) == 0
		for lo := range 1 + rng.Uint64N(3) {
			kind := allKinds[(hi+lo)%uint64(len(allKinds))] // each key keeps its kind
			limit := &algorithms.Limit{Kind: kind, Amount: 3, Burst: 5, Window: time.Minute}
			if lo == 2 && mayQueue(kind) {
				limit.MaxDelay = time.Second
			}
			ops = append(ops,
				Op{Key: Key{Subject: hi, Counter: lo << 61}, Limit: limit, Cost: rng.Int64N(3), Shadow: shadow})
		}
		if rng.IntN(3) == 0 {
			ops = append(ops, Op{Key: Key{Subject: hi, Counter: 1}, Limit: blockLimit, Block: true, Shadow: shadow})
		}
	}
	return ops
}

// A check decides and stores the same whether its counters are all in one
// shard, which is locked directly, or in several, and whether or not a single
// op takes the short way. A one-shard table answers as one with many shards
// does, and as a one-shard table that locks a list of shards.
func TestOneShardAnswersAsMany(t *testing.T) {
	one, many, listed := newTable(t, 128), newTable(t, 1_000_000), newTable(t, 128)
	if len(one.shards) != 1 || len(many.shards) < minShards {
		t.Fatalf("have %d and %d shards", len(one.shards), len(many.shards))
	}
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	counts := map[Verdict]int{}
	now := epoch
	for step := range 20_000 {
		now = after(time.Duration(now.Steady-epoch.Steady) + time.Duration(rng.Int64N(int64(5*time.Second))))
		if rng.IntN(50) == 0 {
			p := key(rng.Uint64N(6)).Partition()
			change := func(t *Table, p int) { t.Open(p, soleLineage) }
			if one.IsOpen(p) {
				change = (*Table).Shut
			}
			change(one, p)
			change(many, p)
			change(listed, p)
		}
		ops := randomCheck(rng)
		if rng.IntN(2) == 0 {
			ops = ops[:1]
		}
		mode := Mode(max(0, rng.IntN(6)-3))
		for i := range ops {
			ops[i].NoRoom = true // from an earlier check
			if !ops[i].Block {
				ops[i].Mode = mode
			}
		}
		byMany, byList := slices.Clone(ops), slices.Clone(ops)
		verdict := one.Take(now, ops)
		counts[verdict]++
		held, now := listed.lockShards(now, byList, nil)
		third := listed.take(now, byList, nil, true)
		listed.unlockShards(held)
		if second := many.Take(now, byMany); verdict != second || verdict != third {
			t.Fatalf("seed %d, step %d: have %s, %s and %s", seed, step, verdict, second, third)
		}
		for i := range ops {
			if d := ops[i].Decision; verdict != Undecided && (d != byMany[i].Decision || d != byList[i].Decision) {
				t.Fatalf("seed %d, step %d, op %d: have %+v, %+v and %+v", seed, step, i, d,
					byMany[i].Decision, byList[i].Decision)
			}
			if a, b := &ops[i], &byList[i]; verdict != Undecided && (a.NoRoom != b.NoRoom || a.state != b.state) {
				t.Fatalf("seed %d, step %d, op %d: have %t with %+v, %t with %+v", seed, step, i,
					a.NoRoom, a.state, b.NoRoom, b.state)
			}
		}
		if rng.IntN(10) == 0 {
			if a, b := changesOf(t, one), changesOf(t, listed); !reflect.DeepEqual(a, b) {
				t.Fatalf("seed %d, step %d: have changes %+v and %+v", seed, step, a, b)
			}
		}
	}
	if counts[Admitted] < 1000 || counts[Refused] < 1000 || counts[Undecided] < 100 {
		t.Errorf("have %v: too few of one verdict", counts)
	}
	if a, b := one.Stats().Counters, many.Stats().Counters; a != b || a > 100 {
		t.Errorf("have %d and %d counters", a, b)
	}
}

// changesOf returns what has changed since the last call.
func changesOf(t *testing.T, table *Table) map[Key]Record {
	t.Helper()
	changes := make(map[Key]Record)
	err := table.DrainChanges(func(records []Record) error {
		for _, r := range records {
			changes[r.Key] = r
		}
		return nil
	})
	expect.NoError(t, err)
	return changes
}

func TestCheckOfNothing(t *testing.T) {
	if v := newTable(t, 100).Take(epoch, nil); v != Admitted {
		t.Errorf("have %s, want admitted", v)
	}
}
