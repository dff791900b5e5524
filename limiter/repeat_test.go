package limiter

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// repeatRules are rules of every sort that a single node applies.
const repeatRules = `version: 1
inline: {namespaces: [n]}
tiers: {free: {limits: [{limit: 4, per: 1m}]}, paid: {limits: [{limit: 6, per: 1m}]}}
subjects: {tenant: {a: {tier: paid}, b: {tier: free}}}
rules:
  - {name: user, key: [user], limits: [{limit: 5, per: 1m, algorithm: token-bucket}]}
  - {name: ip, key: [ip], limits: [{limit: 7, per: 1m}, {limit: 3, per: 10s, algorithm: fixed-window}]}
  - {name: both, key: [user, ip], limits: [{limit: 4, per: 1m}], block: 20s}
  - {name: tokens, key: [user], limits: [{limit: 20, per: 1m, unit: tokens}, {limit: 9, per: 1m, algorithm: sliding-window-log}]}
  - {name: path, key: [user], match: {path: '*a*'}, limits: [{limit: 4, per: 1m}]}
  - {name: cost, key: [other], cost: {by: path, values: {a: 2}, default: 1}, limits: [{limit: 6, per: 1m}]}
  - {name: trial, key: [ip], shadow: true, limits: [{limit: 2, per: 1m}]}
  - {name: tenant, key: [tenant], tiered: true}
`

// drawShape draws a query without the values of its attributes and its key.
func drawShape(r *rand.Rand, set *rules.Set) (q Query) {
	for _, name := range []string{"user", "ip", "path", "other", "tenant", "unused"} {
		if r.IntN(3) == 0 {
			q.Attributes = append(q.Attributes, rules.Attribute{Name: name})
		}
	}
	switch r.IntN(6) {
	case 0:
		q.Rule = set.Rules[r.IntN(len(set.Rules))].Name
	case 1:
		rule := set.Rules[r.IntN(len(set.Rules))]
		q.Rule, q.ByKey, q.Key = rule.Name, true, make([]string, len(rule.Key))
	case 2:
		limits := []document.InlineLimit{{Limit: 3, Per: "1m", Algorithm: "token-bucket"}}
		q.Subjects = []Subject{{InlineSubject: rules.InlineSubject{Namespace: "n", Key: []string{""}, Limits: limits}}}
	}
	drawCosts(r, &q)
	return q
}

// drawCosts draws the costs and the mode of q.
func drawCosts(r *rand.Rand, q *Query) {
	q.Costs = nil
	if r.IntN(4) == 0 {
		q.Costs = []UnitCost{{Unit: []string{document.Requests, "tokens"}[r.IntN(2)], Cost: int64(r.IntN(3))}}
	}
	q.Mode = []counters.Mode{counters.CheckMode, counters.CheckMode, counters.CheckMode,
		counters.PeekMode, counters.CountMode}[r.IntN(5)]
}

// fillIn gives q values.
func fillIn(r *rand.Rand, q *Query) {
	value := func() string { return string(rune('a' + r.IntN(3))) }
	for i := range q.Attributes {
		q.Attributes[i].Value = value()
	}
	for i := range q.Key {
		q.Key[i] = value()
	}
	for i := range q.Subjects {
		q.Subjects[i].Key[0] = value()
	}
}

// outcome is what a caller sees of an Answer.
func outcome(a *Answer, err error) string {
	if err != nil {
		return err.Error()
	}
	s := fmt.Sprint(a.Allowed, a.Counted, a.DecidedBy, a.RulesVersion, a.TightestIndex, a.Now, a.Delay(), " ")
	for i := range a.Limits {
		la := &a.Limits[i]
		s += fmt.Sprintf("%s %p %+v %t %t %d; ", la.Rule.Name, la.Limit, la.Decision, la.NoRoom, la.Blocked, la.SubjectIndex)
	}
	return s
}

// A caller that reuses its Answer gets what it would get in a fresh one, and the same is counted.
func TestReusedAnswer(t *testing.T) {
	repeated := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		sets := []*rules.Set{compile(t, 1, repeatRules),
			compile(t, 2, repeatRules+"  - {name: late, key: [user], limits: [{limit: 2, per: 1m}]}\n")}
		var limiters [2]*Limiter
		for i := range limiters {
			table := counters.New(100_000)
			t.Cleanup(table.Close)
			limiters[i] = New(table, nil)
			limiters[i].SetRules(sets[0])
		}
		var q Query
		var reused Answer
		now := time.Duration(0)
		for step := range 60 {
			if r.IntN(25) == 0 {
				set := sets[r.IntN(2)]
				limiters[0].SetRules(set)
				limiters[1].SetRules(set)
			}
			if step == 0 || r.IntN(5) == 0 {
				q = drawShape(r, limiters[0].Rules())
			} else if r.IntN(4) == 0 {
				drawCosts(r, &q)
			}
			fillIn(r, &q)
			now += time.Duration(r.IntN(3000)) * time.Millisecond
			var fresh Answer
			want := outcome(&fresh, limiters[1].CheckAt(after(now), &q, &fresh))
			if have := outcome(&reused, limiters[0].CheckAt(after(now), &q, &reused)); have != want {
				t.Fatalf("seed %d, step %d, %+v:\nreused %s\n fresh %s", seed, step, q, have, want)
			}
			if reused.scratch.hasOps {
				repeated++
			}
		}
		if have, want := limiters[0].Stats(), limiters[1].Stats(); !reflect.DeepEqual(have, want) {
			t.Fatalf("seed %d: counted %+v, want %+v", seed, have, want)
		}
	}
	if repeated < 500 {
		t.Errorf("only %d checks repeated the ops of the last", repeated)
	}
}

// One Answer serves checks that this node decides and checks that others
// decide, in turns. A refused check loses the ops that no node has decided, and
// the next one has them again.
func TestReusedAnswerInCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `
rules:
  - {name: k, key: [k], consistency: exact, limits: [{limit: 5, per: 1440h}]}
  - {name: j, key: [j], consistency: exact, limits: [{limit: 12, per: 1440h}]}`)
		r := rand.New(rand.NewPCG(1, 2))
		admitted, by := make(map[string]int), make(map[DecidedBy]int)
		repeated, shortened := 0, 0
		var a Answer
		for range 800 {
			k, j := fmt.Sprint("k", r.IntN(20)), fmt.Sprint("j", r.IntN(8))
			q := Query{Attributes: attrs("k", k, "j", j)}
			expect.NoError(t, w.nodes[0].Check(&q, &a))
			if a.Allowed {
				admitted[k]++
				admitted[j]++
			}
			if a.Allowed && len(a.Limits) != 2 || len(a.Limits) == 0 {
				t.Fatalf("allowed: %t, with %d limits", a.Allowed, len(a.Limits))
			}
			by[a.DecidedBy]++
			if a.scratch.hasOps {
				repeated++
			}
			if len(a.Limits) == 1 {
				shortened++
			}
		}
		for i := range 20 {
			if n := admitted[fmt.Sprint("k", i)]; n > 5 {
				t.Errorf("k%d: %d admitted, want at most 5", i, n)
			}
		}
		for i := range 8 {
			expect.Equal(t, admitted[fmt.Sprint("j", i)], 12, "j%d: admitted", i)
		}
		if by[ByOwner] == 0 || by[ByForward] == 0 || repeated == 0 || shortened == 0 {
			t.Errorf("decided by %v, %d repeated, %d shortened", by, repeated, shortened)
		}
	})
}

// Whether a node may decide a check by itself, as its owner, does not depend on
// what its Answer was used for before: under a local rule, each node admits its
// own limit.
func TestReusedAnswerUnderLocalRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3,
			"rules:\n  - {name: r, key: [k], consistency: local, limits: [{limit: 30, per: 1440h}]}")
		var reused Answer
		for i := range 200 {
			q := byKey("r", fmt.Sprint("s", i%20))
			expect.NoError(t, w.nodes[0].Check(&q, &reused))
			if !reused.scratch.hasLocal {
				t.Fatalf("check %d: the answer forgot that the rule is local", i)
			}
			fresh := w.nodes[1].check(q)
			if len(fresh.Limits) != 1 || reused.Limits[0].Decision != fresh.Limits[0].Decision ||
				reused.DecidedBy != fresh.DecidedBy {
				t.Fatalf("check %d: reused %+v, fresh %+v", i, reused.Limits, fresh.Limits)
			}
		}
	})
}
