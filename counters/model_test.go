package counters

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// modelBounds make tables of 1, 8, 64, 4096 and 16384 shards.
var modelBounds = []int64{100, 1000, 100_000, 60_000_000, 200_000_000}

var errFailed = errors.New("broken pipe")

// counter is what the model knows about one counter.
type counter struct {
	Record
	log             *algorithms.Log
	unsaved, unsent bool
}

// model is an unbounded table backed by a map.
type model struct {
	all        map[Key]*counter
	shut       map[int]bool
	limits     map[algorithms.Kind]*algorithms.Limit
	replicated bool
	now        algorithms.Instant
}

func (m *model) limit(k Key) *algorithms.Limit {
	return m.limits[allKinds[k.Counter%uint64(len(allKinds))]]
}

// peek returns what the counter of k would be after a check, brought up to date.
func (m *model) peek(k Key, cost int64) (next counter, d algorithms.Decision) {
	l := m.limit(k)
	if c := m.all[k]; c != nil {
		next = *c
	}
	next.Key, next.Kind = k, l.Kind
	if l.Kind == algorithms.SlidingLog {
		if next.log == nil {
			next.log = &algorithms.Log{}
		}
		next.log = next.log.Clone()
		ok := next.log.Take(l, m.now, cost)
		return next, next.log.Describe(l, m.now, cost, ok)
	}
	var ok bool
	next.State, ok = l.Take(next.State, m.now, cost)
	return next, l.Describe(next.State, m.now, cost, ok)
}

func (m *model) take(keys []Key, cost int64) Verdict {
	nexts, ds := make([]counter, len(keys)), make([]algorithms.Decision, len(keys))
	verdict := Admitted
	for i, k := range keys {
		if m.shut[k.Partition()] {
			return Undecided
		}
		nexts[i], ds[i] = m.peek(k, cost)
		if !ds[i].Allowed {
			verdict = Refused
		}
	}
	for i, k := range keys {
		c, fresh := m.all[k], int64(expiryAfter(m.now, m.limit(k), ds[i].ResetAfter))
		if c != nil && c.log != nil {
			c.log.Advance(m.limit(k), m.now)
		}
		switch {
		case !ds[i].Allowed && c != nil:
			c.Fullness = refusedFullness
			c.unsaved = c.unsaved || c.log == nil && fresh > c.ExpiresAt
			c.unsent = c.unsent || c.log == nil && fresh > c.ExpiresAt
			c.ExpiresAt = max(c.ExpiresAt, fresh)
		case verdict == Admitted && cost > 0:
			m.set(&nexts[i], fresh, levelAfter(m.limit(k), &nexts[i], ds[i]))
		}
	}
	return verdict
}

func levelAfter(l *algorithms.Limit, c *counter, d algorithms.Decision) uint8 {
	if c.log != nil {
		return fullnessAfterChange(l, &d)
	}
	return fullnessAfterCheck(l, &d)
}

// set stores a counter that has changed.
func (m *model) set(c *counter, expiresAt int64, level uint8) {
	c.ExpiresAt, c.Fullness, c.unsaved, c.unsent = max(c.ExpiresAt, expiresAt), packKindFullness(c.Kind,
		level).recordFullness(), true, true
	m.all[c.Key] = c
}

func (m *model) penalize(k Key, n int64) error {
	if m.shut[k.Partition()] {
		return ErrShut
	}
	l := m.limit(k)
	next, _ := m.peek(k, 0)
	var d algorithms.Decision
	if next.log != nil {
		next.log.Force(l, algorithms.TakeRecord{Steady: m.now.Steady}, m.now, n)
		d = next.log.Describe(l, m.now, 0, true)
	} else {
		next.State = l.Force(next.State, l.TakeRecord(next.State, m.now), m.now, n)
		d = l.Describe(next.State, m.now, 0, true)
	}
	m.set(&next, int64(expiryAfter(m.now, l, d.ResetAfter)), fullnessAfterChange(l, &d))
	return nil
}

func (m *model) reset(k Key) error {
	if m.shut[k.Partition()] {
		return ErrShut
	}
	next, _ := m.peek(k, 0)
	next.State = algorithms.State{}
	if next.log != nil {
		next.log = &algorithms.Log{}
	}
	m.set(&next, int64(expiryAfter(m.now, m.limit(k), 0)), 0)
	return nil
}

func (m *model) put(r Record) {
	c := m.all[r.Key]
	if r.ExpiresAt <= m.now.Steady/1e9 {
		if c == nil {
			return
		}
		r.State, r.Log, r.Fullness = algorithms.State{}, nil, 0
	}
	if c == nil {
		c = &counter{}
		m.all[r.Key] = c
	}
	r.ExpiresAt = max(r.ExpiresAt, c.ExpiresAt)
	r.Fullness = packKindFullness(r.Kind, r.Fullness).recordFullness()
	c.Record, c.unsaved = r, true
	if r.Kind == algorithms.SlidingLog {
		c.log = algorithms.NewLog(r.Log)
	}
}

func (m *model) sweep() {
	maps.DeleteFunc(m.all, func(_ Key, c *counter) bool {
		fresh := c.State.Fresh() && (c.log == nil || c.log.Fresh())
		return c.ExpiresAt <= m.now.Steady/1e9 || fresh && !c.unsaved && !(c.unsent && m.replicated)
	})
}

// records returns the model's counters that pick selects.
func (m *model) records(pick func(c *counter) bool) map[Key]Record {
	out := map[Key]Record{}
	for k, c := range m.all {
		if pick(c) {
			r := c.Record
			r.Log = nil
			if c.log != nil && c.log.Len() > 0 {
				r.Log = c.log.Entries()
			}
			out[k] = r
		}
	}
	return out
}

// collected adds records to a map. It checks that no key comes twice and that
// all belong to partition p, unless p is -1.
func collected(t *rapid.T, out map[Key]Record, p int, records []Record) {
	for _, r := range onlyCounters(records) {
		if _, twice := out[r.Key]; twice || p >= 0 && r.Key.Partition() != p {
			t.Fatalf("have %+v in partition %d, twice: %v", r, p, twice)
		}
		r.Log = slices.Clone(r.Log)
		if len(r.Log) == 0 {
			r.Log = nil
		}
		out[r.Key] = r
	}
}

func same(t *rapid.T, what string, have, want map[Key]Record) {
	t.Helper()
	for k, w := range want {
		if h, ok := have[k]; !ok || !reflect.DeepEqual(h, w) {
			t.Fatalf("%s: have %+v (%v), want %+v", what, h, ok, w)
		}
	}
	if len(have) != len(want) {
		t.Fatalf("%s: have %d records, want %d: %+v, %+v", what, len(have), len(want), have, want)
	}
}

// modelKeys returns some keys in each of several partitions, at both ends of shards.
func modelKeys() (keys []Key) {
	for _, p := range []uint64{0, 1, 63, 64, 2048, 4094, 4095} {
		for i := range uint64(10) {
			low := i << 49 & (1<<52 - 1)
			if i == 9 {
				low = 1<<52 - 1
			}
			k := Key{Subject: p<<52 | low, Counter: i * 0x9e3779b97f4a7c15}
			if i%3 == 2 {
				k.Counter = InlineCounter(k.Counter)
			}
			keys = append(keys, k)
		}
	}
	return keys
}

// run is one history of a table and its model.
type run struct {
	t     *rapid.T
	table *Table
	m     *model
	keys  []Key
}

func (r *run) key() Key { return rapid.SampledFrom(r.keys).Draw(r.t, "key") }
func (r *run) partition() int {
	return r.key().Partition()
}

// subset draws some partitions.
func (r *run) subset() func(int) bool {
	mask := rapid.Uint64().Draw(r.t, "partitions")
	return func(p int) bool { return mask>>(p%61)&1 != 0 }
}

func (r *run) take() {
	keys := []Key{r.key()}
	if k := r.key(); k != keys[0] {
		keys = append(keys, k)
	}
	cost := rapid.Int64Range(0, 4).Draw(r.t, "cost")
	var ops []Op
	for _, k := range keys {
		ops = append(ops, Op{Key: k, Limit: r.m.limit(k), Cost: cost})
	}
	if have, want := r.table.Take(r.m.now, ops), r.m.take(keys, cost); have != want {
		r.t.Fatalf("take %v: have %s, want %s", keys, have, want)
	}
}

func (r *run) changeOne() {
	k := r.key()
	have, want := error(nil), error(nil)
	if n := rapid.Int64Range(-3, 20).Draw(r.t, "penalty, or a reset"); n > 0 {
		have, want = r.table.penalize(r.m.now, k, r.m.limit(k), n), r.m.penalize(k, n)
	} else {
		have, want = r.table.makeFresh(r.m.now, k, r.m.limit(k)), r.m.reset(k)
	}
	if !errors.Is(have, want) {
		r.t.Fatalf("change %v: have %v, want %v", k, have, want)
	}
}

func (r *run) put() {
	k := r.key()
	rec := Record{Key: k, Kind: r.m.limit(k).Kind, Fullness: uint8(rapid.IntRange(0, 255).Draw(r.t, "level")),
		ExpiresAt: r.m.now.Steady/1e9 + rapid.Int64Range(-2, 90).Draw(r.t, "fresh in")}
	n := rapid.Int64Range(0, 12).Draw(r.t, "used")
	switch {
	case rec.Kind == algorithms.SlidingLog && n > 0:
		rec.Log = []algorithms.Entry{{At: r.m.now.Steady - 1e9, N: n}, {At: r.m.now.Steady, N: 1}}
	case rec.Kind.OnSteadyClock():
		rec.State = algorithms.State{Count: n, At: r.m.now.Steady}
	case rec.Kind != algorithms.SlidingLog:
		rec.State = algorithms.State{Count: n, At: r.m.now.Wall / int64(time.Minute)}
	}
	if !r.table.Put(r.m.now, rec) {
		r.t.Fatal("no room")
	}
	r.m.put(rec)
}

func (r *run) copyAndDrop() {
	p := r.partition()
	have := map[Key]Record{}
	r.m.replicated = true
	expect.NoError(r.t, r.table.Copy(p, func(b []Record) error { collected(r.t, have, p, b); return nil }))
	same(r.t, "copy", have, r.m.records(func(c *counter) bool { return c.Key.Partition() == p }))
	if rapid.IntRange(0, 3).Draw(r.t, "drop") == 0 {
		r.table.Drop(p)
		maps.DeleteFunc(r.m.all, func(k Key, _ *counter) bool { return k.Partition() == p })
	}
}

// replicate reports changes to replicas, sometimes with a failure on the way.
func (r *run) replicate() {
	wanted, calls := r.subset(), rapid.IntRange(0, 6).Draw(r.t, "fails at")
	have, failedFrom := map[Key]Record{}, ring.Partitions
	r.m.replicated = true
	err := r.table.Replicate(wanted, func(p int, b []Record) error {
		if len(onlyCounters(b)) == 0 {
			return nil // only notes
		}
		calls--
		if calls == 0 {
			failedFrom = p
			return errFailed
		}
		collected(r.t, have, p, b)
		return nil
	})
	if errors.Is(err, errFailed) != (failedFrom < ring.Partitions) {
		r.t.Fatalf("have %v", err)
	}
	same(r.t, "replicate", have, r.m.records(func(c *counter) bool {
		return c.unsent && wanted(c.Key.Partition()) && c.Key.Partition() < failedFrom
	}))
	for _, c := range r.m.all {
		if p := c.Key.Partition(); p < failedFrom {
			c.unsent = false
		} else if !wanted(p) && r.sharesUnit(p, failedFrom) {
			c.unsent = false // Replicate had already read its shard
		}
	}
}

// sharesUnit reports whether Replicate reads the changes of both partitions together.
func (r *run) sharesUnit(p, q int) bool {
	per := max(1, ring.Partitions/len(r.table.shards))
	return p/per == q/per
}

func (r *run) replicateOne() {
	p := r.partition()
	have := map[Key]Record{}
	r.m.replicated = true
	collected(r.t, have, p, r.table.ReplicatePartition(p, nil))
	mine := func(c *counter) bool { return c.unsent && c.Key.Partition() == p }
	same(r.t, "replicate one", have, r.m.records(mine))
	for _, c := range r.m.all {
		c.unsent = c.unsent && !mine(c)
	}
}

func (r *run) changed() {
	have := map[Key]Record{}
	if rapid.Bool().Draw(r.t, "fails") {
		r.table.DrainChanges(func([]Record) error { return errFailed })
		return
	}
	expect.NoError(r.t, r.table.DrainChanges(func(b []Record) error { collected(r.t, have, -1, b); return nil }))
	same(r.t, "changed", have, r.m.records(func(c *counter) bool { return c.unsaved }))
	for _, c := range r.m.all {
		c.unsaved = false
	}
}

func (r *run) gate() {
	p := r.partition()
	if rapid.Bool().Draw(r.t, "open") {
		r.table.Open(p, soleLineage)
		r.m.shut[p] = false
	} else {
		r.table.Shut(p)
		r.m.shut[p] = true
	}
	for _, k := range r.keys {
		if p := k.Partition(); r.table.IsOpen(p) == r.m.shut[p] {
			r.t.Fatalf("partition %d: have open %v", p, r.table.IsOpen(p))
		}
	}
}

func (r *run) wait() {
	d := int64(time.Duration(rapid.IntRange(0, 20_000).Draw(r.t, "ms")) * time.Millisecond)
	r.m.now.Steady, r.m.now.Wall = r.m.now.Steady+d, r.m.now.Wall+d
	if rapid.Bool().Draw(r.t, "sweep") {
		r.table.Sweep(r.m.now, 1)
		r.m.sweep()
	}
}

// The table behaves like a map in every operation that a cluster uses.
func TestAgainstModel(t *testing.T) {
	keys := modelKeys()
	rapid.Check(t, func(rt *rapid.T) {
		r := &run{t: rt, keys: keys, table: New(rapid.SampledFrom(modelBounds).Draw(rt, "bound")), m: &model{
			all: map[Key]*counter{}, shut: map[int]bool{}, now: epoch, limits: map[algorithms.Kind]*algorithms.Limit{},
		}}
		defer r.table.Close()
		r.table.maxSubtableSlots = rapid.SampledFrom([]int{r.table.maxSubtableSlots, 16}).Draw(rt, "part")
		for _, kind := range allKinds {
			r.m.limits[kind] = perMinute(kind, 10)
		}
		do := map[string]func(*rapid.T){}
		for name, f := range map[string]func(){
			"take": r.take, "take more": r.take, "take still more": r.take, "change": r.changeOne, "put": r.put,
			"copy": r.copyAndDrop, "replicate": r.replicate, "replicate one": r.replicateOne, "changed": r.changed,
			"gate": r.gate, "wait": r.wait,
		} {
			do[name] = func(t *rapid.T) { r.t = t; f() }
		}
		rt.Repeat(do)
		addsUp(rt, r.table)
		have := map[Key]Record{}
		for p := range ring.Partitions {
			r.table.Copy(p, func(b []Record) error { collected(rt, have, p, b); return nil })
		}
		same(rt, "in the end", have, r.m.records(func(*counter) bool { return true }))
		var unsaved, unsent int
		for i := range r.table.shards {
			unsaved, unsent = unsaved+r.table.shards[i].unsaved, unsent+r.table.shards[i].unsent
		}
		if have, want := [2]int{unsaved, unsent}, [2]int{
			len(r.m.records(func(c *counter) bool { return c.unsaved })),
			len(r.m.records(func(c *counter) bool { return c.unsent })),
		}; have != want {
			rt.Fatalf("marked: have %v, want %v", have, want)
		}
	})
}
