package limiter

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules"
)

// TestEnvoyPaths: an Envoy descriptor is checked, located and listed by its
// path, like a rule. A descriptor with a limit of 0 refuses every check.
// Adaptive rules beside it change nothing.
func TestEnvoyPaths(t *testing.T) {
	l := open(t, adaptiveRules+`
envoy:
  - domain: edge
    descriptors:
      - {key: path, value: /a*, rate_limit: {unit: minute, requests_per_unit: 2}, descriptors: [{key: user, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 3}}]}
      - {key: closed, rate_limit: {unit: minute, requests_per_unit: 0}}
`)
	l.FollowLoads(func(*rules.Set) []int { return []int{-1, 1} }, nil)
	l.UpdateSteps()
	user := Query{Rule: "edge.path_/a*.user", Key: []string{"/ab", "u"}, ByKey: true}
	for i, want := range []bool{true, true, true, false} {
		if a := check(t, l, epoch, user); a.Allowed != want || a.Limits[0].Limit.Name != user.Rule {
			t.Errorf("check %d: have %v by %q", i, a.Allowed, a.Limits[0].Limit.Name)
		}
	}
	other := user
	other.Key = []string{"/ab", "v"}
	if a := check(t, l, epoch, other); !a.Allowed || a.Limits[0].Used != 1 {
		t.Errorf("another value shares the counter: %+v", a.Limits[0])
	}
	closed := Query{Rule: "edge.closed", Key: []string{"x"}, ByKey: true}
	if a := check(t, l, epoch, closed); a.Allowed || a.Limits[0].RetryAfter != algorithms.Never ||
		!strings.Contains(string(a.AppendReason(nil)), `Limit "edge.closed"`) {
		t.Errorf("have %+v, %s", a.Limits[0], a.AppendReason(nil))
	}
	if u, err := l.Locate(&user); err != nil || u.Rule.Name != user.Rule || len(u.Limits) != 1 || u.Key[1] != "u" {
		t.Errorf("have %+v, %v", u, err)
	}
	top := l.mostRefused(10)
	if len(top) != 2 || top[0].Rule != "edge.closed" || top[1].Rule != user.Rule || top[1].Key[0] != "/ab" {
		t.Errorf("have %+v", top)
	}
	counted := map[string]int64{}
	for _, s := range l.Stats() {
		for _, by := range s.Checks {
			for _, n := range by {
				counted[s.Rule] += n
			}
		}
	}
	if counted[user.Rule] != 5 || counted["envoy/edge"] != 1 {
		t.Errorf("have %v", counted)
	}
}
