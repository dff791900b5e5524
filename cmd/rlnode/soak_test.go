package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

var soakTime = flag.Duration("soak", 0,
	"how long TestSoak lasts, four minutes or more; 0: it is skipped, see make soak")

// soakRules have no window that turns during the test, but for those of churn
// and changing, which nobody counts. The limit of tight and scarce is reached;
// the others' is not.
const soakRules = `version: 1
rules:
  - {name: exact, key: [ip], consistency: exact, limits: [{limit: 1000000000, per: 8760h, algorithm: fixed-window}]}
  - {name: leased, key: [ip], usage: monthly, limits: [{limit: 1000000000, per: 8760h, algorithm: fixed-window}]}
  - {name: user, key: [user], limits: [{limit: 1000000000, per: 8760h, algorithm: fixed-window}]}
  - {name: org, key: [org], consistency: exact, limits: [{limit: 1000000000, per: 8760h, algorithm: fixed-window}]}
  - {name: tight, key: [set], consistency: exact, limits: [{limit: %[1]d, per: 8760h, algorithm: fixed-window}]}
  - {name: scarce, key: [set], limits: [{limit: %[1]d, per: 8760h, algorithm: fixed-window}]}
  - name: model
    key: [tenant]
    usage: monthly
    limits:
      - {limit: 1000000000000, per: 8760h, algorithm: fixed-window, unit: tokens}
      - {limit: 1000000000, per: 8760h, algorithm: fixed-window}
  - name: churn
    key: [session]
    limits: [{limit: 30, per: 20s}, {limit: 20, per: 10s, algorithm: token-bucket}, {limit: 5, per: 5s, algorithm: sliding-window-log}]
  - {name: changing, key: [ip], limits: [{limit: 1000, per: 1m}]}
`

// soakLimits come with calls.
var soakLimits = []client.Limit{{Limit: 1_000_000_000, Per: "8760h", Algorithm: "fixed-window"}}

const (
	soakSet      = 10 // subjects of tight, and of scarce, that are asked for at a time
	soakBatch    = 50
	soakFailures = 50 // so many end the test
)

// soak is a mixed load on a cluster, and a model of what the cluster should have counted.
type soak struct {
	fleet *fleet
	began time.Time
	phase time.Duration // between rolling restarts
	limit int64         // of tight and scarce
	stop  chan struct{}
	done  sync.WaitGroup

	rolling atomic.Bool     // nodes are being restarted
	passed  *process.Output // which nodes clients passed over, and why
	failed  atomic.Int64    // calls
	gate    sync.RWMutex    // held by calls, and by who compares counts while there are none

	mu      sync.Mutex       // guards the rest
	counted map[soaked]int64 // what was admitted and, of reservations, settled
	by      map[client.DecidedBy]int
	asked   int             // checks
	calm    []time.Duration // how long single checks took since the last sample, without restarts
	slowest time.Duration   // single check, in all
	settled int
	rules   int // written
}

// soaked is a counter of a subject. The rule of limits that come with the call is empty.
type soaked struct{ rule, key, unit string }

// TestSoak keeps a mixed load on three nodes that are restarted one after
// another, again and again, while rules are written. No check fails, all is
// counted to the unit, and what the nodes take of memory, goroutines, files,
// disk and time does not grow.
func TestSoak(t *testing.T) {
	if *soakTime == 0 {
		t.Skip("make soak runs it")
	}
	s := &soak{fleet: newFleet(t, 3), began: time.Now(), phase: min(10*time.Minute, *soakTime/4),
		stop: make(chan struct{}), passed: &process.Output{},
		counted: map[soaked]int64{}, by: map[client.DecidedBy]int{}}
	s.limit = int64(7 * s.phase.Seconds()) // some four fifths of what is asked for
	s.fleet.nodes[0].apply(fmt.Sprintf(soakRules, s.limit))
	s.done.Go(s.watch)
	s.load()
	var phases []soakPhase
	for len(phases) < int(*soakTime/s.phase) && s.failed.Load() < soakFailures {
		if len(phases) > 0 {
			s.roll()
			s.compare("the restarts")
		}
		phases = append(phases, s.measure(len(phases)+1))
		s.compare(fmt.Sprint("phase ", len(phases)))
	}
	s.exhausted()
	s.compare("the limits were reached")
	close(s.stop)
	s.done.Wait()
	s.report()
	s.billed()
	flat(t, phases)
}

// load starts clients. Each prefers another node, and takes the next one while that is away.
func (s *soak) load() {
	logger := slog.New(slog.NewTextHandler(s.passed, &slog.HandlerOptions{Level: slog.LevelWarn}))
	for i := range s.fleet.nodes {
		options := client.Options{Timeout: 5 * time.Second, OnError: client.Closed, Logger: logger}
		for j := range s.fleet.nodes {
			options.Nodes = append(options.Nodes, "http://"+s.fleet.nodes[(i+j)%len(s.fleet.nodes)].ip+":8080")
		}
		s.lane(6*time.Millisecond, i, options, s.single)
		s.lane(20*time.Millisecond, i, options, s.other)
		options.MaxInFlight, options.MaxBatch = 1, soakBatch
		s.lane(130*time.Millisecond, i, options, s.batch)
	}
}

// lane calls ask again and again, until the end, with a client of its own.
func (s *soak) lane(every time.Duration, i int, o client.Options, ask func(*client.Client, *rand.Rand)) {
	c, err := client.New(o)
	expect.NoError(s.fleet.t, err)
	s.fleet.t.Cleanup(c.Close)
	random := rand.New(rand.NewPCG(uint64(i), uint64(every)))
	s.done.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-s.stop:
				return
			case <-tick.C:
				s.gate.RLock()
				ask(c, random)
				s.gate.RUnlock()
			}
		}
	})
}

// single makes one check, and measures how long it takes.
func (s *soak) single(c *client.Client, random *rand.Rand) {
	calm, began := !s.rolling.Load(), time.Now()
	switch random.IntN(5) {
	case 0:
		s.counts(c, "exact", fmt.Sprint("e", random.IntN(200)), 1+random.Int64N(3))
	case 1:
		s.counts(c, "leased", fmt.Sprint("l", random.IntN(200)), 1+random.Int64N(3))
	case 2:
		s.counts(c, "tight", s.member(random), 1)
	case 3:
		s.counts(c, "scarce", s.member(random), 1)
	case 4: // two rules apply; their subjects mostly have different owners
		user, org := fmt.Sprint("u", random.IntN(300)), fmt.Sprint("o", random.IntN(20))
		q := client.Request{Attributes: map[string]string{"user": user, "org": org}}
		s.check(c, q, soaked{"user", user, "requests"}, soaked{"org", org, "requests"})
	}
	took := time.Since(began)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slowest = max(s.slowest, took)
	if calm && !s.rolling.Load() {
		s.calm = append(s.calm, took)
	}
}

// member draws one of the subjects whose limit is being used up. They change in
// the middle of a phase, so that a restart is while they are.
func (s *soak) member(random *rand.Rand) string {
	return fmt.Sprintf("s%d-%d", (time.Since(s.began)+s.phase/2)/s.phase, random.IntN(soakSet))
}

// counts checks a subject of a rule and counts what is admitted. It reports whether it was.
func (s *soak) counts(c *client.Client, rule, key string, cost int64) bool {
	return s.check(c, client.Request{Rule: rule, Key: []string{key}, Cost: cost}, soaked{rule, key, "requests"})
}

// check asks for a decision, and counts the cost for each of counters if it is admitted.
func (s *soak) check(c *client.Client, q client.Request, counters ...soaked) bool {
	began := time.Now()
	d, err := c.Check(context.Background(), q)
	s.decided(began, q, d, err)
	if err != nil || !d.Allowed {
		return false
	}
	s.count(max(q.Cost, 1), counters...)
	return true
}

func (s *soak) count(n int64, counters ...soaked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range counters {
		s.counted[one] += n
	}
}

// decided notes how a check was decided: by its owner or by a lease, since all
// nodes are always connected.
func (s *soak) decided(began time.Time, q client.Request, d client.Decision, err error) {
	s.mu.Lock()
	s.asked++
	s.by[d.DecidedBy]++
	s.mu.Unlock()
	if err != nil || d.DecidedBy == client.ByFallback || d.DecidedBy == client.ByStandby {
		s.fail("a check of %q %v %v %q, asked %v before: decided by %q at %s, %v",
			q.Rule, q.Key, q.Attributes, q.Namespace, time.Since(began), d.DecidedBy, d.Node, err)
	}
}

func (s *soak) fail(format string, args ...any) {
	if s.failed.Add(1) <= soakFailures {
		s.fleet.t.Errorf(clock(time.Now())+": "+format, args...)
	}
}

// watch logs when the test itself is late, which explains a failure on a machine that stands still.
func (s *soak) watch() {
	for last := time.Now(); ; last = time.Now() {
		select {
		case <-s.stop:
			return
		case <-time.After(10 * time.Millisecond):
		}
		if late := time.Since(last); late > 150*time.Millisecond {
			s.fleet.t.Logf("%s: the machine stood still for %v", clock(time.Now()), late)
		}
	}
}

// batch makes checks at once, with a client that puts all of them but the first into one request.
func (s *soak) batch(c *client.Client, random *rand.Rand) {
	seconds := int(time.Since(s.began).Seconds())
	var all sync.WaitGroup
	for i := range soakBatch + 1 {
		n := random.IntN(4000)
		all.Go(func() {
			switch {
			case i%5 == 0:
				s.counts(c, "leased", fmt.Sprint("l", n%200), 1)
			case i%10 == 1:
				s.counts(c, "exact", fmt.Sprint("e", n%200), 2)
			case i%10 == 2:
				s.check(c, client.Request{Rule: "changing", Key: []string{fmt.Sprint("c", n%20)}})
			default: // subjects that come and go
				s.check(c, client.Request{Rule: "churn", Key: []string{fmt.Sprint("x", n+20*seconds)}})
			}
		})
	}
	all.Wait()
}

// other makes a call of another kind: a reservation, a check that brings its limits, or a peek.
func (s *soak) other(c *client.Client, random *rand.Rand) {
	switch random.IntN(5) {
	case 0:
		s.reserve(c, fmt.Sprint("t", random.IntN(50)), 1+random.Int64N(5000), random.IntN(20), random.Int64N(6000))
	case 1, 2:
		key := fmt.Sprint("i", random.IntN(200))
		s.check(c, client.Request{Namespace: "soak", Key: []string{key}, Limits: soakLimits},
			soaked{"", key, "requests"})
	case 3:
		key := fmt.Sprint("x", random.IntN(1000)+int(time.Since(s.began).Seconds()))
		limits := []client.Limit{{Limit: 5, Per: "3s"}, {Limit: 100, Per: "1m", Algorithm: "token-bucket"}}
		s.check(c, client.Request{Namespace: "churn", Key: []string{key}, Limits: limits})
	case 4:
		began, q := time.Now(), client.Request{Rule: "exact", Key: []string{fmt.Sprint("e", random.IntN(200))}}
		d, err := c.Peek(context.Background(), q)
		s.decided(began, q, d, err)
	}
}

// reserve takes an estimate, and settles it some seconds later with less or
// more, or cancels it, or leaves it.
func (s *soak) reserve(c *client.Client, key string, estimate int64, what int, ms int64) {
	began, tokens, requests := time.Now(), soaked{"model", key, "tokens"}, soaked{"model", key, "requests"}
	id := fmt.Sprintf("%d-%x", began.UnixNano(), rand.Uint32())
	q := client.Request{Rule: "model", Key: []string{key}, Costs: map[string]int64{"tokens": estimate}, RequestID: id}
	r, err := c.Reserve(context.Background(), q, time.Minute)
	s.decided(began, q, r.Decision, err)
	if err != nil || !r.Allowed {
		return
	}
	used := map[string]int64{"tokens": estimate * (1 + int64(what)) / 16}
	switch what {
	case 0:
		s.count(estimate, tokens)
		s.count(1, requests)
		return
	case 1:
		used = nil
	default:
		s.count(used["tokens"], tokens)
		s.count(1, requests)
	}
	s.done.Go(func() {
		select {
		case <-time.After(time.Duration(ms) * time.Millisecond):
		case <-s.stop:
		}
		a, err := c.Settle(context.Background(), r.ID, used)
		if err != nil || !a.Settled {
			s.fail("settling %v of %s with %v: %+v, %v", estimate, key, used, a, err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.settled++
	})
}

// write changes the rule whose limit nobody counts.
func (s *soak) write(m *fleetNode) {
	s.mu.Lock()
	s.rules++
	n := s.rules
	s.mu.Unlock()
	body := fmt.Sprintf("name: changing\nkey: [ip]\nlimits: [{limit: %d, per: 1m}]\n", 1000+1000*(n%2))
	if status, answer, err := m.call("PUT", m.admin+"/v1/rules/changing", "", body); err != nil || status != 200 {
		s.fail("rules written at %s: %v %d %s", m.name, err, status, answer)
	}
}

// roll restarts all nodes, one after another. Rules are written while one is away.
func (s *soak) roll() {
	s.rolling.Store(true)
	defer s.rolling.Store(false)
	nodes := s.fleet.nodes
	for i, m := range nodes {
		m.signal(syscall.SIGTERM)
		expect.Equal(s.fleet.t, m.awaitExit(), 0, "%s: exit code", m.name)
		s.write(nodes[(i+1)%len(nodes)])
		m.startProcess()
		s.fleet.awaitWhole()
	}
}

// report logs what was asked, and which nodes clients passed over for another
// reason than that they were away.
func (s *soak) report() {
	t := s.fleet.t
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Logf("%d checks by %v; the slowest single one took %v; %d calls failed; %d reservations settled, %d rules written",
		s.asked, s.by, s.slowest, s.failed.Load(), s.settled, s.rules)
	passed, odd := 0, 0
	for line := range strings.Lines(s.passed.String()) {
		passed++
		if !strings.Contains(line, "connection refused") {
			odd++
			if odd <= 50 {
				t.Log(strings.TrimSpace(line))
			}
		}
	}
	t.Logf("clients passed a node over %d times, %d of them not because it refused a connection", passed, odd)
}

// exhausted asks for what is left of limits that were to be reached. All of
// each is admitted, and not one more.
func (s *soak) exhausted() {
	t := s.fleet.t
	s.gate.Lock()
	defer s.gate.Unlock()
	c := clientOf(t, s.fleet.nodes...)
	defer c.Close()
	for _, one := range slices.Collect(maps.Keys(s.counted)) {
		if one.rule != "tight" && one.rule != "scarce" {
			continue
		}
		// what was leased comes back within seconds
		for began := time.Now(); time.Since(began) < process.Timeout && s.counted[one] < s.limit; {
			if !s.counts(c, one.rule, one.key, 1) {
				time.Sleep(10 * time.Millisecond)
			}
		}
		s.counts(c, one.rule, one.key, 1)
		expect.Equal(t, s.counted[one], s.limit, "%v: admitted", one)
	}
}

// compare lets no calls begin, and compares what the owners have counted with the model.
func (s *soak) compare(what string) {
	t := s.fleet.t
	s.gate.Lock()
	defer s.gate.Unlock()
	c := clientOf(t, s.fleet.nodes...)
	defer c.Close()
	wrong := map[soaked]int64{} // what is used instead
	began := time.Now()
	// what is leased comes back within seconds
	for again := true; again && time.Since(began) < process.Timeout; again = len(wrong) > 0 {
		time.Sleep(100 * time.Millisecond)
		clear(wrong)
		for one, want := range s.counted {
			if have := s.used(c, one); have != want {
				wrong[one] = have
			}
		}
	}
	for one, have := range wrong {
		t.Errorf("after %s: %v: %d used, want %d", what, one, have, s.counted[one])
	}
	t.Logf("%s after %s: %d counters compared in %v, %d differ", clock(time.Now()), what,
		len(s.counted), time.Since(began).Round(time.Millisecond), len(wrong))
}

// used asks for what a counter has used; −1 if nobody knows.
func (s *soak) used(c *client.Client, one soaked) int64 {
	q := client.Request{Rule: one.rule, Key: []string{one.key}}
	if one.rule == "" {
		q.Namespace, q.Limits = "soak", soakLimits
	}
	u, err := c.Usage(context.Background(), q)
	for _, l := range u.Limits {
		if err == nil && l.Unit == one.unit {
			return l.Used
		}
	}
	return -1
}

// billed compares the bills of the month with the model.
func (s *soak) billed() {
	t := s.fleet.t
	if s.began.UTC().Month() != time.Now().UTC().Month() {
		t.Log("the month is over: its bills are not compared")
		return
	}
	for _, m := range s.fleet.nodes {
		rows, incomplete := m.month()
		if len(incomplete) > 0 {
			t.Errorf("at %s the bills of %v are missing", m.name, incomplete)
		}
		for one, want := range s.counted {
			if one.rule != "leased" && one.rule != "model" {
				continue
			}
			expect.Equal(t, rows[fmt.Sprint(one.rule, " ", one.key, " ", one.unit)], want,
				"at %s %v: billed", m.name, one)
		}
	}
}
