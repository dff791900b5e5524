package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/internal/process"
)

const (
	tightLimit = 300
)

// mixedRules have all consistencies and algorithms; no window turns during a test.
const mixedRules = `version: 1
rules:
  - {name: exact, key: [ip], consistency: exact, limits: [{limit: 1000000000, per: 8760h, algorithm: fixed-window}]}
  - {name: tight, key: [ip], consistency: exact, limits: [{limit: 300, per: 8760h, algorithm: fixed-window}]}
  - {name: leased, key: [ip], limits: [{limit: 1000000000, per: 8760h, algorithm: fixed-window}]}
  - {name: scarce, key: [ip], limits: [{limit: 300, per: 8760h, algorithm: fixed-window}]}
  - name: various
    key: [ip]
    limits:
      - {limit: 1000000, per: 8760h, algorithm: sliding-window}
      - {limit: 1000, per: 30s, algorithm: sliding-window-log}
      - {limit: 1000000, per: 8760h, algorithm: token-bucket}
      - {limit: 1000000, per: 24h, algorithm: leaky-bucket}
  - {name: canary, key: [ip], limits: [{limit: 1, per: 8760h, algorithm: fixed-window}]}
`

// mixed is traffic from clients that each know some of the nodes, and a model of what the cluster should have counted.
type mixed struct {
	fleet *fleet
	stop  chan struct{}
	done  sync.WaitGroup
	keys  []string
	// By rule and key: what was certainly admitted or adjusted, and what may have been.
	counted map[string][]atomic.Int64
	unsure  map[string][]atomic.Int64
	asked   atomic.Int64
	failed  atomic.Int64
	written atomic.Int64
	slowest atomic.Int64 // the longest time until a rule was in force
	by      sync.Map     // DecidedBy → *atomic.Int64
}

// mixed starts traffic until halt. Each client knows this many nodes.
func (f *fleet) mixed(known int) *mixed {
	f.t.Helper()
	l := &mixed{fleet: f, stop: make(chan struct{}), keys: subjects(30), counted: map[string][]atomic.Int64{}, unsure: map[string][]atomic.Int64{}}
	for _, rule := range []string{"exact", "tight", "leased", "scarce"} {
		l.counted[rule], l.unsure[rule] = make([]atomic.Int64, len(l.keys)), make([]atomic.Int64, len(l.keys))
	}
	f.nodes[0].apply(mixedRules)
	for i := range f.nodes {
		l.done.Go(func() { l.work(slices.Concat(f.nodes[i:], f.nodes[:i])[:known], uint64(i)) })
	}
	l.done.Go(l.write)
	return l
}

// halt stops the traffic. It may be called again.
func (l *mixed) halt() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.done.Wait()
}

// clientOf returns a client of these nodes, in this order.
func clientOf(t *testing.T, nodes ...*mate) *client.Client {
	var addresses []string
	for _, m := range nodes {
		addresses = append(addresses, "http://"+m.ip+":8080")
	}
	c, err := client.New(client.Options{Nodes: addresses, Timeout: 5 * time.Second, OnError: client.Closed})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// work keeps asking the first of nodes that answers.
func (l *mixed) work(nodes []*mate, seed uint64) {
	c := clientOf(l.fleet.t, nodes...)
	defer c.Close()
	random := rand.New(rand.NewPCG(seed, 1))
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
		key := random.IntN(len(l.keys))
		switch what := random.IntN(20); {
		case what == 0:
			n := 1 + random.Int64N(3)
			if _, err := c.Adjust(context.Background(), "exact", []string{l.keys[key]}, n); err != nil {
				l.unsure["exact"][key].Add(n) // made at most once, but it is unknown whether
			} else {
				l.counted["exact"][key].Add(n)
			}
		case what < 2:
			l.check(c, "various", key, 1)
		default:
			l.check(c, []string{"exact", "tight", "leased", "scarce"}[what%4], key, 1+random.Int64N(2))
		}
	}
}

// check asks once and reports whether that was allowed.
func (l *mixed) check(c *client.Client, rule string, key int, cost int64) bool {
	began := time.Now()
	d, err := c.Check(context.Background(), client.Request{Rule: rule, Key: []string{l.keys[key]}, Cost: cost})
	l.asked.Add(1)
	if err != nil {
		l.failed.Add(1)
		l.fleet.t.Errorf("a check of %s failed after %v: %v", rule, time.Since(began), err)
		return false
	}
	n, _ := l.by.LoadOrStore(d.DecidedBy, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
	if counted := l.counted[rule]; d.Allowed && counted != nil {
		counted[key].Add(cost)
	}
	return d.Allowed
}

// write writes a rule at one node after the other. It measures the time until the rule is in force at all nodes except
// those being restarted.
func (l *mixed) write() {
	var peeks []*client.Client
	for _, m := range l.fleet.nodes {
		c := clientOf(l.fleet.t, m)
		defer c.Close()
		peeks = append(peeks, c)
	}
	for version := 2; ; version++ {
		select {
		case <-l.stop:
			return
		case <-time.After(2 * time.Second):
		}
		body := fmt.Sprintf("name: canary\nkey: [ip]\nlimits: [{limit: %d, per: 8760h, algorithm: fixed-window}]\n", version)
		m := l.fleet.nodes[version%len(l.fleet.nodes)]
		status, answer, err := m.call("PUT", "http://"+m.ip+":8081/v1/rules/canary", "", body)
		if err != nil || status != 200 {
			if m.troubles.Load()%2 == 0 && status != 503 {
				l.fleet.t.Errorf("write at %s: %v %d %s", m.name, err, status, answer)
			}
			continue
		}
		l.written.Add(1)
		var all sync.WaitGroup
		for i, m := range l.fleet.nodes {
			all.Go(func() { l.follows(m, peeks[i], int64(version)) })
		}
		all.Wait()
	}
}

// follows waits until a node uses the version, unless the node is being restarted.
func (l *mixed) follows(m *mate, c *client.Client, version int64) {
	troubles, began := m.troubles.Load(), time.Now()
	for {
		d, err := c.Peek(context.Background(), client.Request{Rule: "canary", Key: l.keys[:1]})
		took := time.Since(began)
		switch {
		case troubles%2 != 0 || m.troubles.Load() != troubles:
			return
		case err == nil && d.Limit >= version:
			for old := l.slowest.Load(); int64(took) > old && !l.slowest.CompareAndSwap(old, int64(took)); old = l.slowest.Load() {
			}
			return
		case took > 5*time.Second:
			l.fleet.t.Errorf("%s goes by rule %d %v after %d was written: %v", m.name, d.Limit, took, version, err)
			return
		}
		select {
		case <-l.stop:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// steps logs the progress, and ends the test if it has failed.
func (l *mixed) steps(what string) {
	l.fleet.t.Helper()
	by := map[client.DecidedBy]int64{}
	l.by.Range(func(k, v any) bool { by[k.(client.DecidedBy)] = v.(*atomic.Int64).Load(); return true })
	l.fleet.t.Logf("%s: %d checks, %d failed, by %v; %d rules written, the slowest was in force after %v", what,
		l.asked.Load(), l.failed.Load(), by, l.written.Load(), time.Duration(l.slowest.Load()).Round(time.Millisecond))
	if l.fleet.t.Failed() {
		l.fleet.t.FailNow()
	}
}

// odd returns how many checks were decided without their owners. On an overloaded machine nodes fall silent for a
// moment; a check that an owner decides then may be retried and count twice.
func (l *mixed) odd() (n int64) {
	for _, by := range []client.DecidedBy{"standby", "fallback"} {
		if some, ok := l.by.Load(by); ok {
			n += some.(*atomic.Int64).Load()
		}
	}
	return n
}

// end stops the traffic and compares what was counted with the model. slack is how much they may differ for each
// subject, if nodes were killed.
func (l *mixed) end(slack int64) {
	t := l.fleet.t
	t.Helper()
	l.halt()
	l.steps("the end")
	if l.asked.Load() == 0 || l.written.Load() == 0 {
		t.Fatal("nothing was asked or written")
	}
	c := clientOf(t, l.fleet.nodes...)
	defer c.Close()
	for key := range l.keys {
		for _, rule := range []string{"tight", "scarce"} { // leases are returned within seconds, but not from a killed node
			process.Eventually(t, fmt.Sprintf("the whole limit of %s is admitted for %s", rule, l.keys[key]), func() bool {
				for l.check(c, rule, key, 1) {
				}
				return l.counted[rule][key].Load() >= tightLimit-slack || rule == "scarce" && slack > 0
			})
			if have := l.counted[rule][key].Load(); have > tightLimit+slack+l.odd() {
				t.Errorf("%s of %s: have %d admitted, want %d", l.keys[key], rule, have, tightLimit)
			}
		}
	}
	var lost, twice int64 // upper bounds, for exact rules
	defer func() { t.Logf("of one subject at most %d were forgotten, %d counted twice", lost, twice) }()
	for rule, counted := range l.counted {
		for key := range counted {
			want, more := counted[key].Load(), l.unsure[rule][key].Load()
			m, have := l.fleet.nodes[key%len(l.fleet.nodes)], int64(0)
			over := more + slack + 2*l.odd()
			defer func() {
				if have < want-slack || have > want+over && slices.Contains([]string{"exact", "tight"}, rule) {
					t.Logf("%s of %s: %d are used, %d were admitted, %d at most", l.keys[key], rule, have, want, want+over)
				}
			}()
			process.Eventually(t, fmt.Sprintf("%s of %s: what was admitted, %d, is used", l.keys[key], rule, want), func() bool {
				have = m.used(rule, l.keys[key])
				return have >= want-slack && (have <= want+over || !slices.Contains([]string{"exact", "tight"}, rule))
			})
			if rule == "exact" || rule == "tight" {
				lost, twice = max(lost, want-have), max(twice, have-want-more)
			}
		}
	}
}
