package limiter

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
)

// A goroutine may stand still between its reading of the clock and its turn at
// a counter, for as long as the machine likes: others decide meanwhile, by
// later readings. Whatever it then does with its own must free nothing.
//
// What a late call admits may count at any time from its reading on. So these
// tests judge as the runs in real time do, with readings that they choose.
func TestLateReadingsFreeNothing(t *testing.T) {
	for kind := range algorithms.Kind(7) {
		for _, window := range []time.Duration{10 * time.Millisecond, time.Minute} {
			for _, late := range latenesses(window) {
				for name, act := range latePaths {
					h := newLateHistory(kind, window)
					if !h.knows(name) {
						continue
					}
					what := fmt.Sprintf("%s per %v, %s by %s", nameOfKind(kind), window, name, late.name)
					t.Run(what, func(t *testing.T) {
						h.fillAndDisturb(late, act)
						h.judge(t)

						// The same must pass if no reading is late, or the test is wrong.
						other := newLateHistory(kind, window)
						other.onTime = true
						other.fillAndDisturb(late, act)
						other.judge(t)
					})
				}
			}
		}
	}
}

// Random histories of everything that reads the clock, where half of the
// readings are late.
func TestLateReadingsFreeNothingAtRandom(t *testing.T) { tryLateHistories(t, false) }

// The same histories break no bound if no reading is late, so the other test
// accuses nobody else.
func TestReadingsOnTimeFreeNothingAtRandom(t *testing.T) { tryLateHistories(t, true) }

func tryLateHistories(t *testing.T, onTime bool) {
	seed := firstSeed()
	histories := 500
	if *realtimeSeeds > 0 {
		histories = max(500, 100**realtimeSeeds)
	}

	for kind := range algorithms.Kind(7) {
		t.Run(nameOfKind(kind), func(t *testing.T) {
			failed := 0
			for i := range uint64(histories) {
				random := rand.New(rand.NewPCG(seed+i, uint64(kind)))
				h := newLateHistory(kind, 10*time.Millisecond<<random.IntN(14))
				h.onTime = onTime
				for range 200 {
					h.step(random)
				}
				h.table.Close()
				if worst := h.bound.worst(h.seen()); worst.ratio() > 1 {
					failed++
					if failed == 1 {
						t.Errorf("-realtime-seed %d: got %v", seed+i, worst)
					}
				}
			}
			t.Logf("%d of %d histories beyond the bound, from -realtime-seed %d on", failed, histories, seed)
		})
	}
}

// nameOfKind returns a kind's unique name.
func nameOfKind(k algorithms.Kind) string {
	switch k {
	case algorithms.FirstWindow:
		return k.String() + " from the first hit"
	case algorithms.CellBucket:
		return k.String() + " that keeps its limit"
	}
	return k.String()
}

// lateness is how far a reading is behind the last one, by each clock.
type lateness struct {
	name         string
	steady, wall time.Duration
}

// latenesses returns those for a window. The counters are used up a tenth of a
// window after its turn.
func latenesses(window time.Duration) []lateness {
	return []lateness{
		{"a reading just before", time.Microsecond, time.Microsecond},
		{"a reading from before the turn", window / 5, window / 5},
		{"a reading two windows old", 2 * window, 2 * window},
		{"a reading 1.2 s old", 1200 * time.Millisecond, 1200 * time.Millisecond},
		{"a reading from before a step by two hours", window / 5, 2 * time.Hour},
	}
}

// lateHistory is what happened to one counter.
type lateHistory struct {
	table   *counters.Table
	key     counters.Key
	limit   *algorithms.Limit
	bound   bound
	now     algorithms.Instant // the newest reading so far
	taken   []lateTake
	settled uint64 // reservations so far
	// onTime makes every reading the newest one, whatever it should have been.
	onTime bool
}

// lateTake is a cost that was admitted, and what it takes to put it back.
type lateTake struct {
	sighting
	from    algorithms.TakeRecord
	life    counters.Life
	putBack bool
}

func newLateHistory(kind algorithms.Kind, window time.Duration) *lateHistory {
	limit := &algorithms.Limit{Kind: kind, Amount: 10, Burst: 10, Window: window}
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	h := &lateHistory{
		table: counters.New(1000), key: counters.Key{Subject: 1, Counter: 2}, limit: limit,
		bound: bound{limit: *limit}, now: algorithms.At(noon),
	}
	h.table.Open(h.key.Partition(), 1)
	return h
}

// pass advances the clock. The next reading is on time.
func (h *lateHistory) pass(d time.Duration) {
	h.now.Steady += int64(d)
	h.now.Wall += int64(d)
}

// behind returns a reading that is late.
func (h *lateHistory) behind(by lateness) algorithms.Instant {
	if h.onTime {
		return h.now
	}
	return algorithms.Instant{
		Steady: h.now.Steady - int64(by.steady), Wall: h.now.Wall - int64(by.wall),
	}
}

// take takes a cost by a reading, and reports whether it was admitted.
func (h *lateHistory) take(at algorithms.Instant, cost int64) bool {
	ops := []counters.Op{{Key: h.key, Limit: h.limit, Cost: cost}}
	life := h.table.Life(h.key.Partition())
	if h.table.Take(at, ops) != counters.Admitted {
		return false
	}
	h.taken = append(h.taken, lateTake{
		sighting: sighting{sent: at, answered: h.now, admitted: cost},
		from:     ops[0].TakeRecord(),
		life:     life,
	})
	return true
}

// putBackOne removes a take that may still be put back by a reading, and
// returns it. Nobody puts back what he has not taken by then.
func (h *lateHistory) putBackOne(at algorithms.Instant) (taken *lateTake, ok bool) {
	for i := range h.taken {
		taken = &h.taken[i]
		if !taken.putBack && taken.answered.Steady <= at.Steady && taken.answered.Wall <= at.Wall {
			taken.putBack = true
			return taken, true
		}
	}
	return nil, false
}

// latePaths are all ways to a counter that read the clock first.
var latePaths = map[string]func(h *lateHistory, at algorithms.Instant){
	"Take": func(h *lateHistory, at algorithms.Instant) { h.take(at, 1) },

	"GiveBack": func(h *lateHistory, at algorithms.Instant) {
		if taken, ok := h.putBackOne(at); ok {
			_ = h.table.GiveBack(at, h.key, h.limit, taken.from, taken.admitted, taken.life)
		}
	},

	"Settle, with more": func(h *lateHistory, at algorithms.Instant) {
		h.settle(at, counters.SettledCost{Used: 1}, counters.Life{})
	},

	"Settle, with less": func(h *lateHistory, at algorithms.Instant) {
		if taken, ok := h.putBackOne(at); ok {
			h.settle(at, counters.SettledCost{Reserved: taken.admitted, From: taken.from}, taken.life)
		}
	},

	"Lend": func(h *lateHistory, at algorithms.Instant) {
		window := h.limit.TakeRecord(h.limit.Advance(algorithms.State{}, at), at).Window
		if h.limit.Kind.IsBucket() {
			window = 0
		}
		_, _, _ = h.table.DebitLoan(at, h.key, h.limit, window, 1)
	},

	"ForceCapped": func(h *lateHistory, at algorithms.Instant) {
		from := h.limit.TakeRecord(h.limit.Advance(algorithms.State{}, at), at)
		_ = h.table.ForceCapped(at, h.key, h.limit, from, 1)
	},

	"Penalize": func(h *lateHistory, at algorithms.Instant) {
		_ = h.table.Amend(at, &counters.Amendment{Ops: []counters.Op{{Key: h.key, Limit: h.limit, Cost: 1}}})
	},
}

// knows reports whether the kind of limit has a path.
func (h *lateHistory) knows(path string) bool {
	return path != "Lend" || h.limit.Kind.Divisible()
}

// settle makes one change, of a reservation of its own.
func (h *lateHistory) settle(at algorithms.Instant, c counters.SettledCost, life counters.Life) {
	h.settled++
	c.Key = h.key
	c.Limit = h.limit
	_, _ = h.table.Settle(at, &counters.SettlePlan{
		Place: counters.Place{
			Key:     notes.Key{Subject: h.key.Subject, ID: h.settled, Kind: notes.Reservation},
			OpenFor: 10 * time.Second, Until: at.Steady/1e9 + 10, SettledUntil: at.Steady/1e9 + 10,
		},
		Changes: []counters.SettledCost{c},
		Life:    life,
		Answer:  func(*counters.SettlePlan) []byte { return nil },
	})
}

// fillAndDisturb uses some of one window and all of the next. Then it takes a
// path by late readings, and again asks for more by readings that are not.
func (h *lateHistory) fillAndDisturb(late lateness, act func(*lateHistory, algorithms.Instant)) {
	// What a late call may put back must have been taken before its reading.
	h.pass(-time.Duration(late.steady) - 3*h.limit.Window/10)
	before := h.now
	before.Wall -= int64(late.wall - late.steady)
	newest := h.now
	h.now = before
	for range 4 {
		h.take(h.now, 1)
	}
	h.now = newest

	h.pass(time.Duration(late.steady) + 4*h.limit.Window/10)
	// Nothing else has begun a window by now, and none ends before the test does.
	h.bound.onlyChecks = true
	for range 4 {
		h.takeAll()
		h.pass(time.Microsecond)
		act(h, h.behind(late))
		h.pass(time.Microsecond)
	}
	h.takeAll()
}

// takeAll takes what there is.
func (h *lateHistory) takeAll() {
	for n := 0; n < 100 && h.take(h.now, 1); n++ {
	}
}

// step does one thing at random, with an even chance by a late reading.
func (h *lateHistory) step(random *rand.Rand) {
	window := int64(h.limit.Window)
	if random.IntN(4) == 0 {
		h.pass(time.Duration(random.Int64N(window)))
	}
	if random.IntN(50) == 0 {
		h.now.Wall += random.Int64N(3 * window) // a step
	}

	at := h.now
	if random.IntN(2) == 0 {
		by := time.Duration(random.Int64N(max(2*window, int64(2*time.Second))))
		at = h.behind(lateness{"", by, by + time.Duration(random.Int64N(window)*random.Int64N(2))})
	}

	names := []string{
		"Take", "GiveBack", "Settle, with more", "Settle, with less", "Lend", "ForceCapped", "Penalize",
	}
	if name := names[random.IntN(len(names))]; random.IntN(3) == 0 && h.knows(name) {
		latePaths[name](h, at)
		return
	}
	h.take(at, 1+random.Int64N(3))
}

// seen returns what was admitted and not put back.
func (h *lateHistory) seen() (list []sighting) {
	for i := range h.taken {
		lt := &h.taken[i]
		if !lt.putBack {
			list = append(list, lt.sighting)
		}
	}
	return list
}

// judge judges the history, and ends it.
func (h *lateHistory) judge(t *testing.T) {
	t.Helper()
	h.table.Close()
	if worst := h.bound.worst(h.seen()); worst.ratio() > 1 {
		t.Errorf("got %v", worst)
	}
}

// The wall clock is set forward while a check or a batch is between its
// reading of the clock and its counter, and another caller uses up the new
// window meanwhile.
func TestClockThatJumpsDuringACheckFreesNothing(t *testing.T) {
	for _, algorithm := range []string{"fixed-window", "sliding-window"} {
		for _, batch := range []int{1, 50} {
			t.Run(fmt.Sprintf("%s, batches of %d", algorithm, batch), func(t *testing.T) {
				w := newTestCluster(t, 1, "rules:\n"+
					"  - {name: r, key: [k], consistency: exact, "+
					"limits: [{limit: 10, per: 1h, algorithm: "+algorithm+"}]}")
				n := w.nodes[0]
				n.clock.Close() // only this test sets it from now on

				admitted := 0
				askAgain := func() {
					for range 20 {
						if n.check(byKey("r", "x")).Allowed {
							admitted++
						}
					}
				}
				jump := func() {
					n.asked.Store(nil)
					now := n.clock.Now()
					n.clock.follow(now.Steady, now.Wall+int64(3*time.Hour))
					askAgain()
				}

				began := n.clock.Now().Wall
				askAgain()
				for range 3 {
					n.asked.Store(&jump)
					admitted += n.checkMany("r", "x", batch)
					askAgain()
				}

				// Each jump passes over two windows that nobody was in.
				ended := n.clock.Now().Wall
				windows := floorOf(ended, int64(time.Hour)) - floorOf(began, int64(time.Hour)) + 1 - 3*2
				if want := int(windows) * 10; admitted > want {
					t.Errorf("got %d admitted in %d windows, want at most %d", admitted, windows, want)
				}
			})
		}
	}
}

// checkMany makes a check or a batch of checks, and returns how many were
// admitted.
func (n *testNode) checkMany(rule, key string, checks int) (admitted int) {
	n.w.t.Helper()
	if checks == 1 {
		if n.check(byKey(rule, key)).Allowed {
			admitted++
		}
		return admitted
	}

	queries := make([]*Query, checks)
	answers := make([]*Answer, checks)
	errs := make([]error, checks)
	for i := range queries {
		q := byKey(rule, key)
		queries[i] = &q
		answers[i] = &Answer{}
	}
	n.CheckAll(queries, answers, errs)
	for i := range answers {
		if errs[i] != nil {
			n.w.t.Fatalf("check %d of a batch: %v", i, errs[i])
		}
		if answers[i].Allowed {
			admitted++
		}
	}
	return admitted
}
