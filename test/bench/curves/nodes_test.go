package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

var (
	folder = flag.String("out", "", "folder for the CSV files of messages by nodes; empty: they are only counted")
	entire = flag.Bool("whole", false, "up to 100 nodes, not a few")
)

const (
	subjects = 20
	perNode  = 50  // checks per second and node, where the rate grows with the cluster
	inAll    = 500 // checks per second of all nodes, where it does not
	way      = 200 * time.Microsecond
	// head is the size of a message's header on a connection: length, kind, method, number.
	head = 14
	// settling is how long leases take to adapt to their traffic; counting is how
	// long messages are counted afterwards.
	settling, counting = 9 * time.Second, 15 * time.Second
)

// traffic is what was sent during a span.
type traffic struct {
	mu                      sync.Mutex // guards the fields below
	on                      bool
	checks, messages, bytes int64
}

func (t *traffic) message(body []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.on {
		t.messages, t.bytes = t.messages+1, t.bytes+int64(head+len(body))
	}
}

func (t *traffic) check() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.on {
		t.checks++
	}
}

func (t *traffic) count(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.on = on
}

// member is a node of a cluster without moves and faults. Limiter, leases,
// counters, rules and ring are real.
type member struct {
	*limiter.Limiter
	id    ring.NodeID
	ring  *ring.Table
	peers map[ring.NodeID]*member
	sent  *traffic
	group *sync.WaitGroup
	close func()
}

// Route implements limiter.Ownership.
func (m *member) Route(p int) partitions.Route {
	r := partitions.Route{Epoch: 1, Revision: 1, Location: partitions.Elsewhere,
		Owner: m.ring.Owner(p), Standby: m.ring.Standby(p)}
	if r.Owner == m.id {
		r.Location = partitions.Here
	}
	return r
}

// Lineage implements limiter.Ownership.
func (m *member) Lineage(p int) uint64 { return 1 + uint64(p) }

// WaitWhilePending, Learn, DecideAsStandby, DecideAlone and Forgive implement
// limiter.Ownership. Without moves and faults, they do nothing.
func (m *member) WaitWhilePending(context.Context, int)        {}
func (m *member) LearnOwner(int, int64, ring.NodeID)           {}
func (m *member) ForgiveDebt(algorithms.Instant, *counters.Op) {}
func (m *member) Reachable(ring.NodeID) bool                   { return true }
func (m *member) PathUnsure(ring.NodeID) bool                  { return false }
func (m *member) AwaitPath(context.Context, ring.NodeID)       {}
func (m *member) await(context.Context, int64, int64) bool     { return true }
func (m *member) readAuthority() (int64, bool)                 { return 0, true }
func (m *member) DecideAlone(algorithms.Instant, []counters.Op) counters.Verdict {
	return counters.Undecided
}
func (m *member) DecideAsStandby(
	algorithms.Instant, []counters.Op, []algorithms.Limit, partitions.OwnerProblem,
) counters.Verdict {
	return counters.Undecided
}

// Go implements limiter.Peers.
func (m *member) Go(to ring.NodeID, method peer.Method, body []byte, _ time.Duration, done func([]byte, error)) {
	m.sent.message(body)
	a, body := &answer{member: m, done: done}, append([]byte(nil), body...)
	m.group.Go(func() {
		time.Sleep(way)
		m.peers[to].ServeNear(m.id, method, body, a)
	})
}

// Send implements limiter.Peers.
func (m *member) Send(to ring.NodeID, method peer.Method, body []byte) error {
	m.Go(to, method, body, 0, func([]byte, error) {})
	return nil
}

// answer carries a reply back.
type answer struct {
	*member
	done func([]byte, error)
}

// Reply implements limiter.Responder.
func (a *answer) Reply(body []byte) {
	a.sent.message(body)
	body = append([]byte(nil), body...)
	a.group.Go(func() {
		time.Sleep(way)
		a.done(body, nil)
	})
}

// Fail implements limiter.Responder.
func (a *answer) Fail(code peer.Code, detail string) {
	a.sent.message(nil)
	a.group.Go(func() { a.done(nil, &peer.RemoteError{Code: code, Detail: detail}) })
}

// join makes a cluster of n nodes with the rules in text.
func join(t *testing.T, n int, text string, sent *traffic, group *sync.WaitGroup) []*member {
	set, err := compiled(text)
	if err != nil {
		t.Fatal(err)
	}
	var ids []ring.NodeID
	for i := range n {
		var id ring.NodeID
		binary.BigEndian.PutUint16(id[:], uint16(i+1))
		ids = append(ids, id)
	}
	table, err := ring.New(ids, ring.DefaultSettings())
	if err != nil {
		t.Fatal(err)
	}
	clock, began := limiter.NewClock(), time.Now()
	var all []*member
	peers := map[ring.NodeID]*member{}
	for _, id := range ids {
		m := &member{id: id, ring: table, peers: peers, sent: sent, group: group}
		own, fallback := counters.New(10_000), localcache.NewFallbackTable(8000)
		own.ShutAll()
		for p := range ring.Partitions {
			if table.Owner(p) == id {
				own.Open(p, 1)
			}
		}
		m.Limiter, err = limiter.NewInCluster(own, clock, limiter.ClusterConfig{
			Self: id, Boot: uint64(len(all) + 1), Ownership: m, Peers: m, ReadAuthority: m.readAuthority,
			AwaitRevision: m.await, Fallback: fallback,
			Ring:     func() *ring.Table { return table },
			Boottime: func() time.Duration { return time.Since(began) + time.Second },
		})
		if err != nil {
			t.Fatal(err)
		}
		m.SetRules(set)
		m.close = func() { m.Limiter.Close(); own.Close(); fallback.Close(); clock.Close() }
		all, peers[id] = append(all, m), m
	}
	return all
}

// counts makes checks at n nodes at a total rate of half of what the limits
// allow, and returns the traffic that they cause.
func counts(t *testing.T, n int, consistency string, rate float64, seed uint64) (c *traffic) {
	synctest.Test(t, func(t *testing.T) {
		c = &traffic{}
		var group, load sync.WaitGroup
		limit := int(2 * rate * 60 / subjects)
		all := join(t, n,
			fmt.Sprintf("rules:\n  - {name: r, key: [user], consistency: %s, limits: [{limit: %d, per: 1m}]}\n", consistency, limit),
			c, &group)
		text, began := textOf(subjects), time.Now()
		for i, m := range all {
			load.Go(func() {
				random := rand.New(rand.NewPCG(seed, uint64(i)))
				var a limiter.Answer
				for at := began; ; {
					at = at.Add(time.Duration(random.ExpFloat64() / rate * float64(n) * float64(time.Second)))
					if at.Sub(began) > settling+counting {
						return
					}
					time.Sleep(time.Until(at))
					q := limiter.Query{Rule: "r", Key: []string{keyAt(text, random.IntN(subjects))}, ByKey: true}
					if err := m.Check(&q, &a); err != nil || !a.Allowed || a.DecidedBy < limiter.ByForward {
						t.Errorf("decided by %s, allowed %v: %v", a.DecidedBy, a.Allowed, err)
						return
					}
					c.check()
				}
			})
		}
		time.Sleep(settling)
		c.count(true)
		time.Sleep(counting)
		c.count(false)
		load.Wait()
		for _, m := range all {
			m.close()
		}
		group.Wait()
	})
	return c
}

// modes are the lines: how checks are decided, and at which rate.
var modes = []struct {
	line, consistency string
	rate              func(n int) float64
}{
	{fmt.Sprint("hybrid, ", perNode, " checks a second of each node"), "hybrid",
		func(n int) float64 { return perNode * float64(n) }},
	{fmt.Sprint("hybrid, ", inAll, " checks a second of all nodes together"), "hybrid",
		func(int) float64 { return inAll }},
	{fmt.Sprint("exact, ", perNode, " checks a second of each node"), "exact",
		func(n int) float64 { return perNode * float64(n) }},
	{fmt.Sprint("exact, ", inAll, " checks a second of all nodes together"), "exact",
		func(int) float64 { return inAll }},
}

// TestNodes counts the messages of limiters by the number of nodes: regardless
// of the cluster's size, a check costs hardly more messages than a question and
// its reply.
func TestNodes(t *testing.T) {
	sizes, seeds := []int{3, 5}, uint64(1)
	if *entire {
		sizes, seeds = []int{3, 5, 10, 20, 35, 50, 75, 100}, 3
	}
	var messages, bytes, load []point
	for _, mode := range modes {
		for _, n := range sizes {
			var perCheck, bytesPer, perSecond []float64
			for seed := range seeds {
				c := counts(t, n, mode.consistency, mode.rate(n), seed)
				if c == nil || c.checks == 0 || t.Failed() {
					t.Fatalf("%s, %d nodes: nothing was counted", mode.line, n)
				}
				perCheck = append(perCheck, float64(c.messages)/float64(c.checks))
				bytesPer = append(bytesPer, float64(c.bytes)/float64(c.checks))
				perSecond = append(perSecond, 2*float64(c.messages)/counting.Seconds()/float64(n))
				if got := float64(c.messages) / float64(c.checks); got > 2.5 {
					t.Errorf("%s, %d nodes: have %.2f messages a check", mode.line, n, got)
				}
			}
			x := float64(n)
			messages, bytes = append(messages, pointOf(mode.line, x, perCheck)), append(bytes,
				pointOf(mode.line, x, bytesPer))
			load = append(load, pointOf(mode.line, x, perSecond))
		}
	}
	if *folder == "" {
		return
	}
	for name, points := range map[string][]point{"nodes-messages": messages, "nodes-bytes": bytes, "nodes-load": load} {
		if err := writePoints(filepath.Join(*folder, name+".csv"), points); err != nil {
			t.Fatal(err)
		}
	}
}
