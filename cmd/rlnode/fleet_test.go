package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// fleet is a cluster of real processes, each on its own loopback address with the default ports.
type fleet struct {
	t     *testing.T
	dir   string
	net   string         // the first three bytes of the addresses
	links *process.Links // between nodes that can be cut off; nil for none
	nodes []*fleetNode
	token string // that reads the cluster's state; empty if none is needed
}

// fleetNode is a node of a fleet, across its restarts.
type fleetNode struct {
	*runningNode
	fleet *fleet
	name  string
	ip    string
	at    string // where the others reach it
	args  []string
	env   []string
	build string      // path of its program; empty for the one that all tests share
	ready atomic.Bool // as a load balancer sees it

	killed   atomic.Bool  // killed; ready may be wrong until the load balancer polls again
	troubles atomic.Int64 // how many times it was killed or paused; requests meanwhile don't count
}

// newFleet starts n nodes at once and waits until they are one cluster.
func newFleet(t *testing.T, n int, args ...string) *fleet {
	t.Helper()
	f := newEmptyFleet(t)
	f.start(n, args...)
	return f
}

// newLinkedFleet is newFleet for nodes that can be cut off.
func newLinkedFleet(t *testing.T, n int) *fleet {
	t.Helper()
	f := newEmptyFleet(t)
	f.links = process.NewLinks(t)
	f.start(n)
	return f
}

// start starts n nodes at once and waits until they are one cluster.
func (f *fleet) start(n int, args ...string) {
	f.t.Helper()
	if n > 1 && testing.Short() && raceDetector {
		f.t.Skip("several processes under the race detector are slow; whole nodes run in one process too")
	}
	for i := range n {
		f.nodes = append(f.nodes, f.newNode(i+1, n, args...))
	}
	for _, m := range f.nodes {
		m.startProcess()
	}
	f.awaitWhole()
}

var (
	firstSite = rand.Uint32N(50_000)
	sites     atomic.Uint32
)

// newEmptyFleet returns a fleet without nodes, on addresses that no other test
// of this process uses and, most probably, no other process either.
func newEmptyFleet(t *testing.T) *fleet {
	n := (firstSite + sites.Add(1)) % 60_000
	return &fleet{t: t, dir: t.TempDir(), net: fmt.Sprintf("127.%d.%d", 1+n/250, n%250)}
}

// newNode returns a node without starting it.
func (f *fleet) newNode(i, expect int, args ...string) *fleetNode {
	m := &fleetNode{fleet: f, name: fmt.Sprintf("n%d", i), ip: fmt.Sprintf("%s.%d", f.net, i), at: f.address(i)}
	var seeds []string
	for j := 1; j <= max(expect, 1); j++ {
		if j != i {
			seeds = append(seeds, f.address(j))
		}
	}
	m.args = append([]string{
		"serve", "--name", m.name, "--data-dir", filepath.Join(f.dir, m.name), "--bind", m.ip,
	}, args...)
	if f.links != nil {
		f.links.Add(m.ip, m.at)
		m.args = append(m.args, "--advertise", m.at)
	}
	if len(seeds) > 0 {
		m.args = append(m.args, "--join", strings.Join(seeds, ","))
	}
	if expect > 0 {
		m.args = append(m.args, "--bootstrap-expect", fmt.Sprint(expect))
	}
	return m
}

// address returns where the others reach node i.
func (f *fleet) address(i int) string {
	if f.links != nil {
		i += 100 // its link's address
	}
	return fmt.Sprintf("%s.%d", f.net, i)
}

// startProcess starts the node's process without waiting for it.
func (m *fleetNode) startProcess() {
	m.killed.Store(false)
	s := &runningNode{t: m.fleet.t, log: &process.Output{}, exited: make(chan struct{}),
		program: m.build, token: m.fleet.token}
	s.client = &http.Client{Timeout: process.Timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 32}}
	m.runningNode = s.launch(m.env, m.args)
	m.data, m.admin = "http://"+m.ip+":8080", "http://"+m.ip+":8081"
}

// waitReady waits until the node reports ready.
func (m *fleetNode) waitReady() {
	m.fleet.t.Helper()
	process.Eventually(m.fleet.t, m.name+" is ready", func() bool {
		select {
		case <-m.exited:
			m.fleet.t.Fatalf("%s ended: %v\n%s", m.name, m.cmd.ProcessState, m.log)
		default:
		}
		status, _, err := m.call("GET", m.data+"/readyz", "", "")
		return err == nil && status == 200
	})
}

// clusterState is the answer of GET /v1/cluster.
type clusterState struct {
	Epoch        int64           `json:"epoch"`
	Settled      bool            `json:"settled"`
	View         string          `json:"view"`
	Leader       string          `json:"leader"`
	RulesVersion int64           `json:"rules_version"`
	Members      []clusterMember `json:"members"`
}

// clusterMember is one of its members.
type clusterMember struct {
	Name       string `json:"name"`
	ID         string `json:"id"`
	State      string `json:"state"`
	Voter      bool   `json:"voter"`
	Leader     bool   `json:"leader"`
	InRing     bool   `json:"in_ring"`
	Partitions int    `json:"partitions"`
}

func (m *fleetNode) cluster() (c clusterState, err error) {
	_, err = m.get("/v1/cluster", &c)
	return c, err
}

// awaitWhole waits until every running node is in the ring and all of them report the same.
func (f *fleet) awaitWhole() {
	f.t.Helper()
	for _, m := range f.nodes {
		m.waitReady()
	}
	// After a stall, a node refutes the report of its death, is evicted and gets
	// its partitions back. On a busy machine, that takes long.
	process.Within(f.t, time.Minute, "the cluster is whole", func() bool {
		var first clusterState
		for i, m := range f.nodes {
			c, err := m.cluster()
			if err != nil || c.View != "connected" || !c.Settled || c.Leader == "" || len(c.Members) != len(f.nodes) {
				return false
			}
			sum := 0
			for _, one := range c.Members {
				sum += one.Partitions
				if !one.InRing || one.State != "alive" {
					return false
				}
			}
			if i == 0 {
				first = c
			}
			if sum != 4096 || c.Epoch != first.Epoch || c.Leader != first.Leader ||
				fmt.Sprint(c.Members) != fmt.Sprint(first.Members) {
				return false
			}
		}
		return true
	})
}

// awaitTold waits until all nodes tell the same of the rules and entries, and
// of how these became so, and returns it.
func (f *fleet) awaitTold() string {
	f.t.Helper()
	var first string
	process.Eventually(f.t, "all nodes tell the same of rules and entries", func() bool {
		first = f.nodes[0].told()
		return first != "" && !slices.ContainsFunc(f.nodes, func(m *fleetNode) bool { return m.told() != first })
	})
	return first
}

// told returns what the node tells of the rules and entries; empty if it does not answer.
func (m *fleetNode) told() (all string) {
	for _, path := range []string{"/v1/rules", "/v1/rules/versions", "/v1/entries?n=1000", "/v1/entries/log?n=1000"} {
		status, text, err := m.call("GET", m.admin+path, m.fleet.token, "")
		if err != nil || status != 200 {
			return ""
		}
		all += text
	}
	return all
}

func (f *fleet) byName(name string) *fleetNode {
	for _, m := range f.nodes {
		if m.name == name {
			return m
		}
	}
	f.t.Fatalf("no node %q", name)
	return nil
}

// ownerOf asks a node for the owner of a subject.
func (f *fleet) ownerOf(at *fleetNode, rule, key string) *fleetNode {
	f.t.Helper()
	var o struct {
		Owner string `json:"owner"`
	}
	if text, err := at.get("/v1/owner?rule="+rule+"&key="+key, &o); err != nil {
		f.t.Fatalf("owner: %v: %s", err, text)
	}
	return f.byName(o.Owner)
}

// apply writes rules at a node.
func (m *fleetNode) apply(text string) {
	m.fleet.t.Helper()
	status, answer, err := m.call("PUT", m.admin+"/v1/rules", "", text)
	if err != nil || status != 200 {
		m.fleet.t.Fatalf("apply: %v %d %s", err, status, answer)
	}
	version := struct{ Version int64 }{}
	expect.NoError(m.fleet.t, json.Unmarshal([]byte(answer), &version))
	process.Eventually(m.fleet.t, "all nodes use the rules", func() bool {
		for _, n := range m.fleet.nodes {
			if c, err := n.cluster(); err != nil || c.RulesVersion < version.Version {
				return false
			}
		}
		return true
	})
}

func (m *fleetNode) kill() {
	m.killed.Store(true)
	m.ready.Store(false)
	m.troubles.Add(1)
	m.runningNode.kill()
}

// pause stops the process for d. It sends a check of each key just before the
// end, so that these are the first that the node sees when it continues, and
// returns who decided them.
func (m *fleetNode) pause(d time.Duration, rule string, keys []string) (by []string) {
	m.ready.Store(false)
	m.troubles.Add(1)
	m.signal(syscall.SIGSTOP)
	time.Sleep(d)
	by = make([]string, len(keys))
	var asked sync.WaitGroup
	for i, key := range keys {
		asked.Go(func() {
			_, text, err := m.call("POST", m.data+"/v1/check", "", fmt.Sprintf(`{"rule": %q, "key": %q}`, rule, key))
			var a struct {
				DecidedBy string `json:"decided_by"`
			}
			if err == nil {
				err = json.Unmarshal([]byte(text), &a)
			}
			if by[i] = a.DecidedBy; err != nil {
				by[i] = err.Error()
			}
		})
	}
	time.Sleep(50 * time.Millisecond) // until they are sent, for which there is no sign
	m.signal(syscall.SIGCONT)
	asked.Wait()
	return by
}

// traffic makes checks at ready nodes, like a load balancer that polls /readyz.
type traffic struct {
	fleet    *fleet
	rule     string
	keys     []string
	admitted []atomic.Int64
	refused  atomic.Int64
	slow     atomic.Int64 // took over a second
	longest  atomic.Int64
	by       sync.Map // decided_by → *atomic.Int64
	mu       sync.Mutex
	failures []string // guarded by mu; at most 20
	failed   atomic.Int64
	pause    time.Duration // of a worker after each check
	stop     chan struct{}
	done     sync.WaitGroup
}

// startTraffic starts workers that each pause after each check: more checks
// than a test needs would only take the processor from other tests.
func (f *fleet) startTraffic(rule string, keys []string, workers int, pause time.Duration) *traffic {
	l := &traffic{fleet: f, rule: rule, keys: keys, admitted: make([]atomic.Int64, len(keys)),
		pause: pause, stop: make(chan struct{})}
	for _, m := range f.nodes {
		m.ready.Store(true)
	}
	l.done.Go(l.pollReady)
	for w := range workers {
		l.done.Go(func() { l.work(w) })
	}
	return l
}

// pollReady polls which nodes are ready.
func (t *traffic) pollReady() {
	client := &http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	for {
		for _, m := range t.fleet.nodes {
			resp, err := client.Get("http://" + m.ip + ":8080/readyz")
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body) // so that the connection is used again
				resp.Body.Close()
			}
			m.ready.Store(err == nil && resp.StatusCode == 200)
		}
		select {
		case <-t.stop:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (t *traffic) work(w int) {
	client := &http.Client{Timeout: process.Timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
	defer client.CloseIdleConnections()
	for i := w; ; i++ {
		select {
		case <-t.stop:
			return
		default:
		}
		m := t.fleet.nodes[i%len(t.fleet.nodes)]
		if !m.ready.Load() {
			time.Sleep(200 * time.Microsecond)
			continue
		}
		t.ask(client, m, (i*7+w)%len(t.keys))
		time.Sleep(t.pause)
	}
}

func (t *traffic) ask(client *http.Client, m *fleetNode, key int) {
	began, troubles := time.Now(), m.troubles.Load()
	body := fmt.Sprintf(`{"rule": %q, "key": %q}`, t.rule, t.keys[key])
	resp, err := client.Post("http://"+m.ip+":8080/v1/check", "application/json", strings.NewReader(body))
	took := time.Since(began)
	if err != nil {
		if m.ready.Load() && !m.killed.Load() && m.troubles.Load() == troubles {
			t.fail("%s: %v", m.name, err)
		}
		return
	}
	defer resp.Body.Close()
	var a struct {
		DecidedBy string `json:"decided_by"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		t.fail("%s: %d, %v", m.name, resp.StatusCode, err)
		return
	}
	n, _ := t.by.LoadOrStore(a.DecidedBy, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
	switch resp.StatusCode {
	case 200:
		t.admitted[key].Add(1)
	case 429:
		t.refused.Add(1)
	default:
		t.fail("%s: status %d", m.name, resp.StatusCode)
	}
	if m.troubles.Load() != troubles {
		return
	}
	for old := t.longest.Load(); int64(took) > old &&
		!t.longest.CompareAndSwap(old, int64(took)); old = t.longest.Load() {
	}
	if took > time.Second {
		t.slow.Add(1)
	}
}

func (t *traffic) fail(format string, args ...any) {
	t.failed.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.failures) < 20 {
		t.failures = append(t.failures, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
	}
}

// total returns what was admitted so far.
func (t *traffic) total() (n int64) {
	for i := range t.admitted {
		n += t.admitted[i].Load()
	}
	return n
}

// end stops the traffic and logs the results.
func (t *traffic) end() {
	t.fleet.t.Helper()
	close(t.stop)
	t.done.Wait()
	by := map[string]int64{}
	t.by.Range(func(k, v any) bool { by[k.(string)] = v.(*atomic.Int64).Load(); return true })
	t.fleet.t.Logf("%d admitted, %d refused, %d failed, longest %v, by %v", t.total(),
		t.refused.Load(), t.failed.Load(),
		time.Duration(t.longest.Load()), by)
	for _, text := range t.failures {
		t.fleet.t.Log(text)
	}
}

func subjects(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("198.51.%d.%d", i/250, i%250)
	}
	return keys
}
