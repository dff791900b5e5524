package codec

import (
	"fmt"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// Limits are ranked tightest first: refusals by retry time, Never first; then
// allowed ones by the share that is left.
func TestRank(t *testing.T) {
	a := &limiter.Answer{}
	for i, l := range []struct {
		allowed   bool
		remaining int64
		amount    int64
		retry     time.Duration
	}{
		{true, 1 << 52, 1<<53 - 1, 0}, {true, 1, 2, 0}, {false, 0, 5, time.Second}, {false, 9, 9, algorithms.Never},
		{false, 0, 5, time.Minute}, {true, 0, 1, 0}, {true, 2, 4, 0},
	} {
		a.Limits = append(a.Limits, limiter.LimitAnswer{
			Rule: &rules.Rule{Name: "r"},
			Limit: &rules.Limit{Name: fmt.Sprint(i),
				Limit: algorithms.Limit{Kind: algorithms.FixedWindow, Amount: l.amount, Window: time.Minute}},
			Decision: algorithms.Decision{Allowed: l.allowed, Remaining: l.remaining, RetryAfter: l.retry},
		})
	}
	r := &Reply{}
	r.rankLimits(a)
	expect.Equal(t, fmt.Sprint(r.order), "[3 4 2 5 1 6 0]", "fmt.Sprint(r.order)")
	for len(a.Limits) < 1000 {
		a.Limits = append(a.Limits, a.Limits[:7]...)
	}
	r.rankLimits(a)
	expect.Equal(t, len(r.order), maxHeaderItems, "items")
	for _, i := range r.order {
		if i%7 != 3 {
			t.Fatalf("have limit %d among the tightest %d, want only those that never allow", i, maxHeaderItems)
		}
	}
}

func TestQuoted(t *testing.T) {
	for have, want := range map[string]string{
		`tenant`: `"tenant"`, `a"b\c`: `"a\"b\\c"`, "ü\n": `"%C3%BC%0A"`, "": `""`,
		"a/requests/1m": `"a/requests/1m"`, "\x7f": `"%7F"`,
	} {
		expect.Equal(t, string(appendQuoted(nil, have)), want, "string(appendQuoted(nil, have))")
	}
}
