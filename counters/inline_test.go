package counters

import (
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

var inlineKeys = flag.Int("inline-keys", 300_000, "inline subjects of a flood; make models has more")

// inlineKey is key with the tag of inline counters.
func inlineKey(n uint64) Key { return tagged(key(n)) }

func tagged(k Key) Key { return Key{Subject: k.Subject, Counter: InlineCounter(k.Counter)} }

// yearly refuses from its second hit on, for the longest possible time.
var yearly = &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1, Window: algorithms.MaxWindow}

// scanned returns how many groups the searches for victims have visited so far,
// modulo the size of the subtables.
func scanned(table *Table) (sum int) {
	for i := range table.shards {
		table.shards[i].forEachLocked(func(sub *subtable) { sum += sub.clockHand })
	}
	return sum
}

// A flood of inline subjects that all refuse for a year fills half of the
// table. Meanwhile, every new subject of a rule finds room, none of them is
// evicted, and none gets more than its limit. The flood itself causes no more
// searches.
func TestInlineFloodLeavesHalf(t *testing.T) {
	n := uint64(*inlineKeys)
	bound := int64(n / 10)
	table := newTable(t, bound)
	l := perMinute(algorithms.TokenBucket, 2)
	before, began := resident(), time.Now()
	subjects, admitted := uint64(0), int64(0)
	for i := range n {
		for range 2 {
			if take(table, epoch, inlineKey(i), yearly, 1).Allowed {
				admitted++
			}
		}
		if i%25 == 0 { // eight tenths of the other half in total
			if d := take(table, epoch, key(1<<40+subjects), l, 1); !d.Allowed {
				t.Fatalf("subject %d of a rule is locked out after %d inline ones: %+v", subjects, i, d)
			}
			subjects++
		}
	}
	took, grown := time.Since(began), resident()-before
	addsUp(t, table)
	st := table.Stats()
	t.Logf("%d checks in %s, %s each; %.1f MB resident more; %+v", 2*n+subjects, took,
		took/time.Duration(2*n+subjects), float64(grown)/1e6, st)
	if st.Inline != admitted || st.Inline > bound/2 || st.Inline < bound/2*9/10 {
		t.Errorf("have %d inline counters, of %d that were admitted and %d in all", st.Inline, admitted, bound)
	}
	if st.Counters != st.Inline+int64(subjects) || st.Evicted+st.Refused != 0 ||
		st.InlineRefused == 0 || st.Bytes > 66*bound+1<<20 {
		t.Errorf("have %+v", st)
	}
	if before > 0 && grown > 100*bound+8<<20 {
		t.Errorf("%d bytes more are resident", grown)
	}
	for i := range subjects {
		k := key(1<<40 + i)
		if take(table, epoch, k, l, 2).Allowed || !take(table, epoch, k, l, 1).Allowed ||
			take(table, epoch, k, l, 1).Allowed {
			t.Fatalf("subject %d of a rule was admitted beyond its limit, or forgotten", i)
		}
	}
	hands := scanned(table)
	for i := range uint64(10_000) {
		if take(table, epoch, inlineKey(1<<50+i), yearly, 1).Allowed {
			t.Fatal("an inline subject found room")
		}
	}
	if now := scanned(table); now != hands {
		t.Errorf("refused inline subjects moved the hands from %d to %d", hands, now)
	}
}

// In a table full of configured counters, all of which could be evicted, inline
// counters only ever replace each other. A configured one replaces either kind.
func TestInlineEvictsInlineOnly(t *testing.T) {
	const bound = 20_000
	table := newTable(t, bound)
	l, log := perMinute(algorithms.FixedWindow, 10), perMinute(algorithms.SlidingLog, 10)
	for i := range uint64(bound / 10) {
		take(table, epoch, inlineKey(i), l, 1)
		take(table, epoch, inlineKey(1<<20+i), log, 1)
	}
	limits := [...]*algorithms.Limit{l, log}
	for i := range uint64(bound) {
		take(table, epoch, key(1<<40+i), limits[i%2], 1)
	}
	there := map[uint64]bool{}
	for i := range uint64(bound) {
		if used, _ := table.Usage(epoch, key(1<<40+i), limits[i%2]); used == 1 {
			there[i] = true
		}
	}
	before := table.Stats()
	if before.Counters < bound*99/100 || before.Inline < bound/20 {
		t.Fatalf("have %+v", before)
	}
	refused := 0
	for i := range uint64(bound) {
		if !take(table, epoch, inlineKey(1<<50+i), l, 1).Allowed {
			refused++
		}
	}
	addsUp(t, table)
	for i := range there {
		if used, _ := table.Usage(epoch, key(1<<40+i), limits[i%2]); used != 1 {
			t.Fatalf("subject %d of a rule was evicted", i)
		}
	}
	if st := table.Stats(); refused > 0 || st.Inline > before.Inline+bound/100 {
		t.Errorf("%d inline subjects refused; have %+v", refused, st)
	}
	for i := range uint64(2 * bound) {
		if d := take(table, epoch, key(1<<51+i), l, 1); !d.Allowed {
			t.Fatalf("newcomer %d of a rule: %+v", i, d)
		}
	}
	addsUp(t, table)
	after := table.Stats()
	if after.Inline > before.Inline*9/10 || after.Counters != bound {
		t.Errorf("have %+v after %+v", after, before)
	}
	for i := range uint64(bound / 2) { // until all of them refuse
		take(table, epoch, inlineKey(1<<52+i), yearly, 1)
		take(table, epoch, inlineKey(1<<52+i), yearly, 1)
	}
	if st := table.Stats(); st.Inline > after.Inline || st.InlineRefused == 0 || st.Refused != 0 {
		t.Errorf("have %+v after %+v", st, after)
	}
	addsUp(t, table)
}

// A search on behalf of an inline newcomer says nothing about configured ones,
// in one shard or in all of them.
func TestInlineSearchesDoNotStopOthers(t *testing.T) {
	l := perMinute(algorithms.FixedWindow, 10)
	small := newTable(t, 100)
	for i := range uint64(100) {
		take(small, epoch, inlineKey(i), yearly, 1)
		take(small, epoch, inlineKey(i), yearly, 1)
		take(small, epoch, key(i), l, 1)
	}
	if take(small, epoch, inlineKey(1000), l, 1).Allowed || !take(small, epoch, key(1000), l, 1).Allowed {
		t.Errorf("have %+v", small.Stats())
	}
	table := newTable(t, 20_000)
	refuseAll(table, yearly, 100)
	for i := range uint64(40_000) {
		if k := key(i); table.shardOf(k) != table.shardOf(inShard(7, 0)) {
			take(table, epoch, k, l, 1)
		}
	}
	if d := take(table, epoch, tagged(inShard(7, 1<<40)), l, 1); d.Allowed {
		t.Error("an inline newcomer evicted a configured counter")
	}
	if d := take(table, epoch, inShard(7, 1<<41), l, 1); !d.Allowed {
		t.Errorf("a newcomer of a rule is locked out: %+v", d)
	}
	addsUp(t, small)
	addsUp(t, table)
}

// One shard holds at most its part of the inline counters, in one subtable or
// in several. Configured subjects in that shard find room, even when the table
// is full and the shard has given up searching on behalf of inline ones.
func TestInlineCountersOfOneShard(t *testing.T) {
	for _, maxPart := range []int{2 * shardTarget, 256} {
		table := newTable(t, 300_000)
		table.maxSubtableSlots = maxPart
		s := table.shardOf(inShard(7, 0))
		n := uint64(3 * table.maxInline)
		for i := range n {
			k := tagged(inShard(7, i))
			take(table, epoch, k, yearly, 1)
			take(table, epoch, k, yearly, 1)
		}
		if addsUp(t, table); s.inline != table.maxInline {
			t.Errorf("have %d inline counters, want %d", s.inline, table.maxInline)
		}
		many := perMinute(algorithms.FixedWindow, 1000)
		for i := range uint64(300_000) { // to the bound
			take(table, epoch, key(1<<40+i), many, 1)
		}
		for i := range uint64(1000) {
			if d := take(table, epoch, tagged(inShard(7, 1<<41+i)), yearly, 1); d.Allowed {
				t.Fatalf("inline newcomer %d found room", i)
			}
			if d := take(table, epoch, inShard(7, 1<<42+i), many, 1); !d.Allowed {
				t.Fatalf("newcomer %d of a rule is locked out: %+v", i, d)
			}
		}
		if addsUp(t, table); s.inline != table.maxInline {
			t.Errorf("have %d inline counters, want %d", s.inline, table.maxInline)
		}
		// The refused inline subject is told to retry when the first of the other
		// counters becomes fresh and makes room.
		ops := []Op{{Key: tagged(inShard(7, 1<<43)), Limit: yearly, Cost: 1}}
		if table.Take(after(2*time.Second), ops); !ops[0].NoRoom || maxPart > 256 &&
			ops[0].Decision.RetryAfter < 30*24*time.Hour {
			t.Errorf("have %+v", ops[0])
		}
		if table.Take(after(2*algorithms.MaxWindow), ops) != Admitted {
			t.Errorf("still refused when the others are fresh: %+v", ops[0])
		}
		table.Sweep(after(3*algorithms.MaxWindow), 1)
		if addsUp(t, table); table.Stats().Inline != 0 {
			t.Errorf("at the end: %+v", table.Stats())
		}
	}
}

// Even the smallest table holds an inline counter.
func TestSmallTablesHoldInlineCounters(t *testing.T) {
	for bound, want := range map[int64]int64{1: 1, 2: 1, 3: 1, 10: 5, 1000: 500} {
		table := newTable(t, bound)
		for i := range uint64(10_000) {
			take(table, epoch, inlineKey(i), perMinute(algorithms.FixedWindow, 10), 1)
		}
		addsUp(t, table)
		if have := table.Stats().Inline; have > want || have < min(want, bound/2*9/10) || have == 0 {
			t.Errorf("bound %d: have %d inline counters, want %d", bound, have, want)
		}
	}
}

// Copies from other nodes and records from disk never take more room than inline counters may have.
func TestInlineRecordsBeyondTheBound(t *testing.T) {
	const bound = 1000
	record := func(i uint64, kind algorithms.Kind) Record {
		r := Record{Key: inlineKey(i), Kind: kind, Fullness: 255, ExpiresAt: epoch.Steady/1e9 + 3600}
		if kind == algorithms.SlidingLog {
			r.Log = []algorithms.Entry{{At: epoch.Steady, N: 1}}
		} else {
			r.State = algorithms.State{Count: 1, At: epoch.Wall / int64(time.Minute)}
		}
		return r
	}
	for name, add := range map[string]func(table *Table, r Record) bool{
		"put":   func(table *Table, r Record) bool { return table.Put(epoch, r) },
		"merge": func(table *Table, r Record) bool { return table.Merge(epoch, r, true) },
		"restore": func(table *Table, r Record) bool {
			_, noRoom := table.Restore(epoch, []Record{r})
			return noRoom == 0
		},
	} {
		table := newTable(t, bound)
		for i := range uint64(bound) {
			add(table, record(i, []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingLog}[i%2]))
		}
		addsUp(t, table)
		if have := table.Stats().Inline; have > bound/2 || have < bound/2*8/10 {
			t.Errorf("%s: have %d inline counters", name, have)
		}
		if add(table, record(bound, algorithms.FixedWindow)) {
			t.Errorf("%s: there was room for one more", name)
		}
		addsUp(t, table)
	}
}

// Inline logs share half of the entries of all logs, and never make logs of rules coarser.
func TestInlineLogsLeaveHalf(t *testing.T) {
	table := newTable(t, 100_000)
	l := &algorithms.Limit{Kind: algorithms.SlidingLog, Amount: 1 << 40, Window: algorithms.MaxWindow}
	for k := range uint64(10) {
		for i := range algorithms.MaxLogEntries {
			take(table, after(time.Duration(i)*time.Microsecond), inlineKey(k), l, 1)
		}
	}
	if have := table.logEntries[inline].Load(); have > minLogEntries/2*101/100 {
		t.Errorf("inline logs have %d entries", have)
	}
	n := algorithms.MaxLogEntries / 2
	for i := range n {
		take(table, after(time.Second+time.Duration(i)*time.Microsecond), key(1), l, 1)
	}
	if have := table.shardOf(key(1)).log(key(1)).log.Len(); have != n {
		t.Errorf("a rule's log has %d entries of %d", have, n)
	}
	table.Sweep(after(3*algorithms.MaxWindow), 1)
	if st := table.Stats(); st.LogEntries != 0 || st.Logs != 0 {
		t.Errorf("in the end: %+v", st)
	}
}

// The count of inline counters stays correct while some goroutines take,
// settle, reset and receive counters of both classes, and others sweep, save,
// copy and drop them.
func TestInlineCountStaysCorrect(t *testing.T) {
	table := newTable(t, 20_000)
	table.maxSubtableSlots = 256
	var work, around sync.WaitGroup
	done := make(chan struct{})
	for w := range uint64(4) {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(w, 11))
			for i := range 10_000 {
				now := after(time.Duration(i) * 20 * time.Millisecond)
				var ops []Op
				subject := inShard(rng.Uint64N(4), rng.Uint64N(20_000))
				for lo := range 1 + rng.Uint64N(3) {
					k := Key{Subject: subject.Subject, Counter: subject.Counter + lo<<60}
					if rng.IntN(4) > 0 {
						k.Counter = InlineCounter(k.Counter)
					}
					kind := allKinds[rng.IntN(5)] // it may change
					ops = append(ops, Op{Key: k, Limit: perMinute(kind, 3), Cost: rng.Int64N(3)})
				}
				switch k := ops[0].Key; rng.IntN(12) {
				case 0:
					_ = table.makeFresh(now, k, ops[0].Limit)
				case 1:
					_ = table.Amend(now,
						&Amendment{Ops: ops,
							Memo: &Memo{Key: notes.Key{Subject: k.Subject, ID: k.Counter + 1<<55,
								Kind: notes.Write}, Until: now.Steady/1e9 + 10},
							Answer: func(*Amendment) []byte { return make([]byte, 40) }})
				case 2:
					s := settled(table, now, algorithms.TakeRecord{}, k.Subject, k.Counter+1<<54)
					_, _ = table.Settle(now, s)
				case 3:
					r := Record{Key: k, Kind: algorithms.FixedWindow,
						State:     algorithms.State{Count: 1, At: now.Wall / int64(time.Minute)},
						ExpiresAt: now.Steady/1e9 + 30}
					table.Put(now, r)
				default:
					table.Take(now, ops)
				}
			}
		})
	}
	for _, f := range []func(){
		func() { table.Sweep(after(time.Minute), 0.5) },
		func() { _ = table.DrainChanges(func([]Record) error { return nil }) },
		func() { _ = table.Copy(1, func([]Record) error { return nil }) },
		func() { table.Drop(rand.IntN(4)) },
		func() { table.Stats() },
	} {
		around.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					f()
				}
			}
		})
	}
	work.Wait()
	close(done)
	around.Wait()
	addsUp(t, table)
	table.Close()
	addsUp(t, table)
	if st := table.Stats(); st.Inline != 0 {
		t.Errorf("closed: %+v", st)
	}
}
