package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
)

const adaptiveRules = `version: 1
rules:
  - name: year
    key: [ip]
    limits: [{limit: 2000, per: 8760h, algorithm: fixed-window}]
    adaptive: {source: api, steps: [{above: 0.5, factor: 0.5}, {above: 0.8, factor: 0.25}]}
`

// limits returns the limit that each ready node would apply.
func (p *testCluster) limits(rule, key string) (out []int64) {
	p.t.Helper()
	for _, v := range p.nodes {
		if v.ready.Load() {
			u, err := v.node.limiter.Locate(&limiter.Query{Rule: rule, Key: []string{key}})
			expect.NoError(p.t, err)
			out = append(out, u.Limits[0].Limit.Amount)
		}
	}
	return out
}

// awaitLimit waits until every node uses the same limit. It fails if that takes longer than most.
func (p *testCluster) awaitLimit(want int64, most time.Duration) {
	p.t.Helper()
	began := time.Now()
	p.eventually("all nodes apply one limit", func() bool {
		for _, have := range p.limits("year", "k0") {
			if have != want {
				return false
			}
		}
		return true
	})
	if took := time.Since(began); took > most {
		p.t.Errorf("a limit of %d reached all nodes after %v, want at most %v", want, took, most)
	}
}

// A load reported to one node lowers the limit at all nodes within two seconds,
// leases included. A starting node learns of it. The load expires everywhere.
// The subjects' use stays.
func TestLoadReachesAllNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit, keys = 2000, 2
		p := newTestCluster(t, 3, adaptiveRules)
		tell := func(node int, load float64, ttl time.Duration) {
			if err := p.nodes[node].node.loads.Report("api", load, ttl); err != nil {
				t.Error(err)
			}
		}
		workers := 3
		if testing.Short() {
			workers = 1
		}
		c := p.startLoad("year", keys, workers)
		p.eventually("some are admitted", func() bool { return c.total() > 100 })
		tell(0, 0.9, time.Minute)
		p.awaitLimit(limit/4, 2*time.Second)
		p.eventually("the lowered limits are used", func() bool { return c.total() >= keys*limit/4*98/100 })
		time.Sleep(7 * time.Second) // until leases are returned
		for i := range c.admitted {
			if have := c.admitted[i].Load(); have > limit/4 {
				t.Errorf("key %d: have %d admitted of %d", i, have, limit/4)
			}
		}
		// Slightly below the step, nothing changes at any node until the load has settled.
		tell(1, 0.79, time.Minute)
		time.Sleep(5 * time.Second)
		p.awaitLimit(limit/4, 0)
		p.awaitLimit(limit/2, 6*time.Second)
		// A node that comes back learns of the load in force before it decides much.
		p.nodes[2].endProcess(true)
		p.nodes[2].startProcess()
		p.awaitWhole()
		p.awaitLimit(limit/2, 2*time.Second)
		tell(2, 0.6, 30*time.Second)
		time.Sleep(25 * time.Second)
		p.awaitLimit(limit/2, 0)
		for i := range c.admitted {
			if have := c.admitted[i].Load(); have > limit/2 {
				t.Errorf("key %d: have %d admitted of %d", i, have, limit/2)
			}
		}
		time.Sleep(5 * time.Second)
		p.awaitLimit(limit, time.Second)
		p.eventually("the whole limits are used", func() bool { return c.total() >= keys*limit*98/100 })
		time.Sleep(7 * time.Second)
		by := c.stopLoad()
		t.Logf("by %v", by)
		for i := range c.admitted {
			if have := c.admitted[i].Load(); have > limit {
				t.Errorf("key %d: have %d admitted of %d", i, have, limit)
			}
		}
		if by["lease"] == 0 || c.failed.Load() > 0 {
			t.Errorf("%d failed, by %v", c.failed.Load(), by)
		}
	})
}
