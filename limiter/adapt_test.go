package limiter

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/rules"
)

const adaptiveRules = `
rules:
  - {name: plain, key: [k], limits: [{limit: 100, per: 1h, algorithm: fixed-window}]}
  - name: busy
    key: [k]
    limits: [{limit: 100, per: 1h, algorithm: fixed-window}]
    adaptive: {source: s, steps: [{above: 0.5, factor: 0.5}, {above: 0.8, factor: 0.1}]}
`

// A step lowers the limits of its adaptive rule. The counters stay the same, so
// usage is kept when a step begins and when it ends. Answers and usage report
// the limit in force.
func TestAdapt(t *testing.T) {
	l := open(t, adaptiveRules)
	step := -1
	l.FollowLoads(func(s *rules.Set) []int { return []int{-1, step} }, nil)
	query := func(rule string) Query { return Query{Rule: rule, Key: []string{"a"}, ByKey: true} }
	ask := func(rule string) (bool, int64, int64) {
		a := check(t, l, epoch, query(rule))
		return a.Allowed, a.Limits[0].Limit.Amount, a.Limits[0].Remaining
	}
	for range 30 {
		ask("busy")
	}
	for _, tt := range []struct {
		step      int
		allowed   bool
		limit     int64
		remaining int64
		factor    float64
	}{
		{0, true, 50, 19, 0.5}, {1, false, 10, 0, 0.1}, {0, true, 50, 18, 0.5}, {-1, true, 100, 67, 1},
	} {
		step = tt.step
		l.UpdateSteps()
		if allowed, limit, remaining := ask("busy"); allowed != tt.allowed || limit != tt.limit ||
			remaining != tt.remaining {
			t.Errorf("step %d: have %v of %d, %d left, want %+v", tt.step, allowed, limit, remaining, tt)
		}
		if allowed, limit, _ := ask("plain"); !allowed || limit != 100 {
			t.Errorf("step %d: the other rule has %d", tt.step, limit)
		}
		u, err := l.Locate(&Query{Rule: "busy", Key: []string{"a"}})
		if err != nil || u.Limits[0].Limit.Amount != tt.limit || l.LimitFactor(u.Rule) != tt.factor {
			t.Errorf("step %d: have usage of %d, factor %g, %v, want %+v", tt.step,
				u.Limits[0].Limit.Amount, l.LimitFactor(u.Rule), err, tt)
		}
	}
	// New rules start with the step in force.
	step = 1
	l.SetRules(compile(t, 2, "version: 1\n"+adaptiveRules))
	if allowed, limit, _ := ask("busy"); allowed || limit != 10 {
		t.Errorf("new rules: have %v of %d", allowed, limit)
	}
}

// A check whose limits are lowered allocates no more than any other.
func TestAdaptAllocatesNothing(t *testing.T) {
	l := open(t, adaptiveRules)
	l.FollowLoads(func(s *rules.Set) []int { return []int{-1, 0} }, nil)
	l.UpdateSteps()
	q, a := Query{Rule: "busy", Key: []string{"a"}, ByKey: true}, &Answer{}
	if n := testing.AllocsPerRun(100, func() {
		if err := l.CheckAt(after(time.Second), &q, a); err != nil || a.Limits[0].Limit.Amount != 50 {
			t.Errorf("have %v of %+v", err, a.Limits)
		}
	}); n > 0 {
		t.Errorf("have %v allocations a check, want none", n)
	}
}
