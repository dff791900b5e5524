package limiter

import (
	"slices"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
)

const loginRules = `
rules:
  - name: login
    key: [ip]
    limits: [{limit: 3, per: 1m, algorithm: sliding-window-log}, {limit: 5, per: 1h, algorithm: fixed-window}]
    block: 30m
`

// blocked is a check against a rule with a block, and its outcome.
type blocked struct {
	after   time.Duration
	cost    int64
	peek    bool
	allowed bool
	retry   time.Duration // of the tightest limit
}

func (b blocked) ask(t *testing.T, l *Limiter, rule string) *Answer {
	t.Helper()
	q := byKey(rule, "k")
	q.Costs = []UnitCost{{"requests", b.cost}}
	if b.peek {
		q.Mode = counters.PeekMode
	}
	a := check(t, l, after(b.after), q)
	have := blocked{b.after, b.cost, b.peek, a.Allowed, a.Limits[max(0, a.TightestIndex)].RetryAfter}
	if have != b {
		t.Errorf("have %+v, want %+v", have, b)
	}
	return a
}

const ladderRules = `
rules:
  - name: login
    key: [ip]
    limits: [{limit: 1, per: 1m, algorithm: sliding-window-log}]
    block: [5m, 1h, 1d]
`

// A subject that is refused again within a day of a block's end gets the next
// length. The last length repeats; after a day without a refusal, the first one
// comes again.
func TestBlocksBecomeLonger(t *testing.T) {
	const s, m, h, day = time.Second, time.Minute, time.Hour, 24 * time.Hour
	for _, tt := range []struct {
		name  string
		steps []blocked
	}{
		{"each the next length", []blocked{
			{cost: 1, allowed: true}, {cost: 1, retry: 5 * m}, {after: m, cost: 1, retry: 4 * m},
			{after: 5*m - 1, cost: 1, retry: 1},
			{after: 5 * m, cost: 1, allowed: true}, {after: 5*m + s, cost: 1, retry: h},
			{after: 6*m + s, cost: 0, retry: 59 * m},
			{after: 65*m + s, cost: 1, allowed: true},
			{after: 65*m + s, cost: 1, peek: true, retry: day},
			{after: 65*m + 2*s, cost: 1, retry: day},
			{after: 65*m + 2*s + day, cost: 1, allowed: true}, {after: 65*m + 3*s + day, cost: 1, retry: day},
			{after: 65*m + 3*s + 3*day - s, cost: 2, retry: algorithms.Never},
			{after: 65*m + 3*s + 3*day, cost: 1, retry: day - s},
		}},
		{"a day later, the first again", []blocked{
			{cost: 2, retry: algorithms.Never}, {after: 5*m + day, cost: 1, allowed: true},
			{after: 5*m + day, cost: 1, retry: 5 * m},
		}},
		{"just within a day", []blocked{
			{cost: 2, retry: algorithms.Never}, {after: 5*m + day - s, cost: 1, allowed: true},
			{after: 5*m + day - s, cost: 1, retry: h},
			{after: 5*m + 2*day + h - s, cost: 1, allowed: true}, {after: 5*m + 2*day + h - s, cost: 1, retry: 5 * m},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := open(t, ladderRules)
			for _, step := range tt.steps {
				if a := step.ask(t, l, "login"); len(a.Limits) != 1 || a.Limits[0].Blocked == a.Allowed {
					t.Errorf("%+v: got %+v, want the rule's one limit", step, a.Limits)
				}
			}
		})
	}
}

// Usage shows the block in force, whichever length it has, and a reset lifts it
// and what is remembered.
func TestUsageOfLongerBlocks(t *testing.T) {
	l := open(t, ladderRules)
	q := byKey("login", "k")
	twice := Query{Rule: "login", Key: []string{"k"}, ByKey: true, Costs: []UnitCost{{"requests", 2}}}
	var a Answer
	if err := l.Check(&twice, &a); err != nil || a.Allowed {
		t.Fatalf("got %v, %v", a.Allowed, err)
	}
	if got := string(a.AppendReason(nil)); got != `Limit "login" of rule "login" (1 requests per 1m) can never allow it: the cost of 2 is above its capacity of 1.` {
		t.Errorf("got %s", got)
	}
	if u, err := l.Usage(&q); err != nil || u.Blocked <= 4*time.Minute || u.Blocked > 5*time.Minute {
		t.Errorf("got %+v, %v, want a block of 5m", u, err)
	}
	if u, err := l.Reset(&q); err != nil || u.Blocked != 0 {
		t.Errorf("after a reset: got %+v, %v", u, err)
	}
	if err := l.Check(&twice, &a); err != nil || a.Allowed {
		t.Fatalf("got %v, %v", a.Allowed, err)
	}
	if u, err := l.Usage(&q); err != nil || u.Blocked <= 4*time.Minute || u.Blocked > 5*time.Minute {
		t.Errorf("after a reset and another refusal: got %+v, %v, want a block of 5m", u, err)
	}
}

func TestBlock(t *testing.T) {
	const s, m = time.Second, time.Minute
	tests := []struct {
		name  string
		steps []blocked
	}{
		{"a refused check triggers it and reports its length", []blocked{
			{cost: 3, allowed: true}, {after: s, cost: 1, retry: 30 * m}, {after: 2 * s, cost: 1, retry: 30*m - s},
		}},
		{"a refusal during a block does not prolong it", []blocked{
			{cost: 4, retry: algorithms.Never}, {after: 29 * m, cost: 1, retry: m},
			{after: 30*m - 1, cost: 1, retry: 1}, {after: 30 * m, cost: 1, allowed: true},
		}},
		{"a cost of 0 is refused during a block, and triggers none", []blocked{
			{cost: 3, allowed: true}, {cost: 0, allowed: true}, {cost: 1, retry: 30 * m},
			{after: m, cost: 0, retry: 29 * m}, {after: 30 * m, cost: 0, allowed: true},
		}},
		{"a peek reports the block, and triggers none", []blocked{
			{cost: 3, allowed: true}, {cost: 1, peek: true, retry: 30 * m}, {after: m, cost: 1, allowed: true},
		}},
		{"a limit that refuses for longer than the block", []blocked{
			{cost: 3, allowed: true}, {after: m, cost: 2, allowed: true}, {after: m, cost: 1, retry: 59 * m},
		}},
		{"above the capacity", []blocked{
			{cost: 4, retry: algorithms.Never}, {after: m, cost: 4, retry: algorithms.Never},
			{after: m, cost: 3, retry: 29 * m},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := open(t, loginRules)
			for _, step := range tt.steps {
				a := step.ask(t, l, "login")
				if len(a.Limits) != 2 || len(a.scratch.ops) != 2 {
					t.Fatalf("have %d limits and %d ops, want the rule's two", len(a.Limits), len(a.scratch.ops))
				}
				for _, la := range a.Limits {
					if a.Allowed != la.Allowed || la.Blocked == a.Allowed || !a.Allowed && la.Remaining != 0 {
						t.Errorf("%+v: have %+v", step, la)
					}
				}
			}
		})
	}
}

// A block belongs to one rule and one subject.
func TestBlockOfOneRule(t *testing.T) {
	l := open(t, `
rules:
  - {name: a, key: [ip], limits: [{limit: 1, per: 1s}], block: 1m}
  - {name: b, key: [ip], limits: [{limit: 2, per: 1s}], block: 1h}
  - {name: s, key: [ip], limits: [{limit: 1, per: 1s}], block: 1m, shadow: true}`)
	ask := func(d time.Duration, ip string) *Answer {
		return check(t, l, after(d), Query{Attributes: attrs("ip", ip)})
	}
	ask(0, "192.0.2.1")
	if a := ask(0, "192.0.2.1"); a.Allowed || a.Limits[0].RetryAfter != time.Minute ||
		!a.Limits[1].Allowed || a.Limits[1].Remaining != 1 {
		t.Errorf("have %+v", a.Limits)
	} else if a.Limits[2].Allowed || !a.Limits[2].Blocked || a.Limits[2].RetryAfter != time.Minute {
		t.Errorf("shadow: have %+v", a.Limits[2])
	}
	if a := ask(0, "192.0.2.2"); !a.Allowed {
		t.Error("another subject is blocked")
	}
	// The blocks of a and of the shadow rule s have ended; b refused nothing.
	if a := ask(time.Minute, "192.0.2.1"); !a.Allowed || !a.Limits[2].Allowed {
		t.Errorf("after a minute: have %+v", a.Limits)
	}
}

func TestBlockOfAShadowRuleRefusesNothing(t *testing.T) {
	l := open(t, "rules: [{name: s, key: [k], limits: [{limit: 1, per: 1s}], block: 1m, shadow: true}]")
	var have []bool
	for _, d := range []time.Duration{0, 0, 30 * time.Second, time.Minute} {
		a := check(t, l, after(d), byKey("s", "x"))
		have = append(have, a.Allowed, a.Limits[0].Allowed)
	}
	if want := []bool{true, true, true, false, true, false, true, true}; !slices.Equal(have, want) {
		t.Errorf("have %v, want %v", have, want)
	}
}

func TestBlockKeepsOnWhenItsLengthChanges(t *testing.T) {
	text := func(length string) string {
		return "version: 1\nrules: [{name: r, key: [k], limits: [{limit: 1, per: 1s}], block: " + length + "}]"
	}
	l := open(t, "")
	l.SetRules(compile(t, 2, text("10m")))
	blocked{cost: 1, allowed: true}.ask(t, l, "r")
	blocked{cost: 1, retry: 10 * time.Minute}.ask(t, l, "r")
	l.SetRules(compile(t, 3, text("20m")))
	blocked{after: 5 * time.Minute, cost: 1, retry: 15 * time.Minute}.ask(t, l, "r")
	l.SetRules(compile(t, 4, text("6m")))
	blocked{after: 5 * time.Minute, cost: 1, retry: time.Minute}.ask(t, l, "r")
	blocked{after: 6 * time.Minute, cost: 1, allowed: true}.ask(t, l, "r")
}

// A count takes its cost during a block, too. One that goes over begins the block.
func TestCountsAreNotBlocked(t *testing.T) {
	l := open(t, "rules: [{name: r, key: [k], limits: [{limit: 5, per: 1h, algorithm: fixed-window}], block: 10m}]")
	for i, step := range []struct {
		after            time.Duration
		mode             counters.Mode
		cost, used       int64
		allowed, counted bool
		retry            time.Duration
	}{
		{mode: counters.CountMode, cost: 4, used: 4, allowed: true},
		{mode: counters.CountMode, cost: 4, used: 8, counted: true, retry: time.Hour},
		{after: time.Minute, mode: counters.CountMode, cost: 1, used: 9, counted: true, retry: 59 * time.Minute},
		{after: time.Minute, mode: counters.CountMode, cost: 0, used: 9, counted: true, retry: 9 * time.Minute},
		{after: time.Minute, cost: 0, used: 9, retry: 9 * time.Minute},
		{after: 10 * time.Minute, cost: 0, used: 9, allowed: true},
		{after: 10 * time.Minute, cost: 1, used: 9, retry: 50 * time.Minute},
		{after: 11 * time.Minute, mode: counters.CountMode, cost: 0, used: 9, counted: true, retry: 9 * time.Minute},
	} {
		q := byKey("r", "k")
		q.Mode, q.Costs = step.mode, []UnitCost{{"requests", step.cost}}
		a := check(t, l, after(step.after), q)
		la := a.Limits[0]
		if a.Allowed != step.allowed || a.Counted != step.counted || la.RetryAfter != step.retry ||
			la.Blocked == a.Allowed || la.Used != step.used {
			t.Errorf("step %d: have %v, counted %v, %+v", i, a.Allowed, a.Counted, la)
		}
		u, _ := l.table.Usage(after(step.after), a.scratch.ops[0].Key, a.scratch.ops[0].Limit)
		expect.Equal(t, u, step.used, "step %d, used", i)
	}
}

// Usage reports a block, Reset lifts it, and Adjust neither triggers nor lifts
// one. A caller can count failed attempts only.
func TestBlockInUsage(t *testing.T) {
	l := open(t, loginRules)
	key := []string{"192.0.2.9"}
	attempt := func() *Answer {
		a := &Answer{}
		q := Query{Rule: "login", Key: key, ByKey: true, Costs: []UnitCost{{"requests", 0}}}
		expect.NoError(t, l.Check(&q, a))
		return a
	}
	for range 3 {
		if !attempt().Allowed {
			t.Fatal("refused before three failures")
		}
		if _, err := l.Adjust(adjustment("login", key, 1, "")); err != nil {
			t.Fatal(err)
		}
	}
	u, err := l.Usage(&Query{Rule: "login", Key: key})
	if err != nil || u.Blocked != 0 || len(u.Limits) != 2 || u.Limits[0].Used != 3 {
		t.Errorf("have %+v, %v", u, err)
	}
	q := Query{Rule: "login", Key: key, ByKey: true}
	if a := check(t, l, l.clock.Now(), q); a.Allowed || !a.Limits[0].Blocked {
		t.Errorf("have %+v", a.Limits)
	}
	u, err = l.Adjust(adjustment("login", key, -5, ""))
	if err != nil ||
		u.Blocked < 29*time.Minute || u.Limits[0].Used != 0 {
		t.Errorf("after a reward: have %+v, %v", u, err)
	}
	if attempt().Allowed {
		t.Error("a reward lifted the block")
	}
	if _, err := l.Reset(&Query{Rule: "login", Key: key}); err != nil {
		t.Fatal(err)
	}
	u, err = l.Usage(&Query{Rule: "login", Key: key})
	if err != nil || u.Blocked != 0 || !attempt().Allowed {
		t.Errorf("after a reset: have %+v, %v", u, err)
	}
}
