//go:build faults

package faults

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// These scenarios stop nodes, and set their clocks, while batches are being
// decided: a check that has read the clock and is then held up must free
// nothing. Everything else that may happen meanwhile is in the other files.

// exactRules are the rules under batches, three by seed: two with windows that
// end during a pause, and one of another algorithm. If clocks are set, one of
// the windows ends only then. They are few, so that several calls about one
// subject are always on their way.
func exactRules(random *rand.Rand, clocks bool) []rule {
	const two = 2 * time.Second
	numbered := []rule{
		{name: "fixed", algorithm: "fixed-window", limit: 100, per: two},
		{name: "slow", algorithm: "fixed-window", limit: 100, per: window},
		{name: "slide", algorithm: "sliding-window", limit: 100, per: two},
		{name: "slower", algorithm: "sliding-window", limit: 1000, per: window},
		{name: "quick", algorithm: "fixed-window", limit: 100, per: 20 * time.Millisecond},
	}
	others := []rule{
		{name: "bucket", algorithm: "token-bucket", limit: 100, burst: 50, per: two},
		{name: "leak", algorithm: "leaky-bucket", limit: 100, burst: 50, per: two},
		{name: "log", algorithm: "sliding-window-log", limit: 100, per: two},
		{name: "first", algorithm: "fixed-window", limit: 100, per: two, first: true},
	}

	random.Shuffle(len(numbered), func(i, j int) {
		numbered[i], numbered[j] = numbered[j], numbered[i]
	})
	if clocks {
		hour := rule{name: "hour", algorithm: "fixed-window", limit: 100, per: time.Hour}
		numbered[0] = hour
	}
	list := append(numbered[:2:2], others[random.IntN(len(others))])
	for i := range list {
		r := &list[i]
		r.keys = 1 + random.IntN(2)
		r.cost = 1
		r.hybrid = random.IntN(2) == 0
		r.weight = 2
	}
	list[2].weight = 1
	return list
}

// batchSizes are how many checks a call makes; a call of one is no batch. The
// largest are rare: a node has room for a few of them at once, and the others
// would wait for it.
var batchSizes = []int{1, 1, 10, 100, 100, 300, 300, 300, 1000, 1000, 1000, 1000, 1000, 10_000}

// threads is how many threads of each node may run at once. With more than
// there are processors, the kernel stops some of them between any two steps.
const threads = "16"

// exactFleet starts nodes with these rules.
func exactFleet(t *testing.T, nodes int, clocks bool) *fleet {
	t.Helper()
	t.Setenv("GOMAXPROCS", threads) // of the nodes
	f := emptyFleet(t, nodes)
	f.rules = exactRules(f.random, clocks)
	t.Cleanup(f.close)
	f.open()
	return f
}

// batches asks all nodes continuously, in batches and singly, until the load
// ends. It goes on while a node is paused, so that calls wait for it.
func (f *fleet) batches() *load {
	l := &load{
		fleet: f, keys: f.subjects(2), rules: f.rules, stop: make(chan struct{}),
		unknown: map[[2]int]int64{}, shift: time.Now().UnixNano() - boottime(), began: boottime(),
	}
	f.seen = l
	l.done.Go(l.watch)

	callers := 32
	if len(f.nodes) > 1 {
		callers = 16
	}
	for i := range f.nodes {
		for w := range callers {
			random := rand.New(rand.NewPCG(f.random.Uint64(), uint64(w)))
			l.done.Go(func() { l.askInBatches(i, random) })
		}
	}
	return l
}

// askInBatches makes calls to one node.
func (l *load) askInBatches(at int, random *rand.Rand) {
	n := l.fleet.nodes[at]
	client := &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{DialContext: n.dial, MaxIdleConnsPerHost: 1},
	}
	defer client.CloseIdleConnections()
	bodies := map[[3]int]string{}

	for {
		select {
		case <-l.stop:
			return
		case <-time.After(time.Duration(random.Int64N(int64(2 * time.Millisecond)))):
		}
		if is := n.is(); is != live && is != paused {
			continue
		}

		r := l.choose(random)
		key := random.IntN(l.rules[r].keys)
		if key == 0 && l.rules[r].per >= time.Second && l.isTurning() {
			continue
		}

		size := batchSizes[random.IntN(len(batchSizes))]
		body, ok := bodies[[3]int{r, key, size}]
		if !ok {
			body = l.bodyOf(r, key, size)
			bodies[[3]int{r, key, size}] = body
		}
		l.askBatch(client, at, r, key, size, body)
	}
}

// isTurning reports whether a window may just have begun. Who asks then uses it
// up before anybody knows which one it is, so one subject of each rule is left
// alone. Windows and steps are whole seconds.
func (l *load) isTurning() bool {
	passed := (boottime() + l.shift) % int64(time.Second)
	return passed < int64(behind+10*time.Millisecond)
}

// bodyOf returns the body of a call about one subject.
func (l *load) bodyOf(rule, key, size int) string {
	check := l.rules[rule].check(key, l.keys[key], 1)
	if size == 1 {
		return check
	}
	return `{"checks":[` + strings.Repeat(check+",", size-1) + check + "]}"
}

// askBatch makes one call about one subject. What it admitted becomes a hit for
// each way in which checks were decided.
func (l *load) askBatch(client *http.Client, at, rule, key, size int, body string) {
	url := "http://" + l.fleet.nodes[at].ip + ":8080/v1/check"
	if size > 1 {
		url += "/batch"
	}

	sent := boottime()
	status, text, err := postText(client, url, body)
	got := boottime()
	l.asked.Add(int64(size))
	if err != nil || status != 200 {
		// A node that is paused, restarts or has too much to do, or a refusal of a
		// single check. What is lost with an answer is not counted.
		status := fmt.Sprint(status)
		c, _ := l.by.LoadOrStore(status, new(atomic.Int64))
		c.(*atomic.Int64).Add(1)
		return
	}

	admitted := admittedBy(text)
	l.mu.Lock()
	defer l.mu.Unlock()
	for by, cost := range admitted {
		l.hits = append(l.hits, hit{
			rule: rule, key: key, node: at, cost: cost, by: by, admitted: true, sent: sent, got: got,
		})
	}
}

func postText(client *http.Client, url, body string) (status int, text []byte, err error) {
	resp, err := client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(resp.Body)
	return resp.StatusCode, text, err
}

// admittedBy counts the admitted checks of an answer, by who decided them. To
// parse thousands of results would take longer than to decide them.
func admittedBy(text []byte) map[string]int64 {
	by := map[string]int64{}
	for {
		_, after, found := bytes.Cut(text, []byte(`"allowed":true`))
		if !found {
			return by
		}
		_, after, _ = bytes.Cut(after, []byte(`"decided_by":"`))
		name, rest, _ := bytes.Cut(after, []byte(`"`))
		by[string(name)]++
		text = rest
	}
}

func TestAdmittedBy(t *testing.T) {
	text := `{"results":[{"allowed":true,"rule":"a","decided_by":"owner","node":"n1"},` +
		`{"allowed":false,"rule":"a","decided_by":"owner"},{"error":{"code":"bad"}},` +
		`{"allowed":true,"rule":"a","decided_by":"lease"},{"allowed":true,"decided_by":"owner"}]}`
	got := admittedBy([]byte(text))
	if len(got) != 2 || got["owner"] != 2 || got["lease"] != 1 {
		t.Errorf("got %v, want 2 by owner and 1 by lease", got)
	}
}

// pauses is how often a scenario pauses a node, or sets its clock.
func (f *fleet) pauses() int {
	if testing.Short() {
		return 3
	}
	return 8
}

// awaitTurn waits until shortly before a window of two seconds ends.
func (f *fleet) awaitTurn(before time.Duration) {
	const per = int64(2 * time.Second)
	passed := (time.Now().UnixNano() + int64(before)) % per
	f.pass(time.Duration(per - passed))
}

// TestExact_OneNodePaused pauses the only node for 0.3 to 3 s, so that windows
// end meanwhile. It forgets nothing, so nothing is excused.
func TestExact_OneNodePaused(t *testing.T) {
	f := exactFleet(t, 1, false)
	l := f.batches()
	n := f.nodes[0]
	for range f.pauses() {
		f.awaitTurn(f.between(0, 400*time.Millisecond))
		n.pause()
		f.pass(f.between(300*time.Millisecond, 3*time.Second))
		n.resume()
		f.pass(f.between(200*time.Millisecond, 700*time.Millisecond))
	}
	l.end()
	f.rings.end()
	f.judgeExact(l, f.newTimeline(l))
}

// TestExact_OwnerHolderLeaderPaused pauses one of three nodes at a time: the
// owner of a subject, another node, which spends its leases, or the leader.
func TestExact_OwnerHolderLeaderPaused(t *testing.T) {
	f := exactFleet(t, 3, false)
	f.fewest = 2 // the next node may be paused before the last one is in the ring again
	l := f.batches()
	for range f.pauses() {
		n := f.ownerHolderOrLeader()
		f.awaitTurn(f.between(0, 400*time.Millisecond))
		f.pause(n)
		f.pass(f.between(300*time.Millisecond, 3*time.Second))
		f.heal()
		f.pass(f.between(200*time.Millisecond, 2*time.Second))
	}
	f.whole(patience)
	l.end()
	f.rings.end()
	f.judgeExact(l, f.newTimeline(l))
}

// TestExact_AllPausedTogether pauses all nodes for 5 s, as when their machine
// is suspended. Nobody decides meanwhile, so no authority and no copy is lost.
// Each node says afterwards that it did not run.
func TestExact_AllPausedTogether(t *testing.T) {
	f := exactFleet(t, 3, false)
	l := f.batches()
	for range f.pauses() / 3 {
		f.awaitTurn(f.between(0, 400*time.Millisecond))
		f.pauseTogether(f.nodes...)
		f.pass(5 * time.Second)
		f.heal()
		f.whole(patience)
		f.pass(f.between(time.Second, 3*time.Second))
	}
	l.end()
	f.rings.end()
	f.judgeExact(l, f.newTimeline(l))

	for _, n := range f.nodes {
		if !strings.Contains(n.log.String(), "this process did not run") {
			t.Errorf("%s: its log says nothing of the pause", n.name)
		}
	}
}

// ownerHolderOrLeader returns the node to disturb.
func (f *fleet) ownerHolderOrLeader() *node {
	f.t.Helper()
	if len(f.nodes) == 1 {
		return f.nodes[0]
	}
	name, _, err := f.leader().ownerOf(f.rules[0].name, f.seen.keys[0])
	i := f.byName(name)
	if err != nil || i < 0 {
		f.t.Fatalf("owner: got %q (%v), want a node", name, err)
	}
	switch f.random.IntN(3) {
	case 0:
		return f.nodes[i]
	case 1:
		return f.nodes[(i+1+f.random.IntN(len(f.nodes)-1))%len(f.nodes)]
	}
	return f.leader()
}

// judgeExact judges every subject.
func (f *fleet) judgeExact(l *load, clocks *timeline) {
	f.t.Helper()
	beyond := map[string]string{}
	for i := range l.rules {
		r := &l.rules[i]
		for key := range r.keys {
			if worst, why := f.judgeSubject(l, i, key, clocks); why != "" {
				beyond[r.name] = fmt.Sprintf("%.2f times the bound", worst)
				f.t.Errorf("%s %s: got %s", r.name, l.keys[key], why)
			}
		}
	}
	f.t.Logf("rules %v", names(l.rules))
	f.t.Logf("beyond the bound: %v", beyond)
}

func names(list []rule) (names []string) {
	for i := range list {
		consistency := "exact"
		if list[i].hybrid {
			consistency = "hybrid"
		}
		names = append(names, list[i].name+" "+consistency)
	}
	return names
}

// judgeSubject returns why a subject's hits are more than promised, and how
// many times the bound they are.
func (f *fleet) judgeSubject(
	l *load, rule, key int, clocks *timeline,
) (ratio float64, why string) {
	hits := of(l.hits, rule, key)
	r := l.rules[rule]
	p := f.promise(l, &r)

	// What a step excuses is judged with all windows that it may have been in.
	p.faults = slices.DeleteFunc(p.faults, func(x fault) bool { return x.kind == stepped })
	if len(f.nodes) == 1 {
		// The only node forgets nothing unless it is killed. After two seconds its
		// authority has ended, and it decides alone: within a share, from other
		// counters.
		p.faults = slices.DeleteFunc(p.faults, func(x fault) bool { return x.kind != saved })
		hits = slices.DeleteFunc(hits, func(h hit) bool { return h.by == "fallback" })
	}

	if r.per < time.Second {
		// A call takes longer than such a window: its hits are in none for sure.
		// All windows that a span touches are those of its length and two more,
		// and another one if the clock catches up.
		r.first = true
		r.burst = 3 * r.limit
	}
	c := stepCheck{p, clocks}
	return c.check(hits, rule, key)
}

// worst returns how many times its bound a span of the stream admitted.
func (s *stream) worst(r *rule) (ratio float64) {
	for i := range s.hits {
		from := s.hits[i].sent
		sum := int64(0)
		for _, h := range s.hits[i:] {
			if h.sent < from {
				continue
			}
			sum += h.cost
			rate := float64(s.limit) * float64(h.got-from+int64(s.ttl)) / float64(r.per)
			ratio = max(ratio, float64(sum)/(float64(s.capacity+s.slack)+rate))
		}
	}
	return ratio
}
