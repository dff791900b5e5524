package limiter

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

var largeFlood = flag.Bool("large-flood", false,
	"a flood of 10,000,000 counters and 600,000 reservations; it takes 2 GB")

// floodRules are those of a flood, and of others.
const floodRules = `rules:
  - name: flooded
    key: [k]
    limits:
      - {limit: 1000000000, per: 1440h, algorithm: fixed-window, unit: tokens}
      - {limit: 1000000000, per: 1440h, algorithm: token-bucket}
  - name: other
    key: [k]
    limits:
      - {limit: 5, per: 1h, algorithm: token-bucket}
      - {limit: 100, per: 1h, algorithm: fixed-window, unit: tokens}
  - {name: held, key: [k], limits: [{limit: 1000000, ttl: 24h, algorithm: concurrency}]}
  - {name: seats, key: [k], limits: [{limit: 1, ttl: 24h, algorithm: concurrency}]}`

// flood is too many calls of one kind.
type flood struct {
	kind   string // of floodKinds
	many   bool   // about as many subjects as there are calls, not about one
	inline bool   // limits come with the call
}

var floodKinds = []string{"check", "reserve", "settle", "request-id", "adjust", "reset", "acquire"}

// floods are all of them.
func floods() (all []*flood) {
	for _, kind := range floodKinds {
		for i := range 4 {
			all = append(all, &flood{kind: kind, many: i%2 == 1, inline: i/2 == 1})
		}
	}
	return all
}

func (f *flood) String() string {
	subjects, limits := "one subject", "rule"
	if f.many {
		subjects = "many subjects"
	}
	if f.inline {
		limits = "inline"
	}
	return f.kind + ", " + subjects + ", " + limits
}

// query returns the i-th call.
func (f *flood) query(i int) *Query {
	key := "one"
	if f.many {
		key = fmt.Sprint("flood ", i)
	}
	costs := []UnitCost{{Unit: "tokens", Cost: 1}, {Unit: document.Requests, Cost: 1}}
	switch {
	case f.kind == "acquire" && f.inline:
		return inlineQuery(key, document.InlineLimit{Limit: MaxSlots, TTL: "24h", Algorithm: "concurrency"})
	case f.kind == "acquire":
		return &Query{Rule: "held", Key: []string{key}, ByKey: true, Slots: 1}
	case f.inline:
		return inlineQuery(key,
			document.InlineLimit{Limit: 1e9, Per: "1440h", Algorithm: "fixed-window", Unit: "tokens"},
			document.InlineLimit{Limit: 1e9, Per: "1440h", Algorithm: "token-bucket"},
		).costing(costs...)
	}
	return &Query{Rule: "flooded", Key: []string{key}, ByKey: f.kind != "adjust" && f.kind != "reset", Costs: costs}
}

// call makes the i-th call at l, and its settlement at by. It returns what the
// caller of a flood may be told: that it is too much.
func (f *flood) call(l, by *Limiter, i int) error {
	q, a := f.query(i), &Answer{}
	switch f.kind {
	case "check":
		return l.Check(q, a)
	case "request-id":
		q.RequestID = fmt.Sprint("flood ", i)
		q.Mode = counters.CountMode
		if f.inline {
			q.Mode = counters.CheckMode
			q.Subjects[0].Mode = counters.CountMode
		}
		return l.Check(q, a)
	case "adjust":
		q.RequestID = fmt.Sprint("flood ", i)
		_, err := l.Adjust(q)
		return err
	case "reset":
		q.RequestID = fmt.Sprint("flood ", i)
		q.Costs = nil
		if f.inline {
			q.Subjects[0].Costs = nil
		}
		_, err := l.Reset(q)
		return err
	case "acquire":
		_, err := l.Acquire(q, a)
		return err
	}

	id, err := l.Reserve(q, 10*time.Minute, a)
	if err == nil && f.kind == "settle" {
		_, err = by.Settle(id, []UnitCost{{Unit: "tokens", Cost: 2}})
	}
	return err
}

// isTooMuch reports whether an error says that the caller asks for too much.
func isTooMuch(err error) bool {
	return errors.Is(err, ErrTooManyReservations) || errors.Is(err, ErrTooManyRequestIDs) || errors.Is(err, ErrNoRoom) ||
		errors.Is(err, ErrTooManySlots)
}

// bystanders are other callers, of this rule and of another one.
type bystanders struct {
	t       *testing.T
	nodes   []*Limiter
	rooms   []*notes.Store
	open    []string // reservations made before the flood
	settled []string // and settled
	first   string   // made by a request with an id; empty: too long ago to be known
	slots   []string // held since before the flood
}

func (b *bystanders) at(i int) *Limiter { return b.nodes[i%len(b.nodes)] }

// come makes what others did before the flood.
func (b *bystanders) come() {
	for i := range 40 {
		rule := []string{"other", "flooded"}[i%2]
		b.open = append(b.open, b.reserve(i, rule, fmt.Sprint("before ", i), ""))
		b.settled = append(b.settled, b.reserve(i, rule, fmt.Sprint("settled ", i), ""))
		b.settle(i+1, b.settled[i], false)
	}
	b.first = b.reserve(0, "other", "repeated", "an id")
	for i := range 40 {
		b.slots = append(b.slots, b.acquire(i, fmt.Sprint("before ", i)))
	}
}

// acquire acquires the only slot of a key.
func (b *bystanders) acquire(at int, key string) (id string) {
	b.t.Helper()
	a := &Answer{}
	slot, err := b.at(at).Acquire(&Query{Rule: "seats", Key: []string{key}, ByKey: true}, a)
	if err != nil || slot.ID == "" {
		b.t.Fatalf("a slot of key %s: got %q, %v, %+v, want one", key, slot.ID, err, a.Limits)
	}
	return slot.ID
}

// goOnWithSlots makes what others do with slots after the flood.
func (b *bystanders) goOnWithSlots() {
	b.t.Helper()
	for i, id := range b.slots {
		if _, err := b.at(i+1).RenewSlot(id, 0); err != nil {
			b.t.Fatalf("renewal of slot %d: got %v, want none", i, err)
		}
		if held, err := b.at(i + 2).ReleaseSlot(id); err != nil || !held {
			b.t.Fatalf("release of slot %d: got %t, %v, want it held", i, held, err)
		}
		b.acquire(i, fmt.Sprint("before ", i))
		b.acquire(i, fmt.Sprint("after ", i))
	}
	b.slots = nil // they are released
}

// reserve makes a reservation of 10 tokens.
func (b *bystanders) reserve(at int, rule, key, request string) (id string) {
	b.t.Helper()
	q := tokens(rule, key, 10)
	q.RequestID = request
	a := &Answer{}
	id, err := b.at(at).Reserve(&q, 10*time.Minute, a)
	if err != nil || id == "" {
		b.t.Fatalf("a reservation of rule %s, key %s: %q, %v, %+v", rule, key, id, err, a.Limits)
	}
	return id
}

// settle settles one with 4 tokens.
func (b *bystanders) settle(at int, id string, repeated bool) {
	b.t.Helper()
	out, err := b.at(at).Settle(id, []UnitCost{{Unit: "tokens", Cost: 4}})
	if err != nil || out.Repeated != repeated {
		b.t.Fatalf("settling: have %+v, %v, want repeated %t", out, err, repeated)
	}
}

// goOn makes what others do after the flood. None of it may be refused.
func (b *bystanders) goOn(f *flood) {
	b.t.Helper()
	for i := range 300 {
		for _, rule := range []string{"other", "flooded"} {
			q, a := byKey(rule, fmt.Sprint("new ", i)), &Answer{}
			err := b.at(i).Check(&q, a)
			if err != nil || !a.Allowed {
				b.t.Fatalf("the first check of a new subject of rule %s: %v, %+v", rule, err, a.Limits)
			}
		}
	}

	for i := range 40 {
		b.reserve(i, "other", fmt.Sprint("after ", i), "")
		if !f.many || f.inline {
			b.reserve(i, "flooded", fmt.Sprint("after ", i), "")
		}
	}
	for i := range b.open {
		b.settle(i, b.settled[i], true)
		b.settle(i+1, b.open[i], false)
		b.settle(i+2, b.open[i], true)
	}
	b.goOnWithSlots()
	if b.first != "" {
		if again := b.reserve(1, "other", "repeated", "an id"); again != b.first {
			b.t.Error("a repeated request was decided again")
		}
	}
	if _, err := b.at(1).Reset(&Query{Rule: "other", Key: []string{"repeated"}}); err != nil {
		b.t.Errorf("a reset: %v", err)
	}

	for i, store := range b.rooms {
		st := store.Stats()
		if st.Reservations > st.MaxReservations {
			b.t.Errorf("node %d: reservations take %d bytes of %d", i, st.Reservations, st.MaxReservations)
		}
	}
}

const (
	floodBound = 10_000  // counters
	floodRoom  = 3 << 20 // bytes for reservations: some 12,000; and for slots: some 8,000
	floodCalls = 20_000
)

// No flood takes anything from others: their checks are decided, and what they
// reserved before it is settled. They find room for further reservations.
func TestFloodsTakeNothingFromOthers(t *testing.T) {
	calls := floodCalls
	if testing.Short() {
		calls = floodCalls / 2
	}
	for _, f := range floods() {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			b := floodedNode(t, floodBound)
			b.rooms[0].BoundReservations(floodRoom)
			b.rooms[0].BoundSlots(floodRoom)
			b.flood(f, calls)
		})
	}
}

// floodedNode opens a node with room for so many counters.
func floodedNode(t *testing.T, bound int64) *bystanders {
	table, clock := counters.New(bound), NewClock()
	t.Cleanup(table.Close)
	t.Cleanup(func() { _ = clock.Close() })
	l := New(table, clock)
	l.SetRules(compile(t, 1, "version: 1\n"+floodRules))
	return &bystanders{t: t, nodes: []*Limiter{l}, rooms: []*notes.Store{table.Notes()}}
}

// The same on three nodes, through any of them. Calls over a cluster take long:
// without -large-flood, there are a sixth as many, for a sixth of the room.
func TestFloodsOfAClusterTakeNothingFromOthers(t *testing.T) {
	part := 6
	if *largeFlood {
		part = 1
	}
	for _, f := range floods() {
		t.Run(f.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nextWindow(time.Hour)
				w := (&testCluster{t: t, bound: int64(floodBound / part), room: int64(floodRoom / part)}).start(3, floodRules)
				time.Sleep(time.Minute) // from then on the rates of buckets are known
				b := &bystanders{t: t}
				for _, n := range w.nodes {
					b.nodes = append(b.nodes, n.Limiter)
					b.rooms = append(b.rooms, n.table.Notes())
				}
				b.flood(f, floodCalls/part)
			})
		})
	}
}

// flood lets a flood come over the bystanders.
func (b *bystanders) flood(f *flood, calls int) {
	b.come()
	began := b.nodes[0].clock.Now().Steady
	tooMuch := 0
	for i := range calls {
		err := f.call(b.at(i), b.at(i+1), i)
		if isTooMuch(err) {
			tooMuch++
		} else if err != nil {
			b.t.Fatalf("call %d: %v", i, err)
		}
	}

	if took := b.nodes[0].clock.Now().Steady - began; took > notes.AnswerRetention/2 {
		b.first = ""
	}

	b.t.Logf("%d of %d calls were too much", tooMuch, calls)
	mayBe := f.kind == "reserve" || f.kind == "acquire" || f.kind == "settle" || f.kind == "adjust" || f.kind == "reset"
	if tooMuch > 0 && !mayBe {
		b.t.Errorf("%d calls were too much, want none: they hold nothing", tooMuch)
	}
	b.goOn(f)
}

// A flood of reservations at the default bounds: 1,000 a second that stay open
// for ten minutes fit, all of one subject, each within the bytes that the docs
// say. Others go on as before, also once the counters are full.
func TestLargeFlood(t *testing.T) {
	if !*largeFlood {
		t.Skip("needs -large-flood")
	}
	if free := freeMemory(t); free < 6<<30 {
		t.Skipf("%d MiB are free, want 6 GiB", free>>20)
	}
	for _, many := range []bool{false, true} {
		f := &flood{kind: "reserve", many: many}
		t.Run(f.String(), func(t *testing.T) {
			table, clock := counters.New(10_000_000), NewClock()
			defer table.Close()
			defer func() { _ = clock.Close() }()
			l := New(table, clock)
			l.SetRules(compile(t, 1, "version: 1\n"+strings.Replace(floodRules, "token-bucket", "fixed-window", 1)))
			b := &bystanders{t: t, nodes: []*Limiter{l}, rooms: []*notes.Store{table.Notes()}}
			b.come()

			before := heapInUse()
			const want = 600_000
			for i := range want {
				if err := f.call(l, l, i); err != nil {
					t.Fatalf("reservation %d: %v", i, err)
				}
			}
			each := (heapInUse() - before) / want
			t.Logf("%d bytes of heap for each of %d reservations", each, want)
			if each > notes.Overhead {
				t.Errorf("each takes %d bytes, more than %d", each, notes.Overhead)
			}
			b.goOn(f)

			more := 0
			for ; more < want; more++ {
				if err := f.call(l, l, want+more); err != nil {
					break
				}
			}
			t.Logf("then %d more found room", more)
			b.reserve(0, "other", "late", "")

			checks := &flood{kind: "check", many: true}
			for i := range 11_000_000 {
				expect.NoError(t, checks.call(l, l, i))
			}
			st := table.Stats()
			t.Logf("after a flood of checks: %d of %d counters", st.Counters, st.Max)
			b.open, b.settled = nil, nil // they are settled
			for i := range 300 {
				q, a := byKey("other", fmt.Sprint("newer ", i)), &Answer{}
				if err := l.Check(&q, a); err != nil || !a.Allowed {
					t.Fatalf("the first check of a new subject: %v, %+v", err, a.Limits)
				}
			}
		})
	}
}

// All floods on a node with the default bounds, which they reach, or nearly so.
// What they leave takes as much memory as the docs say.
func TestLargeFloods(t *testing.T) {
	if !*largeFlood {
		t.Skip("needs -large-flood")
	}
	if free := freeMemory(t); free < 6<<30 {
		t.Skipf("%d MiB are free, want 6 GiB", free>>20)
	}
	const bytesOfCounter = 100 // at most, with the room in which shards grow
	for _, f := range floods() {
		t.Run(f.String(), func(t *testing.T) {
			calls := 700_000
			if f.kind == "check" && f.many {
				calls = 11_000_000
			}
			b := floodedNode(t, 10_000_000)
			before := residentInUse(t) // counters are not on the heap
			b.flood(f, calls)

			grown := residentInUse(t) - before
			counters := b.nodes[0].table.Stats().Counters
			st := b.rooms[0].Stats()
			kept := st.Reservations + st.Answers + st.WritesAndRetries + st.Slots
			t.Logf("%d counters, notes of %d MiB: %d MiB of memory", counters, kept>>20, grown>>20)
			if most := counters*bytesOfCounter + kept + 64<<20; grown > most {
				t.Errorf("got %d MiB of memory, want at most %d", grown>>20, most>>20)
			}
		})
	}
}

// heapInUse returns the bytes in use on the heap.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// residentInUse returns the bytes of memory that this process takes, without garbage.
func residentInUse(t *testing.T) int64 {
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skipf("can't tell how much memory is used: %v", err)
	}
	var size, resident int64
	_, err = fmt.Sscan(string(text), &size, &resident)
	expect.NoError(t, err)
	return resident * int64(os.Getpagesize())
}

// freeMemory returns the bytes of memory that are available.
func freeMemory(t *testing.T) int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Skipf("can't tell how much memory is free: %v", err)
	}
	_, rest, _ := strings.Cut(string(text), "MemAvailable:")
	kilobytes := int64(0)
	_, err = fmt.Sscan(rest, &kilobytes)
	if err != nil {
		t.Skipf("can't tell how much memory is free: %v", err)
	}
	return kilobytes << 10
}
