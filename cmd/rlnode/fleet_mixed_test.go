package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/internal/expect"
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
      - {limit: 1000000, per: 8760h, algorithm: token-bucket, name: bucket}
      - {limit: 1000000, per: 24h, algorithm: leaky-bucket}
  - {name: canary, key: [ip], limits: [{limit: 1, per: 8760h, algorithm: fixed-window}]}
`

// mixedLoad is traffic from clients that each know some nodes, and a model of
// what the cluster should have counted.
type mixedLoad struct {
	fleet *fleet
	stop  chan struct{}
	done  sync.WaitGroup
	keys  []string
	// By rule and key: the cost that was certainly admitted or adjusted, and the
	// cost that may have been.
	counted map[string][]atomic.Int64
	unsure  map[string][]atomic.Int64
	asked   atomic.Int64
	failed  atomic.Int64
	written atomic.Int64
	slowest atomic.Int64 // the longest time until a rule was in force
	by      sync.Map     // DecidedBy → *atomic.Int64
	denied  []string     // users of entries that were certainly written; for write, and once it has ended
	stall   func() time.Duration
}

// startMixedLoad starts traffic until halt. Each client knows this many nodes.
func (f *fleet) startMixedLoad(known int) *mixedLoad {
	f.t.Helper()
	l := &mixedLoad{fleet: f, stall: watchStalls(f.t), stop: make(chan struct{}), keys: subjects(30),
		counted: map[string][]atomic.Int64{}, unsure: map[string][]atomic.Int64{}}
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
func (mx *mixedLoad) halt() {
	select {
	case <-mx.stop:
	default:
		close(mx.stop)
	}
	mx.done.Wait()
}

// clientOf returns a client of these nodes, in this order.
func clientOf(t *testing.T, nodes ...*fleetNode) *client.Client {
	var addresses []string
	for _, m := range nodes {
		addresses = append(addresses, "http://"+m.ip+":8080")
	}
	c, err := client.New(client.Options{Nodes: addresses, Timeout: 5 * time.Second, OnError: client.Closed})
	expect.NoError(t, err)
	return c
}

// work makes checks at the first of nodes that answers.
func (mx *mixedLoad) work(nodes []*fleetNode, seed uint64) {
	c := clientOf(mx.fleet.t, nodes...)
	defer c.Close()
	random := rand.New(rand.NewPCG(seed, 1))
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-mx.stop:
			return
		case <-tick.C:
		}
		key := random.IntN(len(mx.keys))
		switch what := random.IntN(20); {
		case what == 0:
			n := 1 + random.Int64N(3)
			if _, err := c.Adjust(context.Background(), "exact", []string{mx.keys[key]}, n); err != nil {
				mx.unsure["exact"][key].Add(n) // made once or not at all
			} else {
				mx.counted["exact"][key].Add(n)
			}
		case what < 2:
			mx.check(c, "various", key, 1)
		default:
			mx.check(c, []string{"exact", "tight", "leased", "scarce"}[what%4], key, 1+random.Int64N(2))
		}
	}
}

// check makes one check and reports whether it was allowed.
func (mx *mixedLoad) check(c *client.Client, rule string, key int, cost int64) bool {
	began := time.Now()
	d, err := c.Check(context.Background(), client.Request{Rule: rule, Key: []string{mx.keys[key]}, Cost: cost})
	mx.asked.Add(1)
	if err != nil {
		mx.failed.Add(1)
		mx.fleet.t.Errorf("a check of %s failed after %v: %v", rule, time.Since(began), err)
		return false
	}
	n, _ := mx.by.LoadOrStore(d.DecidedBy, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
	if counted := mx.counted[rule]; d.Allowed && counted != nil {
		counted[key].Add(cost)
	}
	return d.Allowed
}

// write writes a rule at one node after another. It measures the time until the
// rule is in force at all nodes except those being restarted.
func (mx *mixedLoad) write() {
	var peeks []*client.Client
	for _, m := range mx.fleet.nodes {
		c := clientOf(mx.fleet.t, m)
		defer c.Close()
		peeks = append(peeks, c)
	}
	for version := 2; ; version++ {
		select {
		case <-mx.stop:
			return
		case <-time.After(2 * time.Second):
		}
		body := fmt.Sprintf("name: canary\nkey: [ip]\nlimits: [{limit: %d, per: 8760h, algorithm: fixed-window}]\n", version)
		m := mx.fleet.nodes[version%len(mx.fleet.nodes)]
		status, answer, err := m.call("PUT", "http://"+m.ip+":8081/v1/rules/canary", "", body)
		if err != nil || status != 200 {
			if m.troubles.Load()%2 == 0 && status != 503 {
				mx.fleet.t.Errorf("write at %s: %v %d %s", m.name, err, status, answer)
			}
			continue
		}
		mx.written.Add(1)
		mx.deny(m, version)
		var all sync.WaitGroup
		for i, m := range mx.fleet.nodes {
			all.Go(func() { mx.awaitVersion(m, peeks[i], int64(version)) })
		}
		all.Wait()
	}
}

// deny writes entries beside the rules at m: one that stays, and one that goes
// with the next version.
func (mx *mixedLoad) deny(m *fleetNode, version int) {
	user := fmt.Sprint("user-", version)
	status, _, err := m.call("POST", "http://"+m.ip+":8081/v1/lists/deny/entries", "",
		fmt.Sprintf(`{"user": %q, "note": "mixed load"}`, user))
	if err == nil && status == 200 {
		mx.denied = append(mx.denied, user)
	}

	blocks := "http://" + m.ip + ":8081/v1/blocks" // these may fail like the first one
	_, _, _ = m.call("POST", blocks, "", fmt.Sprintf(`{"rule": "tight", "key": %q, "for": "24h"}`, user))
	_, _, _ = m.call("DELETE", fmt.Sprintf("%s?rule=tight&key=user-%d", blocks, version-1), "", "")
}

// checkDenied checks that all nodes have the entries that were written, and
// tell the same of rules and entries.
func (mx *mixedLoad) checkDenied() {
	for _, m := range mx.fleet.nodes {
		process.Eventually(mx.fleet.t, m.name+" has all entries", func() bool {
			status, text, err := m.call("GET", "http://"+m.ip+":8081/v1/lists/deny", "", "")
			lacks := func(user string) bool { return !strings.Contains(text, fmt.Sprintf("%q", user)) }
			return err == nil && status == 200 && !slices.ContainsFunc(mx.denied, lacks)
		})
	}
	mx.fleet.awaitTold()
}

// awaitVersion waits until a node uses the version, unless the node is being restarted.
func (mx *mixedLoad) awaitVersion(m *fleetNode, c *client.Client, version int64) {
	troubles, began := m.troubles.Load(), time.Now()
	for {
		d, err := c.Peek(context.Background(), client.Request{Rule: "canary", Key: mx.keys[:1]})
		took := time.Since(began)
		switch {
		case troubles%2 != 0 || m.troubles.Load() != troubles:
			return
		case err == nil && d.Limit >= version:
			for old := mx.slowest.Load(); int64(took) > old &&
				!mx.slowest.CompareAndSwap(old, int64(took)); old = mx.slowest.Load() {
			}
			return
		case took > 5*time.Second:
			mx.fleet.t.Errorf("%s uses rule %d %v after %d was written: %v", m.name, d.Limit, took, version, err)
			return
		}
		select {
		case <-mx.stop:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// logProgress logs the progress, and ends the test if it has failed.
func (mx *mixedLoad) logProgress(what string) {
	mx.fleet.t.Helper()
	by := map[client.DecidedBy]int64{}
	mx.by.Range(func(k, v any) bool { by[k.(client.DecidedBy)] = v.(*atomic.Int64).Load(); return true })
	mx.fleet.t.Logf("%s: %d checks, %d failed, by %v; %d rules written, the slowest was in force after %v", what,
		mx.asked.Load(), mx.failed.Load(), by, mx.written.Load(), time.Duration(mx.slowest.Load()).Round(time.Millisecond))
	if mx.fleet.t.Failed() {
		mx.fleet.t.FailNow()
	}
}

// decidedWithoutOwner returns how many checks were decided without their
// owners. On an overloaded machine, nodes fall silent for a moment; a check
// that the owner decides then may be retried and counted twice.
func (mx *mixedLoad) decidedWithoutOwner() (n int64) {
	for _, by := range []client.DecidedBy{"standby", "fallback"} {
		if some, ok := mx.by.Load(by); ok {
			n += some.(*atomic.Int64).Load()
		}
	}
	return n
}

// end stops the traffic and compares what was counted with the model. slack is
// how much they may differ for each subject, if nodes were killed.
func (mx *mixedLoad) end(slack int64) {
	t := mx.fleet.t
	t.Helper()
	mx.halt()
	mx.logProgress("the end")
	if mx.asked.Load() == 0 || mx.written.Load() == 0 {
		t.Fatal("nothing was checked or written")
	}
	mx.checkDenied()
	c := clientOf(t, mx.fleet.nodes...)
	defer c.Close()
	for key := range mx.keys {
		// Leases are returned within seconds, but not from a node that is killed. If
		// the machine stands still for a moment, G3 is what is left of that.
		silent := 2 * mx.decidedWithoutOwner()
		least := map[string]int64{"tight": tightLimit - slack - silent, "scarce": tightLimit}
		switch {
		case slack+silent > 0:
			least["scarce"] = 0
		case mx.stall() > stallLimit:
			least["scarce"] = tightLimit * 98 / 100
		}
		for _, rule := range []string{"tight", "scarce"} {
			process.Eventually(t,
				fmt.Sprintf("%d of %s are admitted for %s", least[rule], rule, mx.keys[key]),
				func() bool {
					for mx.check(c, rule, key, 1) {
					}
					return mx.counted[rule][key].Load() >= least[rule]
				})
			if have := mx.counted[rule][key].Load(); have > tightLimit+slack+mx.decidedWithoutOwner() {
				t.Errorf("%s of %s: have %d admitted, want %d", mx.keys[key], rule, have, tightLimit)
			}
		}
	}
	var lost, twice int64 // upper bounds, for exact rules
	defer func() { t.Logf("of one subject at most %d were forgotten, %d counted twice", lost, twice) }()
	for rule, counted := range mx.counted {
		for key := range counted {
			want, more := counted[key].Load(), mx.unsure[rule][key].Load()
			m, have := mx.fleet.nodes[key%len(mx.fleet.nodes)], int64(0)
			over := more + slack + 2*mx.decidedWithoutOwner()
			defer func() {
				if have < want-slack || have > want+over && slices.Contains([]string{"exact", "tight"}, rule) {
					t.Logf("%s of %s: %d are used, %d were admitted, %d at most", mx.keys[key],
						rule, have, want, want+over)
				}
			}()
			process.Eventually(t,
				fmt.Sprintf("%s of %s: what was admitted, %d, is used", mx.keys[key], rule, want),
				func() bool {
					have = m.used(rule, mx.keys[key])
					return have >= want-slack &&
						(have <= want+over || !slices.Contains([]string{"exact", "tight"}, rule))
				})
			if rule == "exact" || rule == "tight" {
				lost, twice = max(lost, want-have), max(twice, have-want-more)
			}
		}
	}
}
