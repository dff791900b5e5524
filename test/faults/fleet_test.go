//go:build faults

package faults

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// fleet is a cluster of real processes, each in its own namespace.
type fleet struct {
	t      *testing.T
	net    *network
	dir    string
	nodes  []*node
	random *rand.Rand
	rules  []rule // under load
	rings  rings
	faults []fault
	steps  []step
	fewest int // least number of nodes that a ring may have had during a fault; 0: all
	seen   *load
	after  time.Duration // how long the load continues after recovery; 0: a second
	agree  time.Duration // how long after that the nodes may take to agree; 0: agreeTime
}

// newFleet starts n nodes at once and waits until they are one cluster with rules.
func newFleet(t *testing.T, n int) *fleet {
	t.Helper()
	f := emptyFleet(t, n)
	t.Cleanup(f.close)
	f.open()
	return f
}

// emptyFleet returns a fleet of n nodes that are not started.
func emptyFleet(t *testing.T, n int) *fleet {
	t.Helper()
	f := &fleet{t: t, net: newNetwork(t), random: randomFor(t), rules: commonRules()}
	f.dir = filepath.Join(filesDir(), fmt.Sprintf("%s-%d", strings.ReplaceAll(t.Name(), "/", "-"), runs[t.Name()]))
	expect.NoError(t, os.MkdirAll(f.dir, 0o700))
	for i := range n {
		f.nodes = append(f.nodes, f.node(i+1, n))
	}
	return f
}

func (f *fleet) open() {
	f.t.Helper()
	for _, one := range f.nodes {
		if !one.spare {
			one.up()
		}
	}
	f.whole(patience)
	f.write(rulesText(0, f.rules))
	f.rings.watch(f)
}

// spare adds a node that starts and joins later.
func (f *fleet) spare() {
	founders := 0
	for _, n := range f.nodes {
		if !n.spare {
			founders++
		}
	}
	n := f.node(len(f.nodes)+1, founders)
	n.spare = true
	f.nodes = append(f.nodes, n)
}

// started returns the nodes that have been started.
func (f *fleet) started() (list []*node) {
	for _, n := range f.nodes {
		if n.state.Load() != 0 {
			list = append(list, n)
		}
	}
	return list
}

func (f *fleet) node(i, expect int) *node {
	var seeds []string
	for j := 1; j <= expect; j++ {
		if j != i {
			seeds = append(seeds, fmt.Sprintf("10.77.0.%d", j))
		}
	}
	n := newNode(f.t, f.net.host(i, 0), f.dir)
	n.args = append(n.args, "--join", strings.Join(seeds, ","), "--bootstrap-expect", fmt.Sprint(founders(expect)))
	return n
}

// founders returns how many of some nodes found their cluster: more than half
// of them, and an odd number.
func founders(nodes int) int { return nodes - (nodes+1)%2 }

// secretFile returns the file with the secret of all nodes below dir.
func secretFile(t *testing.T, dir string) string {
	name := filepath.Join(dir, "cluster.secret")
	if _, err := os.Stat(name); err == nil {
		return name
	}
	expect.NoError(t, os.WriteFile(name, []byte("c2hhcmVkIGJ5IHRoZSBub2RlcyBvZiBhbGwgdGVzdHM=\n"), 0o600))
	return name
}

// newNode returns a node on a host, with its files below dir, without starting it.
func newNode(t *testing.T, h *host, dir string) *node {
	n := &node{host: h, t: t, dir: filepath.Join(dir, h.name), program: program}
	n.wall = n.dir + ".wall"
	n.args = []string{
		"serve", "--name", h.name, "--data-dir", n.dir, "--bind", h.ip, "--admin-bind", h.ip,
		"--cluster-secret-file", secretFile(t, dir),
	}
	n.client = &http.Client{Transport: &http.Transport{DialContext: h.dial, MaxIdleConnsPerHost: 16}}
	return n
}

// close ends all processes, and prints their logs if the test failed.
func (f *fleet) close() {
	f.rings.end()
	for _, n := range f.nodes {
		if n.cmd != nil && n.exited != nil {
			_ = n.cmd.Process.Kill() // it may have ended already
			<-n.exited
		}
		n.client.CloseIdleConnections()
		if f.t.Failed() {
			f.save(n)
		}
	}
	if !f.t.Failed() {
		os.RemoveAll(f.dir)
	}
}

// save keeps a node's log, and prints its tail.
func (f *fleet) save(n *node) {
	text := n.log.String()
	if dir := os.Getenv("FAULTS_LOGS"); dir != "" {
		path := filepath.Join(dir, strings.ReplaceAll(f.t.Name(), "/", "-")+"-"+n.name+".log")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			f.t.Log(err)
		}
	}
	if lines := strings.Split(text, "\n"); len(lines) > 60 {
		text = strings.Join(lines[len(lines)-60:], "\n")
	}
	f.t.Logf("log of %s:\n%s", n.name, text)
}

// write writes rules at some node, and waits until all nodes have them.
func (f *fleet) write(text string) {
	f.t.Helper()
	status, _, answer, err := f.any().call("PUT", 8081, "/v1/rules", text, nil)
	if err != nil || status != 200 {
		f.t.Fatalf("rules: %v %d %s", err, status, answer)
	}
	f.whole(patience)
}

// comeback exceeds the time that a live node which was evicted must behave well
// before it is readmitted: ten seconds after the first eviction, at most ten
// minutes.
const comeback = 11 * time.Minute

// whole waits until all nodes are in the ring, are ready and agree. It waits
// longer for nodes that must behave well first.
func (f *fleet) whole(d time.Duration) {
	f.t.Helper()
	began := time.Now()
	within(f.t, d+comeback, "the cluster is whole", func() string {
		var first clusterState
		for i, n := range f.started() {
			if n.is() != live {
				return n.name + " is not ready"
			}
			c, err := n.cluster()
			if err != nil {
				return err.Error()
			}
			if why := f.strange(c); why != "" {
				return fmt.Sprintf("%s: %s: %+v", n.name, why, c)
			}
			if i == 0 {
				first = c
			}
			if c.Epoch != first.Epoch || c.Leader != first.Leader || c.RulesVersion != first.RulesVersion ||
				fmt.Sprint(c.Members) != fmt.Sprint(first.Members) {
				return fmt.Sprintf("%s and %s differ:\n%+v\n%+v", n.name, f.nodes[0].name, c, first)
			}
		}
		return ""
	})
	f.t.Logf("whole after %v", time.Since(began).Round(time.Millisecond))
}

// strange returns how c differs from the state of a whole cluster.
func (f *fleet) strange(c clusterState) string {
	sum := 0
	for _, m := range c.Members {
		sum += m.Partitions
		if !m.InRing || m.State != "alive" {
			return m.Name + " is not in the ring or not alive"
		}
	}
	switch {
	case c.View != "connected":
		return "view " + c.View
	case !c.Settled:
		return "not settled"
	case c.Leader == "":
		return "no leader"
	case len(c.Members) != len(f.started()) || sum != 4096:
		return fmt.Sprintf("%d members, %d partitions", len(c.Members), sum)
	}
	return ""
}

func (f *fleet) byName(name string) int {
	return slices.IndexFunc(f.nodes, func(n *node) bool { return n.name == name })
}

// leader returns the leader that the live nodes report.
func (f *fleet) leader() *node {
	f.t.Helper()
	var leads *node
	within(f.t, patience, "a leader", func() string {
		for _, n := range f.nodes {
			if n.is() != live {
				continue
			}
			if c, err := n.cluster(); err == nil && c.View == "connected" && f.byName(c.Leader) >= 0 {
				leads = f.nodes[f.byName(c.Leader)]
				if leads.is() == live {
					return ""
				}
			}
		}
		return "nobody names one"
	})
	return leads
}

// any returns a random node.
func (f *fleet) any() *node {
	nodes := f.started()
	return nodes[f.random.IntN(len(nodes))]
}

func (f *fleet) index(n *node) int { return slices.Index(f.nodes, n) }

// kill kills a node; it stays down.
func (f *fleet) kill(n *node) {
	at := boottime()
	n.kill()
	f.t.Logf("%s: %s killed", clockTime(), n.name)
	f.fault(killed, n, at)
}

// killTogether kills nodes at the same time.
func (f *fleet) killTogether(kind faultKind, nodes ...*node) {
	at := boottime()
	for _, n := range nodes {
		n.kill()
		f.t.Logf("%s: %s killed", clockTime(), n.name)
	}
	for _, n := range nodes {
		f.fault(kind, n, at)
	}
}

// pauseTogether pauses nodes at the same time.
func (f *fleet) pauseTogether(nodes ...*node) {
	at := boottime()
	for _, n := range nodes {
		n.pause()
		f.t.Logf("%s: %s paused", clockTime(), n.name)
	}
	for _, n := range nodes {
		f.fault(together, n, at)
	}
}

// pause stops a node's process at a random point.
func (f *fleet) pause(n *node) {
	at := boottime()
	n.pause()
	f.t.Logf("%s: %s paused", clockTime(), n.name)
	f.fault(killed, n, at)
}

// cut cuts a node off from all others: with filters, or by pulling its cable.
func (f *fleet) cut(n *node, cable bool) {
	at := boottime()
	if cable {
		n.unplug()
	} else {
		f.net.isolate(n.host)
		f.net.apply()
	}
	f.t.Logf("%s: %s cut off (cable %v)", clockTime(), n.name, cable)
	f.fault(cutOff, n, at)
}

// islands cuts all links between groups of nodes, none of which is a majority.
func (f *fleet) islands(groups ...[]*node) {
	at := boottime()
	for i, group := range groups {
		for _, other := range groups[i+1:] {
			for _, a := range group {
				for _, b := range other {
					f.net.cutPair(a.host, b.host)
				}
			}
		}
	}
	f.net.apply()
	f.t.Logf("%s: cut into %d islands", clockTime(), len(groups))
	for _, n := range f.nodes {
		f.fault(split, n, at)
	}
}

// voters returns the voters, and the other nodes.
func (f *fleet) voters() (voters, others []*node) {
	f.t.Helper()
	c, err := f.leader().cluster()
	if err != nil {
		f.t.Fatal(err)
	}

	for _, m := range c.Members {
		n := f.nodes[f.byName(m.Name)]
		if m.Voter {
			voters = append(voters, n)
		} else {
			others = append(others, n)
		}
	}
	return voters, others
}

// part cuts the link between two nodes, or only the direction from b to a.
func (f *fleet) part(a, b *node, oneWay bool) {
	at := boottime()
	if oneWay {
		a.ignore(b.host)
	} else {
		f.net.cutPair(a.host, b.host)
	}
	f.net.apply()
	f.t.Logf("%s: %s does not hear %s (one way %v)", clockTime(), a.name, b.name, oneWay)
	f.fault(apart, a, at)
}

// fault records a fault of n since at, which lasts.
func (f *fleet) fault(kind faultKind, n *node, at int64) {
	f.suspect(kind, n, at)
	f.faults[len(f.faults)-1].observed = true
}

// suspect records a possible fault of n since at.
func (f *fleet) suspect(kind faultKind, n *node, at int64) {
	f.faults = append(f.faults, fault{kind: kind, node: f.index(n), from: at, made: boottime(), to: 1 << 62})
}

// heal undoes all faults of the network and of processes, and waits until the
// cluster has recovered.
func (f *fleet) heal() {
	f.t.Helper()
	for i := range f.faults {
		f.faults[i].eased = cmp.Or(f.faults[i].eased, boottime())
	}
	f.net.heal()
	for _, n := range f.started() {
		switch n.is() {
		case paused:
			f.suspect(cutOff, n, boottime()) // until it has found the others again
			n.resume()
		case down:
			n.up()
		}
	}
	for i := range f.faults {
		f.faults[i].to = min(f.faults[i].to, boottime())
	}
	f.t.Logf("%s: healed", clockTime())
}

func clockTime() string { return time.Now().UTC().Format("15:04:05.000") }

// rings records when which epoch was seen, and when no node was connected.
type rings struct {
	mu    sync.Mutex // guards moves
	moves []move
	// alone are the spans in which no node had authority, because there was no
	// leader for longer than it lasts. Read it after end.
	alone [][2]int64
	stop  chan struct{}
	done  sync.WaitGroup
}

func (r *rings) watch(f *fleet) {
	r.stop = make(chan struct{})
	r.done.Go(func() {
		var epoch int64
		for last := boottime(); ; {
			now := boottime()
			settled, connected, seen := true, false, false
			for _, n := range f.nodes {
				var c clusterState
				if is := n.is(); is == paused || is == down ||
					n.getFor(300*time.Millisecond, "/v1/cluster", &c) != nil {
					continue
				}
				if c.Epoch > epoch {
					epoch = c.Epoch
					r.add(last)
				}
				seen, connected = true, connected || c.View == "connected"
				settled = settled && (c.Settled || c.View != "connected") && (c.Epoch == epoch || c.View != "connected")
			}
			if settled {
				r.settle(boottime())
			}
			if seen && !connected {
				r.alone = append(r.alone, [2]int64{last, boottime()})
			}
			last = now
			select {
			case <-r.stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
}

// add records a new epoch; settle, that all nodes have taken it up.
func (r *rings) add(at int64) {
	r.settle(at)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moves = append(r.moves, move{at, 1 << 62})
}

func (r *rings) settle(at int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.moves); n > 0 {
		r.moves[n-1].ended = min(r.moves[n-1].ended, at)
	}
}

func (r *rings) end() {
	if r.stop != nil {
		close(r.stop)
		r.done.Wait()
		r.stop = nil
	}
}
