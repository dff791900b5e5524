package codec

import (
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// A Reply that is used again says what the limit of the next answer says now,
// although the limit lies where the last one lay.
func TestReply_SameAddressOtherLimit(t *testing.T) {
	set := &rules.Set{}
	var reply Reply
	january := time.Date(2027, time.January, 1, 0, 0, 0, 0, time.UTC)
	limit := &rules.Limit{Name: "l", Unit: "requests"}
	limit.Limit = algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 5, Window: time.Minute}
	rule := &rules.Rule{Name: "r", Inline: true}
	for _, test := range []struct {
		name   string
		change func()
		at     time.Time
		want   string
	}{
		{"an inline limit", func() {}, january, `"limit":5,`},
		{"another one", func() { limit.Amount = 6 }, january, `"limit":6,`},
		{"a month of 31 days", func() {
			rule.Inline = false
			limit.Calendar = algorithms.NewCalendar(algorithms.Month, time.UTC)
		}, january, `"window_ms":2678400000,`},
		{"one of 28", func() {}, january.AddDate(0, 1, 0), `"window_ms":2419200000,`},
	} {
		test.change()
		for _, whole := range []bool{true, false} {
			a := limiter.Answer{Allowed: true, Set: set, Now: algorithms.At(test.at),
				Limits: []limiter.LimitAnswer{{Rule: rule, Limit: limit}}}
			reply.Reset()
			if whole {
				reply.Compose(&a, &Request{}, 0, false, []byte(`"n"`))
			} else {
				reply.Body = reply.AppendDecision(reply.Body, &a, &Request{}, []byte(`"n"`))
			}
			if !strings.Contains(string(reply.Body), test.want) {
				t.Errorf("%s: got %s, want %s in it", test.name, reply.Body, test.want)
			}
		}
	}
}
