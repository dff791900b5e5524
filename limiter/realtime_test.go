package limiter

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

var (
	realtimeSeed = flag.Uint64("realtime-seed", 0,
		"seed of the first run in real time; 0: from the clock")
	realtimeSeeds = flag.Int("realtime-seeds", 0,
		"how many runs in real time, with consecutive seeds; 0: a dozen, or six if short")
)

// On virtual time, no time passes between the reading of a clock and the
// decision by it, whatever the callers do. So these runs take real time: one
// or three nodes in this process are asked for much more than a limit allows,
// and what they admit is judged by when it was asked and answered.
//
// A seed draws the limit, who asks, and how. It does not draw the schedule: a
// failure may take several runs of its seed to come again.
func TestG1_G2_RealTime(t *testing.T) {
	seed := firstSeed()
	for i := range realtimeRuns() {
		m := drawMix(seed + uint64(i))
		name := fmt.Sprintf("seed %d, %v", seed+uint64(i), m)
		t.Run(name, func(t *testing.T) { m.judge(t, m.nodesUnderTest(t)) })
	}
}

// realtimeRuns returns how many runs there are.
func realtimeRuns() int {
	switch {
	case *realtimeSeeds > 0:
		return *realtimeSeeds
	case testing.Short():
		return 6
	}
	return 8
}

// firstSeed returns the seed of the first run.
func firstSeed() uint64 {
	if *realtimeSeed > 0 {
		return *realtimeSeed
	}
	return uint64(time.Now().UnixNano()) % 1_000_000
}

// The mixes of which late readings of the clock make most: windows that end
// while a batch is being decided.
func TestG1_RealTimeShortWindowsInBatches(t *testing.T) {
	for _, m := range []mix{
		{kind: algorithms.FixedWindow, window: 10 * time.Millisecond},
		{kind: algorithms.FixedWindow, window: 50 * time.Millisecond},
		{kind: algorithms.SlidingWindow, window: 10 * time.Millisecond},
	} {
		m.limit = 100
		m.nodes = 1
		m.callers = 4
		m.batch = 10_000
		m.subjects = 1
		m.cost = 1
		m.lasts = 500 * time.Millisecond
		t.Run(m.String(), func(t *testing.T) { m.judge(t, m.nodesUnderTest(t)) })
	}
}

// shortestLeased is the shortest window whose limits are leased.
const shortestLeased = 200 * time.Millisecond

// The wall clock is set forward by a window and then back again, twice, while
// batches are being decided. Each step forward may free a window, and none back.
func TestG1_RealTimeClockStepsUnderBatches(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow} {
		m := mix{
			kind: kind, window: time.Hour, limit: 100, cost: 1,
			nodes: 1, callers: 4, batch: 10_000, subjects: 1, lasts: 400 * time.Millisecond,
		}
		t.Run(m.String(), func(t *testing.T) {
			nodes := m.nodesUnderTest(t)
			m.judgeWhileStepping(t, nodes, nodes.limiters[0].clock)
		})
		t.Run(m.String()+", the reference", func(t *testing.T) {
			r := newReference(t, &m, none)
			m.judgeWhileStepping(t, r, r.clock)
		})
	}
}

// judgeWhileStepping is judge, while the decider's clock is set.
func (m *mix) judgeWhileStepping(t *testing.T, d decider, clock *Clock) {
	t.Helper()
	clock.Close() // only this test sets it from now on

	var steps sync.WaitGroup
	steps.Go(func() {
		for _, ahead := range []time.Duration{time.Hour, 0, 2 * time.Hour, 0} {
			time.Sleep(m.lasts / 6)
			now := clock.Now()
			clock.follow(now.Steady, now.Steady+int64(ahead))
		}
	})
	m.judge(t, d)
	steps.Wait()
}

// mix is one run: a limit, and those who ask about it.
type mix struct {
	seed     uint64
	kind     algorithms.Kind
	window   time.Duration
	limit    int64
	burst    int64 // of buckets
	cost     int64 // a check costs up to this
	hybrid   bool
	inline   bool // the limit comes with the call
	nodes    int
	callers  int
	batch    int // checks in a call; 1: not a batch
	subjects int // most checks are of the first
	lasts    time.Duration
	rest     time.Duration // a caller rests for up to that long between calls; 0: not at all
}

// drawMix returns the mix of a seed. Any twelve consecutive seeds have each
// algorithm at one node and at three.
func drawMix(seed uint64) mix {
	random := rand.New(rand.NewPCG(seed, 1))
	m := mix{
		seed: seed, kind: algorithms.Kind(seed % 6), nodes: 1, lasts: 300 * time.Millisecond,
	}
	if seed/6%2 == 1 {
		m.nodes = 3
	}

	windows := []time.Duration{10, 10, 20, 20, 50, 50, 100, 1000, 5000}
	m.window = windows[random.IntN(len(windows))] * time.Millisecond
	m.limit = []int64{10, 100, 1000}[random.IntN(3)]
	m.burst = 1 + random.Int64N(m.limit)
	m.cost = 1 + 2*random.Int64N(2)
	m.hybrid = random.IntN(2) == 0
	// Only calls bring windows that begin with their first hit.
	m.inline = random.IntN(3) == 0 || m.kind == algorithms.FirstWindow
	m.subjects = 1 + random.IntN(3)

	// Who never rests uses a window up in the moment in which it turns, so that
	// nobody knows which one the hits were in.
	m.rest = []time.Duration{0, 0, m.window / 2, 2 * m.window}[random.IntN(4)]
	m.rest = min(m.rest, m.lasts/4)

	m.callers = []int{1, 2, 4, 16, 64, 256}[random.IntN(6)]
	m.batch = []int{1, 1, 10, 100, 1000, 10_000}[random.IntN(6)]
	m.batch = min(m.batch, m.mostAtOnce()/m.callers)
	return m
}

// mostAtOnce bounds the checks of all callers at once. Those that wait for
// other nodes must get their answers long before these count as lost, on a
// slow machine and with the race detector.
func (m *mix) mostAtOnce() int {
	if m.nodes > 1 {
		return 10_000
	}
	return 40_000
}

// String tells the mix as the name of a subtest.
func (m mix) String() string {
	name := m.kind.String()
	if m.kind == algorithms.FirstWindow {
		name += " from the first hit"
	}
	return fmt.Sprintf("%s %d per %v, %s, nodes %d, callers %d, batches of %d, rests %v",
		name, m.limit, m.window, m.consistency(), m.nodes, m.callers, m.batch, m.rest)
}

// consistency returns the rules' word.
func (m *mix) consistency() string {
	if m.hybrid {
		return "hybrid"
	}
	return "exact"
}

// bound returns what is promised of each subject.
func (m *mix) bound() bound {
	b := bound{onlyChecks: true, limit: algorithms.Limit{
		Kind: m.kind, Amount: m.limit, Burst: m.burst, Window: m.window,
	}}
	if m.hybrid && m.nodes > 1 && m.kind.Leasable() && m.window >= shortestLeased {
		b.ttl = min(max(m.window/20, 50*time.Millisecond), 5*time.Second)
	}
	return b
}

// untilTurn returns how long before the turn of a window a run begins. A run
// is shorter than the long windows, and each has to see one turn.
func (m *mix) untilTurn() time.Duration { return m.lasts / 2 }

// judge runs the mix against a decider, and fails if a bound is broken.
func (m *mix) judge(t *testing.T, d decider) {
	t.Helper()
	seen := m.run(d)

	total := int64(0)
	near := 0.0
	for subject, list := range seen {
		b := m.bound()
		worst := b.worst(list)
		if worst.ratio() > 1 {
			t.Errorf("subject %d: got %v", subject, worst)
		}
		near = max(near, worst.ratio())
		for i := range list {
			total += list[i].admitted
		}
	}

	if total == 0 {
		t.Error("got nothing admitted, want a load that uses the limit up")
	}
	t.Logf("%d admitted, at most %.3f times the bound", total, near)
}

// decider decides the checks of a run: real nodes, or a reference.
type decider interface {
	// now reads the clock by which a subject is decided.
	now(subject int) algorithms.Instant
	// asker returns what one goroutine asks with, n checks at a time.
	asker(number, n int) asker
}

// asker asks for checks of these subjects, in order. It adds what was
// admitted to the sums, which are by subject.
type asker interface {
	ask(subjects []int, costs []int64, sums []int64)
}

// run runs the mix, and returns what was seen of each subject.
func (m *mix) run(d decider) [][]sighting {
	var mu sync.Mutex // guards seen
	seen := make([][]sighting, m.subjects)

	var callers sync.WaitGroup
	began := time.Now()
	for number := range m.callers {
		random := rand.New(rand.NewPCG(m.seed, uint64(2+number)))
		callers.Go(func() {
			mine := m.call(d, d.asker(number, m.batch), random, began)
			mu.Lock()
			defer mu.Unlock()
			for subject := range seen {
				seen[subject] = append(seen[subject], mine[subject]...)
			}
		})
	}
	callers.Wait()
	return seen
}

// call asks until the run ends, and returns what one caller saw of each
// subject.
func (m *mix) call(
	d decider, c asker, random *rand.Rand, began time.Time,
) (seen [][]sighting) {
	seen = make([][]sighting, m.subjects)
	subjects := make([]int, m.batch)
	costs := make([]int64, m.batch)
	sent := make([]algorithms.Instant, m.subjects)
	sums := make([]int64, m.subjects)

	// At least once, also on a machine that starts this caller late.
	for isFirst := true; isFirst || time.Since(began) < m.lasts; isFirst = false {
		for i := range subjects {
			subjects[i] = max(0, random.IntN(2*m.subjects)-m.subjects)
			costs[i] = 1 + random.Int64N(m.cost)
		}

		clear(sums)
		for subject := range sent {
			sent[subject] = d.now(subject)
		}
		c.ask(subjects, costs, sums)

		for subject, sum := range sums {
			if sum > 0 {
				s := sighting{sent: sent[subject], answered: d.now(subject), admitted: sum}
				seen[subject] = append(seen[subject], s)
			}
		}

		if m.rest > 0 {
			time.Sleep(time.Duration(random.Int64N(int64(m.rest))))
		}
	}
	return seen
}

// realNodes asks limiters in this process.
type realNodes struct {
	mix      *mix
	limiters []*Limiter
	owners   []*Limiter // of the subjects
	queries  [][]Query  // by subject and cost - 1
}

// nodesUnderTest opens the nodes of a mix. Their clocks differ by up to 0.3 s,
// and the owner of the first subject turns its window in the middle of the run.
func (m *mix) nodesUnderTest(t *testing.T) *realNodes {
	t.Helper()
	r := &realNodes{mix: m}
	random := rand.New(rand.NewPCG(m.seed, 0))
	offset := func() time.Duration {
		passed := time.Duration(time.Now().UnixNano() % int64(m.window))
		until := m.window - passed - m.untilTurn()
		if m.nodes == 1 {
			return until
		}
		return until + time.Duration(random.Int64N(int64(600*time.Millisecond))) - 300*time.Millisecond
	}

	if m.nodes == 1 {
		table := counters.New(100_000)
		clock := NewClockWithOffset(offset())
		t.Cleanup(func() {
			clock.Close()
			table.Close()
		})
		l := New(table, clock)
		l.SetRules(compile(t, 1, "version: 1\n"+m.rules()))
		r.limiters = append(r.limiters, l)
	} else {
		w := (&testCluster{t: t, ahead: offset}).start(m.nodes, m.rules())
		for _, n := range w.nodes {
			r.limiters = append(r.limiters, n.Limiter)
		}
		r.owners = r.ownersIn(t, w)
	}

	for subject := range m.subjects {
		var list []Query
		for cost := range m.cost {
			list = append(list, m.query(subject, cost+1))
		}
		r.queries = append(r.queries, list)
		if m.nodes == 1 {
			r.owners = append(r.owners, r.limiters[0])
		}
	}
	return r
}

// rules returns the document with the mix's limit.
func (m *mix) rules() string {
	if m.inline {
		return "rules: []"
	}
	burst := ""
	if m.kind.IsBucket() {
		burst = fmt.Sprintf(", burst: %d", m.burst)
	}
	return fmt.Sprintf("rules:\n"+
		"  - {name: r, key: [k], consistency: %s, "+
		"limits: [{limit: %d, per: %v, algorithm: %v%s}]}",
		m.consistency(), m.limit, m.window, m.kind, burst)
}

// query returns a check of a subject.
func (m *mix) query(subject int, cost int64) Query {
	costs := []UnitCost{{Unit: document.Requests, Cost: cost}}
	key := []string{fmt.Sprintf("subject %d of seed %d", subject, m.seed)}
	if !m.inline {
		return Query{Rule: "r", Key: key, ByKey: true, Costs: costs}
	}

	limit := document.InlineLimit{Limit: m.limit, Per: m.window.String(), Algorithm: m.kind.String()}
	if m.kind.IsBucket() {
		limit.Burst = m.burst
	}
	if m.kind == algorithms.FirstWindow {
		limit.From = "first"
	}
	return Query{Subjects: []Subject{{
		InlineSubject: rules.InlineSubject{
			Namespace: "n", Key: key, Limits: []document.InlineLimit{limit}, Exact: !m.hybrid,
		},
		Costs: costs,
	}}}
}

// ownersIn returns the limiters that own the subjects.
func (r *realNodes) ownersIn(t *testing.T, w *testCluster) (owners []*Limiter) {
	t.Helper()
	for subject := range r.mix.subjects {
		q := r.mix.query(subject, 1)
		var a Answer
		if err := w.nodes[0].match(0, &q, &a); err != nil {
			t.Fatalf("match %+v: %v", q, err)
		}
		p := ring.PartitionOf(a.scratch.match.Hits[0].Subject.Hi)
		owners = append(owners, w.node(w.place[p].owner).Limiter)
	}
	return owners
}

func (r *realNodes) now(subject int) algorithms.Instant { return r.owners[subject].clock.Now() }

func (r *realNodes) asker(number, n int) asker {
	c := &realCaller{
		nodes:   r,
		limiter: r.limiters[number%len(r.limiters)],
		queries: make([]*Query, n),
		answers: make([]*Answer, n),
		errs:    make([]error, n),
	}
	for i := range c.answers {
		c.answers[i] = &Answer{}
	}
	return c
}

// realCaller asks one limiter.
type realCaller struct {
	nodes   *realNodes
	limiter *Limiter
	queries []*Query
	answers []*Answer
	errs    []error
}

// ask leaves out what was decided without the owner. The limiter does that if
// an answer takes most of a second, and promises only a share for it.
func (c *realCaller) ask(subjects []int, costs []int64, sums []int64) {
	for i, subject := range subjects {
		c.queries[i] = &c.nodes.queries[subject][costs[i]-1]
	}

	if len(subjects) == 1 {
		c.errs[0] = c.limiter.Check(c.queries[0], c.answers[0])
	} else {
		c.limiter.CheckAll(c.queries, c.answers, c.errs)
	}

	for i, subject := range subjects {
		a := c.answers[i]
		alone := a.DecidedBy == ByFallback || a.DecidedBy == ByStandby
		if c.errs[i] == nil && a.Allowed && !alone {
			sums[subject] += costs[i]
		}
	}
}
