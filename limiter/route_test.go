package limiter

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules/document"
)

// takes counts the Takes of a check. The recorder's clock is read before each
// Take, and again if the Take decided.
type takes struct {
	mu      sync.Mutex // guards clock and decided
	clock   int64
	decided map[int64]bool // keyed by the clock after the Take
}

func (t *takes) Clock() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clock++
	return t.clock
}

func (t *takes) Decided(_ DecidedBy, _ int, _ uint64, _, ended int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.decided[ended] = true
}

// count returns the Takes since the last call, and how many of them decided.
func (t *takes) count() (takes, decided int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	decided = int64(len(t.decided))
	takes = t.clock - decided
	t.clock, t.decided = 0, map[int64]bool{}
	return takes, decided
}

// Each subject of a check is routed once and taken once: no Take finds a shut
// gate. Subjects that this node owns need no route.
func TestEachSubjectIsRoutedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules:
  - {name: a, key: [a], limits: [{limit: 1000000, per: 1440h}, {limit: 1000000, per: 1440h, unit: tokens}]}
  - {name: b, key: [b], limits: [{limit: 1000000, per: 1440h}]}
  - {name: x, key: [x], consistency: exact, limits: [{limit: 1000000, per: 1440h}]}
  - {name: y, key: [y], consistency: exact, limits: [{limit: 1000000, per: 1440h}]}`)
		counts := make([]*takes, len(w.nodes))
		for i, n := range w.nodes {
			counts[i] = &takes{decided: map[int64]bool{}}
			n.cluster.Recorder = counts[i]
		}
		n := w.nodes[0]
		mine, mineToo := w.keyOf("a", n, nil), w.keyOf("b", n, nil)
		leased, other, third := w.keyOf("a", w.nodes[1], nil), w.keyOf("x", w.nodes[1],
			nil), w.keyOf("y", w.nodes[2], nil)
		n.check(byKey("a", leased)) // brings a lease
		for _, tt := range []struct {
			name          string
			q             Query
			by            DecidedBy
			routes, takes [3]int64 // by node; an owner that is asked also looks up the ring's revision
		}{
			{"own", byKey("a", mine), ByOwner, [3]int64{0, 0, 0}, [3]int64{1, 0, 0}},
			{"two of its own", Query{Attributes: attrs("a", mine, "b", mineToo)}, ByOwner,
				[3]int64{0, 0, 0}, [3]int64{1, 0, 0}},
			{"leased", byKey("a", leased), ByLease, [3]int64{1, 0, 0}, [3]int64{0, 0, 0}},
			{"forwarded", byKey("x", other), ByForward, [3]int64{1, 1, 0}, [3]int64{0, 1, 0}},
			{"forwarded to two", Query{Attributes: attrs("x", other, "y", third)}, ByForward,
				[3]int64{2, 1, 1}, [3]int64{0, 1, 1}},
			{"own, leased and forwarded", Query{Attributes: attrs("b", mineToo, "a", leased, "x", other)}, ByForward,
				[3]int64{2, 1, 0}, [3]int64{1, 1, 0}},
		} {
			for i, n := range w.nodes {
				n.routes.Store(0)
				counts[i].count()
			}
			if a := n.check(tt.q); a.DecidedBy != tt.by || !a.Allowed {
				t.Errorf("%s: have %v by %s", tt.name, a.Allowed, a.DecidedBy)
			}
			for i, n := range w.nodes {
				takes, decided := counts[i].count()
				if routes := n.routes.Load(); routes != tt.routes[i] || takes != tt.takes[i] || decided != takes {
					t.Errorf("%s, node %d: have %d routes, %d takes of which %d decided, want %d and %d", tt.name, i, routes, takes,
						decided, tt.routes[i], tt.takes[i])
				}
			}
		}
	})
}

// While a partition is being handed over, no node polls: a request waits until
// it is woken, and then continues at once.
func TestRequestsWaitWithoutPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2,
			"rules:\n  - {name: r, key: [k], consistency: exact, limits: [{limit: 1000, per: 1440h}]}")
		owner, other := w.nodes[0], w.nodes[1]
		key := w.keyOf("r", owner, nil)
		p := w.partition("r", key)
		id := owner.reserve(byKey("r", key), time.Minute)
		once := byKey("r", key)
		once.Costs, once.RequestID = []UnitCost{{document.Requests, 1}}, "a"
		var a Answer
		for name, request := range map[string]func(n *testNode) error{
			"check": func(n *testNode) error {
				return n.Check(&Query{Rule: "r", Key: []string{key}, ByKey: true}, &Answer{})
			},
			"usage":   func(n *testNode) error { _, err := n.Usage(&Query{Rule: "r", Key: []string{key}}); return err },
			"settle":  func(n *testNode) error { _, err := n.Settle(id, nil); return err },
			"reserve": func(n *testNode) error { _, err := n.Reserve(&once, time.Minute, &a); return err },
		} {
			for _, n := range w.nodes {
				const frozen = 300 * time.Millisecond
				w.change(func() { w.place[p].frozen = true })
				owner.table.Shut(p)
				time.AfterFunc(frozen, func() {
					owner.table.Open(p, 1+uint64(p))
					w.change(func() { w.place[p].frozen = false })
				})
				owner.routes.Store(0)
				other.routes.Store(0)
				began := time.Now()
				if err := request(n); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				expect.Equal(t, time.Since(began), frozen, "%s: took", name)
				// One lookup before Wait, two inside it, one after it; plus the asker's and the
				// one for the question.
				if routes := owner.routes.Load() + other.routes.Load(); routes > 6 {
					t.Errorf("%s: have %d calls of Route", name, routes)
				}
			}
		}
	})
}

// While a partition moves, a request to the owner asks the owner, the other
// side and the standby once each. Only an owner carries it out; no node acts
// for an owner.
func TestOwnerRequestAsksEachNodeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 4, `rules: [{name: a, key: [a], limits: [{limit: 1000, per: 1440h}]}]`)
		p := w.partition("a", w.keyOf("a", w.nodes[1], nil))
		subject := uint64(p) << 52
		ids := []ring.NodeID{w.nodes[1].id, w.nodes[2].id, w.nodes[3].id}
		w.change(func() { w.place[p].other, w.place[p].standby = ids[1], ids[2] })
		var asked []ring.NodeID
		err := w.nodes[0].doAtOwner(t.Context(),
			&ownerRequest{subject: subject, here: func() error { return counters.ErrShut },
				there: func(to ring.NodeID) error {
					asked = append(asked, to)
					return ErrNoOwner
				}})
		if !errors.Is(err, ErrNoOwner) || !slices.Equal(asked, ids) {
			t.Errorf("asked %v, %v; want %v", asked, err, ids)
		}
	})
}

// A node that applies no more entries gets no newer ring. It still pauses before
// it asks again two nodes that name each other as the owner.
func TestAwaitOwner_AtAStuckNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2, "rules: []")
		n := w.nodes[0]
		n.cluster.AwaitRevision = func(context.Context, int64, int64) bool { return false }

		c := &clusterCheck{limiter: n.Limiter}
		began := time.Now()
		c.awaitOwner(&subject{candidates: candidates{attempts: 6}}, began)
		expect.Equal(t, time.Since(began), maxRetryPause, "paused")
	})
}

// A check that a remembered refusal has decided does not wait for the partition
// of another subject.
func TestARefusedCheckDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2, `rules:
  - {name: a, key: [a], limits: [{limit: 1, per: 1h, algorithm: fixed-window}]}
  - {name: b, key: [b], limits: [{limit: 1000, per: 1h, algorithm: fixed-window}]}`)
		nextWindow(time.Hour)
		owner, asked := w.nodes[0], w.nodes[1]
		a, b := w.keyOf("a", owner, nil), w.keyOf("b", asked, nil)
		both := Query{Attributes: attrs("a", a, "b", b)}
		asked.check(byKey("a", a))
		asked.check(byKey("a", a)) // refused

		p := w.partition("b", b)
		asked.table.Shut(p)
		w.change(func() { w.place[p].frozen = true })
		began := time.Now()
		answer := asked.check(both)
		took := time.Since(began)
		expect.Equal(t, answer.Allowed, false, "allowed")
		expect.Equal(t, answer.DecidedBy, ByLease, "decided by")
		expect.Equal(t, took, 0, "it took")
	})
}
