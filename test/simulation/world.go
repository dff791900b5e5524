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

// World is one region's cluster.
type World struct {
	config     Config
	globe      *globe
	region     int    // index of the region
	name       string // of the region
	start      time.Time
	clock      *limiter.Clock
	group      sync.WaitGroup // limiters that are closing
	workers    *workerPool    // run the checks
	schedule   *schedule
	ledger     *Ledger
	hot        []int   // subjects that come under load
	subjectsIn [][]int // by partition: its subjects

	mu           sync.Mutex // guards the fields below; lock it before those of tables
	stopped      bool
	net          network
	nodes        []*node
	pending      map[*call]struct{}
	agreed       *agreed
	holders      [ring.Partitions]holder
	unacked      [ring.Partitions]map[int]int64 // by subject: debits that followers lacked when the last holder stopped
	subjectByKey map[counters.Key]int           // indexes of subjects
	leader       leadership
	plan         *rand.Rand // draws faults and their times
	control      *rand.Rand // draws the control plane's delays
	settling     bool
	leaderless   int // index of the trouble that there is no leader; −1 with a leader

	processes []*process // stopped ones
	regional
}

// node is a machine: the part that outlives its processes.
type node struct {
	index          int
	id             ring.NodeID
	process        *process        // the latest
	fallback       *counters.Table // survives restarts, as if on disk
	boots          int
	contact        bool          // it reaches the leader
	contactChanges int           // counts changes of contact, to cancel what began before one
	cutAt          time.Duration // without contact: since when
	healedAt       time.Duration // without contact: when the network recovered; 0 if it has not
	authorityUntil time.Duration // without contact: end of its authority
	unanswered     bool          // the leader no longer answers it, because it is about to end it
	leaving        bool          // it has left the ring, or is about to
	stuck          bool          // the leader does not hear it, although all other nodes do
	wasStuck       bool          // it was stuck since its last contact
	nodeDisk
}

// process is one process of a node.
type process struct {
	*node
	w               *World
	boot            int
	alive           bool
	hasInitialRules atomic.Bool // it has loaded the rules on its disk
	ready           bool        // it has had contact with the leader
	limiter         *limiter.Limiter
	appliedRules
	table  *counters.Table
	shares *counters.Table
	tokens
}

// idIn returns the ID of a simulated node.
func idIn(region, index int) (id ring.NodeID) {
	binary.BigEndian.PutUint16(id[:], uint16(index+1))
	binary.BigEndian.PutUint16(id[2:], uint16(region))
	return id
}

// indexOf returns the index of a node in its region, or −1 for the zero ID.
func indexOf(id ring.NodeID) int { return int(binary.BigEndian.Uint16(id[:])) - 1 }

// Run simulates regions and returns what happened. Call it in a bubble of testing/synctest; Run returns at the end of the
// simulation.
func Run(config Config) (*Ledger, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return runGlobe(config)
}

// callDrain is the time after the last call in which all timers of calls have expired.
const callDrain = 10 * time.Second

func newWorld(config Config, start time.Time, clock *limiter.Clock) *World {
	return &World{
		config: config, start: start, clock: clock, net: newNetwork(config.Seed, config.Nodes),
		pending: map[*call]struct{}{}, subjectByKey: map[counters.Key]int{}, leaderless: -1, subjectsIn: make([][]int, ring.Partitions),
		plan:    rand.New(rand.NewPCG(config.Seed, 3)),
		control: rand.New(rand.NewPCG(config.Seed, 4)),
		ledger:  &Ledger{Config: config, Start: start},
	}
}

// now returns the time since the run began.
func (w *World) now() time.Duration { return time.Since(w.start) }

// since returns a clock reading as the time since the run began, on the region's clock.
func (w *World) since(now algorithms.Instant) time.Duration {
	return time.Duration(now.Wall - w.ledger.Start.UnixNano())
}

// after runs f after d, under the mutex, unless the run has ended. The caller holds the mutex.
func (w *World) after(d time.Duration, f func()) {
	w.schedule.at(w.now()+d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.stopped {
			f()
		}
	})
}

// build builds a cluster in a settled state.
func (w *World) build() (err error) {
	table, err := newRing(w.region, w.config.Nodes, -1)
	if err != nil {
		return err
	}

	w.agreed = newAgreed(table, w.region, w.config.Nodes)
	w.leader = leadership{index: 0, term: 1}

	for i := range w.config.Nodes {
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
		standby.copies[p] = replica{source: owner.index + 1, boot: owner.boot, whole: true, lineage: owner.lineages[p].Load()}
		owner.progress[followerKey{p, standby.index}] = &progress{boot: standby.boot, copySent: true, copyAcked: true}
	}

	return nil
}

// process returns the latest process of a node.
func (w *World) process(id ring.NodeID) *process { return w.nodes[indexOf(id)].process }

// boot starts a process of n.
func (w *World) boot(n *node) (err error) {
	n.boots++
	p := &process{node: n, w: w, boot: n.boots, alive: true, table: counters.New(20_000), shares: counters.New(1000)}
	p.table.ShutAll()
	p.tokens.init()
	c := limiter.ClusterConfig{
		Self: n.id, Boot: uint64(n.index)<<32 | uint64(p.boot), Ownership: p, Peers: p, Authority: p.authority, Await: p.await, Ring: p.ring, Fallback: n.fallback,
		Boottime: func() time.Duration { return w.now() + time.Second }, OtherRegions: farSide{p}, Backup: p,
	}
	if p.limiter, err = limiter.NewInCluster(p.table, w.clock, c); err != nil {
		return fmt.Errorf("start a limiter: %w", err)
	}
	if err := p.loadRules(); err != nil {
		return err
	}

	p.hasInitialRules.Store(true)
	n.process = p
	return nil
}

// closeLimiter ends a process's pending work. The caller must not hold the mutex. The counters stay, because countUnacked
// needs them later.
func (p *process) closeLimiter() {
	p.w.group.Go(func() { _ = p.limiter.Close() })
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.w.processes = append(p.w.processes, p)
}

// halt stops the world and waits for pending work.
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

// ring implements limiter.ClusterConfig.Ring.
func (p *process) ring() *ring.Table {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.view == nil {
		return nil
	}
	return p.view.to
}

// await implements limiter.ClusterConfig.Await.
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
