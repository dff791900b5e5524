package limiter

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

var (
	_ Ownership = (*partitions.Keeper)(nil)
	_ Confirmer = (*partitions.Keeper)(nil)
	_ Peers     = (*peer.Peers)(nil)
)

// testCluster is a cluster of limiters in one process, with real tables, a ring
// that the test changes, and in-memory calls.
type testCluster struct {
	t     testing.TB
	nodes []*testNode
	table *ring.Table
	calls sync.WaitGroup
	far   OtherRegions         // nil if there are no other regions
	ahead func() time.Duration // how far a node's wall clock is ahead of the system's; nil: not at all
	bound int64                // of the counters of each node; 0: 100,000
	room  int64                // of each node for reservations, and for slots, in bytes; 0: the defaults

	freezing time.Duration // how long a partition that is handed over has no owner

	mu     sync.Mutex // guards the fields up to pause
	place  [ring.Partitions]testPlace
	moved  chan struct{}
	cut    map[[2]ring.NodeID]bool
	slow   map[ring.NodeID]time.Duration
	owed   map[counters.Key]int64                                 // debts to the owner of the counter
	detail func(from, to ring.NodeID, m peer.Method, body []byte) // called for each message; may be nil
	pause  func() time.Duration                                   // delay of each message, one way; nil: none
}

type testPlace struct {
	owner, other, standby ring.NodeID
	frozen                bool
	lineage               uint64
}

type testNode struct {
	*Limiter
	w         *testCluster
	id        ring.NodeID
	authority atomic.Bool
	// generation is the one for which the node has authority.
	generation atomic.Int64
	copies     *counters.Table // copies that it acts from as a standby
	// partition → ring.NodeID that this node takes for the owner
	wrong   sync.Map
	confirm atomic.Pointer[func(context.Context, int) error] // nil: everything is confirmed
	asked   atomic.Pointer[func()]                           // called after each reading of the authority; may be nil
	unsure  atomic.Pointer[func(ring.NodeID) bool]           // PathUnsure; nil: never
	looks   atomic.Pointer[func()]                           // called at each reading of the lease clock; may be nil
	routes  atomic.Int64                                     // calls of Route
}

func newTestCluster(t testing.TB, n int, text string) *testCluster {
	t.Helper()
	return newRegion(t, n, text, nil)
}

// newRegion is newTestCluster for one of several regions, which reaches the others through far.
func newRegion(t testing.TB, n int, text string, far OtherRegions) *testCluster {
	t.Helper()
	return (&testCluster{t: t, far: far}).start(n, text)
}

// start opens n nodes with these rules.
func (w *testCluster) start(n int, text string) *testCluster {
	t := w.t
	t.Helper()
	w.moved = make(chan struct{})
	w.cut = map[[2]ring.NodeID]bool{}
	w.slow = map[ring.NodeID]time.Duration{}
	w.owed = map[counters.Key]int64{}
	var ids []ring.NodeID
	for i := range n {
		ids = append(ids, ring.NodeID{byte(i + 1)})
	}
	var err error
	if w.table, err = ring.New(ids, ring.DefaultSettings()); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		w.nodes = append(w.nodes, w.open(id, text))
	}
	for p := range w.place {
		w.place[p] = testPlace{owner: w.table.Owner(p), standby: w.table.Standby(p), lineage: 1 + uint64(p)}
		w.node(w.table.Owner(p)).table.Open(p, w.place[p].lineage)
	}
	t.Cleanup(func() {
		for _, n := range w.nodes {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}
		w.calls.Wait()
	})
	return w
}

func (w *testCluster) open(id ring.NodeID, text string) *testNode {
	n := &testNode{w: w, id: id, copies: counters.New(10_000)}
	n.authority.Store(true)
	ahead := time.Duration(0)
	if w.ahead != nil {
		ahead = w.ahead()
	}
	bound := cmp.Or(w.bound, 100_000)
	table, clock, fallback := counters.New(bound), NewClockWithOffset(ahead), localcache.NewFallbackTable(bound)
	table.Notes().BoundReservations(cmp.Or(w.room, counters.DefaultReservationBytes))
	table.Notes().BoundSlots(cmp.Or(w.room, notes.DefaultSlotBytes))
	table.ShutAll()
	w.t.Cleanup(func() {
		clock.Close()
		w.calls.Wait()
		table.Close()
		n.copies.Close()
		fallback.Close()
	})
	var err error
	begun := time.Now()
	n.Limiter, err = NewInCluster(table, clock, ClusterConfig{
		Boottime: func() time.Duration {
			if look := n.looks.Load(); look != nil {
				(*look)()
			}
			return time.Since(begun) + 1
		},
		Self: id, Boot: rand.Uint64() | 1, Ownership: n, Peers: n, Confirmer: n, OtherRegions: w.far,
		ReadAuthority: n.readAuthority, Ring: func() *ring.Table { return w.table }, Fallback: fallback,
		SigningKey: func() []byte { return []byte("a secret of these nodes") },
		AwaitRevision: func(ctx context.Context, revision, version int64) bool {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for n.version() < version || revision > 1 { // there is only one ring
				select {
				case <-tick.C:
				case <-ctx.Done():
					return false
				}
			}
			return true
		},
	})
	expect.NoError(w.t, err)
	n.SetRules(compile(w.t, 1, "version: 1\n"+text))
	return n
}

func (w *testCluster) node(id ring.NodeID) *testNode { return w.nodes[id[0]-1] }

// change runs f, which may change places, and wakes everything that waits for a change.
func (w *testCluster) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.moved)
	w.moved = make(chan struct{})
}

// handOver moves p to another node, its counters included.
func (w *testCluster) handOver(p int, to *testNode) {
	w.mu.Lock()
	from := w.node(w.place[p].owner)
	w.mu.Unlock()
	if from == to {
		return
	}
	w.change(func() { w.place[p].frozen, w.place[p].other = true, to.id })
	from.table.Shut(p)
	time.Sleep(w.freezing)
	to.table.FollowClock(to.clock.Now(), p, from.table.WallIn(from.clock.Now(), p))
	if err := from.table.Copy(p, func(records []counters.Record) error {
		for _, r := range records {
			to.table.Put(to.clock.Now(), r)
		}
		return nil
	}); err != nil {
		w.t.Error(err)
	}
	to.table.Open(p, w.place[p].lineage)
	w.change(func() { w.place[p].owner, w.place[p].other, w.place[p].frozen = to.id, ring.NodeID{}, false })
	from.table.Drop(p)
}

// beginLineage makes p's owner continue its counters in a new lineage.
func (w *testCluster) beginLineage(p int) {
	w.change(func() { w.place[p].lineage++ })
	w.node(w.place[p].owner).table.Open(p, w.place[p].lineage)
}

// Route implements Ownership.
func (n *testNode) Route(p int) partitions.Route {
	n.routes.Add(1)
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	at := n.w.place[p]
	r := partitions.Route{Epoch: 1, Revision: 1, Location: partitions.Elsewhere, Owner: at.owner,
		OtherSide: at.other, Standby: at.standby}
	if id, ok := n.wrong.Load(p); ok {
		r.Owner = id.(ring.NodeID)
	}
	if r.Owner == n.id {
		r.Location = partitions.Here
		if at.frozen {
			r.Location = partitions.Pending
		}
	}
	return r
}

// WaitWhilePending implements Ownership.
func (n *testNode) WaitWhilePending(ctx context.Context, p int) {
	for {
		n.w.mu.Lock()
		moved := n.w.moved
		n.w.mu.Unlock()
		if n.Route(p).Location != partitions.Pending {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// LearnOwner implements Ownership.
func (n *testNode) LearnOwner(p int, _ int64, _ ring.NodeID) { n.wrong.Delete(p) }

// readAuthority implements ClusterConfig.ReadAuthority.
func (n *testNode) readAuthority() (int64, bool) {
	yes := n.hasAuthority()
	return n.generation.Load(), yes
}

// hasAuthority reads n's authority.
func (n *testNode) hasAuthority() bool {
	yes := n.authority.Load()
	if asked := n.asked.Load(); asked != nil {
		(*asked)()
	}
	return yes
}

// DecideAsStandby implements Ownership.
func (n *testNode) DecideAsStandby(
	now algorithms.Instant, ops []counters.Op, shares []algorithms.Limit, _ partitions.OwnerProblem,
) counters.Verdict {
	within := append([]counters.Op(nil), ops...)
	for i := range within {
		at := n.Route(ops[i].Key.Partition())
		if at.Standby != n.id || n.Reachable(at.Owner) || shares[i].Amount < 1 {
			return counters.Undecided
		}
		within[i].Limit = &shares[i]
	}
	v := n.copies.Take(now, within)
	copy(ops, within)
	return v
}

// DecideAlone implements Ownership.
func (n *testNode) DecideAlone(now algorithms.Instant, ops []counters.Op) counters.Verdict {
	v := n.copies.Take(now, ops)
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	for i := range ops {
		if op := &ops[i]; v == counters.Admitted && op.Took() {
			n.w.owed[op.Key] += op.Cost
		}
	}
	return v
}

// ForgiveDebt implements Ownership.
func (n *testNode) ForgiveDebt(_ algorithms.Instant, op *counters.Op) {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	n.w.owed[op.Key] -= op.Cost
}

// CanConfirm implements Backup.
func (n *testNode) CanConfirm(int) bool { return true }

// ConfirmNotes implements Backup.
func (n *testNode) ConfirmNotes(ctx context.Context, p int) error { return n.Confirm(ctx, p) }

// Confirm implements Backup.
func (n *testNode) Confirm(ctx context.Context, p int) error {
	if f := n.confirm.Load(); f != nil {
		return (*f)(ctx, p)
	}
	return nil
}

// Reachable implements Peers.
func (n *testNode) Reachable(to ring.NodeID) bool {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return !n.w.cut[[2]ring.NodeID{n.id, to}]
}

// PathUnsure implements Peers.
func (n *testNode) PathUnsure(to ring.NodeID) bool {
	unsure := n.unsure.Load()
	return unsure != nil && (*unsure)(to)
}

// AwaitPath implements Peers.
func (n *testNode) AwaitPath(ctx context.Context, to ring.NodeID) {
	for n.PathUnsure(to) && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
}

// Send implements Peers.
func (n *testNode) Send(to ring.NodeID, m peer.Method, body []byte) error {
	if !n.Reachable(to) {
		return peer.ErrUnreachable
	}
	n.Go(to, m, body, time.Second, func([]byte, error) {})
	return nil
}

// Go implements Peers.
func (n *testNode) Go(to ring.NodeID, m peer.Method, body []byte, timeout time.Duration, done func([]byte, error)) {
	if !n.Reachable(to) {
		done(nil, peer.ErrUnreachable)
		return
	}
	n.w.mu.Lock()
	listen := n.w.detail
	n.w.mu.Unlock()

	// Before the delay is read: it may depend on the message.
	if listen != nil {
		listen(n.id, to, m, body)
	}

	n.w.mu.Lock()
	pause := n.w.slow[to]
	n.w.mu.Unlock()
	body = bytes.Clone(body)
	a := &testResponder{done: done}
	if m == MethodRefund && pause == 0 && n.w.pause == nil {
		n.w.node(to).ServeNear(n.id, m, body, a) // connections keep messages in order
		return
	}
	n.w.calls.Go(func() {
		timer := time.AfterFunc(timeout, func() { a.once.Do(func() { done(nil, peer.ErrTimeout) }) })
		if n.w.pause != nil {
			pause += n.w.pause()
		}
		if pause > 0 {
			<-time.After(pause)
		}
		a.stop = func() { timer.Stop() }
		n.w.node(to).ServeNear(n.id, m, body, a)
		switch m {
		case MethodAsk, MethodChange, MethodTop, MethodSettle, MethodActivity, MethodBorrow,
			MethodLend, MethodReserve, MethodAcquire, MethodRuleUse, MethodUnspent, MethodPassPlaces, MethodSlot:
		default:
			timer.Stop()
		}
		clear(body) // a body is valid only until ServeNear returns
	})
}

type testResponder struct {
	once sync.Once
	done func([]byte, error)
	stop func()
}

func (a *testResponder) Reply(body []byte) {
	a.stop()
	a.once.Do(func() {
		body = bytes.Clone(body)
		a.done(body, nil)
		clear(body)
	})
}

func (a *testResponder) Fail(code peer.Code, detail string) {
	a.stop()
	a.once.Do(func() { a.done(nil, &peer.RemoteError{Code: code, Detail: detail}) })
}

// keyOf returns a key of a rule with one key attribute, with the given owner
// and standby (nil: any).
func (w *testCluster) keyOf(rule string, owner, standby *testNode) string {
	for i := range 100_000 {
		key := fmt.Sprintf("k%d", i)
		p := w.partition(rule, key)
		if (owner == nil || w.place[p].owner == owner.id) && (standby == nil || w.place[p].standby == standby.id) {
			return key
		}
	}
	w.t.Fatal("no such key")
	return ""
}

func (w *testCluster) partition(rule, key string) int {
	u, err := w.nodes[0].Locate(&Query{Rule: rule, Key: []string{key}})
	expect.NoError(w.t, err)
	return ring.PartitionOf(u.Hash.Hi)
}

// check makes a check at n now.
func (n *testNode) check(q Query) *Answer {
	n.w.t.Helper()
	a := &Answer{}
	expect.NoError(n.w.t, n.Check(&q, a))
	return a
}

// used returns what the owner's counter has taken, also for leases.
func (n *testNode) used(rule, key string) int64 {
	n.w.t.Helper()
	u, err := n.Usage(&Query{Rule: rule, Key: []string{key}})
	expect.NoError(n.w.t, err)
	return u.Limits[0].Used + u.Limits[0].Leased
}

func (w *testCluster) setCut(a, b *testNode, yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[[2]ring.NodeID{a.id, b.id}], w.cut[[2]ring.NodeID{b.id, a.id}] = yes, yes
}

// metric returns the sum of a node's metrics with this name and, among others, these labels.
func (l *Limiter) figure(name string, labels ...string) (n int64) {
	l.Metrics(func(f metrics.Metric) {
		if f.Name != name || !strings.Contains(strings.Join(f.Labels, " "), strings.Join(labels, " ")) {
			return
		}
		n += int64(f.Value)
		for _, c := range f.Counts {
			n += c
		}
	})
	return n
}

// listen calls f with the method of each message.
func (w *testCluster) listen(f func(m peer.Method)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.detail = func(_, _ ring.NodeID, m peer.Method, _ []byte) { f(m) }
}
