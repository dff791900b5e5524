package limiter

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

const atMostRules = `rules:
  - {name: one, key: [k], limits: [{limit: 100, per: 24h, algorithm: ALGORITHM}]}
  - {name: two, key: [k], limits: [{limit: 100, per: 24h}, {limit: 10, per: 1h}]}
lists: {allow: [{k: friend}]}`

func atMost(rule, key string, cost int64) *Query {
	return &Query{Rule: rule, Key: []string{key}, ByKey: true, Costs: []UnitCost{{document.Requests, cost}}, AtMost: true}
}

// A check that takes at most its cost takes as much as there is, at any node
// and however many ask at once: together exactly the limit.
func TestAtMost(t *testing.T) {
	for _, algorithm := range []string{"fixed-window", "sliding-window", "sliding-window-log",
		"token-bucket", "leaky-bucket"} {
		synctest.Test(t, func(t *testing.T) {
			nextWindow(24 * time.Hour)
			w := newTestCluster(t, 3, strings.ReplaceAll(atMostRules, "ALGORITHM", algorithm))
			key := w.keyOf("one", w.nodes[1], nil)
			for i, tt := range []struct{ cost, want int64 }{{60, 60}, {60, 40}, {60, 0}, {0, 0}} {
				var a Answer
				expect.NoError(t, w.nodes[i%3].Check(atMost("one", key, tt.cost), &a))
				if !a.IsAtMost || a.Granted != tt.want || a.Allowed != (tt.want > 0 || tt.cost == 0) {
					t.Errorf("%s: of %d, %d were granted, allowed %t; want %d", algorithm, tt.cost,
						a.Granted, a.Allowed, tt.want)
				}
			}

			other := w.keyOf("one", w.nodes[2], nil)
			var mu sync.Mutex
			var wait sync.WaitGroup
			sum := int64(0)
			for i := range 30 {
				wait.Go(func() {
					var a Answer
					if err := w.nodes[i%3].Check(atMost("one", other, 7), &a); err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					sum += a.Granted
				})
			}
			wait.Wait()
			if sum > 100 || sum < 93 {
				t.Errorf("%s: %d were granted of 100", algorithm, sum)
			}

			inline := &Query{AtMost: true, Subjects: []Subject{{
				InlineSubject: rules.InlineSubject{Key: []string{"x"},
					Limits: []document.InlineLimit{{Limit: 10, Per: "1h"}}},
				Costs: []UnitCost{{document.Requests, 7}},
			}}}
			queries := []*Query{atMost("one", "batch", 70), atMost("one", "batch", 70), inline,
				inline, atMost("one", "friend", 5), atMost("two", "x", 1)}
			answers, errs := make([]*Answer, len(queries)), make([]error, len(queries))
			for i := range answers {
				answers[i] = &Answer{}
			}
			w.nodes[0].CheckAll(queries, answers, errs)
			for i, want := range []int64{70, 30, 7, 3, 5} {
				if errs[i] != nil || answers[i].Granted != want {
					t.Errorf("%s, in a batch: %d were granted, %v, want %d", algorithm,
						answers[i].Granted, errs[i], want)
				}
			}
			if !errors.Is(errs[5], ErrAtMost) {
				t.Errorf("two limits: %v", errs[5])
			}
		})
	}
}

// The peek and the take of a check with at_most share the time that one check
// may take, however slow their owner is.
func TestAtMostTakesAsLongAsOneCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules: [{name: r, key: [k], consistency: exact, limits: [{limit: 100, per: 1h}]}]`)
		owner, asker := w.nodes[0], w.nodes[2]
		w.change(func() { w.slow[owner.id] = 600 * time.Millisecond })

		began := time.Now()
		var a Answer
		expect.NoError(t, asker.Check(atMost("r", w.keyOf("r", owner, w.nodes[1]), 5), &a))
		if took := time.Since(began); took > checkTimeout {
			t.Errorf("took %v, want at most %v", took, checkTimeout)
		}
	})
}
