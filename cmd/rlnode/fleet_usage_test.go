package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/process"
)

// bill is what clients know of what they were admitted, by subject.
type bill struct {
	fleet    *fleet
	keys     []string
	answered []atomic.Int64 // cost of checks answered 200
	unknown  []atomic.Int64 // cost of checks whose answer never came
	checks   atomic.Int64   // answered 200
	stop     chan struct{}
	done     sync.WaitGroup
}

func (f *fleet) bill(keys []string, workers int) *bill {
	b := &bill{fleet: f, keys: keys, stop: make(chan struct{}), answered: make([]atomic.Int64, len(keys)), unknown: make([]atomic.Int64, len(keys))}
	for _, m := range f.nodes {
		m.ready.Store(true)
	}
	for w := range workers {
		b.done.Go(func() { b.work(w) })
	}
	return b
}

func (b *bill) work(w int) {
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
		body := fmt.Sprintf(`{"attributes": {"ip": %q}, "costs": {"requests": %d, "tokens": %d}}`, b.keys[key], cost, 10*cost)
		resp, err := client.Post("http://"+m.ip+":8080/v1/check", "application/json", strings.NewReader(body))
		if err != nil {
			b.unknown[key].Add(cost)
			continue
		}
		// The status is the answer; if the rest does not come, the check was answered all the same.
		if resp.StatusCode == 200 {
			b.answered[key].Add(cost)
			b.checks.Add(1)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

func (b *bill) end() {
	close(b.stop)
	b.done.Wait()
}

// month reads what a node says of this month.
func (m *mate) month() (rows map[string]int64, incomplete []string) {
	m.fleet.t.Helper()
	_, text, err := m.call("GET", m.admin+"/v1/usage/monthly", "", "")
	var a struct {
		Rows []struct {
			Rule, Unit   string
			Key          any
			Cost, Checks int64
		}
		Incomplete []string
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &a)
	}
	if err != nil {
		m.fleet.t.Fatalf("usage of the month: %v: %s", err, text)
	}
	rows = map[string]int64{}
	for _, r := range a.Rows {
		rows[fmt.Sprint(r.Rule, " ", r.Key, " ", r.Unit)] += r.Cost
		rows["checks of "+r.Unit] += r.Checks
	}
	return rows, a.Incomplete
}

// expect compares what a node says with what the clients know, to the unit.
func (b *bill) expect(what string, at *mate) {
	t := b.fleet.t
	t.Helper()
	rows, incomplete := at.month()
	if len(incomplete) > 0 {
		t.Errorf("%s: at %s: have %v missing", what, at.name, incomplete)
	}
	var answered, unknown int64
	for i, key := range b.keys {
		least, most := b.answered[i].Load(), b.answered[i].Load()+b.unknown[i].Load()
		answered, unknown = answered+least, unknown+most-least
		if have := rows["year "+key+" requests"]; have < least || have > most {
			t.Errorf("%s: at %s: %s: have %d requests, want %d to %d", what, at.name, key, have, least, most)
		}
		if have := rows["year "+key+" tokens"]; have < 10*least || have > 10*most {
			t.Errorf("%s: at %s: %s: have %d tokens, want %d to %d", what, at.name, key, have, 10*least, 10*most)
		}
	}
	t.Logf("%s: %d checks, cost %d answered, %d without an answer", what, b.checks.Load(), answered, unknown)
}

// Usage is right to the unit while single nodes of three are killed, restarted, and leave: what was answered is counted,
// and nothing else but what was sent and never answered.
func TestMonthlyUsageThroughKills(t *testing.T) {
	f := newFleet(t, 3)
	f.nodes[0].apply("version: 1\nrules:\n  - {name: year, key: [ip], limits: [{limit: 100000000, per: 8760h, algorithm: fixed-window}," +
		" {limit: 100000000, per: 1h}, {limit: 1000000000, per: 1h, unit: tokens}]}\n" +
		"  - {name: idea, key: [ip], shadow: true, limits: [{limit: 1, per: 1h}]}")
	b := f.bill(subjects(40), 4)
	more := func(what string) {
		t.Helper()
		from := b.checks.Load()
		process.Eventually(t, what, func() bool { return b.checks.Load() > from+300 })
	}
	more("traffic flows")
	for _, m := range []*mate{f.nodes[1], f.nodes[2]} {
		m.kill()
		if _, incomplete := f.nodes[0].month(); !slices.Equal(incomplete, []string{m.name}) {
			t.Errorf("while %s is down: have %v missing", m.name, incomplete)
		}
		if code, out := f.nodes[0].command("usage", "--csv"); code == 0 || !strings.Contains(out, m.name) {
			t.Errorf("CSV while %s is down: %d %s", m.name, code, out)
		}
		more("traffic flows on")
		m.up()
		m.waitReady()
		m.ready.Store(true)
		more("traffic flows with all")
	}
	f.nodes[0].ready.Store(false) // as a load balancer turns away before a stop
	f.nodes[0].stop()
	f.nodes[0].up()
	f.nodes[0].waitReady()
	f.nodes[0].ready.Store(true)
	more("traffic flows after a restart")
	f.whole()

	gone := f.nodes[2]
	if code, out := gone.command("leave"); code != 0 {
		t.Fatalf("leave: %d %s", code, out)
	}
	more("traffic flows at the node that left, too")
	b.end()
	gone.stop()
	f.nodes = f.nodes[:2]
	for _, m := range f.nodes {
		b.expect("at last", m)
	}
	code, out := f.nodes[0].command("usage", "--rule", "year", "--csv")
	table, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if code != 0 || err != nil || len(table) != 1+2*len(b.keys) {
		t.Fatalf("usage --csv: %d, %v, %d lines", code, err, len(table))
	}
	if code, out := f.nodes[0].command("usage"); code != 0 || !strings.Contains(out, "year: "+b.keys[0]) {
		t.Errorf("usage: %d %s", code, out)
	}
}
