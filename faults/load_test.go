//go:build faults

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	windowLimit = 60               // of the rule "ten"
	window      = 10 * time.Second // its window
	slowCheck   = time.Second      // a check that takes longer counts as undecided
	// stall is how late the tests themselves may run before a slow check says nothing about the node.
	stall = 200 * time.Millisecond
)

// hit is an admitted check, as its client saw it.
type hit struct {
	rule, key int
	node      int
	by        string
	sent, got int64 // on boottime
}

// load asks about subjects through all nodes all the time: half of the checks are of a limit that is never reached
// (rule "year"), half of one that always is (rule "ten").
type load struct {
	fleet *fleet
	keys  []string
	rules []string
	stop  chan struct{}
	done  sync.WaitGroup

	asked, refused atomic.Int64
	by             sync.Map // decided_by → *atomic.Int64
	longest        atomic.Int64
	shift          int64 // from boottime to the wall clock

	mu       sync.Mutex // guards what follows
	hits     []hit
	unknown  map[[2]int]int64 // checks whose answer was lost
	failures []string
	failed   int
	stalls   [][2]int64 // when the tests themselves did not run
}

func (f *fleet) load() *load {
	l := &load{
		fleet: f, keys: subjects(24), rules: []string{"year", "ten"}, stop: make(chan struct{}),
		unknown: map[[2]int]int64{}, shift: time.Now().UnixNano() - boottime(),
	}
	l.done.Go(l.watch)
	for i := range f.nodes {
		for w := range 4 {
			l.done.Go(func() { l.work(i, w) })
		}
	}
	return l
}

func subjects(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("198.51.100.%d", i)
	}
	return keys
}

// watch notes when the tests themselves are late: on a loaded machine a slow answer proves nothing then.
func (l *load) watch() {
	const tick = 20 * time.Millisecond
	for last := boottime(); ; {
		select {
		case <-l.stop:
			return
		case <-time.After(tick):
		}
		now := boottime()
		if now-last > int64(tick+stall) {
			l.mu.Lock()
			l.stalls = append(l.stalls, [2]int64{last, now})
			l.mu.Unlock()
		}
		last = now
	}
}

func (l *load) work(at, w int) {
	n := l.fleet.nodes[at]
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: n.dial, MaxIdleConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	for i := w; ; i++ {
		select {
		case <-l.stop:
			return
		case <-time.After(8 * time.Millisecond):
		}
		if is := n.is(); is == live {
			l.ask(client, at, i%2, (i*7+w*5+at*3)/2%len(l.keys))
		}
	}
}

func (l *load) ask(client *http.Client, at, rule, key int) {
	n := l.fleet.nodes[at]
	before, sent := n.state.Load(), boottime()
	body := fmt.Sprintf(`{"rule": %q, "key": %q}`, l.rules[rule], l.keys[key])
	status, by, text, err := post(client, "http://"+n.ip+":8080/v1/check", body)
	got := boottime()
	l.asked.Add(1)
	undisturbed := before == n.state.Load()
	switch {
	case err != nil || status != 200 && status != 429:
		l.mu.Lock()
		l.unknown[[2]int{rule, key}]++
		l.mu.Unlock()
		if undisturbed {
			l.fail(sent, got, "%s: %s %s: %d %v %s", n.name, l.rules[rule], l.keys[key], status, err, text)
		}
		return
	case status == 429:
		l.refused.Add(1)
	default:
		l.mu.Lock()
		l.hits = append(l.hits, hit{rule, key, at, by, sent, got})
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
		l.fail(sent, got, "%s: %s %s: decided by %s only after %v", n.name, l.rules[rule], l.keys[key], by, time.Duration(got-sent))
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

// fail notes a failure, unless the tests themselves did not run meanwhile.
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
		at := time.Unix(0, sent+l.shift).UTC().Format("15:04:05.000")
		l.failures = append(l.failures, at+" "+fmt.Sprintf(format, args...))
	}
}

// end stops asking, and judges how the checks went.
func (l *load) end() {
	t := l.fleet.t
	t.Helper()
	close(l.stop)
	l.done.Wait()
	t.Logf("%d checks, %d admitted, %d refused, %d failed, longest %v, by %v, the tests stalled %d times",
		l.asked.Load(), len(l.hits), l.refused.Load(), l.failed, time.Duration(l.longest.Load()), l.count(), len(l.stalls))
	for _, text := range l.failures {
		t.Error(text)
	}
	if l.asked.Load() < 100 {
		t.Error("there was hardly any load")
	}
}

// count is how many checks were decided in which way.
func (l *load) count() map[string]int64 {
	by := map[string]int64{}
	l.by.Range(func(k, v any) bool { by[k.(string)] = v.(*atomic.Int64).Load(); return true })
	return by
}

// admitted is how often a subject's check was seen admitted, and how often in a part of the time.
func (l *load) admitted(rule, key int, from, to int64) (all, part int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.hits {
		if h := &l.hits[i]; h.rule == rule && h.key == key {
			if all++; h.got >= from && h.sent <= to {
				part++
			}
		}
	}
	return all, part
}

// fellBack is how often a subject's check was admitted without owner and standby.
func (l *load) fellBack(rule, key int) (n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.hits {
		if h := &l.hits[i]; h.rule == rule && h.key == key && h.by == "fallback" {
			n++
		}
	}
	return n
}
