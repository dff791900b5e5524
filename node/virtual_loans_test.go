package node

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// minuteOfRegions returns a rules file with one limit per minute for all regions together.
func minuteOfRegions(limit int, consistency string) string {
	return fmt.Sprintf("version: 1\nrules:\n  - {name: minute, key: [ip], scope: global, consistency: %s, limits: "+
		"[{limit: %d, per: 1m, algorithm: fixed-window}]}\n", consistency, limit)
}

// recorded returns a function that reports whether all nodes use rules that are recorded as honoured by all regions.
func recorded(all []*testCluster) func() bool {
	return func() bool {
		for _, p := range all {
			for _, v := range p.nodes {
				set := v.node.limiter.Rules()
				if set == nil || set.Shares() == nil {
					return false
				}
				views := set.Shares().Views
				if last := views[len(views)-1]; last.At == 0 || len(last.Names) != len(all) {
					return false
				}
			}
		}
		return true
	}
}

// G8, with whole nodes: if all traffic is in one region of three, that region admits exactly the whole limit, with and
// without leases.
func TestG8_LoansInOneProcess(t *testing.T) {
	t.Parallel()
	for _, consistency := range []string{"exact", "hybrid"} {
		synctest.Test(t, func(t *testing.T) {
			const limit, keys = 900, 3
			all := newRegions(t, 2, minuteOfRegions(limit, consistency), "eu", "us", "ap")
			defer func() {
				for _, p := range all {
					p.stopNodes()
				}
			}()
			all[0].eventually("the rules are recorded", recorded(all))
			// Shares are equal from the first window that begins after this.
			time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(2*time.Minute + 2*time.Second)))
			us := all[1]
			began := time.Now()
			c := us.startLoad("minute", keys, 3)
			us.eventually("the limits are used up", func() bool { return c.total() >= limit*keys })
			t.Logf("%s: the limits were used up after %v", consistency, time.Since(began))
			time.Sleep(4 * time.Second) // until leases are returned
			by := c.stopLoad()
			for i := range c.admitted {
				if have := c.admitted[i].Load(); have != limit {
					t.Errorf("key %d: have %d admitted, want %d; by %v", i, have, limit, by)
				}
			}
			if c.failed.Load() > 0 || c.slow.Load() > 0 || by["fallback"] > 0 || by["standby"] > 0 {
				t.Errorf("%d failed, %d slow, by %v", c.failed.Load(), c.slow.Load(), by)
			}
			var lost int64
			for _, v := range us.nodes {
				lost += figureOf(v, "loan_units_lost_total")
			}
			if lost != 0 {
				t.Errorf("%d units of loans were lost", lost)
			}
		})
	}
}
