package node

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
)

// keyOwnedBy returns the n-th key of the rule whose owner is v and whose
// standby is standby, if that is not nil.
func (p *testCluster) keyOwnedBy(rule string, v, standby *testNode, n int) string {
	p.t.Helper()
	for i := range 10_000 {
		key := fmt.Sprintf("s%d", i)
		r := p.nodes[0].node.keeper.Route(ring.PartitionOf(p.subjectHash(rule, key)))
		if r.Owner != v.id || standby != nil && r.Standby != standby.id {
			continue
		}
		n--
		if n < 0 {
			return key
		}
	}
	p.t.Fatal("no such subject")
	return ""
}

// ask makes checks at a node, a millisecond apart. It returns how many were
// admitted, who decided them, and how long the slowest took.
func (v *testNode) ask(
	rule, key string, times int,
) (admitted int64, by map[limiter.DecidedBy]int, slowest time.Duration) {
	by = map[limiter.DecidedBy]int{}
	for range times {
		var a limiter.Answer
		began := time.Now()
		ok, err := v.check(rule, key, &a)
		slowest = max(slowest, time.Since(began))
		if err != nil {
			v.cluster.t.Error(err)
		}
		if ok {
			admitted++
		}
		by[a.DecidedBy]++
		time.Sleep(time.Millisecond)
	}
	return admitted, by, slowest
}

// G4: a node that is cut off admits at most its share of each subject,
// regardless of the owner. The other nodes continue with the whole limit. When
// the node is back, everything it admitted is counted.
func TestG4_CutOffInOneProcess(t *testing.T) {
	t.Parallel()
	runWithRuleAndInline(t, func(t *testing.T, inline bool) {
		p := newTestCluster(t, 3, exactRules(90))
		p.useInline(inline, 90, true)
		lone := p.nodes[2]
		var keys []string
		for i := range 4 {
			keys = append(keys, p.keyOwnedBy("year", p.nodes[0], nil, i), p.keyOwnedBy("year", lone, nil, i))
		}
		p.net.Isolate(lone.ip)
		time.Sleep(8 * time.Second) // the node is evicted, and the others own everything
		here, there := map[string]int64{}, map[string]int64{}
		for _, key := range keys {
			n, by, _ := lone.ask("year", key, 60)
			here[key] = n
			if n != 30 || by[limiter.ByFallback] != 60 {
				t.Errorf("%s: %d admitted, by %v; want 30 in fallback", key, n, by)
			}
			there[key], _, _ = p.nodes[0].ask("year", key, 70)
			if there[key] != 70 {
				t.Errorf("%s: the others admit %d of 70", key, there[key])
			}
		}
		p.net.Rejoin(lone.ip)
		p.awaitWhole()
		time.Sleep(4 * time.Second)
		for _, key := range keys {
			expect.Equal(t, p.used("year", key), here[key]+there[key], "%s, used", key)
			if n, _, _ := lone.ask("year", key, 5); n != 0 {
				t.Errorf("%s: %d more admitted", key, n)
			}
		}
		p.net.Isolate(lone.ip) // a second cut doesn't renew the share
		time.Sleep(8 * time.Second)
		for _, key := range keys {
			if n, by, _ := lone.ask("year", key, 5); n != 0 || by[limiter.ByFallback] != 5 {
				t.Errorf("%s: %d admitted in the second cut, by %v", key, n, by)
			}
		}
	})
}

// All nodes are cut off from each other, so there is no leader, for longer than
// authority lasts. Together they admit the limit at most once more. No node was
// evicted, so each continues from its own counters. When they reach each other
// again, everything is counted.
func TestG4_EachForItselfInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 3, exactRules(90))
		var keys []string
		for i, v := range p.nodes {
			keys = append(keys, p.keyOwnedBy("year", v, nil, i))
		}
		admitted := map[string]int64{}
		for _, key := range keys {
			admitted[key], _, _ = p.nodes[0].ask("year", key, 60)
		}
		time.Sleep(300 * time.Millisecond)
		for _, v := range p.nodes {
			p.net.Isolate(v.ip)
		}
		time.Sleep(5 * time.Second)
		for i, key := range keys {
			for j, v := range p.nodes {
				n, by, _ := v.ask("year", key, 50)
				admitted[key] += n
				if n > 30 || by[limiter.ByFallback] != 50 {
					t.Errorf("%s at %d: %d admitted, by %v", key, j, n, by)
				}
				// The owner has 60 of 90 used, and exactly its share left.
				if i == j && n != 30 {
					t.Errorf("%s at its owner: %d admitted, want 30", key, n)
				}
			}
		}
		for _, v := range p.nodes {
			p.net.Rejoin(v.ip)
		}
		p.awaitWhole()
		time.Sleep(4 * time.Second)
		for _, key := range keys {
			expect.Equal(t, p.used("year", key), admitted[key], "%s, used", key)
		}
	})
}

// Nodes that are cut off one after another divide by different rings: the first
// one by three, those that lost each other afterwards by two. Each admits its
// own share, as the promise says, so together they admit more than the limit.
func TestG4_OneAfterAnotherInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 3, exactRules(90))
		var keys []string
		for i, v := range p.nodes {
			keys = append(keys, p.keyOwnedBy("year", v, nil, i))
		}
		p.net.Isolate(p.nodes[2].ip)
		time.Sleep(8 * time.Second) // the node is evicted
		p.net.Isolate(p.nodes[1].ip)
		time.Sleep(8 * time.Second)

		admitted := map[string]int64{}
		for i, v := range p.nodes {
			share := []int64{45, 45, 30}[i]
			for _, key := range keys {
				n, by, _ := v.ask("year", key, 90)
				if n != share || by[limiter.ByFallback] != 90 {
					t.Errorf("%s at %d: got %d admitted, by %v; want %d in fallback", key, i, n, by, share)
				}
				admitted[key] += n
			}
		}

		// What they admitted beyond the limit stays owed.
		p.net.Rejoin(p.nodes[1].ip)
		p.net.Rejoin(p.nodes[2].ip)
		p.awaitWhole()
		time.Sleep(4 * time.Second)
		for _, key := range keys {
			used := p.used("year", key)
			expect.Equal(t, used, admitted[key], "%s, used", key)
			n, _, _ := p.nodes[0].ask("year", key, 5)
			expect.Equal(t, n, 0, "%s: more admitted", key)
		}
	})
}

// The first check after a cut is decided within 350 ms and later ones at once,
// regardless of the subject's owner.
func TestG4_FirstDecisionInOneProcess(t *testing.T) {
	t.Parallel()
	rules := []string{exactRules(3000),
		"version: 1\nrules:\n  - {name: year, key: [ip], limits: [{limit: 3000, per: 8760h, algorithm: fixed-window}]}\n"}
	for _, text := range rules {
		for after := range casesToRun(3) {
			synctest.Test(t, func(t *testing.T) {
				p := newTestCluster(t, 3, text)
				lone := p.nodes[2]
				keys := []string{
					p.keyOwnedBy("year", p.nodes[0], p.nodes[1], 0), p.keyOwnedBy("year", p.nodes[1], p.nodes[0], 0),
					p.keyOwnedBy("year", p.nodes[0], lone, 0), p.keyOwnedBy("year", lone, nil, 0),
				}
				lone.ask("year", keys[0], 20)
				p.net.Isolate(lone.ip)
				time.Sleep(time.Duration(after) * 300 * time.Millisecond)
				began := time.Now()
				_, by, first := lone.ask("year", keys[0], 1)
				if within := 350 * time.Millisecond; first > within {
					t.Errorf("the first check took %v, by %v", first, by)
				}
				time.Sleep(max(0, 350*time.Millisecond-time.Since(began)))
				for _, key := range keys {
					_, by, slowest := lone.ask("year", key, 200)
					if slowest > 5*time.Millisecond {
						t.Errorf("a later check took %v, by %v", slowest, by)
					}
					t.Logf("then %s: by %v, at most %v", key, by, slowest)
				}
				t.Logf("asked %d ms after the cut: decided after %v, by %v", after*300, first, by)
			})
		}
	}
}

// G4: a node that restarts while the others are down uses the rules and the
// ring it had. It admits its share and reports fallback. When the others are
// back, everything it admitted is counted.
func TestG4_RestartedAloneInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 3, exactRules(90))
		lone := p.nodes[2]
		keys := []string{p.keyOwnedBy("year", p.nodes[0], nil, 0), p.keyOwnedBy("year", lone, nil, 0)}
		time.Sleep(2 * time.Second) // until the state is on disk
		for _, v := range p.nodes {
			v.endProcess(false)
		}
		began := time.Now()
		lone.startProcess()
		p.eventually("the node is ready", lone.ready.Load)
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("ready after %v", took)
		}
		for _, key := range keys {
			if n, by, slowest := lone.ask("year", key, 60); n != 30 ||
				by[limiter.ByFallback] != 60 || slowest > 5*time.Millisecond {
				t.Errorf("%s: %d admitted, by %v, slowest %v", key, n, by, slowest)
			}
		}
		if v := lone.admin().View(); v.View != "cut-off" || len(v.Members) != 3 {
			t.Errorf("have %+v", v)
		}
		p.nodes[0].startProcess()
		p.nodes[1].startProcess()
		p.awaitWhole()
		time.Sleep(4 * time.Second)
		for _, key := range keys {
			expect.Equal(t, p.used("year", key), 30, "%s: used", key)
		}
	})
}

// G4, two islands of two: no node has authority, and no check waits for another
// node, though the owner and its standby may be reachable.
func TestG4_HalvesInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit = 100
		p := newTestCluster(t, 4, exactRules(limit))
		for i, a := range p.nodes {
			for _, b := range p.nodes[i+1:] {
				if i < 2 && b != p.nodes[1] {
					p.net.Cut(a.ip, b.ip)
				}
			}
		}
		time.Sleep(5 * time.Second)
		for _, owner := range p.nodes {
			for _, standby := range p.nodes {
				if owner == standby {
					continue
				}
				key, all := p.keyOwnedBy("year", owner, standby, 0), int64(0)
				for j, v := range p.nodes {
					n, by, slowest := v.ask("year", key, 30)
					all += n
					if n > limit/4 || by[limiter.ByFallback] != 30 {
						t.Errorf("%s at %d: %d admitted, by %v", key, j, n, by)
					}
					if slowest > 5*time.Millisecond {
						t.Errorf("%s at %d: the slowest answer took %v", key, j, slowest)
					}
				}
				if all > limit {
					t.Errorf("%s: %d admitted in all", key, all)
				}
			}
		}
		p.net.HealAll()
		p.awaitWhole()
	})
}
