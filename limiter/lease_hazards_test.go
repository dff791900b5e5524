package limiter

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// nextWindow sleeps until the next window of the given length begins.
func nextWindow(window time.Duration) {
	time.Sleep(time.Until(time.Now().Truncate(window).Add(window)))
}

// G3: if the answer to a renewal takes longer than a lease lasts, the answer
// still arrives, and its grant is returned.
func TestG3_GrantOfASlowRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3,
			"rules:\n  - {name: r, key: [k], limits: [{limit: 100000, per: 10s, algorithm: fixed-window}]}")
		holder, owner := w.nodes[0], w.nodes[1]
		key := w.keyOf("r", owner, nil)
		nextWindow(10 * time.Second)
		admitted := int64(0)
		late := false
		w.change(func() {
			w.detail = func(_, _ ring.NodeID, m peer.Method, _ []byte) {
				w.change(func() {
					// Only the question is slow: what comes back so late is lost.
					w.slow[owner.id] = 0
					if late && m == MethodAsk {
						w.slow[owner.id] = 600 * time.Millisecond // a lease lasts 500 ms
					}
				})
			}
		})
		for i := 0; i < 2000; i++ {
			before := holder.figure("lease_renewals_total")
			w.change(func() { late = i >= 500 })
			if holder.check(byKey("r", key)).Allowed {
				admitted++
			}
			synctest.Wait()
			if i >= 500 && holder.figure("lease_renewals_total") > before {
				break
			}
			time.Sleep(time.Millisecond)
		}
		w.change(func() { late = false })
		time.Sleep(3 * time.Second) // still in the same window
		if used := owner.used("r", key); used != admitted {
			t.Errorf("%d used, %d admitted; %d granted, %d lost",
				used, admitted, owner.figure("lease_granted_total"), owner.figure("lease_lost_total"))
		}
	})
}

// G3: a check that spends from a lease at the last moment is not admitted if
// its second reading of the clock finds that the lease has ended. Its cost goes
// back.
func TestG3_SpentTooLate(t *testing.T) {
	for _, kind := range []string{"fixed-window", "sliding-window"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, 3,
					fmt.Sprintf("rules:\n  - {name: r, key: [k], limits: [{limit: 1000, per: 1000s, algorithm: %s}]}", kind))
				holder, owner := w.nodes[0], w.nodes[1]
				key := w.keyOf("r", owner, nil)
				nextWindow(1000 * time.Second)
				admitted := int64(0)
				check := func() DecidedBy {
					a := holder.check(byKey("r", key))
					if a.Allowed {
						admitted++
					}
					return a.DecidedBy
				}
				check() // brings a lease
				time.Sleep(localcache.MaxTTL - time.Millisecond)
				looks := new(atomic.Int32)
				stand := func() {
					if looks.Add(1) == 2 {
						time.Sleep(2 * time.Millisecond)
					}
				}
				holder.looks.Store(&stand)
				if by := check(); by != ByForward {
					t.Errorf("have a check decided by %s, want by the owner: the lease was over", by)
				}
				holder.looks.Store(nil)
				time.Sleep(2 * localcache.MaxTTL)
				if used := owner.used("r", key); used != admitted {
					t.Errorf("have %d used, want %d as admitted", used, admitted)
				}
			})
		})
	}
}

// G3: a grant in the answer to a check that a shadow rule would have refused is returned, too.
func TestG3_GrantWithAShadowRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3,
			"rules:\n  - {name: r, shadow: true, key: [k], limits: [{limit: 1000, per: 100s, algorithm: fixed-window}]}")
		holder, owner := w.nodes[0], w.nodes[1]
		key := w.keyOf("r", owner, nil)
		nextWindow(100 * time.Second)
		q := byKey("r", key)
		q.Costs = []UnitCost{{Unit: "requests", Cost: 600}}
		took := int64(0)
		for range 2 {
			if a := holder.check(q); a.Limits[0].Allowed {
				took += 600
			}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(20 * time.Second)
		if used := owner.used("r", key); used != took {
			t.Errorf("%d used, %d taken", used, took)
		}
	})
}

// A rule that stops taking leases for a while takes and renews them again afterwards.
func TestRenewalsAfterThePolicyCameBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limits = "limits: [{limit: 100000, per: 10s, algorithm: fixed-window}]}"
		w := newTestCluster(t, 3, "rules:\n  - {name: r, key: [k], "+limits)
		holder, owner := w.nodes[0], w.nodes[1]
		key := w.keyOf("r", owner, nil)
		nextWindow(10 * time.Second)
		use := func(version int64, text string) {
			for _, n := range w.nodes {
				n.SetRules(compile(t, version, "version: 1\n"+text))
			}
		}
		load := func(n int) {
			for range n {
				holder.check(byKey("r", key))
				time.Sleep(time.Millisecond)
			}
		}
		load(300)
		use(2, "rules:\n  - {name: r, block: 1s, key: [k], "+limits)
		load(600)
		use(3, "rules:\n  - {name: r, key: [k], "+limits)
		before := holder.figure("lease_renewals_total")
		load(3000)
		if n := holder.figure("lease_renewals_total") - before; n < 3 {
			t.Errorf("%d renewals in 3 s of steady traffic", n)
		}
	})
}

// G2 with everything at once: partitions are handed over while leases are out,
// other rules refuse checks after a lease was spent, and messages arrive out of
// order.
func TestG2_LeasesWhilePartitionsMove(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testMoves(t, seed) })
		})
	}
}

func testMoves(t *testing.T, seed uint64) {
	const limit, windows = 1500, 4
	chance := rand.New(rand.NewPCG(seed, 3))
	kind, per, bound := []string{"fixed-window", "token-bucket", "sliding-window",
		"fixed-window"}[seed%4], time.Second, int64(windows*limit)
	if kind == "token-bucket" {
		per, bound = time.Minute, limit+limit*(windows+3)/60 // it refills in the test's time, and in a lease's TTL
	}
	w := newTestCluster(t, 4, fmt.Sprintf(`rules:
  - {name: r, key: [k], limits: [{limit: %d, per: %s, algorithm: %s}]}
  - {name: s, key: [user], limits: [{limit: 300, per: 1s, algorithm: %s}]}`, limit, per, kind, kind))
	w.pause = func() time.Duration {
		if rand.IntN(50) == 0 {
			return time.Duration(rand.N(int64(30 * time.Millisecond)))
		}
		return 100*time.Microsecond + time.Duration(rand.N(int64(time.Millisecond)))
	}
	nextWindow(time.Second)
	begun := time.Now()
	var admitted, alone atomic.Int64
	var callers sync.WaitGroup
	over := func() bool { return time.Since(begun) > windows*time.Second-10*time.Millisecond }
	for i, n := range w.nodes {
		callers.Go(func() {
			chance := rand.New(rand.NewPCG(seed, uint64(i)+10))
			crowd := newCrowd(func(q *Query, a *Answer) {
				if err := n.Check(q, a); err != nil {
					t.Error(err)
				}
				// If the answer came after the window's end, the check may have been decided in
				// the next one.
				if a.Allowed && time.Since(begun) < windows*time.Second {
					admitted.Add(1)
				}
				if a.DecidedBy < ByForward {
					alone.Add(1)
				}
			})
			defer crowd.end()
			for !over() {
				time.Sleep(time.Duration(chance.ExpFloat64() * float64(time.Second) / 700))
				q := Query{Attributes: []rules.Attribute{{Name: "k", Value: "x"}}}
				if chance.IntN(2) == 0 {
					q.Attributes = append(q.Attributes,
						rules.Attribute{Name: "user", Value: fmt.Sprint(chance.IntN(2))})
				}
				crowd.ask(&q)
			}
		})
	}
	p := w.partition("r", "x")
	for !over() {
		time.Sleep(time.Duration(chance.IntN(200)) * time.Millisecond)
		if chance.IntN(2) == 0 {
			w.handOver(p, w.nodes[chance.IntN(4)])
		}
	}
	callers.Wait()
	if n := admitted.Load(); n > bound {
		t.Errorf("seed %d: %s: %d admitted, want at most %d", seed, kind, n, bound)
	}
	if n := alone.Load(); n > 0 {
		t.Logf("seed %d: %d decided alone", seed, n)
	}
	leased := int64(0)
	for _, n := range w.nodes {
		leased += n.figure("lease_spent_total")
	}
	t.Logf("seed %d: %s: %d admitted, %d from leases", seed, kind, admitted.Load(), leased)
}

// Unspent leases that are being returned wait for a partition that is being
// handed over. They must not crowd out questions that wait for the same
// partition: an asker that is turned away decides alone.
func TestLeftoversLeaveRoomForQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3,
			"rules:\n  - {name: r, key: [k], limits: [{limit: 100000, per: 10s, algorithm: fixed-window}]}")
		owner := w.nodes[1]
		u, err := owner.Locate(&Query{Rule: "r", Key: []string{w.keyOf("r", owner, nil)}})
		expect.NoError(t, err)
		p := ring.PartitionOf(u.Hash.Hi)
		w.change(func() { w.place[p].frozen = true })
		list := make([]refund, maxRefunds)
		for i := range list {
			op := counters.Op{Key: counters.Key{Subject: u.Hash.Hi, Counter: 1},
				Limit: &u.Limits[0].Limit.Limit, Cost: 1}
			list[i] = refund{takenCosts: takenCosts{subject: op.Key.Subject, boot: 1,
				life: counters.Life{Lineage: 1}, ops: []counters.Op{op},
				marks: []algorithms.TakeMark{0}}, grant: uint64(i + 1)}
		}
		for range 4 {
			owner.sendRefunds(list)
		}
		if n := owner.cluster.background.Running(); n > maxBackground/2 {
			t.Errorf("%d of %d places are taken", n, maxBackground)
		}
		w.change(func() { w.place[p].frozen = false })
	})
}

// ignored is a Responder that drops all answers.
type ignored struct{}

func (ignored) Reply([]byte)           {}
func (ignored) Fail(peer.Code, string) {}

// No message about leases breaks anything, however it is corrupted, and whether
// it gets an answer or not.
func TestMessagesAboutLeasesMayBeBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3,
			"rules:\n  - {name: r, key: [k], limits: [{limit: 100000, per: 10s, algorithm: fixed-window}, {limit: 5000, per: 1s, unit: tokens, algorithm: token-bucket}]}")
		holder, owner := w.nodes[0], w.nodes[1]
		var mu sync.Mutex
		seen := map[peer.Method][][]byte{}
		w.mu.Lock()
		w.detail = func(_, _ ring.NodeID, m peer.Method, body []byte) {
			mu.Lock()
			defer mu.Unlock()
			seen[m] = append(seen[m], bytes.Clone(body))
		}
		w.mu.Unlock()
		key := w.keyOf("r", owner, nil)
		for range 200 {
			holder.check(byKey("r", key))
			time.Sleep(time.Millisecond) // meanwhile, a lease is granted
		}
		holder.UseLeases(false)
		time.Sleep(time.Second) // meanwhile, what is left of it is given back
		w.mu.Lock()
		w.detail = nil
		w.mu.Unlock()
		mu.Lock()
		defer mu.Unlock()
		for _, m := range []peer.Method{MethodAsk, MethodRefund} {
			if len(seen[m]) == 0 {
				t.Fatalf("no message of method %d", m)
			}
			chance := rand.New(rand.NewPCG(uint64(m), 4))
			for range 50_000 {
				body := bytes.Clone(seen[m][chance.IntN(len(seen[m]))])
				for range 1 + chance.IntN(4) {
					switch i := chance.IntN(len(body)); chance.IntN(4) {
					case 0:
						body[i] = byte(chance.Uint32())
					case 1:
						body[i] = 0xff
					case 2:
						body = append(body[:i:i], append(binary.AppendUvarint(nil, chance.Uint64()), body[i:]...)...)
					default:
						body = body[:max(1, i)]
					}
				}
				owner.ServeNear(holder.id, m, body, ignored{})
			}
		}
	})
}

// G3: checks that another rule refuses cost a leased limit nothing, even if the
// lease ends while they are in flight. Otherwise a caller that is always
// refused would use up quota that it shares with others.
func TestG3_RefusedElsewhereCostsNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 1000
		w := newTestCluster(t, 3, fmt.Sprintf(`rules:
  - {name: tenant, key: [tenant], limits: [{limit: %d, per: 1s, algorithm: fixed-window}]}
  - {name: ip, consistency: exact, key: [ip], limits: [{limit: 5, per: 1s, algorithm: fixed-window}]}`, limit))
		w.pause = func() time.Duration { return 500 * time.Microsecond }
		holder := w.nodes[0]
		tenant := w.keyOf("tenant", w.nodes[1], nil)
		bad := w.keyOf("ip", w.nodes[2], nil)
		var admitted atomic.Int64
		var checks sync.WaitGroup
		send := func(rate int, ip func(i int) string) {
			checks.Go(func() {
				for i := range rate * 9 / 10 {
					checks.Go(func() {
						q := Query{Attributes: []rules.Attribute{{Name: "tenant", Value: tenant},
							{Name: "ip", Value: ip(i)}}}
						if holder.check(q).Allowed {
							admitted.Add(1)
						}
					})
					time.Sleep(time.Second / time.Duration(rate))
				}
			})
		}
		nextWindow(time.Second)
		send(5000, func(int) string { return bad })
		send(700, func(i int) string { return fmt.Sprint("good ", i/2) })
		checks.Wait()
		time.Sleep(70 * time.Millisecond) // a lease lasts 50 ms
		used, have := w.nodes[1].used("tenant", tenant), admitted.Load()
		if used > have+have/50 {
			t.Errorf("%d used of %d, %d admitted", used, limit, have)
		}
		t.Logf("%d used, %d admitted", used, have)
	})
}
