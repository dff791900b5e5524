package node

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/test/simulation"
)

var (
	simSeed    = flag.Uint64("sim-seed", 2, "seed of the first simulation")
	simSeeds   = flag.Uint64("sim-seeds", 1, "how many simulations to run, with consecutive seeds")
	simNodes   = flag.Int("sim-nodes", 7, "how many nodes a simulation has, 5…200")
	simMinutes = flag.Float64("sim-minutes", 1.5, "how long faults happen in a simulation")
	// simSabotage is for make simulation. It tries as many seeds as needed to notice each sabotage, at most 40.
	simSabotage = flag.Bool("sim-sabotage", false, "also test that simulations detect deliberate faults")
	simRate     = flag.Int("sim-rate", 60, "checks per second of all nodes together")
	simStory    = flag.String("sim-story", "", "the rule and the key of a subject whose history to print; default: the first subject with a violation")
)

// Bounds of liveness.
const (
	// simOwned bounds how long after a fault begins or ends a partition may be without an owner that has authority.
	simOwned = 10 * time.Second
	// simDone bounds how long a join or a leave may take, even during faults.
	simDone = 30 * time.Second
	// simInForce bounds how long a written rule may not be in force at nodes with authority.
	simInForce = 5 * time.Second
	// simWhole bounds how long nodes may stay out of the ring after all faults have ended.
	simWhole = 60 * time.Second
	// simPatience is the longest patience with a node for which simWhole holds.
	simPatience = 20 * time.Second
)

const (
	// simFounders found the cluster; the others join it.
	simFounders = 5
	// simManyNodes is the number of nodes from which heartbeats would take most of the time. From there on, nodes count
	// as unreachable only after simSilence.
	simManyNodes, simSilence = 50, 2500 * time.Millisecond
	// simTail bounds the age of hits that an owner admitted and its standby does not know of: a push interval and, if a
	// link has only just broken, the time to find a path around it.
	simTail = 700 * time.Millisecond
)

// Whole nodes, except for their HTTP and their disks, run for minutes. One lasting fault follows another, and other events
// happen meanwhile. The test judges liveness and, as package simulation does, all decisions.
func TestG2_G3_G4_G5_SimulationInOneProcess(t *testing.T) {
	t.Parallel()
	if !simDebited {
		t.Skip("grants are not debited in this build")
	}
	if *simNodes < simFounders || *simNodes > 200 {
		t.Fatalf("-sim-nodes: %d is not in 5…200", *simNodes)
	}
	length := time.Duration(*simMinutes * float64(time.Minute))
	if testing.Short() {
		length /= 2
	}
	for seed := *simSeed; seed < *simSeed+*simSeeds; seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			s := &trial{nodes: *simNodes}
			s.simulate(t, seed, length)
			for i, v := range s.found {
				if i == 20 {
					t.Errorf("and more")
					break
				}
				t.Errorf("seed %d: %v", seed, v)
			}
		})
	}
}

// The checkers notice sabotage. (For grants without a debit see the build tag nodebit.)
func TestSabotageIsFoundInOneProcess(t *testing.T) {
	t.Parallel()
	if !simDebited || !*simSabotage {
		t.Skip("make simulation runs it")
	}
	for _, tt := range []struct {
		name     string
		want     string // the violated guarantee
		sabotage func(*trial)
	}{
		{"takes are forgotten", "G2", func(s *trial) {
			s.hotCounters(func(owner bool, table *counters.Table, clock *limiter.Clock, sub *simulation.Subject) {
				if owner {
					_ = table.Amend(clock.Now(), &counters.Amendment{Ops: []counters.Op{{Key: sub.Counter, Limit: &sub.Limit}}, Reset: true})
				}
			})
		}},
		{"authority never ends", "G4", func(s *trial) {
			s.isolates.Store(true)
			s.p.stopped.Store(true)
		}},
		{"standbys get no copies", "G5", func(s *trial) {
			s.isolates.Store(true)
			s.hotCounters(func(owner bool, table *counters.Table, _ *limiter.Clock, sub *simulation.Subject) {
				if !owner {
					table.Drop(sub.Partition)
				}
			})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) { findSabotage(t, tt.want, time.Minute, tt.sabotage) })
	}
}

// findSabotage looks for a seed in which the sabotage is noticed.
func findSabotage(t *testing.T, want string, length time.Duration, sabotage func(*trial)) {
	t.Helper()
	for seed := range uint64(40) {
		s := &trial{nodes: 7, sabotage: sabotage}
		s.simulate(t, 101+seed, length)
		for _, v := range s.found {
			if v.Guarantee == want {
				t.Log(v)
				return
			}
		}
	}
	t.Error("no seed detected the sabotage")
}

// hotCounters calls show with the counters of each hot subject, at its owner and elsewhere.
func (tr *trial) hotCounters(show func(owner bool, table *counters.Table, clock *limiter.Clock, sub *simulation.Subject)) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for v, l := range tr.lives {
		for i := range tr.hot {
			if sub := &tr.ledger.Subjects[i]; !l.over && v.alive.Load() {
				show(v.node.table.IsOpen(sub.Partition), v.node.table, v.node.clock, sub)
			}
		}
	}
}

// simulate runs one seed. If sabotage is not nil, it is called from time to time.
func (tr *trial) simulate(t *testing.T, seed uint64, length time.Duration) {
	t.Helper()
	began, cpu := time.Now(), processorTime()
	synctest.Test(t, func(t *testing.T) {
		tr.t, tr.rnd = t, rand.New(rand.NewPCG(seed, 27))
		tr.run(seed, length)
	})
	took, used := time.Since(began), processorTime()-cpu
	tr.found = tr.judge()
	by := map[string]int64{}
	for way, n := range tr.ledger.Counts.By {
		if n > 0 {
			by[limiter.DecidedBy(way).String()] = n
		}
	}
	t.Logf("seed %d, %d nodes, %v: %d checks %v, %v, %d rings, %d hot subjects lost their owner, %d partitions began anew; %v, %v of processors: %+v",
		seed, tr.nodes, length, len(tr.ledger.Checks), by, tr.happened, tr.rings, len(tr.ledger.Losses), tr.anew,
		took.Round(time.Second), used.Round(time.Second), tr.ledger.Counts.Judged)
}

// trial is a simulation of whole nodes.
type trial struct {
	t        *testing.T
	p        *planet
	nodes    int        // initial number
	rnd      *rand.Rand // chooses faults and times; used by one goroutine
	ledger   *simulation.Ledger
	hot      int
	sabotage func(*trial)
	isolates atomic.Bool // the lasting fault always cuts a node off
	happened map[string]int
	rings    int64
	version  int // of the last written rules
	found    []simulation.Violation

	down  map[*virtual]bool // crashed, and not back yet
	bad   map[*virtual]bool // affected by the lasting fault
	apply func(ip string)   // applies the lasting fault to a new node; nil if it doesn't affect one
	doing string            // the current fault

	mu       sync.Mutex // guards the fields below; acquired before the locks of tables
	there    []*virtual
	gone     map[*virtual]bool // left for good
	lives    map[*virtual]*life
	count    int
	parts    [ring.Partitions]keptBy
	samples  map[int][]sample // by hot subject
	inside   map[int][]int    // by partition: its hot subjects
	ills     []ill
	anew     int
	failures []simulation.Violation
}

// life is one process of a node, and its place in the ledger.
type life struct {
	limiter.Recorder
	s      *trial
	v      *virtual
	number int
	over   bool
}

// keptBy is the last node that decided a partition.
type keptBy struct {
	by      *life
	lineage uint64
	at      time.Duration
	acting  int           // the standby that acted last
	bare    time.Duration // since when only its owner has the counters; 0 if another node has them, too
	anew    bool          // the owner was then killed before another node had to have replaced its standby
}

// sample is what the owner of a subject had counted at some time.
type sample struct {
	at time.Duration
	r  counters.Record
}

// ill is a period in which a node was dead or out of reach, or took no copies.
type ill struct {
	node        ring.NodeID
	from, until time.Duration
}

const simForever = time.Duration(1<<63 - 1)

func (tr *trial) now() time.Duration { return time.Since(tr.ledger.Start) }

// text returns the rules. marker is a limit that no check uses and that changes.
func (tr *trial) text(marker int) []byte {
	return fmt.Appendf(nil, "%s  - {name: marker, key: [marker], limits: [{limit: %d, per: 1h}]}\n", simulation.Rules(tr.nodes), marker)
}

func (tr *trial) run(seed uint64, length time.Duration) {
	tr.happened, tr.down, tr.bad = map[string]int{}, map[*virtual]bool{}, map[*virtual]bool{}
	tr.gone, tr.lives, tr.samples, tr.inside = map[*virtual]bool{}, map[*virtual]*life{}, map[int][]sample{}, map[int][]int{}
	tr.ledger = &simulation.Ledger{Config: simulation.Config{Seed: seed}, Start: time.Now()}
	tr.p = newSpace(tr.t).planet("default", "default", 0)
	if tr.p.pen = tr.pen; tr.nodes >= simManyNodes {
		tr.p.silence = simSilence
	}
	tr.p.settle(min(tr.nodes, simFounders), string(tr.text(1)))
	for _, v := range tr.p.nodes {
		tr.add(v)
	}
	for len(tr.p.nodes) < tr.nodes {
		tr.arrive()
	}
	tr.by(simWhole, "the cluster is whole", tr.whole)
	var err error
	if tr.hot, err = tr.ledger.List(2000, tr.p.nodes[0].node.limiter); err != nil {
		tr.t.Fatal(err)
	}
	for i := range tr.hot {
		q := tr.ledger.Subjects[i].Partition
		tr.inside[q] = append(tr.inside[q], i)
	}
	began := tr.now()
	load := simulation.Load{
		Ledger: tr.ledger, Rate: *simRate, Random: rand.New(rand.NewPCG(seed, 28)), Nodes: tr.slots, Ask: tr.ask,
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { load.Run(began + length) })
	done.Go(func() { tr.watch(ctx) })
	for tr.now() < began+length-20*time.Second {
		if tr.rest(3*time.Second, 10*time.Second); tr.rnd.IntN(5) == 0 {
			tr.rest(10*time.Second, 60*time.Second)
		}
		tr.episode()
	}
	time.Sleep(began + length - tr.now())
	cancel()
	done.Wait()
	tr.ledger.End = tr.now()
	tr.rings = tr.state().Epoch
	tr.p.end()
}

// judge returns all violations found.
func (tr *trial) judge() []simulation.Violation {
	found := append(slices.Clone(tr.failures), tr.ledger.Judge()...)
	story := strings.Fields(*simStory)
	for _, v := range found {
		if words := strings.Fields(v.Text); len(story) == 0 && tr.sabotage == nil && strings.HasPrefix(words[1], "k") {
			story = words // a repetition won't be quite the same
		}
	}
	if len(story) > 1 {
		_ = tr.ledger.WriteStory(tr.t.Output(), story[0], story[1])
	}
	for _, text := range tr.p.diary.trouble {
		found = append(found, simulation.Violation{Guarantee: "G1", Text: text})
	}
	return found
}

// fail records that something made no progress.
func (tr *trial) fail(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.failures = append(tr.failures, simulation.Violation{Guarantee: "liveness", Text: fmt.Sprintf("%v, %s: ", tr.now(), tr.doing) + fmt.Sprintf(format, args...)})
}

// rest waits for a random time.
func (tr *trial) rest(least, most time.Duration) {
	time.Sleep(least + time.Duration(tr.rnd.Int64N(int64(most-least))))
}

// Nodes.

// arrive starts one more node, which joins.
func (tr *trial) arrive() *virtual {
	n := len(tr.p.nodes)
	c := tr.p.settings(n, 0)
	for _, v := range tr.well() {
		if len(c.Join) < 5 {
			c.Join = append(c.Join, v.ip)
		}
	}
	v := tr.p.another(c)
	if tr.apply != nil {
		tr.apply(v.ip)
	}
	v.up()
	tr.add(v)
	return v
}

func (tr *trial) add(v *virtual) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.there = append(tr.there, v)
}

// pen returns the recorder of a node that starts.
func (tr *trial) pen(v *virtual, w limiter.Recorder) limiter.Recorder {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.count++
	l := &life{Recorder: w, s: tr, v: v, number: tr.count}
	tr.lives[v] = l
	return l
}

// well lists, in order, the running nodes without a fault.
func (tr *trial) well() (list []*virtual) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, v := range tr.there {
		if v.alive.Load() && !tr.gone[v] && !tr.down[v] && !tr.bad[v] {
			list = append(list, v)
		}
	}
	return list
}

// present lists the running nodes, with or without a fault.
func (tr *trial) present() (list []*virtual) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, v := range tr.there {
		if v.alive.Load() && !tr.gone[v] {
			list = append(list, v)
		}
	}
	return list
}

// slots returns how many nodes there have been.
func (tr *trial) slots() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return len(tr.there)
}

// kill ends a process as a crash does.
func (tr *trial) kill(v *virtual) {
	tr.look()
	tr.mu.Lock()
	for q := range tr.inside {
		if v.node.table.IsOpen(q) && tr.unbacked(v, q) {
			tr.parts[q].anew = true
		}
	}
	tr.lives[v].over = true
	tr.down[v] = true
	tr.ills = append(tr.ills, ill{v.id, tr.now(), simForever})
	tr.mu.Unlock()
	v.down(false)
}

// back starts a node that was killed or stopped.
func (tr *trial) back(v *virtual) {
	v.up()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	delete(tr.down, v)
	tr.cure(v)
}

// cure ends a node's illness. The caller holds mu.
func (tr *trial) cure(v *virtual) {
	for i := range tr.ills {
		if e := &tr.ills[i]; e.node == v.id && e.until == simForever {
			e.until = tr.now()
		}
	}
}

// Traffic and records.

func (tr *trial) ask(node, subject int, cost int64) {
	tr.mu.Lock()
	v := tr.there[node]
	l := tr.lives[v]
	tr.mu.Unlock()
	if !v.ready.Load() || l.over {
		return
	}
	sub := &tr.ledger.Subjects[subject]
	share, members := simShare(v, sub)
	c := simulation.Check{Began: tr.now(), Node: l.number, Subject: subject, Cost: cost}
	q := sub.Query(cost)
	var a limiter.Answer
	err := v.node.limiter.Check(&q, &a)
	c.Ended, c.Admitted, c.By = tr.now(), a.Allowed, a.DecidedBy
	tr.mu.Lock()
	defer tr.mu.Unlock()
	switch {
	case v.crashed.Load() || tr.lives[v] != l || l.over && !v.ready.Load():
		return // its answer never reached a client
	case err != nil:
		tr.ledger.Fail("a check of %s %s at node %d failed: %v", sub.Rule, sub.Key, l.number, err)
		return
	}
	now, _ := simShare(v, sub)
	c.Share = max(share, now)
	if c.Admitted && c.By == limiter.ByStandby {
		if window := sub.Limit.Window; (tr.ledger.Start.UnixNano()+int64(c.Began))/int64(window) != (tr.ledger.Start.UnixNano()+int64(c.Ended))/int64(window) {
			return // either window may have counted the check
		}
		// The acting node's ring may have had one member fewer.
		tr.ledger.Acts = append(tr.ledger.Acts, simulation.Act{
			At: c.Ended, Node: tr.parts[sub.Partition].acting, Subject: subject, Cost: cost, Share: localcache.Share(sub.Limit.Amount, max(members-1, 1), 0),
		})
	}
	tr.ledger.Note(c)
}

// simShare returns what a node may spend of a limit by itself, and by how many members the limit is divided.
func simShare(v *virtual, sub *simulation.Subject) (share int64, members int) {
	t := v.node.ring()
	if t == nil {
		return 0, 0
	}
	members = len(t.Members())
	return localcache.Share(sub.Limit.Amount, members, t.Rank(v.id)), members
}

// Decided implements limiter.Recorder. It also notes which process decides each partition.
func (l *life) Decided(by limiter.DecidedBy, q int, lineage uint64, began, ended int64) {
	l.Recorder.Decided(by, q, lineage, began, ended)
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &s.parts[q]
	if by != limiter.ByOwner {
		h.acting = l.number
		return
	}
	if h.lineage != 0 && h.lineage != lineage {
		s.lost(q, h)
	}
	if h.by != l {
		s.ledger.Owners = append(s.ledger.Owners, simulation.Owner{At: s.now(), Partition: q, Node: l.number})
	}
	if h.lineage != lineage {
		h.anew = false
	}
	h.by, h.lineage, h.at = l, lineage, s.now()
}

// lost records that the lineage of a partition has ended. All that the owner debited since shortly before it, or a standby
// of it, fell ill may be lost. The caller holds mu.
func (tr *trial) lost(q int, h *keptBy) {
	now := tr.now()
	state := h.by.v.state()
	kept := map[ring.NodeID]bool{h.by.v.id: false}
	for _, t := range []*ring.Table{state.From, state.To} {
		if t != nil {
			kept[t.Owner(q)], kept[t.Standby(q)] = false, false
		}
	}
	since := now
	for _, e := range tr.ills {
		if _, concerns := kept[e.node]; concerns && e.until >= h.at-simOwned {
			since, kept[e.node] = min(since, e.from), true
		}
	}
	anew := true
	for _, was := range kept {
		anew = anew && was
	}
	if anew = anew || h.anew; anew {
		tr.anew++
	}
	for _, i := range tr.inside[q] {
		loss := simulation.Loss{At: now, Subject: i, Anew: anew}
		if have := tr.samples[i]; len(have) > 0 {
			n, _ := slices.BinarySearchFunc(have, since-simTail, func(x sample, at time.Duration) int { return int(x.at - at) })
			last, known := have[len(have)-1].r, counters.Record{}
			if n = min(n, len(have)-1); n > 0 {
				known = have[n-1].r
			}
			loss.Amount = simulation.Lacks(&last, known)
		}
		tr.ledger.Losses = append(tr.ledger.Losses, loss)
	}
}

// unbacked reports whether only the owner has a partition's counters, and for no longer than it takes to evict and replace
// a standby that takes no copies. The caller holds mu.
func (tr *trial) unbacked(owner *virtual, q int) bool {
	h := &tr.parts[q]
	switch {
	case owner.node.keeper.Backed(q):
		h.bare = 0
		return false
	case h.bare == 0 || h.by == nil || h.by.v != owner:
		h.bare = tr.now()
	}
	return tr.now()-h.bare <= simOwned
}

// watch samples from time to time what the owners of hot subjects have counted.
func (tr *trial) watch(ctx context.Context) {
	for ctx.Err() == nil {
		tr.look()
		if tr.sabotage != nil {
			tr.sabotage(tr)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (tr *trial) look() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	now := tr.now()
	for q, hot := range tr.inside {
		l := tr.parts[q].by
		if l == nil || l.over || tr.lives[l.v] != l {
			continue
		}
		tr.unbacked(l.v, q)
		_ = l.v.node.table.Copy(q, func(records []counters.Record) error {
			for _, i := range hot {
				for _, r := range records {
					if r.Key == tr.ledger.Subjects[i].Counter {
						tr.samples[i] = append(tr.samples[i], sample{now, r})
					}
				}
			}
			return nil
		})
	}
	for i, list := range tr.samples {
		if n := len(list); n > 2000 {
			tr.samples[i] = slices.Clone(list[n/2:])
		}
	}
}

// Liveness.

// by waits until why returns an empty string, and records a failure if that takes longer than bound.
func (tr *trial) by(bound time.Duration, what string, why func() string) bool {
	last := ""
	for began := time.Now(); time.Since(began) < bound; time.Sleep(50 * time.Millisecond) {
		if last = why(); last == "" {
			return true
		}
	}
	tr.fail("%s: not within %v: %s", what, bound, last)
	return false
}

// state returns the newest state that a healthy node has applied.
func (tr *trial) state() *agreement.State {
	var newest *agreement.State
	for _, v := range tr.present() {
		if state := v.state(); newest == nil || state.Index > newest.Index {
			newest = state
		}
	}
	return newest
}

// owned names a partition that has no owner with authority.
func (tr *trial) owned() string {
	var have [ring.Partitions]bool
	for _, v := range tr.present() {
		if v.connected() {
			for q := range have {
				have[q] = have[q] || v.node.table.IsOpen(q)
			}
		}
	}
	if q := slices.Index(have[:], false); q >= 0 {
		state := tr.state()
		if state.To == nil {
			return "no ring yet"
		}
		return fmt.Sprintf("partition %d has no owner; in epoch %d it moves from %v to %v", q, state.Epoch, state.From.Owner(q), state.To.Owner(q))
	}
	return ""
}

// whole returns why not all running nodes are in one settled ring; empty if they are.
func (tr *trial) whole() string {
	state, list := tr.state(), tr.present()
	switch {
	case state.To == nil:
		return "no ring yet"
	case !state.Settled:
		return fmt.Sprintf("epoch %d is not settled", state.Epoch)
	}
	in := 0
	for _, v := range list {
		switch {
		case state.To.Rank(v.id) < 0 && state.Boots[v.id].Suspension.Patience() > simPatience:
			continue // evicted repeatedly, it comes back later
		case state.To.Rank(v.id) < 0:
			return v.name() + " is not in the ring"
		case !v.connected():
			return v.name() + " has no authority"
		case !v.ready.Load():
			return v.name() + " is not ready"
		}
		in++
	}
	if n := len(state.To.Members()); n != in {
		return fmt.Sprintf("the ring has %d nodes, of which %d are running", n, in)
	}
	return ""
}

// inForce names a node that has authority and uses older rules.
func (tr *trial) inForce(version int64) string {
	for _, v := range tr.present() {
		if v.connected() && v.node.limiter.Rules().Version < version {
			return fmt.Sprintf("%s has authority and uses version %d", v.name(), v.node.limiter.Rules().Version)
		}
	}
	return ""
}

// Events during a fault.

// write writes rules at a healthy node.
func (tr *trial) write() {
	tr.version++
	version := int64(0)
	list := tr.well()
	if !tr.by(simInForce, "rules are written", func() string {
		v := list[tr.rnd.IntN(len(list))]
		ctx, cancel := context.WithTimeout(context.Background(), simInForce)
		defer cancel()
		var err error
		if version, err = v.admin().Write(ctx, rules.Change{Body: tr.text(tr.version + 1)}, cluster.WriteOptions{By: v.name()}); err != nil {
			return fmt.Sprintf("at %s: %v", v.name(), err)
		}
		return ""
	}) {
		return
	}
	tr.by(simInForce, "rules that were written are in force", func() string { return tr.inForce(version) })
}

// join makes one more node join.
func (tr *trial) join() {
	v := tr.arrive()
	tr.by(simDone, "a node joins", func() string {
		state := tr.state()
		switch {
		case state.From.Rank(v.id) < 0:
			return fmt.Sprintf("%s is not in the ring of epoch %d, settled %v", v.name(), state.Epoch, state.Settled)
		case !v.ready.Load() || !v.connected():
			return v.name() + " is not ready, or has no authority"
		}
		return ""
	})
}

// leave makes a node leave for good.
func (tr *trial) leave(v *virtual) {
	ctx, cancel := context.WithTimeout(context.Background(), simDone)
	defer cancel()
	if err := v.admin().Leave(ctx); err != nil {
		tr.fail("%s leaves: not within %v: %v", v.name(), simDone, err)
	}
	tr.stop(v)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.gone[v] = true
}

// restart stops a node gracefully, and starts it again.
func (tr *trial) restart(v *virtual, after time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), simDone)
	defer cancel()
	tr.mu.Lock()
	tr.down[v] = true
	tr.mu.Unlock()
	if err := v.node.stepBack(ctx, false); err != nil {
		tr.fail("%s leaves the ring: not within %v: %v", v.name(), simDone, err)
		tr.kill(v)
	} else {
		tr.stop(v)
	}
	time.Sleep(after)
	tr.back(v)
	tr.by(simDone, "a node that was restarted is ready", func() string {
		if !v.ready.Load() {
			return v.name() + " is not ready"
		}
		return ""
	})
}

// stop ends the process of a node that owns nothing any more.
func (tr *trial) stop(v *virtual) {
	v.ready.Store(false)
	time.Sleep(drainGrace)
	tr.mu.Lock()
	tr.lives[v].over = true
	tr.mu.Unlock()
	v.down(false)
}

// happen performs an ordinary operation or a second fault while one lasts.
func (tr *trial) happen(kind string) {
	tr.happened[kind]++
	list := tr.well()
	v := list[tr.rnd.IntN(len(list))]
	if o := tr.ownerOfHot(); tr.rnd.IntN(2) == 0 && slices.Contains(list, o) {
		v = o
	}
	switch kind {
	case "write":
		tr.write()
	case "join":
		tr.join()
	case "leave":
		tr.leave(v)
	case "restart":
		tr.restart(v, time.Duration(tr.rnd.Int64N(int64(3*time.Second))))
	case "kill":
		tr.kill(v)
	case "quick crash":
		tr.kill(v)
		tr.rest(100*time.Millisecond, time.Second)
		tr.back(v)
	}
}

// ownerOfHot returns the owner of a random hot subject.
func (tr *trial) ownerOfHot() *virtual {
	q := tr.ledger.Subjects[tr.rnd.IntN(tr.hot)].Partition
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if l := tr.parts[q].by; l != nil {
		return l.v
	}
	return tr.there[0]
}

// episode starts a fault, lets another event happen while it lasts, and checks liveness.
func (tr *trial) episode() {
	from := tr.now()
	name, undo := tr.strike()
	tr.happened[name]++
	tr.doing = name
	if tr.rnd.IntN(4) == 0 {
		tr.rest(100*time.Millisecond, 4*time.Second)
	} else {
		if tr.rnd.IntN(2) == 0 {
			time.Sleep(simOwned)
			tr.by(time.Second, "every partition has an owner", tr.owned)
		}
		tr.rest(0, 3*time.Second)
		kind := []string{"write", "join", "leave", "restart", "kill", "quick crash"}[tr.rnd.IntN(6)]
		if kind == "leave" && len(tr.present()) < tr.nodes {
			kind = "join"
		}
		if kind == "join" && len(tr.present()) > tr.nodes+1 {
			kind = "leave"
		}
		tr.doing += ", and " + kind
		tr.happen(kind)
		time.Sleep(simOwned)
		tr.by(time.Second, "every partition has an owner", tr.owned)
	}
	undo()
	for v := range maps.Clone(tr.down) {
		tr.back(v)
	}
	tr.doing += ", and after the faults"
	tr.by(simWhole, "the cluster is whole", tr.whole)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.ledger.Troubles = append(tr.ledger.Troubles, simulation.Trouble{From: from, Until: tr.now()})
}

// strike starts a fault. It returns its name and how to end it.
func (tr *trial) strike() (name string, undo func()) {
	list := tr.present()
	x, y := list[tr.rnd.IntN(len(list))], list[tr.rnd.IntN(len(list))]
	if o := tr.ownerOfHot(); tr.rnd.IntN(2) == 0 && slices.Contains(list, o) {
		x = o
		state := tr.state()
		q := tr.ledger.Subjects[tr.rnd.IntN(tr.hot)].Partition
		if i := slices.IndexFunc(list, func(v *virtual) bool { return v.id == state.From.Standby(q) }); i >= 0 && tr.rnd.IntN(2) == 0 {
			y = list[i]
		}
	}
	leader := slices.IndexFunc(list, func(v *virtual) bool { return v.node.cluster.Leader() == v.id })
	if leader >= 0 && tr.rnd.IntN(3) == 0 {
		x = list[leader]
	}
	net := tr.p.net
	others := func(f func(ip string)) {
		for _, v := range list {
			if v != x {
				f(v.ip)
			}
		}
	}
	switch dice := tr.rnd.IntN(12); {
	case dice < 5 && x != y && !tr.isolates.Load():
		way := tr.rnd.IntN(3)
		if way != 1 {
			net.CutOneWay(x.ip, y.ip)
		}
		if way != 2 {
			net.CutOneWay(y.ip, x.ip)
		}
		return []string{"link", "link in", "link out"}[way], tr.troubled(nil, nil, x, y)
	case dice < 7 || tr.isolates.Load():
		net.Isolate(x.ip)
		return "isolated", tr.troubled([]*virtual{x}, []*virtual{x})
	case dice < 8:
		side := tr.minority(list)
		tr.apply = func(ip string) {
			for _, v := range side {
				net.Cut(v.ip, ip)
			}
		}
		for _, v := range list {
			if !slices.Contains(side, v) {
				tr.apply(v.ip)
			}
		}
		return "split", tr.troubled(side, side)
	case dice < 9:
		if tr.rnd.IntN(2) == 0 {
			tr.apply = func(ip string) { net.CutOneWay(ip, x.ip) }
			others(tr.apply)
			return "deaf", tr.troubled(nil, []*virtual{x})
		}
		tr.apply = func(ip string) { net.CutOneWay(x.ip, ip) }
		others(tr.apply)
		return "dumb", tr.troubled(nil, []*virtual{x})
	case dice < 10:
		d := time.Duration(5+tr.rnd.IntN(60)) * time.Millisecond
		tr.apply = func(ip string) { net.DelayBetween(x.ip, ip, d) }
		others(tr.apply)
		undo := tr.troubled(nil, nil, x)
		return "slow", func() {
			undo()
			others(func(ip string) { net.DelayBetween(x.ip, ip, 100*time.Microsecond) })
		}
	default:
		name := "hung disk"
		if tr.rnd.IntN(2) == 0 {
			x.memory.hang()
		} else {
			x.memory.fill()
			name = "full disk"
		}
		undo := tr.troubled(nil, nil, x)
		return name, func() {
			x.memory.mend()
			undo()
		}
	}
}

// troubled records the nodes that a fault affects. Those in cut reach no node with authority. For those in lost, neither
// the copies they hold nor the copies of their partitions are kept up to date. touched are others it affects.
func (tr *trial) troubled(cut, lost []*virtual, touched ...*virtual) (undo func()) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	from := tr.now()
	touched = append(touched, lost...)
	for _, v := range touched {
		tr.bad[v] = true
	}
	for _, v := range lost {
		tr.ills = append(tr.ills, ill{v.id, from, simForever})
	}
	return func() {
		tr.p.net.HealAll()
		tr.apply = nil
		tr.mu.Lock()
		defer tr.mu.Unlock()
		for _, v := range touched {
			delete(tr.bad, v)
			tr.cure(v)
		}
		for _, v := range cut {
			tr.ledger.Cuts = append(tr.ledger.Cuts, simulation.Cut{Node: tr.lives[v].number, From: from, Until: tr.now()})
		}
	}
}

// minority returns a random set of nodes whose absence leaves enough voters, even if one more is away.
func (tr *trial) minority(list []*virtual) (side []*virtual) {
	voters := map[string]bool{}
	for _, m := range list[0].node.cluster.View().Members {
		voters[m.Name] = m.Voter
	}
	left := 1
	for _, i := range tr.rnd.Perm(len(list))[:1+tr.rnd.IntN(max(1, len(list)*2/5))] {
		v := list[i]
		if voters[v.name()] {
			if left == 0 {
				continue
			}
			left--
		}
		side = append(side, v)
	}
	return side
}

// processorTime returns the processor time that this process has used.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
