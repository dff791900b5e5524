package httpd

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules/document"
)

// manyRules returns a document with n rules that all checks with a user match.
func manyRules(n int) string {
	var b strings.Builder
	b.WriteString("version: 1\nrules:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {name: r%d, key: [user], limits: [{limit: 1000000000, per: 1h}]}\n", i)
	}
	return b.String()
}

// A batch whose checks match too many limits is not decided to its end, whoever sends it.
func TestWorkOfABatchIsBounded(t *testing.T) {
	t.Parallel()
	const ruleCount, checks, most = 100, 1000, 5000
	n := startNode(t, func(c *apitest.Config) { c.MaxMatched = most })
	doc, err := document.Parse([]byte(manyRules(ruleCount)))
	expect.NoError(t, err)
	if _, err := n.Rules.Use(doc); err != nil {
		t.Fatal(err)
	}
	one := `{"attributes":{"user":"u"}}`
	resp, body := n.Do(apitest.Call{Method: http.MethodPost, URL: n.DataURL + "/v1/check/batch",
		Body: `{"checks":[` + strings.Repeat(one+",", checks-1) + one + `]}`})
	decided, refused := strings.Count(body, `"allowed":true`), strings.Count(body, string(api.TooMuchWork))
	if resp.StatusCode != 200 || decided+refused != checks || refused == 0 || !strings.Contains(body, `"status":413`) {
		t.Errorf("got %d: %d decided, %d refused of %d: %.300s", resp.StatusCode, decided, refused, checks, body)
	}
	// A chunk that began below the bound is decided as a whole.
	if matched := decided * ruleCount; matched > most+maxChunk*ruleCount {
		t.Errorf("%d limits were matched, want not many over %d", matched, most)
	}
	apitest.NoteCode([]byte(`{"code":"too-much-work"}`))

	// Those that match little are all decided.
	_, body = n.Do(apitest.Call{Method: http.MethodPost, URL: n.DataURL + "/v1/check/batch",
		Body: `{"checks":[` + strings.Repeat(`{"rule":"r1","key":"u"},`, most-1) + `{"rule":"r1","key":"u"}]}`})
	if decided := strings.Count(body, `"allowed":true`); decided != most {
		t.Errorf("%d of %d small checks were decided", decided, most)
	}
}

// The first chunk of a batch is decided as a whole. Even if its checks match all
// rules, they match no more than the batch may.
func TestChunk_FirstSize(t *testing.T) {
	for _, tt := range []struct{ ruleCount, most, want int }{
		{100, 500, 5}, {100, 50, 1}, {0, 500, min(500, maxChunk)}, {1, 1 << 30, maxChunk},
	} {
		got := (&chunk{}).size(tt.ruleCount, tt.most)
		expect.Equal(t, got, tt.want, "size with %d rules and a bound of %d", tt.ruleCount, tt.most)
	}
}

// tiring is a decider that takes its time for each check.
type tiring struct {
	*fixed
	checks atomic.Int64
}

func (f *tiring) CheckAll(queries []*limiter.Query, answers []*limiter.Answer, errs []error) {
	timer := time.NewTimer(time.Duration(len(queries)) * 5 * time.Millisecond)
	<-timer.C
	f.checks.Add(int64(len(queries)))
	f.fixed.CheckAll(queries, answers, errs)
}

// A batch that takes too long, or whose caller hangs up, is not decided to its end.
func TestBatchesEnd(t *testing.T) {
	t.Parallel()
	const checks = 2000 // ten seconds
	for name, tt := range map[string]struct {
		bound  time.Duration // 0: that of the product
		hangUp bool
	}{
		"too long": {300 * time.Millisecond, false},
		"hung up":  {0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &tiring{fixed: newFixed()}
			handlers := handlersOf(d)
			handlers.Timeout = tt.bound
			s := startHandlers(t, handlers)
			c := (&node{Node: &apitest.Node{Data: s}}).dial(t)
			if _, err := io.WriteString(c, batchOf(checks, plainCheck)); err != nil {
				t.Fatal(err)
			}
			apitest.Until(t, "the first checks are decided", func() bool { return d.checks.Load() > 0 })
			if tt.hangUp {
				c.Close()
			}
			apitest.UntilWithin(t, 8*time.Second, "the request has ended", func() bool {
				return s.handlers.Budget.Used() == 0 && d.checks.Load() > 0
			})
			if decided := d.checks.Load(); decided >= checks {
				t.Errorf("%d of %d checks were decided", decided, checks)
			}
		})
	}
}
