package limiter

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestMoreAfter: MoreAfter is known whichever node decides the check, except
// where a lease only estimates what remains. It does not depend on the cost.
func TestMoreAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules:
  - {name: sliding, key: [k], limits: [{limit: 1000, per: 1h}]}
  - {name: bucket, key: [k], limits: [{limit: 1000, per: 1000h, algorithm: token-bucket}]}
  - {name: fixed, key: [k], limits: [{limit: 1000, per: 1h, algorithm: fixed-window}]}
  - {name: log, key: [k], limits: [{limit: 1, per: 1h, algorithm: sliding-window-log}]}
  - {name: log2, key: [k], limits: [{limit: 100, per: 1h, algorithm: sliding-window-log}]}
  - {name: local, key: [k], consistency: local, limits: [{limit: 1000, per: 1h}, {limit: 1000, per: 1000h, algorithm: token-bucket}]}`)
		owner, other := w.nodes[0], w.nodes[1]
		more := func(n *testNode, rule string, want DecidedBy) (all []time.Duration, allowed bool) {
			t.Helper()
			a := n.check(byKey(rule, w.keyOf(rule, owner, nil)))
			expect.Equal(t, a.DecidedBy, want, "%s: decided by", rule)
			for i := range a.Limits {
				all = append(all, a.Limits[i].MoreAfter)
			}
			return all, a.Allowed
		}
		for _, test := range []struct {
			node  *testNode
			rule  string
			by    DecidedBy
			known bool
		}{
			{owner, "sliding", ByOwner, true},
			{other, "sliding", ByForward, true},
			{other, "sliding", ByLease, false},
			{owner, "bucket", ByOwner, true},
			{other, "bucket", ByForward, true},
			{other, "bucket", ByLease, false},
			{other, "fixed", ByForward, true},
			{other, "fixed", ByLease, true},
			{other, "local", ByOwner, true},
		} {
			if have, _ := more(test.node, test.rule, test.by); (have[0] > 0) != test.known {
				t.Errorf("%s by %s: have %v", test.rule, test.by, have)
			} else if test.rule == "bucket" && test.known && (have[0] > time.Hour || have[0] < 59*time.Minute) {
				t.Errorf("%s by %s: have %v, want the time of one unit", test.rule, test.by, have)
			}
		}
		for i, allowed := range []bool{true, false} {
			if have, ok := more(owner, "log", ByOwner); ok != allowed || have[0] != time.Hour {
				t.Errorf("log, check %d: have %v, allowed %t", i, have, ok)
			}
		}
		for _, rule := range []string{"sliding", "log2"} {
			var a Answer
			for _, id := range []string{"", "x"} {
				q := byKey(rule, w.keyOf(rule, owner, nil))
				q.RequestID = id
				for _, n := range []*testNode{owner, other} {
					if _, err := n.Reserve(&q, time.Minute, &a); err != nil || !a.Allowed ||
						a.Limits[0].MoreAfter == 0 {
						t.Errorf("%s, reserved: have %v, allowed %t, %v", rule, a.Limits[0].MoreAfter, a.Allowed, err)
					}
				}
			}
		}
	})
}
