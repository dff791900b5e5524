package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

func hybridRules(limit int) string {
	return fmt.Sprintf("version: 1\nrules:\n  - {name: year, key: [ip], limits: [{limit: %d, per: 8760h, algorithm: fixed-window}]}\n", limit)
}

// With leases, exactly the limit is admitted while demand lasts, with hardly
// any calls between nodes.
func TestG2_LeasesInOneProcess(t *testing.T) {
	t.Parallel()
	runWithRuleAndInline(t, func(t *testing.T, inline bool) {
		const limit, keys = 2000, 5
		p := newTestCluster(t, 3, hybridRules(limit))
		p.useInline(inline, limit, false)
		c := p.startLoad("year", keys, 10)
		p.eventually("the limits are used up", func() bool { return c.total() >= limit*keys })
		time.Sleep(7 * time.Second) // until leases are returned
		by := c.stopLoad()
		t.Logf("by %v", by)
		for i := range c.admitted {
			expect.Equal(t, c.admitted[i].Load(), limit, "key %d, admitted", i)
		}
		if all := by["owner"] + by["lease"] + by["forward"]; by["forward"]*20 > all {
			t.Errorf("more than one check in twenty was forwarded: %v", by)
		}
		if c.failed.Load() > 0 || c.slow.Load() > 0 || by["fallback"] > 0 || by["standby"] > 0 {
			t.Errorf("%d failed, %d slow, by %v", c.failed.Load(), c.slow.Load(), by)
		}
	})
}

// Each node in turn stops gracefully and comes back, again and again. It
// returns its leases, and holders return leases that it granted to its
// successor. In the end, the use equals what was admitted.
func TestG6_LeasesComeBackInOneProcess(t *testing.T) {
	t.Parallel()
	for _, delay := range []time.Duration{100 * time.Microsecond, 20 * time.Millisecond} {
		t.Run(delay.String(),
			func(t *testing.T) { testLeasesComeBack(t, delay, alternatives(delay > time.Millisecond)) })
	}
}

func testLeasesComeBack(t *testing.T, delay time.Duration, inlineToo []bool) {
	runWith(t, inlineToo, func(t *testing.T, inline bool) {
		p := newTestCluster(t, 3, hybridRules(1_000_000))
		p.useInline(inline, 1_000_000, false)
		p.net.Delay(delay)
		c := p.startLoad("year", 50, 6)
		for range 3 {
			p.restartAll()
		}
		by := c.stopLoad()
		t.Logf("by %v", by)
		if c.failed.Load() > 0 || c.slow.Load() > 0 || by["fallback"] > 0 || by["lease"] == 0 {
			t.Errorf("%d failed, %d slow, by %v", c.failed.Load(), c.slow.Load(), by)
		}
		time.Sleep(6 * time.Second)
		for i := range c.admitted {
			if used, admitted := p.used("year", fmt.Sprintf("k%d", i)), c.admitted[i].Load(); used != admitted {
				t.Errorf("key %d: have %d used, and %d admitted", i, used, admitted)
			}
		}
	})
}
