//go:build faults

package faults

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	slowCheck = time.Second // a check that takes longer counts as undecided
	// stall is how late the tests themselves may run before a slow check proves
	// nothing about the node.
	stall = 200 * time.Millisecond
	// lag is how late they may run before that is recorded. The nodes, with the
	// same priority on the same processors, wait as long.
	lag = 10 * time.Millisecond
	// workers make checks continuously, with pauses of about pace.
	workers = 15
	pace    = 8 * time.Millisecond
	// turnEdge is the time around the turn of a window in which some subjects are
	// not checked, so that the window of each of their hits is known. Other
	// subjects are checked through it.
	turnEdge = 30 * time.Millisecond
)

// hit is a decided check, as its client saw it.
type hit struct {
	rule, key int
	node      int
	cost      int64
	by        string
	admitted  bool
	sent, got int64 // on boottime
}

// load makes checks of subjects through all nodes continuously, by all rules, in bursts and singly.
type load struct {
	fleet *fleet
	keys  []string
	rules []rule
	stop  chan struct{}
	done  sync.WaitGroup

	asked   atomic.Int64
	by      sync.Map // decided_by → *atomic.Int64
	longest atomic.Int64
	shift   int64 // from boottime to the wall clock
	began   int64
	ended   int64

	mu       sync.Mutex // guards the fields below
	hits     []hit      // admitted ones
	refused  []hit
	unknown  map[[2]int]int64 // cost of checks whose answers were lost
	failures []string
	failed   int
	stalls   [][2]int64 // when the tests themselves did not run
	lags     [][2]int64 // when they should have run and did not, including stalls
}

func (f *fleet) load() *load {
	l := &load{
		fleet: f, keys: f.subjects(24), rules: f.rules, stop: make(chan struct{}),
		unknown: map[[2]int]int64{}, shift: time.Now().UnixNano() - boottime(), began: boottime(),
	}
	l.done.Go(l.watch)
	each := max(1, workers/len(f.nodes))
	for i := range f.nodes {
		for w := range each {
			random := rand.New(rand.NewPCG(f.random.Uint64(), uint64(w)))
			l.done.Go(func() { l.work(i, random) })
		}
	}
	return l
}

// subjects returns n subjects, elsewhere on the ring for each seed.
func (f *fleet) subjects(n int) []string {
	keys := make([]string, n)
	net := f.random.IntN(256)
	for i := range keys {
		keys[i] = fmt.Sprintf("198.51.%d.%d", net, i)
	}
	return keys
}

// watch records when the tests themselves are late: on a loaded machine, a slow
// answer then proves nothing.
func (l *load) watch() {
	const tick = 5 * time.Millisecond
	for last := boottime(); ; {
		select {
		case <-l.stop:
			return
		case <-time.After(tick):
		}
		now := boottime()
		if now-last > int64(tick+lag) {
			l.mu.Lock()
			l.lags = append(l.lags, [2]int64{last + int64(tick), now})
			if now-last > int64(tick+stall) {
				l.stalls = append(l.stalls, [2]int64{last, now})
			}
			l.mu.Unlock()
		}
		last = now
	}
}

// lost returns how much of a span the tests waited for a processor.
func (l *load) lost(from, to int64) (n int64) {
	for _, s := range l.lags {
		n += max(0, min(to, s[1])-max(from, s[0]))
	}
	return n
}

func (l *load) work(at int, random *rand.Rand) {
	n := l.fleet.nodes[at]
	client := &http.Client{Timeout: 5 * time.Second,
		Transport: &http.Transport{DialContext: n.dial, MaxIdleConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	for {
		checks := 1
		if random.IntN(16) == 0 {
			checks += random.IntN(16) // a burst
		}
		pause := time.Duration(checks) * pace / 2
		select {
		case <-l.stop:
			return
		case <-time.After(pause + time.Duration(random.Int64N(int64(pause)))):
		}
		r := l.choose(random)
		for key := random.IntN(l.rules[r].keys); checks > 0 && n.is() == live; checks-- {
			l.awaitTurn(r, key)
			cost := int64(1) // often 1, so that a limit is used up to the last unit
			if random.IntN(3) > 0 {
				cost += random.Int64N(l.rules[r].cost)
			}
			l.ask(client, at, r, key, cost)
		}
	}
}

// choose returns a random rule, by weight.
func (l *load) choose(random *rand.Rand) int {
	sum := 0
	for i := range l.rules {
		sum += l.rules[i].weight
	}
	n := random.IntN(sum)
	for i := range l.rules {
		n -= l.rules[i].weight
		if n < 0 {
			return i
		}
	}
	panic("unreachable")
}

// awaitTurn waits while a window turns, for every other subject.
func (l *load) awaitTurn(rule, key int) {
	if !l.rules[rule].bounded() || key%2 == 1 {
		return
	}
	passed := (boottime() + l.shift + int64(turnEdge)) % int64(window)
	if passed < int64(2*turnEdge) {
		time.Sleep(2*turnEdge - time.Duration(passed))
	}
}

func (l *load) ask(client *http.Client, at, rule, key int, cost int64) {
	n := l.fleet.nodes[at]
	before, sent := n.state.Load(), boottime()
	if condition(before&0xff) != live {
		return // the node was just disturbed
	}
	body := l.rules[rule].check(key, l.keys[key], cost)
	status, by, text, err := post(client, "http://"+n.ip+":8080/v1/check", body)
	got := boottime()
	l.asked.Add(1)
	undisturbed := before == n.state.Load()
	h := hit{rule, key, at, cost, by, status == 200, sent, got}
	switch {
	case err != nil || status != 200 && status != 429:
		l.mu.Lock()
		l.unknown[[2]int{rule, key}] += cost
		l.mu.Unlock()
		if undisturbed {
			l.fail(sent, got, "%s: %s %s: %d %v %s", n.name, l.rules[rule].name, l.keys[key], status, err, text)
		}
		return
	case status == 429:
		l.mu.Lock()
		l.refused = append(l.refused, h)
		l.mu.Unlock()
	default:
		l.mu.Lock()
		l.hits = append(l.hits, h)
		l.mu.Unlock()
	}
	c, _ := l.by.LoadOrStore(by, new(atomic.Int64))
	c.(*atomic.Int64).Add(1)
	if !undisturbed {
		return
	}
	for old := l.longest.Load(); got-sent > old && !l.longest.CompareAndSwap(old, got-sent); old = l.longest.Load() {
	}
	if got-sent > int64(slowCheck) {
		l.fail(sent, got, "%s: %s %s: decided by %s only after %v", n.name, l.rules[rule].name,
			l.keys[key], by, time.Duration(got-sent))
	}
}

func post(client *http.Client, url, body string) (status int, by, text string, err error) {
	r, err := http.NewRequestWithContext(context.Background(), "POST", url, strings.NewReader(body))
	if err != nil {
		return 0, "", "", err
	}
	resp, err := client.Do(r)
	if err != nil {
		return 0, "", "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, "", "", err
	}
	var a struct {
		DecidedBy string `json:"decided_by"`
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return resp.StatusCode, "", string(raw), err
	}
	return resp.StatusCode, a.DecidedBy, string(raw), nil
}

// fail records a failure, unless the tests themselves did not run meanwhile.
func (l *load) fail(sent, got int64, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.stalls {
		if sent < s[1] && s[0] < got {
			return
		}
	}
	l.failed++
	if len(l.failures) < 20 {
		l.failures = append(l.failures, l.at(sent)+" "+fmt.Sprintf(format, args...))
	}
}

// at formats a reading of boottime for people.
func (l *load) at(boottime int64) string {
	return time.Unix(0, boottime+l.shift).UTC().Format("15:04:05.000")
}

// end stops the checks, and judges how they went.
func (l *load) end() {
	t := l.fleet.t
	t.Helper()
	close(l.stop)
	l.done.Wait()
	l.ended = boottime()
	t.Logf("%d checks, %d admitted, %d refused, %d failed, longest %v, by %v, the tests stalled %d times",
		l.asked.Load(), len(l.hits), len(l.refused), l.failed, time.Duration(l.longest.Load()), l.count(), len(l.stalls))
	l.tellAlone()
	for _, text := range l.failures {
		t.Error(text)
	}
	if l.asked.Load() < 100 {
		t.Error("there was hardly any load")
	}
}

// tellAlone logs when checks were decided without the owner.
func (l *load) tellAlone() {
	const gap = int64(300 * time.Millisecond)
	var list []hit
	for _, h := range slices.Concat(l.hits, l.refused) {
		if h.by == "standby" || h.by == "fallback" {
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(a, b hit) int { return cmp.Compare(a.sent, b.sent) })
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].sent-list[n-1].sent < gap {
			n++
		}
		by := map[string]int{}
		for _, h := range list[:n] {
			by[fmt.Sprintf("%s at n%d", h.by, h.node+1)]++
		}
		l.fleet.t.Logf("%s … %s: %v, first of %s %s", l.at(list[0].sent), l.at(list[n-1].got), by,
			l.rules[list[0].rule].name, l.keys[list[0].key])
		list = list[n:]
	}
}

// count returns how many checks were decided in which way.
func (l *load) count() map[string]int64 {
	by := map[string]int64{}
	l.by.Range(func(k, v any) bool { by[k.(string)] = v.(*atomic.Int64).Load(); return true })
	return by
}

// of returns the hits of one subject of one rule.
func of(hits []hit, rule, key int) (list []hit) {
	for _, h := range hits {
		if h.rule == rule && h.key == key {
			list = append(list, h)
		}
	}
	return list
}

// admitted returns how many checks of a subject were admitted, in total and in a span.
func (l *load) admitted(rule, key int, from, to int64) (all, part int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.hits {
		if h := &l.hits[i]; h.rule == rule && h.key == key {
			all += h.cost
			if h.got >= from && h.sent <= to {
				part += h.cost
			}
		}
	}
	return all, part
}

// fellBack returns how many checks of a subject were admitted without owner and standby.
func (l *load) fellBack(rule, key int) (n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.hits {
		if h := &l.hits[i]; h.rule == rule && h.key == key && h.by == "fallback" {
			n += h.cost
		}
	}
	return n
}
