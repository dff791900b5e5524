package client

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

const (
	unauthorized = `{"code":"unauthorized","detail":"x"}`
	forbidden    = `{"code":"forbidden","detail":"x"}`
	unknownRule  = `{"status":404,"code":"unknown-rule","detail":"x"}`
)

// logs is a log that a test can read while it is written.
type logs struct{ process.Output }

// count returns how many lines have all parts.
func (l *logs) count(parts ...string) (n int) {
	for line := range strings.Lines(l.String()) {
		missing := false
		for _, part := range parts {
			missing = missing || !strings.Contains(line, part)
		}
		if !missing {
			n++
		}
	}
	return n
}

func (l *logs) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// answering makes f answer all calls.
func (f *fake) answering(status int, body string) *fake {
	f.set(func() { f.decide = func(map[string]any) (int, string) { return status, body } })
	return f
}

// A token that a node rejects may be known to the next one, which is asked once.
func TestRejectedCallsTryOneOtherNode(t *testing.T) {
	for _, problem := range []struct {
		status int
		body   string
	}{{401, unauthorized}, {403, forbidden}} {
		rejects := func() *fake { return newFake(t).answering(problem.status, problem.body) }
		one, two, three, good := rejects(), rejects(), rejects(), newFake(t)
		if d, err := connect(t, Options{}, one, good).Check(background, byIP("a")); err != nil ||
			!d.Allowed || len(one.requests()) != 1 {
			t.Errorf("%d, then an answer: have %+v, %v", problem.status, d, err)
		}
		for policy, want := range map[OnRejected]bool{RejectedClosed: false, RejectedOpen: true} {
			before := len(three.requests())
			c := connect(t, Options{OnRejected: policy}, one, two, three)
			undecided(t, "rejected twice", c, byIP("a"), want, nil)
			if len(three.requests()) != before {
				t.Errorf("%d: a third node was asked", problem.status)
			}
		}
		dead := newFake(t)
		dead.Close()
		undecided(t, "rejected, then no answer", connect(t, Options{}, one, dead), byIP("a"), false, nil)
	}
}

func TestRejectionsAreLoggedOnceAMinute(t *testing.T) {
	onVirtualTime(t, "one minute", func(t *testing.T, f *fake, connectTo func(Options) *Client) {
		f.answering(401, unauthorized)
		var text logs
		c := connectTo(Options{Logger: text.logger()})
		for range 3 {
			for range 10 {
				c.Check(background, byIP("a"))
			}
			time.Sleep(time.Minute)
		}
		if n := text.count("level=ERROR", "reject", "unauthorized"); n != 3 {
			t.Errorf("have %d errors, want 3:\n%s", n, text.String())
		}
	})
}

// An unknown rule whose name is a constant of the program is a mistake of its
// operator. Any other may come from a stranger.
func TestUnknownRules(t *testing.T) {
	f := newFake(t).answering(404, unknownRule)
	for policy, want := range map[OnError]bool{Open: true, Closed: false} {
		c := connect(t, Options{OnError: policy, Rules: []string{"mine"}}, f)
		undecided(t, "mine", c, Request{Rule: "mine", Key: []string{"a"}}, want, nil)
		undecided(t, "another", c, Request{Rule: "other", Key: []string{"a"}}, false, nil)
		passed := get(Middleware(c, MiddlewareOptions{Rule: "middleware"})(ok), "/").StatusCode
		if (passed == http.StatusOK) != want {
			t.Errorf("a middleware's rule: have %d", passed)
		}
	}
	limited := connect(t, Options{OnError: Local, Local: perMinute(1), Rules: []string{"mine"}}, f)
	undecidedOr(t, limited, Request{Rule: "mine", Key: []string{"a"}}, true)
	undecidedOr(t, limited, Request{Rule: "mine", Key: []string{"a"}}, false)
}

func undecidedOr(t *testing.T, c *Client, q Request, want bool) {
	t.Helper()
	if d, err := c.Check(background, q); d.Allowed != want || d.DecidedBy != ByLocal || err == nil {
		t.Errorf("have %+v, %v", d, err)
	}
}

// When a client is made, it asks about its token and its rules, as soon as a node answers.
func TestSetupIsChecked(t *testing.T) {
	onVirtualTime(t, "rules", func(t *testing.T, f *fake, connectTo func(Options) *Client) {
		f.set(func() {
			f.answer = func(w http.ResponseWriter, r *http.Request) bool {
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
		})
		var text logs
		c := connectTo(Options{Logger: text.logger()})
		c.ExpectRules("known", "misspelt")
		time.Sleep(time.Minute)
		expect.Equal(t, text.count("level=ERROR"), 0, "while no node answers: errors")
		f.set(func() {
			f.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/v1/check/batch" {
					io.WriteString(w,
						`{"results":[{"error":{"status":400,"code":"bad-value"}},{"error":`+unknownRule+`}]}`)
				}
				return r.URL.Path == "/v1/check/batch"
			}
		})
		time.Sleep(time.Minute)
		if text.count("level=ERROR") != 1 || text.count("level=ERROR", "rule=misspelt") != 1 {
			t.Errorf("have\n%s", text.String())
		}
		c.ExpectRules("known") // has been asked about
		if len(f.requests()) != 0 {
			t.Errorf("have %+v", f.requests())
		}
	})
	f := newFake(t)
	f.set(func() {
		f.answer = func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, unauthorized)
			return true
		}
	})
	for _, o := range []Options{{Token: "wrong"}, {Rules: []string{"r"}}} {
		var text logs
		o.Logger = text.logger()
		connect(t, o, f)
		process.Eventually(t, fmt.Sprintf("with %+v, the error is logged", o),
			func() bool { return text.count("level=ERROR", "reject") > 0 })
	}
}

// A lost node is logged by default, and at most once a minute.
func TestLostNodesAreLogged(t *testing.T) {
	onVirtualTime(t, "a node that comes and goes", func(t *testing.T, f *fake, connectTo func(Options) *Client) {
		var text logs
		before := slog.Default()
		slog.SetDefault(text.logger())
		defer slog.SetDefault(before)
		c := connectTo(Options{})
		f.answering(500, "")
		for range 180 {
			c.Check(background, byIP("a"))
			time.Sleep(time.Second)
		}
		if n := text.count("level=WARN", "skipping failing node"); n < 3 || n > 4 {
			t.Errorf("have %d warnings in three minutes:\n%s", n, text.String())
		}
	})
}

func TestMissingKey(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{}, f)
	for _, test := range []struct {
		missing string
		key     []string
		status  int
		sent    any // the key; nil: nothing
	}{
		{"", []string{"a"}, 200, "a"},
		{"", nil, 400, nil},
		{"", []string{""}, 400, nil},
		{MissingRefuse, []string{"a", ""}, 400, nil},
		{MissingError, []string{""}, 500, nil},
		{MissingAllow, []string{""}, 200, nil},
		{"anonymous", nil, 200, "anonymous"},
		{"anonymous", []string{"", "b"}, 200, []any{"anonymous", "b"}},
		{"anonymous", []string{"a"}, 200, "a"},
	} {
		var failed error
		before := len(f.requests())
		r := get(Middleware(c, MiddlewareOptions{
			Rule: "r", Key: func(*http.Request) []string { return test.key }, MissingKey: test.missing,
			OnError: func(_ *http.Request, err error) { failed = err },
		})(ok), "/")
		var sent any
		if all := f.requests(); len(all) > before {
			sent = all[before].checks[0]["key"]
		}
		if have, want := fmt.Sprint(sent), fmt.Sprint(test.sent); r.StatusCode != test.status || have != want {
			t.Errorf("%q, %q: have %d, sent %s, want %d, %s", test.missing, test.key, r.StatusCode,
				have, test.status, want)
		}
		if body := text(r); test.status == 400 && !strings.Contains(body, `"code":"missing-key"`) {
			t.Errorf("%q: have %s", test.key, body)
		}
		if test.status == 500 {
			wantError(t, failed, ErrMissingKey)
			wantError(t, failed, ErrRequest)
		}
	}
}
