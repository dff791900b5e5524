package limiter

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// expectRefusal checks that a is refused for a cause, with a retry time, in the
// answer and in its words.
func expectRefusal(t *testing.T, what string, a *Answer, cause Cause, retry time.Duration, words string) {
	t.Helper()
	la := a.TightestLimit()
	if la == nil || a.Allowed {
		t.Errorf("%s: got %+v, want a refusal", what, a.Limits)
		return
	}
	if reason := string(a.AppendReason(nil)); la.Cause() != cause || la.RetryAfter != retry ||
		!strings.Contains(reason, words) {
		t.Errorf("%s: got %s, retry after %v, %q; want %s, %v, %q", what, la.Cause(), la.RetryAfter,
			reason, cause, retry, words)
	}
}

func costing(q Query, cost int64) Query {
	q.Costs = []UnitCost{{document.Requests, cost}}
	return q
}

// TestCostAboveALoweredLimit: a cost above a capacity that a step has lowered
// is refused until the load expires, and one above the configured capacity for
// good.
func TestCostAboveALoweredLimit(t *testing.T) {
	l := open(t, adaptiveRules)
	left := 7 * time.Second
	l.FollowLoads(func(*rules.Set) []int { return []int{-1, 0} }, func(string) time.Duration { return left })
	l.SetRules(compile(t, 2, "version: 1\n"+adaptiveRules))
	busy := byKey("busy", "a")
	expectRefusal(t, "51 of 50", check(t, l, epoch, costing(busy, 51)), Reduced, left,
		"the cost of 51 is above its capacity, which is below the configured 100")
	expectRefusal(t, "101 of 50", check(t, l, epoch, costing(busy, 101)), CostAboveLimit,
		algorithms.Never, "the cost of 101 is above its capacity of 100")
	if a := check(t, l, epoch, costing(busy, 50)); !a.Allowed {
		t.Errorf("50 of 50: got %+v", a.Limits[0])
	}
	left = 0 // it is measured all the time
	expectRefusal(t, "51 of 50", check(t, l, epoch, costing(busy, 51)), Reduced, time.Second, "")
}

// TestCostAboveAShareOfARegion: it may be allowed in the next window, when
// shares may be others. A region without a share does not refuse for good
// either.
func TestCostAboveAShareOfARegion(t *testing.T) {
	set := compile(t, 1, `version: 1
rules:
  - {name: world, key: [k], scope: global, regions: {eu: 0.25, us: 0.75}, limits: [{limit: 100, per: 1h, algorithm: fixed-window}]}
  - {name: none, key: [k], scope: global, regions: {eu: 0, us: 1}, limits: [{limit: 100, per: 1h, algorithm: fixed-window}]}
`)
	l := open(t, "")
	l.SetRules(set.WithShares(&rules.DividingVersions{Region: "eu",
		Held: []rules.HeldVersion{{Set: set, Regions: []string{"eu", "us"}, RecordedAt: 1}}}))
	hour := &algorithms.Limit{Kind: algorithms.FixedWindow, Window: time.Hour}
	left := hour.WindowLeft(epoch)
	expectRefusal(t, "26 of 25", check(t, l, epoch, costing(byKey("world", "a"), 26)), Reduced,
		left, "(25 of 100 requests per 1h)")
	expectRefusal(t, "101 of 25", check(t, l, epoch, costing(byKey("world", "a"), 101)),
		CostAboveLimit, algorithms.Never, "its capacity of 100")
	expectRefusal(t, "1 of 0", check(t, l, epoch, costing(byKey("none", "a"), 1)), Reduced, left,
		"(0 of 100 requests per 1h)")
	expectRefusal(t, "101 of 0", check(t, l, epoch, costing(byKey("none", "a"), 101)),
		CostAboveLimit, algorithms.Never, "")
}

// TestCostAboveAShareOfANode: a node that is cut off, and one that counts by
// itself, refuses a cost above its share for now.
func TestCostAboveAShareOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules:
  - {name: r, key: [k], limits: [{limit: 30, per: 10s, algorithm: token-bucket}]}
  - {name: one, key: [k], limits: [{limit: 2, per: 10s, algorithm: token-bucket}]}
  - {name: local, key: [k], consistency: local, limits: [{limit: 30, per: 10s, algorithm: token-bucket}]}`)
		n := w.nodes[1]
		w.setCut(n, w.nodes[0], true)
		w.setCut(n, w.nodes[2], true)
		for rule, retry := range map[string]time.Duration{"r": time.Second, "local": 10 * time.Second} {
			words := "which is below the configured 30 for now; retry"
			if rule == "r" {
				words = "which is below the configured 30 for now, and the node is cut off from the limit's owner; retry"
			}
			key := w.keyOf(rule, w.nodes[0], w.nodes[2])
			expectRefusal(t, rule+", 11 of 10", n.check(costing(byKey(rule, key), 11)), Reduced, retry, words)
			expectRefusal(t, rule+", 31 of 10", n.check(costing(byKey(rule, key), 31)),
				CostAboveLimit, algorithms.Never, "")
			if a := n.check(costing(byKey(rule, key), 10)); !a.Allowed {
				t.Errorf("%s, 10 of 10: got %+v", rule, a.Limits[0])
			}
		}
	})
}
