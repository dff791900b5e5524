package httpd

import (
	"slices"
	"testing"
	"time"

	"github.com/rlnode/rlnode/limiter"
)

// patient is a decider that records which checks wait for loans.
type patient struct {
	*fixed
	awaits []bool
}

func (p *patient) Check(q *limiter.Query, a *limiter.Answer) error {
	p.awaits = append(p.awaits, q.AwaitsLoan)
	return p.fixed.Check(q, a)
}

func (p *patient) CheckAll(queries []*limiter.Query, answers []*limiter.Answer, errs []error) {
	for i := range queries {
		errs[i] = p.Check(queries[i], answers[i])
	}
}

func (p *patient) Reserve(q *limiter.Query, _ time.Duration, a *limiter.Answer) (string, error) {
	return "an id", p.Check(q, a)
}

// Only a check or a reservation that nothing waits for behind it waits for a
// loan: no batch, and none with another request behind it on its connection.
func TestOnlySingleChecksAwaitLoans(t *testing.T) {
	check, reserve := fastPost(plainCheck), post("/v1/reserve", plainCheck)
	for _, tt := range []struct {
		name  string
		reads []string
		want  []bool
	}{
		{"a check", []string{check}, []bool{true}},
		{"one after the other", []string{check, check, reserve, check}, []bool{true, true, true, true}},
		{"a reservation", []string{reserve}, []bool{true}},
		{"a batch", []string{post("/v1/check/batch", `{"checks":[`+plainCheck+`]}`)}, []bool{false}},
		{"pipelined", []string{check + check + reserve + check}, []bool{false, false, false, true}},
		{"after a pipeline", []string{check + check, check, reserve}, []bool{false, true, true, true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &patient{fixed: newFixed()}
			serveBothWays(t, startData(t, p), tt.reads...)
			if want := append(slices.Clone(tt.want), tt.want...); !slices.Equal(p.awaits, want) {
				t.Errorf("have %v, want %v", p.awaits, want)
			}
		})
	}
}
