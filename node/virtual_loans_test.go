package node

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// loanWindow is the window of the rules below, and long enough to use up their limits and return all leases.
const loanWindow = 30 * time.Second

// rulesOfRegions returns a rules file with one rule of each consistency, named after it, for all regions together.
func rulesOfRegions(limit int, consistencies ...string) string {
	text := "version: 1\nrules:\n"
	for _, c := range consistencies {
		text += fmt.Sprintf("  - {name: %s, key: [ip], scope: global, consistency: %s, limits: [{limit: %d, per: %v, algorithm: fixed-window}]}\n", c, c, limit, loanWindow)
	}
	return text
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
	synctest.Test(t, func(t *testing.T) {
		const limit, keys = 900, 3
		consistencies := []string{"exact", "hybrid"}
		all := newRegions(t, 2, rulesOfRegions(limit, consistencies...), "eu", "us", "ap")
		all[0].eventually("the rules are recorded", recorded(all))
		us := all[1]
		for i, consistency := range consistencies {
			// Shares are equal from the first window that begins after the record.
			time.Sleep(time.Until(time.Now().Truncate(loanWindow).Add(time.Duration(2-i)*loanWindow + 2*time.Second)))
			began := time.Now()
			c := us.startLoad(consistency, keys, 3)
			us.eventually("the limits are used up", func() bool { return c.total() >= limit*keys })
			t.Logf("%s: the limits were used up after %v", consistency, time.Since(began))
			time.Sleep(4 * time.Second) // until leases are returned
			by := c.stopLoad()
			if took := time.Since(began); took > loanWindow-4*time.Second {
				t.Fatalf("%s: the load went on for %v, into the next window", consistency, took)
			}
			for i := range c.admitted {
				if have := c.admitted[i].Load(); have != limit {
					t.Errorf("%s, key %d: have %d admitted, want %d; by %v", consistency, i, have, limit, by)
				}
			}
			if c.failed.Load() > 0 || c.slow.Load() > 0 || by["fallback"] > 0 || by["standby"] > 0 {
				t.Errorf("%s: %d failed, %d slow, by %v", consistency, c.failed.Load(), c.slow.Load(), by)
			}
		}
		var lost int64
		for _, v := range us.nodes {
			lost += figureOf(v, "loan_units_lost_total")
		}
		expect.Equal(t, lost, 0, "units of loans were lost")
	})
}
