//go:build faults

package faults

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// leaseRules are checked at all nodes, in bursts, at different costs.
func leaseRules() []rule {
	return []rule{
		{name: "year", algorithm: "fixed-window", limit: yearRule.limit, per: yearRule.per,
			keys: 24, weight: 2, cost: 1},
		{name: "ten", algorithm: "fixed-window", limit: 30, per: window, keys: 3, weight: 8, cost: 1},
		{name: "hot", algorithm: "fixed-window", limit: 1000, per: window, hybrid: true, keys: 2, weight: 50, cost: 1},
		{name: "dear", algorithm: "fixed-window", limit: 10_000, per: window, hybrid: true, keys: 3,
			weight: 24, cost: 150},
		{name: "slide", algorithm: "sliding-window", limit: 200, per: window, hybrid: true, keys: 1,
			weight: 8, cost: 1},
		{name: "bucket", algorithm: "token-bucket", limit: 200, burst: 100, per: window,
			hybrid: true, keys: 1, weight: 8, cost: 1},
	}
}

// TestG2_Exactly: every window admits exactly its limit, because demand lasts until it ends.
func TestG2_Exactly(t *testing.T) {
	f := emptyFleet(t, 3)
	f.rules = leaseRules()
	t.Cleanup(f.close)
	f.open()
	f.run(func(f *fleet, l *load) {
		f.pass(f.between(11*time.Second, 12*time.Second))
		l.noneBy("fallback", "standby")
	})
	f.exactly(f.seen, "hot", "dear")
}

// exactly fails if windows without a fault admitted less than the limit.
// Another check finds those that admitted more.
func (f *fleet) exactly(l *load, names ...string) {
	f.t.Helper()
	for i := range l.rules {
		r := &l.rules[i]
		if !strings.Contains(strings.Join(names, " "), r.name) {
			continue
		}
		c := serviceCheck{f.promise(l, r), l.began, l.ended}
		for key := range r.keys {
			g, err := c.check(of(l.hits, i, key), of(l.refused, i, key))
			switch {
			case err != nil || l.stalled():
			case g.windows == 0:
				f.t.Errorf("%s %s: there was no window to judge", r.name, l.keys[key])
			case g.whole < g.windows:
				f.t.Errorf("%s %s: only %d of %d windows admitted the limit to the last unit, one of them %d ‰", r.name, l.keys[key], g.whole, g.windows, g.least)
			}
		}
	}
}

// TestG2_CheckersFindWhatIsNotDebited builds nodes that grant leases without
// debiting them, and checks that the checkers notice.
func TestG2_CheckersFindWhatIsNotDebited(t *testing.T) {
	wrong := filepath.Join(workDir, "rlnode-nodebit")
	expect.NoError(t, build(wrong, "faults,nodebit"))
	f := emptyFleet(t, 3)
	t.Cleanup(f.close)
	for _, n := range f.nodes {
		n.program = wrong
	}
	f.open()
	l := f.load()
	f.pass(2*window + time.Second)
	l.end()
	f.rings.end()
	found := map[string]int{}
	for _, err := range f.judgeLimits(l) {
		if strings.Contains(err.Error(), "no owner was away") {
			continue // on a loaded machine, a node may look disturbed
		}
		name, _, _ := strings.Cut(err.Error(), " ")
		found[name]++
		if found[name] == 1 {
			t.Logf("found: %v", err)
		}
	}
	for i := range l.rules {
		r := &l.rules[i]
		if leased := r.ttl() > 0; r.bounded() && (found[r.name] > 0) != leased {
			t.Errorf("%s (leases last %v): %d violations were found", r.name, r.ttl(), found[r.name])
		}
	}
}
