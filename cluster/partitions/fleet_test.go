package partitions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/memnet"
	"github.com/rlnode/rlnode/ring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const port = 7947

// fleet is a set of keepers and the log of entries that they apply.
type fleet struct {
	t     *testing.T
	net   *memnet.Net
	nodes []*node
	save  func(context.Context) error // Config.Save of the nodes added from now on; nil: they have no disk

	mu    sync.Mutex // guards the fields below
	state *agreement.State
	index uint64
}

// node is a process with a keeper.
type node struct {
	fleet     *fleet
	id        ring.NodeID
	ip        string
	boot      uint64
	boots     uint64
	table     atomic.Pointer[counters.Table]
	peers     *peer.Peers
	keeper    atomic.Pointer[Keeper] // that of the last start
	authority atomic.Bool
	alive     atomic.Bool
	watch     atomic.Pointer[func()] // called whenever the keeper reads the clock; nil: nothing is
	muted     atomic.Bool            // it can be reached but answers no calls
	lag       atomic.Int64           // nanoseconds by which it adopts states late; it skips all but the newest
	states    chan *agreement.State
	stop      chan struct{}
	done      sync.WaitGroup
}

// now is the clock of n's keeper.
func (n *node) now() algorithms.Instant {
	if watch := n.watch.Load(); watch != nil {
		(*watch)()
	}
	return now()
}

func newFleet(t *testing.T) *fleet {
	f := &fleet{t: t, net: memnet.New(), state: agreement.New()}
	t.Cleanup(func() {
		for _, n := range f.all() {
			n.close()
		}
	})
	return f
}

func newTable() *counters.Table { return counters.New(100_000) }

func idOf(i int) ring.NodeID { return ring.NodeID{byte(i + 1), 0xaa} }

func now() algorithms.Instant { return algorithms.At(time.Now()) }

// all lists the nodes.
func (f *fleet) all() []*node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.nodes)
}

// add starts a node that no other node knows yet.
func (f *fleet) add() *node {
	i := len(f.nodes)
	n := &node{fleet: f, id: idOf(i), ip: fmt.Sprintf("10.0.0.%d", i+1), boots: 1}
	n.table.Store(newTable())
	f.mu.Lock()
	f.nodes = append(f.nodes, n)
	f.mu.Unlock()
	n.start(1)
	return n
}

// start starts the node's process, with the counters in its table.
func (n *node) start(boot uint64) {
	f := n.fleet
	n.boot = uint64(n.id[0])<<32 | boot
	host := f.net.Host(n.ip)
	n.states, n.stop = make(chan *agreement.State, 1000), make(chan struct{})
	var err error
	self := peer.Identity{Node: n.id, Boot: n.boot, Name: n.ip}
	n.peers, err = peer.New(peer.Config{
		Self:   func() peer.Identity { return self },
		Listen: func() (net.Listener, error) { return host.Listen(port) },
		Dial:   host.Dial,
		Logger: slog.New(slog.DiscardHandler),
	})
	expect.NoError(f.t, err)
	handle := func(c *peer.Call) {
		if n.muted.Load() {
			c.CopyBody()
		} else {
			n.keeper.Load().enqueue(c)
		}
	}
	for m := MethodPush; m <= MethodDebts; m++ {
		n.peers.Handle(m, peer.Near, handle)
	}
	known := map[ring.NodeID]string{}
	for i := range 10 {
		if idOf(i) != n.id {
			known[idOf(i)] = fmt.Sprintf("10.0.0.%d:%d", i+1, port)
		}
	}
	config := DefaultConfig()
	config.Self, config.Boot, config.Table, config.Now, config.Calls = n.id, n.boot, n.table.Load(), n.now, n.peers
	config.Save = f.save
	config.Authority, config.Logger = n.authority.Load, slog.New(slog.DiscardHandler)
	keeper, err := Open(config)
	expect.NoError(f.t, err)
	n.keeper.Store(keeper)
	n.peers.Start()
	n.peers.SetNodes(known)
	n.alive.Store(true)
	n.done.Go(n.listen)
	f.mu.Lock()
	n.states <- f.state
	f.mu.Unlock()
}

// listen adopts states a little late; the delays of the nodes differ.
func (n *node) listen() {
	for {
		select {
		case s := <-n.states:
			time.Sleep(time.Duration(n.id[0]) * time.Millisecond)
			n.keeper.Load().Adopt(n.newestAfterLag(s))
		case <-n.stop:
			return
		}
	}
}

// newestAfterLag returns the state to adopt after s has arrived: s or, after a
// lag, the newest one that has arrived by then.
func (n *node) newestAfterLag(s *agreement.State) *agreement.State {
	lag := time.Duration(n.lag.Load())
	if lag == 0 {
		return s
	}
	select {
	case <-time.After(lag):
	case <-n.stop:
	}
	for {
		select {
		case s = <-n.states:
		default:
			return s
		}
	}
}

// kill stops the process, which loses its memory.
func (n *node) kill() {
	n.authority.Store(false)
	n.alive.Store(false)
	n.fleet.net.Crash(n.ip)
	n.close()
}

func (n *node) close() {
	if n.stop == nil {
		return
	}
	close(n.stop)
	n.done.Wait()
	_ = n.peers.Close()
	_ = n.keeper.Load().Close()
	n.stop = nil
}

// agree appends an entry to the log.
func (f *fleet) agree(e agreement.Entry) {
	f.t.Helper()
	b, err := agreement.ThisBuild.Encode(e)
	expect.NoError(f.t, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index++
	next, result := f.state.Apply(f.index, b)
	if result.Err != nil {
		f.t.Fatalf("%T: %v", e, result.Err)
	}
	f.state = next
	for _, n := range f.nodes {
		if n.alive.Load() {
			n.states <- next
		}
	}
}

// bring registers nodes and grants them authority.
func (f *fleet) bring(nodes ...*node) {
	for _, n := range nodes {
		f.agree(agreement.RegisterProcess{Node: n.id, Boot: n.boot})
		n.authority.Store(true)
	}
}

// ring begins a move to the ring of nodes, and does not wait for its end.
func (f *fleet) ring(nodes ...*node) {
	var members []agreement.Member
	for _, n := range nodes {
		members = append(members, agreement.Member{ID: n.id, Name: n.ip, Address: n.ip})
	}
	f.agree(agreement.Ring{Epoch: f.state.Epoch + 1, Members: members, Settings: ring.DefaultSettings()})
}

// settle waits until all live nodes have settled the epoch, and then agrees on that.
func (f *fleet) settle() {
	f.t.Helper()
	f.waitSettled()
	if !f.state.Settled {
		f.agree(agreement.SettleMove{Epoch: f.state.Epoch})
	}
}

func (f *fleet) waitSettled() {
	f.t.Helper()
	f.eventually("the epoch is settled", func() bool {
		for _, n := range f.all() {
			if n.alive.Load() && f.state.To.Rank(n.id)+f.state.From.Rank(n.id) > -2 &&
				(n.keeper.Load().AdoptedRevision() < f.state.Revision ||
					n.keeper.Load().SettledEpoch() < f.state.Epoch) {
				return false
			}
		}
		return true
	})
}

func (f *fleet) eventually(what string, ok func() bool) {
	f.t.Helper()
	for range 30_000 {
		if ok() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	f.t.Fatalf("%s: not within 30 s", what)
}

// end ends a node, as a leader would, once its authority has run out.
func (f *fleet) end(n *node) {
	n.authority.Store(false)
	f.agree(agreement.EndNode{Node: n.id, Generation: f.state.Generation(n.id)})
}

// watchInterval is how often to check all partitions of all nodes for two owners.
func watchInterval() time.Duration {
	if testing.Short() {
		return 10 * time.Millisecond
	}
	return time.Millisecond
}

// living is a node that may decide, and its current table.
type living struct {
	*node
	gates *counters.Table
}

// announced is what a node's gates depend on: its process, its last
// announcement of a change, and its authority.
type announced struct {
	keeper    *Keeper
	changed   chan struct{}
	authority bool
}

// watch checks repeatedly, until stop is closed, that no partition has two
// owners. Most of the time no gate has changed since the last check; then it
// only looks from time to time.
func (f *fleet) watch(stop chan struct{}, done *sync.WaitGroup) {
	done.Go(func() {
		var last []announced
		for round := 0; ; round++ {
			select {
			case <-stop:
				f.checkPhases()
				return
			case <-time.After(watchInterval()):
			}
			if round%100 == 0 {
				f.checkPhases()
			}
			var nodes []living
			var now []announced
			f.mu.Lock()
			for _, n := range f.nodes {
				if n.alive.Load() && n.authority.Load() {
					nodes = append(nodes, living{n, n.table.Load()})
					now = append(now, n.announced())
				}
			}
			f.mu.Unlock()
			if slices.Equal(now, last) && round%10 != 0 {
				continue
			}
			last = now
			if !f.checkOwners(nodes) {
				return
			}
		}
	})
}

// checkPhases fails if what a keeper derives from the phases of its partitions disagrees with them.
func (f *fleet) checkPhases() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes {
		if err := n.keeper.Load().phasesDisagree(); err != nil {
			f.t.Errorf("%s: %v", n.ip, err)
		}
	}
}

func (k *Keeper) phasesDisagree() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var inPhase [recovering + 1]int
	var pushing partitionSet
	var buf [3]ring.NodeID
	state := k.adopted.Load()
	for p := range ring.Partitions {
		ph := k.parts[p].phase
		inPhase[ph]++
		pushing.put(p, ph.pushesChanges())
		if told := phase(k.phases[p].Load()); told != ph {
			return fmt.Errorf("partition %d is in phase %d, but readers are told %d", p, ph, told)
		}
		if k.targets.mayLackCopies || !ph.pushesChanges() || !state.registered || state.From == nil || !k.hadOthers {
			continue
		}
		for _, node := range state.copyTargetsOf(k.config.Self, p, buf[:0]) {
			if k.targets.progressOf(p, node) == nil {
				return fmt.Errorf("%v has no copy of partition %d, but no copy counts as missing", node, p)
			}
		}
	}
	if inPhase != k.inPhase || pushing != k.pushing {
		return fmt.Errorf("have %v partitions by phase, want %v; the same push changes: %t",
			k.inPhase, inPhase, pushing == k.pushing)
	}
	return nil
}

func (n *node) announced() announced {
	k := n.keeper.Load()
	k.mu.Lock()
	defer k.mu.Unlock()
	return announced{k, k.changed, n.authority.Load()}
}

// checkOwners fails and returns false if a partition has two owners.
func (f *fleet) checkOwners(nodes []living) bool {
	owns := func(n living, p int) bool { return n.alive.Load() && n.authority.Load() && n.gates.IsOpen(p) }
	for p := range ring.Partitions {
		var first living
		for _, n := range nodes {
			switch {
			case !n.gates.IsOpen(p):
			case first.node != nil && owns(n, p) && owns(first, p): // asks both again: the token may just have moved
				f.t.Errorf("partition %d has two owners, %s and %s", p, first.ip, n.ip)
				return false
			default:
				first = n
			}
		}
	}
	return true
}

var errUndecided = errors.New("nobody decides")

var limit = algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1000, Window: 24 * time.Hour}

func keyOf(i int) counters.Key {
	return counters.Key{Subject: uint64(i) * 0x9e3779b97f4a7c15, Counter: uint64(i)}
}

// take routes a check of key from node at, as a limiter would, and takes its cost at the owner.
func (f *fleet) take(at *node, key counters.Key) (by *node, allowed bool, err error) {
	p := ring.PartitionOf(key.Subject)
	for range 2000 {
		n := at
		for range 4 {
			r := n.keeper.Load().Route(p)
			if r.Location == Here {
				ops := []counters.Op{{Key: key, Limit: &limit, Cost: 1}}
				if v := n.table.Load().Take(now(), ops); v != counters.Undecided && n.authority.Load() {
					return n, v == counters.Admitted, nil
				}
				break
			}
			next := f.byID(r.Owner)
			if r.Location == Pending || next == nil || !next.alive.Load() || next == n {
				break
			}
			n = next
		}
		time.Sleep(time.Millisecond)
	}
	return nil, false, errUndecided
}

func (f *fleet) byID(id ring.NodeID) *node {
	for _, n := range f.all() {
		if n.id == id {
			return n
		}
	}
	return nil
}

// used returns the count of key at its owner.
func (f *fleet) used(key counters.Key) int64 {
	p := ring.PartitionOf(key.Subject)
	for _, n := range f.all() {
		if n.alive.Load() && n.table.Load().IsOpen(p) && n.authority.Load() {
			used, _ := n.table.Load().Usage(now(), key, &limit)
			return used
		}
	}
	return -1
}

// load takes from keys at all nodes until it is stopped, and counts the admitted checks.
type load struct {
	admitted []atomic.Int64
	lost     []atomic.Int64 // admissions that may be forgotten
	mu       sync.Mutex     // guards the fields below
	recent   []admission    // the latest
	victim   *node          // about to be killed

	victimSince time.Time
	failed      atomic.Int64
	done        sync.WaitGroup
	cancel      context.CancelFunc
}

// admission is a check that was admitted.
type admission struct {
	key int
	by  *node
	at  time.Time
}

// note keeps recent admissions.
func (l *load) note(a admission) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recent = append(l.recent, a)
	if len(l.recent) > 20_000 {
		l.recent = append(l.recent[:0], l.recent[10_000:]...)
	}
	if l.victim == a.by && l.victimSince.Equal(a.at) {
		l.lost[a.key].Add(1)
	}
}

func (f *fleet) load(keys int, at func() []*node) *load {
	l := &load{admitted: make([]atomic.Int64, keys), lost: make([]atomic.Int64, keys)}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	for w := range 4 {
		l.done.Go(func() {
			for i := w; ctx.Err() == nil; i += 7 {
				from := at()
				by, allowed, err := f.take(from[i%len(from)], keyOf(i%keys))
				switch {
				case err != nil:
					l.failed.Add(1)
				case allowed:
					l.admitted[i%keys].Add(1)
					l.note(admission{key: i % keys, by: by, at: time.Now()})
				}
				time.Sleep(time.Duration(400+i%200) * time.Microsecond)
			}
		})
	}
	return l
}

func (l *load) stop() {
	l.cancel()
	l.done.Wait()
}

// leave moves to the ring without n.
func (f *fleet) leave(n *node) {
	f.agree(agreement.Leave{Epoch: f.state.Epoch + 1, Node: n.id})
}
