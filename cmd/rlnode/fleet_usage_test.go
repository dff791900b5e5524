package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/process"
)

// billedTraffic is traffic, and how much of it clients know was admitted, by subject.
type billedTraffic struct {
	fleet    *fleet
	keys     []string
	answered []atomic.Int64 // cost of checks answered 200
	unknown  []atomic.Int64 // cost of checks whose answer was lost
	checks   atomic.Int64   // number answered 200
	at       []atomic.Int64 // cost of checks answered 200, by node
	stop     chan struct{}
	done     sync.WaitGroup
}

func (f *fleet) startBilledTraffic(keys []string, workers int) *billedTraffic {
	b := &billedTraffic{fleet: f, keys: keys, stop: make(chan struct{}),
		answered: make([]atomic.Int64, len(keys)), unknown: make([]atomic.Int64, len(keys)),
		at: make([]atomic.Int64, len(f.nodes))}
	for _, m := range f.nodes {
		m.ready.Store(true)
	}
	for w := range workers {
		b.done.Go(func() { b.work(w) })
	}
	return b
}

func (b *billedTraffic) work(w int) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
	defer client.CloseIdleConnections()
	rng := rand.New(rand.NewPCG(uint64(w), 1))
	for i := w; ; i++ {
		select {
		case <-b.stop:
			return
		default:
		}
		m := b.fleet.nodes[i%len(b.fleet.nodes)]
		if !m.ready.Load() {
			time.Sleep(200 * time.Microsecond)
			continue
		}
		key, cost := rng.IntN(len(b.keys)), rng.Int64N(5)
		body := fmt.Sprintf(`{"attributes": {"ip": %q}, "costs": {"requests": %d, "tokens": %d}}`,
			b.keys[key], cost, 10*cost)
		resp, err := client.Post("http://"+m.ip+":8080/v1/check", "application/json", strings.NewReader(body))
		if err != nil {
			b.unknown[key].Add(cost)
			continue
		}
		// The status alone answers the check, even if the body does not arrive.
		if resp.StatusCode == 200 {
			b.answered[key].Add(cost)
			b.checks.Add(1)
			b.at[i%len(b.at)].Add(cost)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		time.Sleep(2 * time.Millisecond) // more would only take the processor from other tests
	}
}

func (b *billedTraffic) end() {
	close(b.stop)
	b.done.Wait()
}

// monthAnswer is a node's report of a month.
type monthAnswer struct {
	Rows []struct {
		Rule, Unit   string
		Key          any
		Cost, Checks int64
	}
	Incomplete []string
	Estimated  []struct {
		Node       string
		AtMostLost int64 `json:"at_most_lost_ms"`
	}
	RevisedAt string `json:"revised_at"`
}

// report reads what a node reports for this month.
func (m *fleetNode) report() (a monthAnswer) {
	m.fleet.t.Helper()
	if text, err := m.get("/v1/usage/monthly", &a); err != nil {
		m.fleet.t.Fatalf("usage of the month: %v: %s", err, text)
	}
	return a
}

// month returns a node's report of this month, by rule, key and unit.
func (m *fleetNode) month() (rows map[string]int64, incomplete []string) {
	m.fleet.t.Helper()
	a := m.report()
	rows = map[string]int64{}
	for _, r := range a.Rows {
		rows[fmt.Sprint(r.Rule, " ", r.Key, " ", r.Unit)] += r.Cost
		rows["checks of "+r.Unit] += r.Checks
	}
	return rows, a.Incomplete
}

// checkReport compares a node's report with what the clients know. It has no
// check that was neither answered nor in flight, and lacks at most lost.
func (b *billedTraffic) checkReport(at *fleetNode, lost int64) {
	t := b.fleet.t
	t.Helper()
	rows, incomplete := at.month()
	if len(incomplete) > 0 {
		t.Errorf("at %s: have %v missing", at.name, incomplete)
	}
	less := int64(0)
	for i, key := range b.keys {
		least, most := b.answered[i].Load(), b.answered[i].Load()+b.unknown[i].Load()
		have := rows["year "+key+" requests"]
		if tokens := rows["year "+key+" tokens"]; have > most || tokens != 10*have {
			t.Errorf("at %s: %s: have %d requests and %d tokens, want at most %d", at.name, key, have, tokens, most)
		}
		less += max(0, least-have)
	}
	if less > lost {
		t.Errorf("at %s: %d are missing, want at most %d", at.name, less, lost)
	}
	for name := range rows {
		if strings.HasPrefix(name, "idea") || strings.HasPrefix(name, "free") {
			t.Errorf("at %s: have %s", at.name, name)
		}
	}
}

// One of three nodes is killed under load. While it is down, sums are
// incomplete and say so. After its restart, it has what it had written, nothing
// is counted twice, and the counts of the other nodes are right to the unit.
func TestMonthlyUsageThroughKills(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	f.nodes[0].apply("version: 1\nrules:\n  - {name: year, key: [ip], usage: monthly, limits: [{limit: 100000000, per: 8760h, algorithm: fixed-window}," +
		" {limit: 100000000, per: 1h}, {limit: 1000000000, per: 1h, unit: tokens}]}\n" +
		"  - {name: idea, key: [ip], usage: monthly, shadow: true, limits: [{limit: 1, per: 1h}]}\n" +
		"  - {name: free, key: [ip], limits: [{limit: 100000000, per: 1h}]}\n")
	b := f.startBilledTraffic(subjects(40), 4)
	more := func(what string) {
		t.Helper()
		from := b.checks.Load()
		process.Eventually(t, what, func() bool { return b.checks.Load() > from+300 })
	}
	more("traffic flows")
	m := f.nodes[1]
	m.kill()
	if _, incomplete := f.nodes[0].month(); !slices.Equal(incomplete, []string{m.name}) {
		t.Errorf("while %s is down: have %v missing", m.name, incomplete)
	}
	if code, out := f.nodes[0].command("usage", "--csv"); code == 0 || !strings.Contains(out, m.name) {
		t.Errorf("CSV while %s is down: %d %s", m.name, code, out)
	}
	more("traffic flows on")
	b.end()
	lost := b.at[1].Load() // everything the node answered; it is down, so this no longer grows
	m.startProcess()
	m.waitReady()
	for _, m := range f.nodes {
		b.checkReport(m, lost)
	}

	// Until all have answered in time, the command says that sums are estimated.
	var code int
	var out, warnings string
	process.Eventually(t, "all nodes have answered", func() bool {
		code, out, warnings = tool(t, "", "usage", "--rule", "year", "--csv", "--admin", f.nodes[0].admin)
		return code == 0 && warnings == ""
	})
	table, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil || len(table) != 1+2*len(b.keys) {
		t.Fatalf("usage --csv: %v, %d lines", err, len(table))
	}
	if code, out := f.nodes[0].command("usage"); code != 0 || !strings.Contains(out, "year: "+b.keys[0]) {
		t.Errorf("usage: %d %s", code, out)
	}
	for _, m := range f.nodes { // everything a node keeps is in its data directory, and bills are one file there
		if left, _ := filepath.Glob(filepath.Join(f.dir, m.name, "usage*")); len(left) != 1 {
			t.Errorf("%s: have %v", m.name, left)
		}
	}
}

// billedAt makes checks at a node, and waits until another node has a copy of its bills.
func (m *fleetNode) billedAt(times int) {
	m.fleet.t.Helper()
	for range times {
		if status, text, err := m.call("POST", m.data+"/v1/check", "application/json",
			`{"rule": "year", "key": "192.0.2.1"}`); err != nil || status != 200 {
			m.fleet.t.Fatalf("check: %d %s %v", status, text, err)
		}
	}
	last := time.Now()
	process.Eventually(m.fleet.t, "another node has a copy of the bills of "+m.name, func() bool {
		asked := time.Now() // the answer may take longer than the age it has
		age, err := strconv.ParseFloat(m.figure("rlnode_usage_copy_age_seconds"), 64)
		return err == nil && time.Duration(age*float64(time.Second)) < asked.Sub(last)-100*time.Millisecond
	})
}

// A node is killed, removed, and replaced by an empty one. Its bills come from
// the copy, which says so, and from the node itself once it is back.
func TestBillsOfALostNode(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	first, lost := f.nodes[0], f.nodes[2]
	first.apply("version: 1\nrules:\n  - {name: year, key: [ip], usage: monthly, limits: [{limit: 100000000, per: 8760h, algorithm: fixed-window}]}\n")
	for i, m := range f.nodes {
		m.billedAt(10 * (i + 1))
	}
	lost.kill()
	if a := first.report(); !slices.Equal(a.Incomplete, []string{"n3"}) || len(a.Estimated) > 0 {
		t.Errorf("while n3 is down: have %v missing, %v estimated", a.Incomplete, a.Estimated)
	}
	process.Eventually(t, "n3 is removed", func() bool {
		code, _ := first.command("remove", "n3")
		return code == 0
	})
	f.nodes = append(f.nodes[:2], f.newNode(4, 0, "--join", first.ip))
	f.nodes[2].startProcess()
	f.nodes[2].waitReady()

	cost := func(a monthAnswer) (sum int64) {
		for _, r := range a.Rows {
			sum += r.Cost
		}
		return sum
	}
	for _, m := range f.nodes {
		process.Eventually(t, "n3 is forgotten at "+m.name, func() bool { return len(m.report().Incomplete) == 0 })
		if a := m.report(); cost(a) != 60 || len(a.Estimated) != 1 || a.Estimated[0].Node != "n3" ||
			a.Estimated[0].AtMostLost < 1 {
			t.Errorf("at %s: have %d, estimated %v; want 60, n3", m.name, cost(a), a.Estimated)
		}
	}
	code, out := f.nodes[2].command("usage", "--csv")
	if code != 0 || !strings.Contains(out, ",year,192.0.2.1,requests,60,60,0") ||
		!strings.Contains(out, "estimated: n3 is gone") {
		t.Errorf("CSV of an estimated month: %d %q", code, out)
	}
	if code, out := first.command("usage"); code != 0 ||
		!strings.Contains(out, "estimated: n3 is gone, and its copy lacks at most") {
		t.Errorf("an estimated month: %d %s", code, out)
	}

	lost.args = append(lost.args, "--rejoin") // it takes a new identity, and keeps its bills
	lost.startProcess()
	f.nodes = append(f.nodes, lost)
	lost.waitReady()
	for _, m := range f.nodes {
		process.Eventually(t, "n3 is back in the bills at "+m.name,
			func() bool { return len(m.report().Estimated) == 0 })
		if a := m.report(); cost(a) != 60 || len(a.Incomplete) > 0 || a.RevisedAt != "" {
			t.Errorf("at %s, with n3 back: have %d, missing %v, revised at %q; want 60", m.name,
				cost(a), a.Incomplete, a.RevisedAt)
		}
	}
	lost.billedAt(5)
	for _, m := range f.nodes {
		if a := m.report(); cost(a) != 65 || a.RevisedAt == "" {
			t.Errorf("at %s, after more checks: have %d, revised at %q; want 65", m.name, cost(a), a.RevisedAt)
		}
	}
}
