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

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/test/simulation"
)

var (
	simSeed    = flag.Uint64("sim-seed", 2, "seed of the first simulation")
	simSeeds   = flag.Uint64("sim-seeds", 1, "how many simulations to run, with consecutive seeds")
	simNodes   = flag.Int("sim-nodes", 7, "how many nodes a simulation has, 5…200")
	simMinutes = flag.Float64("sim-minutes", 1.5, "how long faults happen in a simulation")
	// simSabotage is for make simulation. It tries as many seeds as needed to
	// notice each sabotage, at most 40.
	simSabotage = flag.Bool("sim-sabotage", false, "also test that simulations detect deliberate faults")
	simRate     = flag.Int("sim-rate", 60, "checks per second of all nodes together")
	simStory    = flag.String("sim-story", "",
		"the rule and the key of a subject whose history to print; default: the first subject with a violation")
)

// Bounds of liveness.
const (
	// simOwned bounds how long after a fault begins or ends a partition may be
	// without an owner that has authority.
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
	// simManyNodes is the number of nodes from which heartbeats would take most of
	// the time. From there on, nodes count as unreachable only after simSilence.
	simManyNodes, simSilence = 50, 2500 * time.Millisecond
	// simTail bounds the age of hits that an owner admitted and its standby does
	// not know of: a push interval and, if a link has only just broken, the time to
	// find a path around it.
	simTail = 700 * time.Millisecond
)

// Whole nodes, except for their HTTP and their disks, run for minutes. One
// lasting fault follows another, and other events happen meanwhile. The test
// judges liveness and, as package simulation does, all decisions.
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
			s := &simTrial{nodes: *simNodes}
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
		sabotage func(*simTrial)
	}{
		{"takes are forgotten", "G2", func(s *simTrial) {
			s.hotCounters(func(owner bool, table *counters.Table, clock *limiter.Clock, sub *simulation.Subject) {
				if owner {
					_ = table.Amend(clock.Now(),
						&counters.Amendment{Ops: []counters.Op{{Key: sub.Counter, Limit: &sub.Limit}}, Reset: counters.ResetSubject})
				}
			})
		}},
		{"authority never ends", "G4", func(s *simTrial) {
			s.isolates.Store(true)
			s.p.stopped.Store(true)
		}},
		{"standbys get no copies", "G5", func(s *simTrial) {
			s.isolates.Store(true)
			s.hotCounters(func(owner bool, table *counters.Table, _ *limiter.Clock, sub *simulation.Subject) {
				if !owner {
					table.Drop(sub.Partition)
				}
			})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) { checkSabotageFound(t, tt.want, time.Minute, tt.sabotage) })
	}
}

// checkSabotageFound looks for a seed in which the sabotage is noticed.
func checkSabotageFound(t *testing.T, want string, length time.Duration, sabotage func(*simTrial)) {
	t.Helper()
	for seed := range uint64(40) {
		s := &simTrial{nodes: 7, sabotage: sabotage}
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
func (tr *simTrial) hotCounters(
	show func(owner bool, table *counters.Table, clock *limiter.Clock, sub *simulation.Subject),
) {
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
func (tr *simTrial) simulate(t *testing.T, seed uint64, length time.Duration) {
	t.Helper()
	began, cpu := time.Now(), processorTime()
	synctest.Test(t, func(t *testing.T) {
		tr.t, tr.rnd = t, rand.New(rand.NewPCG(seed, 27))
		tr.run(seed, length)
		tr.found = tr.secondOwners()
	})
	took, used := time.Since(began), processorTime()-cpu
	tr.found = append(tr.found, tr.judge()...)
	by := map[string]int64{}
	for way, n := range tr.ledger.Counts.By {
		if n > 0 {
			by[limiter.DecidedBy(way).String()] = n
		}
	}
	t.Logf("seed %d, %d nodes, %v: %d checks %v, %v, %d rings, %d hot subjects lost their owner, %d partitions began anew; %v, %v of processors: %+v",
		seed, tr.nodes, length, len(tr.ledger.Checks), by, tr.happened, tr.rings, len(tr.ledger.Losses), tr.begunAnew,
		took.Round(time.Second), used.Round(time.Second), tr.ledger.Counts.Judged)
}

// simTrial is a simulation of whole nodes.
type simTrial struct {
	t        *testing.T
	p        *testCluster
	nodes    int        // initial number
	rnd      *rand.Rand // chooses faults and times; used by one goroutine
	ledger   *simulation.Ledger
	world    *simWorld // of several regions; nil for one
	region   int
	closed   atomic.Bool   // the region takes no checks
	orders   chan func()   // what the region's goroutine does next, between faults
	over     chan struct{} // closed when it takes no more orders
	hot      int
	sabotage func(*simTrial)
	isolates atomic.Bool // the lasting fault always cuts a node off
	happened map[string]int
	rings    int64
	version  int // of the last written rules
	found    []simulation.Violation

	down  map[*testNode]bool // crashed, and not back yet
	bad   map[*testNode]bool // affected by the lasting fault
	apply func(ip string)    // applies the lasting fault to a new node; nil if it doesn't affect one
	doing string             // the current fault

	mu            sync.Mutex // guards the fields below; acquired before the locks of tables
	members       []*testNode
	gone          map[*testNode]bool // left for good
	lives         map[*testNode]*processLife
	count         int
	partitions    [ring.Partitions]lastDecider
	samples       map[int][]sample // by hot subject
	hasSampled    bool
	hotSubjectsOf map[int][]int // by partition: its hot subjects
	outages       []outage
	begunAnew     int
	failures      []simulation.Violation
}

// processLife is one process of a node, and its place in the ledger.
type processLife struct {
	limiter.Recorder
	s      *simTrial
	v      *testNode
	number int
	over   bool
}

// lastDecider is the last node that decided a partition.
type lastDecider struct {
	by            *processLife
	lineage       uint64
	at            time.Duration
	acting        int           // the standby that acted last
	unbackedSince time.Duration // since when only its owner has the counters; 0 if another node has them, too
	anew          bool          // the owner was then killed before another node had to have replaced its standby
}

// sample is what the owner of a subject had counted at some time.
type sample struct {
	at time.Duration
	simulation.Use
}

// outage is a period in which a node was dead or out of reach, or took no copies.
type outage struct {
	node        ring.NodeID
	from, until time.Duration
}

const simForever = time.Duration(1<<63 - 1)

func (tr *simTrial) now() time.Duration { return time.Since(tr.p.start) }

// text returns the rules. marker is a limit that no check uses and that changes.
func (tr *simTrial) text(marker int) []byte {
	return fmt.Appendf(nil, "%s  - {name: marker, key: [marker], limits: [{limit: %d, per: 1h}]}\n",
		simulation.Rules(tr.nodes), marker)
}

// begin prepares a trial of a cluster whose nodes are not started yet.
func (tr *simTrial) begin(p *testCluster) {
	tr.happened, tr.down, tr.bad = map[string]int{}, map[*testNode]bool{}, map[*testNode]bool{}
	tr.gone, tr.lives, tr.samples, tr.hotSubjectsOf = map[*testNode]bool{}, map[*testNode]*processLife{}, map[int][]sample{}, map[int][]int{}
	tr.ledger = &simulation.Ledger{Start: p.start.Add(p.clockOffset)}
	tr.p = p
	p.wrapRecorder = tr.wrapRecorder
}

// setHot notes which subjects are checked often.
func (tr *simTrial) setHot(hot int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.hot = hot
	tr.listHot()
}

// listHot lists the hot subjects by partition. The caller must hold mu.
func (tr *simTrial) listHot() {
	for i := range tr.hot {
		q := tr.ledger.Subjects[i].Partition
		tr.hotSubjectsOf[q] = append(tr.hotSubjectsOf[q], i)
	}
}

// noteWholeLoss notes that the region's nodes are gone with all that they have
// counted. What the region has lent is lost, too: its counters knew of it, and
// those of the region that replaces it don't.
func (tr *simTrial) noteWholeLoss() {
	tr.mu.Lock()
	defer tr.mu.Unlock()

	for i, list := range tr.samples {
		tr.ledger.Losses = append(tr.ledger.Losses, simulation.OwnerLoss{
			At: tr.now(), Subject: i, Amount: list[len(list)-1].MissingIn(&simulation.Use{}),
		})
	}

	clear(tr.samples)
	clear(tr.hotSubjectsOf)
	clear(tr.partitions[:])
}

// relocate finds the hot subjects of a region that was founded anew.
func (tr *simTrial) relocate() {
	tr.mu.Lock()
	defer tr.mu.Unlock()

	expect.NoError(tr.t, tr.ledger.Relocate(tr.p.nodes[0].node.limiter))
	tr.listHot()
}

func (tr *simTrial) run(seed uint64, length time.Duration) {
	tr.begin(newTestNetwork(tr.t).newCluster("default", "default", 0))
	if tr.nodes >= simManyNodes {
		tr.p.silence = simSilence
	}
	tr.p.startNodes(min(tr.nodes, simFounders), string(tr.text(1)))
	for _, v := range tr.p.nodes {
		tr.add(v)
	}
	for len(tr.p.nodes) < tr.nodes {
		tr.startNewNode()
	}
	tr.awaitEmpty(simWhole, "the cluster is whole", tr.missingNode)
	hot, err := tr.ledger.List(2000, tr.p.nodes[0].node.limiter)
	expect.NoError(tr.t, err)
	tr.setHot(hot)
	began := tr.now()
	load := simulation.Load{
		Ledger: tr.ledger, Rate: *simRate, Random: rand.New(rand.NewPCG(seed, 28)), Nodes: tr.nodesEver,
		Ask: func(node, subject int, cost int64) { tr.ask(node, cost, subject) },
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { load.Run(began + length) })
	done.Go(func() { tr.sampleUntilDone(ctx) })
	for tr.now() < began+length-20*time.Second {
		if tr.sleepRandom(3*time.Second, 10*time.Second); tr.rnd.IntN(5) == 0 {
			tr.sleepRandom(10*time.Second, 60*time.Second)
		}
		tr.episode()
		if tr.nodes >= simManyNodes { // this takes hours: show how far it is
			tr.t.Logf("seed %d: %v of %v", seed, (tr.now() - began).Round(time.Second), length)
		}
	}
	time.Sleep(began + length - tr.now())
	cancel()
	done.Wait()
	tr.ledger.End = tr.now()
	tr.rings = tr.state().Epoch
}

// judge returns all violations found.
func (tr *simTrial) judge() []simulation.Violation {
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
	return found
}

// secondOwners returns where two nodes owned a partition at once. They are then
// the simulation's to report.
func (tr *simTrial) secondOwners() (found []simulation.Violation) {
	for _, text := range tr.p.ownership.violations {
		found = append(found, simulation.Violation{Guarantee: "G1", Text: text})
	}
	tr.p.ownership.violations = nil
	return found
}

// fail records that something made no progress.
func (tr *simTrial) fail(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.failures = append(tr.failures,
		simulation.Violation{Guarantee: "liveness",
			Text: fmt.Sprintf("%v, %s: ", tr.now(), tr.doing) + fmt.Sprintf(format, args...)})
}

// sleepRandom waits for a random time.
func (tr *simTrial) sleepRandom(least, most time.Duration) {
	time.Sleep(least + time.Duration(tr.rnd.Int64N(int64(most-least))))
}

// Nodes.

// startNewNode starts one more node, which joins.
func (tr *simTrial) startNewNode() *testNode {
	n := len(tr.p.nodes)
	c := tr.p.settings(n, 0)
	for _, v := range tr.healthyNodes() {
		if len(c.Join) < 5 {
			c.Join = append(c.Join, v.ip)
		}
	}
	v := tr.p.addNode(c)
	if tr.apply != nil {
		tr.apply(v.ip)
	}
	v.startProcess()
	tr.add(v)
	return v
}

func (tr *simTrial) add(v *testNode) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.members = append(tr.members, v)
}

// wrapRecorder returns the recorder of a node that starts.
func (tr *simTrial) wrapRecorder(v *testNode, w limiter.Recorder) limiter.Recorder {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.count++
	l := &processLife{Recorder: w, s: tr, v: v, number: tr.count}
	tr.lives[v] = l
	return l
}

// healthyNodes lists, in order, the running nodes without a fault.
func (tr *simTrial) healthyNodes() (list []*testNode) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, v := range tr.members {
		if v.alive.Load() && !tr.gone[v] && !tr.down[v] && !tr.bad[v] {
			list = append(list, v)
		}
	}
	return list
}

// runningNodes lists the running nodes, with or without a fault.
func (tr *simTrial) runningNodes() (list []*testNode) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, v := range tr.members {
		if v.alive.Load() && !tr.gone[v] {
			list = append(list, v)
		}
	}
	return list
}

// nodesEver returns how many nodes there have been.
func (tr *simTrial) nodesEver() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return len(tr.members)
}

// kill ends a process as a crash does.
func (tr *simTrial) kill(v *testNode) {
	tr.takeSamples()
	tr.mu.Lock()
	for q := range tr.hotSubjectsOf {
		if v.node.table.IsOpen(q) && tr.lacksBackup(v, q) {
			tr.partitions[q].anew = true
		}
	}
	tr.lives[v].over = true
	tr.down[v] = true
	tr.outages = append(tr.outages, outage{v.id, tr.now(), simForever})
	tr.mu.Unlock()
	v.endProcess(false)
}

// startAgain starts a node that was killed or stopped.
func (tr *simTrial) startAgain(v *testNode) {
	v.startProcess()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	delete(tr.down, v)
	tr.endIllness(v)
}

// endIllness ends a node's illness. The caller must hold mu.
func (tr *simTrial) endIllness(v *testNode) {
	for i := range tr.outages {
		if e := &tr.outages[i]; e.node == v.id && e.until == simForever {
			e.until = tr.now()
		}
	}
}

// Traffic and records.

// ask checks one subject, or several of different rules, at a node.
func (tr *simTrial) ask(node int, cost int64, subjects ...int) {
	tr.mu.Lock()
	v := tr.members[node]
	l := tr.lives[v]
	tr.mu.Unlock()
	if !v.ready.Load() || l.over || tr.closed.Load() {
		return
	}
	before := make([]ownShare, len(subjects))
	for k, i := range subjects {
		before[k] = tr.shareOf(v, i)
	}
	q := tr.ledger.Query(cost, subjects...)
	var a limiter.Answer
	began := tr.now()
	err := v.node.limiter.Check(&q, &a)
	ended := tr.now()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	switch {
	case v.crashed.Load() || tr.lives[v] != l || l.over && !v.ready.Load():
		return // its answer never reached a client
	case err != nil:
		tr.ledger.Fail("a check of %v at node %d failed: %v", q.Attributes, l.number, err)
		return
	}
	for k, i := range subjects {
		after := tr.shareOf(v, i)
		c := simulation.Check{
			Began: began, Ended: ended, Node: l.number, Subject: i, Cost: cost,
			Share:    max(before[k].alone, after.alone),
			Admitted: a.Allowed, Joint: len(subjects) > 1, By: a.DecidedBy,
		}
		// Which subjects of a joint check the standby decided is unknown, and
		// the ledger judges none of them by it.
		acted := c.Admitted && c.By == limiter.ByStandby && !c.Joint
		if !acted || tr.noteAct(&c, max(before[k].acting, after.acting)) {
			tr.ledger.Note(c)
		}
	}
}

// noteAct records what a standby admitted. It returns false if either of two
// windows may have counted the check. The caller must hold mu.
func (tr *simTrial) noteAct(c *simulation.Check, share int64) bool {
	sub := &tr.ledger.Subjects[c.Subject]
	start, window := tr.ledger.Start.UnixNano(), int64(sub.Limit.Window)
	if (start+int64(c.Began))/window != (start+int64(c.Ended))/window {
		return false
	}
	tr.ledger.StandbyActs = append(tr.ledger.StandbyActs, simulation.StandbyAct{
		At: c.Ended, Node: tr.partitions[sub.Partition].acting, Subject: c.Subject, Cost: c.Cost, Share: share,
	})
	return true
}

// ownShare is the most that a node may spend of a limit by itself.
type ownShare struct {
	alone  int64
	acting int64 // as a standby, whose ring may have one member fewer
}

func (tr *simTrial) shareOf(v *testNode, subject int) ownShare {
	t := v.node.ring()
	if t == nil {
		return ownShare{}
	}
	sub := &tr.ledger.Subjects[subject]
	amount, members := sub.Limit.Amount, len(t.Members())
	if sub.Global {
		amount = tr.world.maxShare(tr.region, sub)
	}
	return ownShare{localcache.Share(amount, members, t.Rank(v.id)), localcache.Share(amount, max(members-1, 1), 0)}
}

// Decided implements limiter.Recorder. It also notes which process decides each partition.
func (l *processLife) Decided(by limiter.DecidedBy, q int, lineage uint64, began, ended int64) {
	l.Recorder.Decided(by, q, lineage, began, ended)
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	switch by {
	case limiter.ByStandby:
		l.s.partitions[q].acting = l.number
	case limiter.ByOwner:
		l.s.noteOwner(q, l, lineage)
	}
}

// noteOwner notes that a process decides a partition as its owner. The caller
// must hold mu.
func (tr *simTrial) noteOwner(q int, l *processLife, lineage uint64) {
	h := &tr.partitions[q]
	if h.lineage != 0 && h.lineage != lineage {
		tr.noteLineageEnd(q, h)
	}
	if h.by != l {
		tr.ledger.Owners = append(tr.ledger.Owners, simulation.Owner{At: tr.now(), Partition: q, Node: l.number})
	}
	if h.lineage != lineage {
		h.anew = false
	}
	h.by, h.lineage, h.at = l, lineage, tr.now()
}

// noteQuietOwner notes an owner with a new lineage that has decided no check yet:
// it may lend before its first check, and by then what its predecessor lost is
// no longer counted. The caller must hold mu.
func (tr *simTrial) noteQuietOwner(q int) {
	h := &tr.partitions[q]
	if tr.world == nil || h.by == nil || !h.by.over {
		return
	}
	for v, l := range tr.lives {
		if !l.over && v.alive.Load() && v.node.table.IsOpen(q) && v.node.table.Lineage(q) != h.lineage &&
			v.node.cluster.Authority() {
			tr.noteOwner(q, l, v.node.table.Lineage(q))
			return
		}
	}
}

// noteLineageEnd records that the lineage of a partition has ended. All that
// the owner debited since shortly before its outage, or that of a standby, may
// be lost. The caller must hold mu.
func (tr *simTrial) noteLineageEnd(q int, h *lastDecider) {
	now := tr.now()
	state := h.by.v.state()
	kept := map[ring.NodeID]bool{h.by.v.id: false}
	for _, t := range []*ring.Table{state.From, state.To} {
		if t != nil {
			kept[t.Owner(q)], kept[t.Standby(q)] = false, false
		}
	}
	since := now
	for _, e := range tr.outages {
		if _, concerns := kept[e.node]; concerns && e.until >= h.at-simOwned {
			since, kept[e.node] = min(since, e.from), true
		}
	}
	anew := true
	for _, was := range kept {
		anew = anew && was
	}
	anew = anew || h.anew
	if anew {
		tr.begunAnew++
	}
	for _, i := range tr.hotSubjectsOf[q] {
		loss := simulation.OwnerLoss{At: now, Subject: i, Anew: anew}
		if have := tr.samples[i]; len(have) > 0 {
			n, _ := slices.BinarySearchFunc(have, since-simTail,
				func(x sample, at time.Duration) int { return int(x.at - at) })
			last, known := have[len(have)-1], sample{}
			n = min(n, len(have)-1)
			if n > 0 {
				known = have[n-1]
			}
			loss.Amount = last.MissingUseIn(&known.Use)
		}
		tr.ledger.Losses = append(tr.ledger.Losses, loss)
	}
}

// lacksBackup reports whether only the owner has a partition's counters, and
// for no longer than it takes to evict and replace a standby that takes no
// copies. The caller must hold mu.
func (tr *simTrial) lacksBackup(owner *testNode, q int) bool {
	h := &tr.partitions[q]
	switch {
	case owner.node.keeper.CanConfirm(q):
		h.unbackedSince = 0
		return false
	case h.unbackedSince == 0 || h.by == nil || h.by.v != owner:
		h.unbackedSince = tr.now()
	}
	return tr.now()-h.unbackedSince <= simOwned
}

// sampleUntilDone samples from time to time what the owners of hot subjects have counted.
func (tr *simTrial) sampleUntilDone(ctx context.Context) {
	for ctx.Err() == nil {
		tr.takeSamples()
		if tr.sabotage != nil {
			tr.sabotage(tr)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (tr *simTrial) takeSamples() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	now := tr.now()
	for q, hot := range tr.hotSubjectsOf {
		tr.noteQuietOwner(q)
		l := tr.partitions[q].by
		if l == nil || l.over || tr.lives[l.v] != l {
			continue
		}
		tr.lacksBackup(l.v, q)
		taken := map[counters.Key]counters.Record{}
		_ = l.v.node.table.Copy(q, func(records []counters.Record) error {
			for _, r := range records {
				taken[r.Key] = r
			}
			return nil
		})
		for _, i := range hot {
			key := tr.ledger.Subjects[i].Counter
			if r, known := taken[key]; known {
				x := sample{now, simulation.Use{Counter: r, Lent: taken[key.LentKey()], Borrowed: taken[key.BorrowedKey()]}}
				tr.samples[i] = append(tr.samples[i], x)
				tr.hasSampled = true
				tr.world.noteLent(tr, i, &x.Lent)
			}
		}
	}
	for i, list := range tr.samples {
		if n := len(list); n > 2000 {
			tr.samples[i] = slices.Clone(list[n/2:])
		}
	}
}

// Liveness.

// awaitEmpty waits until why returns an empty string, and records a failure if
// that takes longer than bound.
func (tr *simTrial) awaitEmpty(bound time.Duration, what string, why func() string) bool {
	last := ""
	for began := time.Now(); time.Since(began) < bound; time.Sleep(50 * time.Millisecond) {
		last = why()
		if last == "" {
			return true
		}
	}
	tr.fail("%s: not within %v: %s", what, bound, last)
	return false
}

// awaitOwned waits as long as partitions may be without an owner, and then until
// each has one. Other regions and other goroutines change the rules meanwhile,
// which may cost a node its authority, so the time counts from the last change.
func (tr *simTrial) awaitOwned() {
	last := tr.now()
	regions := tr.state().Regions
	for end := last + simOwned; tr.now() < end; time.Sleep(50 * time.Millisecond) {
		if now := tr.state().Regions; now != regions {
			last = tr.now()
			regions = now
		}
	}

	// some may be frozen for a moment, to be handed over
	tr.awaitEmpty(last+simOwned+time.Second-tr.now(), "every partition has an owner", tr.partitionWithoutOwner)
}

// state returns the newest state that a healthy node has applied.
func (tr *simTrial) state() *agreement.State {
	var newest *agreement.State
	for _, v := range tr.runningNodes() {
		if state := v.state(); newest == nil || state.Index > newest.Index {
			newest = state
		}
	}
	return newest
}

// partitionWithoutOwner names a partition that has no owner with authority.
func (tr *simTrial) partitionWithoutOwner() string {
	if q := firstUnowned(tr.runningNodes()); q >= 0 {
		state := tr.state()
		if state.To == nil {
			return "no ring yet"
		}
		return fmt.Sprintf("partition %d has no owner; in epoch %d it moves from %v to %v; %s", q,
			state.Epoch, state.From.Owner(q), state.To.Owner(q), tr.views(q))
	}
	return ""
}

// views describes how each running node sees the cluster and partition q.
func (tr *simTrial) views(q int) string {
	var views []string
	for _, v := range tr.runningNodes() {
		view := v.node.cluster.View()
		views = append(views, fmt.Sprintf("%s (%v): epoch %d, leader %q, authority %t, open %t, owner by its ring %t, degraded: %v",
			v.name(), v.id, view.Epoch, view.Leader, view.Connected, v.node.table.IsOpen(q), v.id == v.state().To.Owner(q),
			v.node.cluster.DegradedError()))
	}
	return strings.Join(views, "; ")
}

// missingNode returns why not all running nodes are in one settled ring; empty if they are.
func (tr *simTrial) missingNode() string {
	state, list := tr.state(), tr.runningNodes()
	switch {
	case state.To == nil:
		return "no ring yet"
	case !state.Settled:
		return fmt.Sprintf("epoch %d is not settled", state.Epoch)
	}
	in := 0
	for _, v := range list {
		switch {
		case state.To.Rank(v.id) < 0 && state.Processes[v.id].Suspension.RejoinDelay() > simPatience:
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

// outdatedNode names a node that has authority and uses older rules.
func (tr *simTrial) outdatedNode(version int64) string {
	for _, v := range tr.runningNodes() {
		if v.connected() && v.node.limiter.Rules().Version < version {
			return fmt.Sprintf("%s has authority and uses version %d", v.name(), v.node.limiter.Rules().Version)
		}
	}
	return ""
}

// Events during a fault.

// write writes rules at a healthy node.
func (tr *simTrial) write() {
	if tr.world != nil {
		tr.world.changeRules()
		return
	}
	tr.version++
	version := int64(0)
	list := tr.healthyNodes()
	if !tr.awaitEmpty(simInForce, "rules are written", func() string {
		v := list[tr.rnd.IntN(len(list))]
		ctx, cancel := context.WithTimeout(context.Background(), simInForce)
		defer cancel()
		var err error
		if version, err = v.admin().Write(ctx, document.Change{Body: tr.text(tr.version + 1)},
			cluster.WriteOptions{By: v.name()}); err != nil {
			return fmt.Sprintf("at %s: %v", v.name(), err)
		}
		return ""
	}) {
		return
	}
	tr.awaitEmpty(simInForce, "rules that were written are in force", func() string { return tr.outdatedNode(version) })
}

// join makes one more node join.
func (tr *simTrial) join() {
	v := tr.startNewNode()
	tr.awaitEmpty(simDone, "a node joins", func() string {
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
func (tr *simTrial) leave(v *testNode) {
	ctx, cancel := context.WithTimeout(context.Background(), simDone)
	defer cancel()
	if _, err := v.admin().Leave(ctx, false, "ann"); err != nil {
		tr.fail("%s leaves: not within %v: %v", v.name(), simDone, err)
	}
	tr.stop(v)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.gone[v] = true
}

// restart stops a node gracefully, and starts it again.
func (tr *simTrial) restart(v *testNode, after time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), simDone)
	defer cancel()
	tr.mu.Lock()
	tr.down[v] = true
	tr.mu.Unlock()
	if err := v.node.leave(ctx, false, ""); err != nil {
		tr.fail("%s leaves the ring: not within %v: %v", v.name(), simDone, err)
		tr.kill(v)
	} else {
		tr.stop(v)
	}
	time.Sleep(after)
	tr.startAgain(v)
	tr.awaitEmpty(simDone, "a node that was restarted is ready", func() string {
		if !v.ready.Load() {
			return v.name() + " is not ready"
		}
		return ""
	})
}

// stop ends the process of a node that no longer owns anything.
func (tr *simTrial) stop(v *testNode) {
	v.ready.Store(false)
	time.Sleep(api.DrainGrace)
	tr.mu.Lock()
	tr.lives[v].over = true
	tr.mu.Unlock()
	v.endProcess(false)
}

// runEvent performs an ordinary operation or a second fault while one lasts.
func (tr *simTrial) runEvent(kind string) {
	tr.happened[kind]++
	list := tr.healthyNodes()
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
		tr.sleepRandom(100*time.Millisecond, time.Second)
		tr.startAgain(v)
	}
}

// ownerOfHot returns the owner of a random hot subject.
func (tr *simTrial) ownerOfHot() *testNode {
	q := tr.ledger.Subjects[tr.rnd.IntN(tr.hot)].Partition
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if l := tr.partitions[q].by; l != nil {
		return l.v
	}
	return tr.members[0]
}

// episode starts a fault, lets another event happen while it lasts, and checks liveness.
func (tr *simTrial) episode() {
	from := tr.now()
	name, undo := tr.startFault()
	tr.happened[name]++
	tr.doing = name
	if tr.rnd.IntN(4) == 0 {
		tr.sleepRandom(100*time.Millisecond, 4*time.Second)
	} else {
		if tr.rnd.IntN(2) == 0 {
			tr.awaitOwned()
		}
		tr.sleepRandom(0, 3*time.Second)
		kind := []string{"write", "join", "leave", "restart", "kill", "quick crash"}[tr.rnd.IntN(6)]
		if kind == "leave" && len(tr.runningNodes()) < tr.nodes {
			kind = "join"
		}
		if kind == "join" && len(tr.runningNodes()) > tr.nodes+1 {
			kind = "leave"
		}
		if kind == "kill" && len(tr.runningNodes()) < simFounders {
			// Of four voters, two have no majority. One has the fault already.
			kind = "quick crash"
		}
		tr.doing += ", and " + kind
		tr.runEvent(kind)
		tr.awaitOwned()
	}
	undo()
	for v := range maps.Clone(tr.down) {
		tr.startAgain(v)
	}
	tr.doing += ", and after the faults"
	tr.awaitEmpty(simWhole, "the cluster is whole", tr.missingNode)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.ledger.Troubles = append(tr.ledger.Troubles, simulation.Trouble{From: from, Until: tr.now()})
}

// startFault starts a fault. It returns its name and how to end it.
func (tr *simTrial) startFault() (name string, undo func()) {
	list := tr.runningNodes()
	x, y := list[tr.rnd.IntN(len(list))], list[tr.rnd.IntN(len(list))]
	if o := tr.ownerOfHot(); tr.rnd.IntN(2) == 0 && slices.Contains(list, o) {
		x = o
		state := tr.state()
		q := tr.ledger.Subjects[tr.rnd.IntN(tr.hot)].Partition
		if i := slices.IndexFunc(list,
			func(v *testNode) bool { return v.id == state.From.Standby(q) }); i >= 0 && tr.rnd.IntN(2) == 0 {
			y = list[i]
		}
	}
	leader := slices.IndexFunc(list, func(v *testNode) bool { return v.node.cluster.Leader() == v.id })
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
		return []string{"link", "link in", "link out"}[way], tr.markAffected(nil, nil, x, y)
	case dice < 7 || tr.isolates.Load():
		tr.apply = func(ip string) { net.Cut(x.ip, ip) }
		others(tr.apply)
		return "isolated", tr.markAffected([]*testNode{x}, []*testNode{x})
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
		return "split", tr.markAffected(side, side)
	case dice < 9:
		if tr.rnd.IntN(2) == 0 {
			tr.apply = func(ip string) { net.CutOneWay(ip, x.ip) }
			others(tr.apply)
			return "deaf", tr.markAffected(nil, []*testNode{x})
		}
		tr.apply = func(ip string) { net.CutOneWay(x.ip, ip) }
		others(tr.apply)
		return "dumb", tr.markAffected(nil, []*testNode{x})
	case dice < 10:
		d := time.Duration(5+tr.rnd.IntN(60)) * time.Millisecond
		tr.apply = func(ip string) { net.DelayBetween(x.ip, ip, d) }
		others(tr.apply)
		undo := tr.markAffected(nil, nil, x)
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
		undo := tr.markAffected(nil, nil, x)
		return name, func() {
			x.memory.mend()
			undo()
		}
	}
}

// markAffected records the nodes that a fault affects. Those in cut reach no
// node with authority. For those in lost, neither the copies they hold nor the
// copies of their partitions are kept up to date. touched are others it
// affects.
func (tr *simTrial) markAffected(cut, lost []*testNode, touched ...*testNode) (undo func()) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	from := tr.now()
	touched = append(touched, lost...)
	for _, v := range touched {
		tr.bad[v] = true
	}
	for _, v := range lost {
		tr.outages = append(tr.outages, outage{v.id, from, simForever})
	}
	return func() {
		tr.heal()
		tr.apply = nil
		tr.mu.Lock()
		defer tr.mu.Unlock()
		for _, v := range touched {
			delete(tr.bad, v)
			tr.endIllness(v)
		}
		for _, v := range cut {
			tr.ledger.Cuts = append(tr.ledger.Cuts,
				simulation.Cut{Node: tr.lives[v].number, From: from, Until: tr.now()})
		}
	}
}

// heal ends all cuts between nodes of this region.
func (tr *simTrial) heal() {
	for i, v := range tr.p.nodes {
		for _, other := range tr.p.nodes[:i] {
			tr.p.net.Heal(v.ip, other.ip)
		}
	}
}

// minority returns a random set of nodes whose absence leaves enough voters,
// even if one more is away.
func (tr *simTrial) minority(list []*testNode) (side []*testNode) {
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
