package simulation

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

// World is the cluster of a region, in this process.
type World struct {
	cfg        Config
	globe      *globe
	region     int    // its place among regions
	name       string // of the region
	start      time.Time
	clock      *limiter.Clock
	group      sync.WaitGroup // goroutines of the load, and the ends of processes
	workers    *workerPool    // for checks
	schedule   *schedule
	ledger     *Ledger
	hot        []int   // subjects whose limits are to be reached
	subjectsIn [][]int // by partition: the subjects in it

	mu           sync.Mutex // guards what follows; where several are held it comes before those of tables
	stopped      bool
	net          network
	nodes        []*node
	pending      map[*call]struct{}
	agreed       *agreed
	holders      [ring.Partitions]holder
	unacked      [ring.Partitions]map[int]int64 // by subject: debits of the last holder, when it stopped, that followers lacked
	subjectByKey map[counters.Key]int           // subjects
	leader       leadership
	plan         *rand.Rand // what goes wrong, and when
	control      *rand.Rand // how long the control plane takes
	load         *rand.Rand // what is asked, where and when
	settling     bool
	leaderless   int // the trouble that nobody leads; −1: somebody does

	processes []*process // that are over
	regional             // its part among the regions
}

// node is a machine: what outlives its processes.
type node struct {
	index          int
	id             ring.NodeID
	process        *process        // the last one
	fallback       *counters.Table // kept on disk
	boots          int
	contact        bool          // the leader hears it
	contactChanges int           // counts changes of contact, so that what was begun before one is not gone on with
	cutAt          time.Duration // without contact: since when
	healedAt       time.Duration // without contact: when the network was well again; 0: it isn't
	authorityUntil time.Duration // without contact: authority lasts until then
	unanswered     bool          // the leader answers it no more, since it is about to end it
	leaving        bool          // out of the ring, or about to be
	stuck          bool          // the leader does not hear it, though all others do
	wasStuck       bool          // it was so since it had contact last
	nodeDisk                     // of rules, on disk
}

// process is one life of a node.
type process struct {
	*node
	w               *World
	boot            int
	alive           bool
	hasInitialRules atomic.Bool // it has the rules that it begins with
	ready           bool        // it has heard the leader once
	limiter         *limiter.Limiter
	appliedRules    // by which rules it goes
	table           *counters.Table
	shares          *counters.Table
	tokens
}

// idIn is the ID of a simulated node of a region.
func idIn(region, index int) (id ring.NodeID) {
	binary.BigEndian.PutUint16(id[:], uint16(index+1))
	binary.BigEndian.PutUint16(id[2:], uint16(region))
	return id
}

// indexOf is the place of a node in its region, −1 for the zero ID.
func indexOf(id ring.NodeID) int { return int(binary.BigEndian.Uint16(id[:])) - 1 }

// Run simulates regions and returns what happened. It must be called on virtual time: in a bubble of testing/synctest,
// which then lasts until the run is over.
func Run(cfg Config) (*Ledger, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return runGlobe(cfg)
}

// callDrain is after how long without a new one there is no timer of a call any more.
const callDrain = 10 * time.Second

func newWorld(cfg Config, start time.Time, clock *limiter.Clock) *World {
	return &World{
		cfg: cfg, start: start, clock: clock, net: newNetwork(cfg.Seed, cfg.Nodes),
		pending: map[*call]struct{}{}, subjectByKey: map[counters.Key]int{}, leaderless: -1, subjectsIn: make([][]int, ring.Partitions),
		plan:    rand.New(rand.NewPCG(cfg.Seed, 3)),
		control: rand.New(rand.NewPCG(cfg.Seed, 4)),
		load:    rand.New(rand.NewPCG(cfg.Seed, 5)),
		ledger:  &Ledger{Config: cfg, Start: start},
	}
}

// now is the time since the run began.
func (w *World) now() time.Duration { return time.Since(w.start) }

// since is the time of a reading of the clock that all nodes of a cluster share.
func (w *World) since(now algorithms.Now) time.Duration {
	return time.Duration(now.Wall - w.ledger.Start.UnixNano())
}

// after runs f later, under the mutex, unless the run is over. It is called under the mutex.
func (w *World) after(d time.Duration, f func()) {
	w.schedule.at(w.now()+d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.stopped {
			f()
		}
	})
}

// build makes the cluster as it is when all has been well for long.
func (w *World) build() (err error) {
	table, err := newRing(w.region, w.cfg.Nodes, -1)
	if err != nil {
		return err
	}
	w.agreed = newAgreed(table, w.region, w.cfg.Nodes)
	w.leader = leadership{index: 0, term: 1}
	for i := range w.cfg.Nodes {
		n := &node{index: i, id: idIn(w.region, i), fallback: localcache.NewFallbackTable(8000), contact: true}
		w.nodes = append(w.nodes, n)
		if err := w.boot(n); err != nil {
			return err
		}
		n.process.view, n.process.ready = w.agreed, true
	}
	w.globe.addSubjects(w)
	for p := range ring.Partitions {
		owner, standby := w.process(table.Owner(p)), w.process(table.Standby(p))
		owner.holdToken(p, w.newLineage())
		standby.copies[p] = replica{source: owner.index + 1, boot: owner.boot, whole: true, lineage: owner.lineages[p]}
		owner.progress[followerKey{p, standby.index}] = &progress{boot: standby.boot, copySent: true, copyAcked: true}
	}
	return nil
}

// process is the last process of a node.
func (w *World) process(id ring.NodeID) *process { return w.nodes[indexOf(id)].process }

// boot starts a process of n.
func (w *World) boot(n *node) (err error) {
	n.boots++
	p := &process{node: n, w: w, boot: n.boots, alive: true, table: counters.New(20_000), shares: counters.New(1000)}
	p.table.ShutAll()
	p.tokens.init()
	c := limiter.ClusterConfig{
		Self: n.id, Ownership: p, Peers: p, Authority: p.authority, Await: p.await, Ring: p.ring, Fallback: n.fallback,
		Boottime: func() time.Duration { return w.now() + time.Second }, Far: farSide{p}, Backup: p,
	}
	if p.limiter, err = limiter.Join(p.table, w.clock, c); err != nil {
		return fmt.Errorf("join a node: %w", err)
	}
	if err := p.loadRules(); err != nil {
		return err
	}
	p.hasInitialRules.Store(true)
	n.process = p
	return nil
}

// closeLimiter ends what a process has under way, outside of the mutex. Its counters stay: what its standby lacks is counted
// later.
func (p *process) closeLimiter() {
	p.w.group.Go(func() { _ = p.limiter.Close() })
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.w.processes = append(p.w.processes, p)
}

// halt ends what happens and waits for all that is under way.
func (w *World) halt() {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	for _, n := range w.nodes {
		n.process.closeLimiter()
	}
	w.group.Wait()
}

// free frees the memory.
func (w *World) free() {
	_ = w.clock.Close()
	for _, p := range w.processes {
		p.table.Close()
		p.shares.Close()
	}
	for _, n := range w.nodes {
		n.fallback.Close()
	}
}

// ring is for limiter.ClusterConfig.
func (p *process) ring() *ring.Table {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.view == nil {
		return nil
	}
	return p.view.to
}

// await is for limiter.ClusterConfig.
func (p *process) await(ctx context.Context, revision, rulesVersion int64) bool {
	for {
		p.w.mu.Lock()
		knows, changed := p.view != nil && p.view.revision >= revision && p.hasRules(rulesVersion), p.changed
		p.w.mu.Unlock()
		if knows {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
