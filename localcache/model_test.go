package localcache

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// network is an owner's ledger and counters, its holders, and the messages
// between them, on one virtual clock. Events happen in a deterministic order,
// so admitted hits can be checked against the limits to the unit.
type network struct {
	t       testing.TB
	chance  *rand.Rand
	at      time.Duration
	queue   []event
	events  int
	table   *counters.Table
	book    *LeaseLedger
	policy  Policy
	key     []counters.Key
	limits  []*algorithms.Limit
	holders []*Leases
	owner   ring.NodeID

	ordered    bool          // messages between two nodes keep their order
	maxLatency time.Duration // the longest time that a message takes
	loss       float64
	unspend    bool
	last       [2][8]time.Duration

	hits []hit

	sets []limitSet // of an inline subject; each check uses one of them
	set  int        // the set that key and limits are from
}

// limitSet is the set of limits of one kind of caller.
type limitSet struct {
	key    []counters.Key
	limits []*algorithms.Limit
}

// pickSet picks the set of the next check.
func (nw *network) pickSet() {
	if len(nw.sets) > 0 {
		nw.set = nw.chance.IntN(len(nw.sets))
		nw.key, nw.limits = nw.sets[nw.set].key, nw.sets[nw.set].limits
	}
}

type event struct {
	at  time.Duration
	n   int
	run func()
}

type hit struct {
	at   time.Duration
	cost []int64
	set  int
}

const (
	networkBegin   = int64(1_700_000_000) * int64(time.Second)
	networkProcess = 77
	networkLineage = 5
)

func (nw *network) now() algorithms.Instant {
	return algorithms.Instant{Steady: networkBegin + int64(nw.at), Wall: networkBegin + int64(nw.at)}
}

func (nw *network) after(d time.Duration, run func()) {
	nw.events++
	nw.queue = append(nw.queue, event{nw.at + d, nw.events, run})
}

// message calls run when a message arrives, unless it is lost. Way 0 is to the owner, 1 from it.
func (nw *network) message(way, holder int, run func()) {
	if nw.chance.Float64() < nw.loss {
		return
	}
	d := 50*time.Microsecond + time.Duration(nw.chance.Int64N(int64(nw.maxLatency)))
	if nw.chance.IntN(4) > 0 {
		d = min(d, time.Millisecond)
	}
	if nw.ordered {
		d = max(d, nw.last[way][holder]-nw.at)
		nw.last[way][holder] = nw.at + d
	}
	nw.after(d, run)
}

func (nw *network) ops(cost []int64) []counters.Op {
	ops := make([]counters.Op, len(nw.limits))
	for i := range ops {
		ops[i] = counters.Op{Key: nw.key[i], Limit: nw.limits[i], Cost: cost[i]}
	}
	return ops
}

// admitted records one hit, under the current set.
func (nw *network) admitted(cost []int64) {
	nw.hits = append(nw.hits, hit{nw.at, cost, nw.set})
}

// check makes one check at a holder.
func (nw *network) check(h int, cost []int64) {
	ops := nw.ops(cost)
	s := nw.holders[h]
	outcome, receipt := s.Spend(nw.at, nw.owner, ops)
	switch outcome {
	case Spent:
		if nw.unspend && nw.chance.IntN(3) == 0 {
			// Another op of the check refuses a moment later.
			nw.after(time.Duration(nw.chance.Int64N(int64(20*time.Millisecond))), func() { s.Unspend(receipt, ops) })
		} else {
			nw.admitted(cost)
		}
		if receipt.Renew {
			nw.ask(h, make([]int64, len(cost)), true)
		}
	case AskOwner:
		nw.ask(h, cost, false)
	}
}

// ask sends a question to the owner.
func (nw *network) ask(h int, cost []int64, renewal bool) {
	s, ops, set, sent := nw.holders[h], nw.ops(cost), nw.set, nw.at
	request, ok := s.Request(nw.at, nw.owner, nw.policy, ops, 1)
	came := false
	nw.message(0, h, func() {
		now := nw.now()
		yes := nw.table.Take(now, ops) == counters.Admitted
		g := Grant{}
		if yes {
			if !renewal {
				nw.hits = append(nw.hits, hit{nw.at, cost, set})
			}
			if ok {
				g = nw.grant(h, now, &request, ops)
			}
		}
		nw.message(1, h, func() {
			came = true
			from := Source{Owner: nw.owner, Boot: networkProcess, Lineage: networkLineage}
			if yes {
				s.AcceptAnswer(sent, nw.at, from, ops, g, renewal)
			} else {
				s.RememberRefusal(nw.at, ops, nw.policy.TTL)
			}
		})
	})
	nw.after(time.Second, func() {
		if renewal && !came {
			s.AbandonRenewal(nw.at, ops)
		}
	})
}

// grant grants a request as an owner does.
func (nw *network) grant(h int, now algorithms.Instant, request *LeaseRequest, ops []counters.Op) Grant {
	g := Grant{EndsIn: request.Policy.TTL}
	for i := range ops {
		if l := ops[i].Limit; l.Kind != algorithms.TokenBucket {
			g.EndsIn = min(g.EndsIn, l.WindowLeft(now))
		}
	}
	g.Life, g.DebitedAt = nw.table.Life(ops[0].Key.Partition()), now.Steady
	r := GrantInput{Holder: ring.NodeID{byte(h + 1)}, Lineage: networkLineage,
		SameBoot: request.Boot == networkProcess, Request: request, Nodes: len(nw.holders) + 1,
		Ops: ops}
	g.ID, g.Amounts = nw.book.Grant(nw.at, &r, func(ops []counters.Op) bool {
		admitted := nw.table.Take(now, ops) == counters.Admitted
		for i := range ops {
			taken := ops[i].TakeRecord()
			if ops[i].Limit.Kind == algorithms.TokenBucket {
				taken.Window = int64(taken.ResetAfter)
			}
			g.Marks = append(g.Marks, algorithms.TakeMark(taken.Window))
		}
		return admitted
	})
	return g
}

// returnEnded sends back grants that have ended.
func (nw *network) returnEnded(h int) {
	for _, e := range nw.holders[h].DrainEnded(nw.at, nil) {
		nw.message(0, h, func() {
			now := nw.now()
			nw.book.Return(nw.at, e.Source.Lineage, e.Grant, e.Ops, func(i int, cost int64) bool {
				op := &e.Ops[i]
				taken := algorithms.TakeRecord{
					Steady: e.DebitedAt, Window: int64(e.Marks[i]),
					Amount: op.Limit.Amount, ResetAfter: time.Duration(e.Marks[i]), MaxRate: op.Limit.Amount,
				}
				if err := nw.table.GiveBack(now, op.Key, op.Limit, taken, cost, e.Life); err != nil {
					nw.t.Error(err)
				}
				return true
			})
		})
	}
}

// run advances time until nothing is left to do before end.
func (nw *network) run(end time.Duration) {
	for {
		next := -1
		for i := range nw.queue {
			if next < 0 ||
				cmp.Or(cmp.Compare(nw.queue[i].at, nw.queue[next].at),
					cmp.Compare(nw.queue[i].n, nw.queue[next].n)) < 0 {
				next = i
			}
		}
		if next < 0 || nw.queue[next].at > end {
			nw.at = end
			return
		}
		e := nw.queue[next]
		nw.queue = slices.Delete(nw.queue, next, next+1)
		nw.at = e.at
		e.run()
	}
}

// excess returns by how much the hits exceed limit i, and when; zero if they respect it.
func (nw *network) excess(i int) (worst float64, when time.Duration) {
	l := nw.limits[i]
	note := func(over float64, now time.Duration) {
		if over > worst {
			worst, when = over, now
		}
	}
	var window, cur, prev int64
	var level float64
	var before time.Duration
	for _, h := range nw.hits {
		c := h.cost[i]
		if c == 0 {
			continue
		}
		wall := networkBegin + int64(h.at)
		n := wall / int64(l.Window)
		if n != window {
			prev = 0
			if n == window+1 {
				prev = cur
			}
			window, cur = n, 0
		}
		cur += c
		switch l.Kind {
		case algorithms.FixedWindow:
			note(float64(cur-l.Amount), h.at)
		case algorithms.SlidingWindow:
			view := float64((n+1)*int64(l.Window)-wall) / float64(l.Window)
			note(float64(cur)+float64(prev)*view-float64(l.Amount)-1e-6, h.at)
		case algorithms.TokenBucket:
			rate := float64(l.Amount) / float64(l.Window)
			level = max(0, level-rate*float64(h.at-before)) + float64(c)
			before = h.at
			note(level-float64(l.Burst)-rate*float64(nw.policy.TTL)-1e-6, h.at)
		}
	}
	return worst, when
}

type networkCase struct {
	kind    algorithms.Kind
	ordered bool
	loss    float64
	slow    time.Duration
	unspend bool
}

func newNetwork(t testing.TB, seed uint64, c networkCase) *network {
	w := &network{t: t, chance: rand.New(rand.NewPCG(seed, 1)), table: counters.New(1000),
		book: NewLeaseLedger(0), owner: ring.NodeID{99},
		ordered: c.ordered, loss: c.loss, maxLatency: c.slow, unspend: c.unspend}
	window := []time.Duration{time.Second, 2 * time.Second, 10 * time.Second}[w.chance.IntN(3)]
	limits := 1 + w.chance.IntN(2)
	for i := range limits {
		amount := int64(100 + w.chance.IntN(2000))
		w.limits = append(w.limits,
			&algorithms.Limit{Kind: c.kind, Amount: amount,
				Burst: max(40, amount/int64(1+w.chance.IntN(8))), Window: window})
		w.key = append(w.key, counters.Key{Subject: 12345, Counter: uint64(i + 1)})
	}
	w.policy = Policy{Threshold: []float64{0.5, 0.85, 0.95}[w.chance.IntN(3)],
		Idle: []float64{0.02, 0.1, 0.5}[w.chance.IntN(3)],
		TTL:  max(MinTTL, window/20)}
	if w.chance.IntN(3) == 0 {
		w.policy.TTL = 10 * w.policy.TTL
	}
	for range 1 + w.chance.IntN(4) {
		w.holders = append(w.holders, NewLeases(0))
	}
	return w
}

// traffic makes each holder send checks at changing rates until end.
func (nw *network) traffic(end time.Duration) {
	base := float64(nw.limits[0].Amount) / nw.limits[0].Window.Seconds() / float64(len(nw.holders))
	for h := range nw.holders {
		var step func()
		rate := base
		step = func() {
			if nw.at >= end {
				return
			}
			if nw.chance.IntN(200) == 0 {
				rate = base * []float64{0.05, 0.5, 1, 2, 5}[nw.chance.IntN(5)]
			}
			nw.pickSet()
			cost := make([]int64, len(nw.limits))
			for i := range cost {
				cost[i] = int64(nw.chance.IntN(3))
				if nw.chance.IntN(50) == 0 {
					cost[i] = nw.chance.Int64N(nw.limits[i].Capacity())
				}
			}
			nw.check(h, cost)
			pause := time.Duration(nw.chance.ExpFloat64() * float64(time.Second) / rate)
			if nw.chance.IntN(100) == 0 {
				pause += 2 * nw.policy.TTL
			}
			nw.after(pause, step)
		}
		nw.after(0, step)
		var tend func()
		tend = func() {
			nw.returnEnded(h)
			nw.after(time.Millisecond+time.Duration(nw.chance.IntN(int(time.Millisecond))), tend)
		}
		nw.after(0, tend)
	}
}

var runFactor = flag.Uint64("longer", 1, "how many times as many random runs; make models has more")

// runCount returns how many random runs a test makes that makes n by default.
func runCount(n uint64) uint64 {
	if testing.Short() {
		return max(n/8, 2)
	}
	return n * *runFactor
}

// G2: whatever is lost, late or out of order, no more is admitted than the
// limits allow: in each fixed window to the unit, at each hit by the sliding
// window's own rule, and for a bucket over any span D no more than over D +
// TTL.
func TestG2_ModelOfLeases(t *testing.T) {
	seeds := runCount(4)
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow, algorithms.TokenBucket} {
		for _, c := range []networkCase{
			{ordered: true, slow: 2 * time.Millisecond},
			{ordered: false, slow: 2 * time.Millisecond, loss: 0.05},
			{ordered: false, slow: 40 * time.Millisecond, loss: 0.02},
			{ordered: true, slow: 2 * time.Millisecond, unspend: true},
			{ordered: false, slow: 40 * time.Millisecond, loss: 0.02, unspend: true},
		} {
			c.kind = kind
			t.Run(fmt.Sprintf("%s/%+v", kind, c), func(t *testing.T) {
				for seed := range seeds {
					w := newNetwork(t, seed, c)
					end := 4 * w.limits[0].Window
					w.traffic(end)
					w.run(end)
					for i := range w.limits {
						if over, now := w.excess(i); over > 0 {
							t.Errorf("seed %d: limit %d, %+v, policy %+v: %.3f too many at %s (%d hits)", seed, i, *w.limits[i], w.policy, over, now, len(w.hits))
						}
					}
					w.table.Close()
				}
			})
		}
	}
}

// G3: once traffic stops, everything unspent is back within a lease's TTL, to the unit.
func TestG3_ModelOfLeases(t *testing.T) {
	seeds := runCount(10)
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow} {
		for _, ordered := range []bool{true, false} {
			for seed := range seeds {
				w := newNetwork(t, seed, networkCase{kind: kind, ordered: ordered, slow: 10 * time.Millisecond})
				for i := range w.limits {
					w.limits[i].Window = 20 * time.Second
				}
				w.policy.TTL = time.Second
				w.traffic(10 * time.Second)
				w.run(11*time.Second + 100*time.Millisecond)
				for i, l := range w.limits {
					sum := int64(0)
					for _, h := range w.hits {
						if (networkBegin+int64(h.at))/int64(l.Window) == w.now().Wall/int64(l.Window) {
							sum += h.cost[i]
						}
					}
					if used, _ := w.table.Usage(w.now(), w.key[i], l); used != sum &&
						w.now().Wall/int64(l.Window) == networkBegin/int64(l.Window) {
						t.Errorf("%s, seed %d, ordered %v: %d used, %d admitted; policy %+v", kind,
							seed, ordered, used, sum, w.policy)
					}
				}
				if n := w.book.Outstanding(); n != 0 {
					w.book.Sweep(w.at + time.Second)
					expect.Equal(t, w.book.Outstanding(), 0, "%s, seed %d: grants are outstanding", kind, seed)
				}
				w.table.Close()
			}
		}
	}
}

// A grant comes back once, and no more of each limit than was granted, whatever the message says.
func TestReturnNamesALimitTwice(t *testing.T) {
	b := NewLeaseLedger(0)
	limit := &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1000, Window: time.Minute}
	op := counters.Op{Key: counters.Key{Subject: 1, Counter: 1}, Limit: limit,
		Decision: algorithms.Decision{Remaining: 1000}}
	request := &LeaseRequest{Policy: Policy{Threshold: 0.85, Idle: 0.02, TTL: time.Second}, Want: []int64{100}}
	id, amounts := b.Grant(1,
		&GrantInput{Lineage: 1, Request: request, Nodes: 3, Ops: []counters.Op{op}},
		func([]counters.Op) bool { return true })
	if id == 0 {
		t.Fatal("nothing was granted")
	}
	op.Cost = amounts[0]
	size, back := amounts[0], int64(0)
	b.Return(2, 1, id, []counters.Op{op, op, op}, func(_ int, cost int64) bool { back += cost; return true })
	if back > size {
		t.Errorf("%d came back of %d", back, size)
	}
}

// G2 of a token bucket in the worst case: holders request all they can get,
// hoard it until it ends, and occasionally all spend everything at once.
// Answers may overtake each other, and spent cost may be put back.
func TestG2_HoardedBucket(t *testing.T) {
	for _, c := range []networkCase{
		{ordered: true, slow: time.Millisecond},
		{ordered: true, slow: 5 * time.Millisecond},
		{ordered: true, slow: time.Millisecond, unspend: true},
		{ordered: false, slow: 30 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			seeds := runCount(25)
			for seed := range seeds {
				testHoard(t, seed, c)
			}
		})
	}
}

func testHoard(t *testing.T, seed uint64, c networkCase) {
	c.kind = algorithms.TokenBucket
	w := newNetwork(t, seed, c)
	defer w.table.Close()
	limit := &algorithms.Limit{Kind: c.kind, Amount: 10_000,
		Burst: int64(1000 * (1 + w.chance.IntN(20))), Window: time.Second}
	w.limits, w.key = []*algorithms.Limit{limit}, w.key[:1]
	w.policy = Policy{Threshold: 0.95, Idle: 0.5, TTL: 50 * time.Millisecond}
	for len(w.holders) < 6 {
		w.holders = append(w.holders, NewLeases(0))
	}
	held := func(h int) []HeldGrant {
		request, _ := w.holders[h].Request(w.at, w.owner, w.policy, w.ops([]int64{1}), 1)
		return request.Held
	}
	spend := func(h int, cost int64) (Receipt, bool) {
		if cost == 0 {
			return Receipt{}, false
		}
		outcome, receipt := w.holders[h].Spend(w.at, w.owner, w.ops([]int64{cost}))
		return receipt, outcome == Spent
	}
	var step func()
	step = func() {
		h := w.chance.IntN(len(w.holders))
		if w.chance.IntN(3) > 0 {
			w.hoard(h)
		} else if list := held(h); c.unspend && len(list) > 0 {
			if receipt, ok := spend(h, list[0].Left[0]); ok {
				w.after(time.Duration(w.chance.IntN(20))*time.Millisecond, func() {
					w.holders[h].Unspend(receipt, w.ops([]int64{list[0].Left[0]}))
				})
			}
		}
		if w.chance.IntN(200) == 0 {
			for h := range w.holders {
				for _, g := range held(h) {
					if _, ok := spend(h, g.Left[0]); ok {
						w.admitted([]int64{g.Left[0]})
					}
				}
			}
			op := w.ops([]int64{0})
			w.table.Peek(w.now(), op)
			op[0].Cost = op[0].Decision.Remaining
			if op[0].Cost > 0 && w.table.Take(w.now(), op) == counters.Admitted {
				w.admitted([]int64{op[0].Cost})
			}
		}
		w.after(time.Duration(1+w.chance.IntN(5))*time.Millisecond, step)
	}
	w.after(0, step)
	for h := range w.holders {
		var tend func()
		tend = func() {
			w.returnEnded(h)
			w.after(time.Millisecond, tend)
		}
		w.after(0, tend)
	}
	w.run(3 * time.Second)
	if over, now := w.excess(0); over > 0 {
		t.Errorf("seed %d: %.1f too many at %s: a burst of %d, %.0f in a lease's life", seed, over,
			now, limit.Burst, float64(limit.Amount)*w.policy.TTL.Seconds())
	}
}

// hoard asks for as much as possible.
func (nw *network) hoard(h int) {
	ops, sent := nw.ops([]int64{nw.limits[0].Burst}), nw.at
	request, _ := nw.holders[h].Request(nw.at, nw.owner, nw.policy, ops, 1)
	ops[0].Cost = 0
	nw.message(0, h, func() {
		now := nw.now()
		nw.table.Peek(now, ops)
		g := nw.grant(h, now, &request, ops)
		nw.message(1, h, func() {
			nw.holders[h].AcceptAnswer(sent, nw.at,
				Source{Owner: nw.owner, Boot: networkProcess, Lineage: networkLineage}, ops, g,
				true)
		})
	})
}

// G2 of a token bucket: a return by one holder leaves room for everything that
// another may still spend. That includes cost that the other puts back after it
// reported it as spent, because another limit refused the check, and a grant
// that arrives after a later one.
func TestG2_BucketKnowsWhatIsOut(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late %v", late), func(t *testing.T) {
			w := newNetwork(t, 1, networkCase{kind: algorithms.TokenBucket, ordered: true, slow: time.Microsecond})
			defer w.table.Close()
			limit := &algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 20_000, Burst: 20_000,
				Window: 2 * time.Second}
			w.limits, w.key = []*algorithms.Limit{limit}, []counters.Key{{Subject: 12345, Counter: 1}}
			w.policy = Policy{Threshold: 0.95, Idle: 0.5, TTL: 50 * time.Millisecond}
			w.holders = []*Leases{NewLeases(0), NewLeases(0)}
			from := Source{Owner: w.owner, Boot: networkProcess, Lineage: networkLineage}
			a := w.holders[0]
			grant := func(h int, want int64) (g Grant) {
				request, _ := w.holders[h].Request(w.at, w.owner, w.policy, w.ops([]int64{1}), 1)
				request.Want = []int64{want}
				ops := w.ops([]int64{0})
				w.table.Peek(w.now(), ops)
				return w.grant(h, w.now(), &request, ops)
			}
			come := func(h int, sent time.Duration, g Grant) {
				ops := w.ops([]int64{0})
				ops[0].Decision.Allowed = true
				w.holders[h].AcceptAnswer(sent, w.at, from, ops, g, false)
			}
			pass := func(d time.Duration) { w.run(w.at + d) }
			w.at = time.Second

			come(1, w.at, grant(1, 4_700)) // another holder has nearly a quarter
			pass(45 * time.Millisecond)    // meanwhile the bucket refills a little
			sent := w.at
			g := grant(0, 2_500)
			var receipt Receipt
			spent := w.ops([]int64{2_500})
			if !late {
				come(0, sent, g)
				outcome := AskOwner
				outcome, receipt = a.Spend(w.at, w.owner, spent)
				if outcome != Spent {
					t.Fatalf("a grant of %d: have %d", g.Amounts[0], outcome)
				}
			} else {
				come(0, sent, grant(0, 10)) // overtakes g
			}
			grant(0, 1) // reports what the holder has; the answer is lost
			pass(6 * time.Millisecond)
			w.returnEnded(1) // the other holder gives everything back
			pass(42 * time.Millisecond)
			if !late {
				a.Unspend(receipt, spent)
			} else {
				come(0, sent, g)
			}
			// Spend everything at once.
			for _, n := range []int64{2_500, 10} {
				if outcome, _ := a.Spend(w.at, w.owner, w.ops([]int64{n})); outcome == Spent {
					w.admitted([]int64{n})
				}
			}
			op := w.ops([]int64{0})
			w.table.Peek(w.now(), op)
			op[0].Cost = op[0].Decision.Remaining
			if w.table.Take(w.now(), op) == counters.Admitted {
				w.admitted([]int64{op[0].Cost})
			}
			if over, _ := w.excess(0); over > 0 {
				t.Errorf("%v: %.0f too many at once", w.hits, over)
			}
		})
	}
}

// A grant that its holder reports as spent stays in the ledger only while part
// of it may be on its way back. An owner that makes many small grants for a
// busy subject reads all of them on each question, and has room for a bounded
// number.
func TestSpentGrantsLeaveTheLedger(t *testing.T) {
	b := NewLeaseLedger(0)
	limit := &algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 1_000_000, Burst: 1_000_000,
		Window: 100 * time.Second}
	request := &LeaseRequest{Policy: Policy{Threshold: 0.85, Idle: 0.02, TTL: 5 * time.Second},
		Boot: 1, Want: []int64{10}}
	now := time.Second
	for range 100 {
		op := counters.Op{Key: counters.Key{Subject: 1, Counter: 1}, Limit: limit,
			Decision: algorithms.Decision{Remaining: 900_000}}
		r := &GrantInput{Holder: ring.NodeID{1}, Lineage: 1, SameBoot: true, Request: request,
			Nodes: 3, Ops: []counters.Op{op}}
		id, _ := b.Grant(now, r, func([]counters.Op) bool { return true })
		if id == 0 {
			t.Fatal("nothing was granted")
		}
		request.LastGrant = id // the holder has nothing left
		now += 40 * time.Millisecond
	}
	// 4 s have passed; a grant ends after 5 s.
	if n := b.Outstanding(); n > 30 {
		t.Errorf("the ledger has %d grants, but all except one were spent", n)
	}
}
