package resp

import (
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
)

const slotRules = `
version: 1
rules:
  - {name: render, key: [tenant], limits: [{limit: 2, ttl: 10s, algorithm: concurrency}]}
  - {name: a, key: [user], limits: [{limit: 5, per: 1h}]}
  - name: model
    key: [user]
    limits:
      - {limit: 20, ttl: 60s, algorithm: concurrency}
      - {limit: 100, per: 1h, unit: tokens, algorithm: fixed-window}
`

var slotID = regexp.MustCompile(`"slot" "([^"]+)"`)

// slotOf returns the id of the slot in a reply; empty if it has none.
func slotOf(reply string) string {
	if found := slotID.FindStringSubmatch(reply); found != nil {
		return found[1]
	}
	return ""
}

func TestSlots(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	n.UseRules(slotRules)
	c := dial(t, n)
	c.ask("HELLO 3")
	steadily := func(text string) string {
		text = regexp.MustCompile(`("(expires_ms|age_ms)") \d+`).ReplaceAllString(steady(text), "$1 T")
		return slotID.ReplaceAllString(text, `"slot" S`)
	}

	first := c.ask("RL.ACQUIRE render acme WHO worker-1")
	want := `{"allowed" true "rule" "render" "limit" 2 "used" 1 "remaining" 1 "unit" "requests" "ttl_ms" 10000 "reset_after_ms" T "retry_after_ms" 0 ` +
		`"delay_ms" 0 "decided_by" "owner" "node" "n1" "rules_version" 2 "slot" S "expires_ms" T}`
	if got := steadily(first); got != want {
		t.Errorf("the first:\ngot  %s\nwant %s", got, want)
	}
	second := slotOf(c.ask("RL.ACQUIRE render acme TTL 5000 REQUESTID r1"))
	if again := slotOf(c.ask("RL.ACQUIRE render acme TTL 5000 REQUESTID r1")); again != second || second == "" {
		t.Errorf("the request repeated: got slot %q, want %q", again, second)
	}
	if third := c.ask("RL.ACQUIRE render acme"); !strings.HasPrefix(third,
		`{"allowed" false "code" "rate-limited"`) || slotOf(third) != "" {
		t.Errorf("the third: got %s", third)
	}
	usage := steadily(c.ask("RL.USAGE render acme"))
	if !strings.Contains(usage,
		`"holders" 2 "slots" [{"slot" S "n" 1 "age_ms" T "expires_ms" T "who" "127.0.0.1"} {"slot" S "n" 1 "age_ms" T "expires_ms" T "who" "worker-1"}]`) {
		t.Errorf("usage: got %s", usage)
	}

	if got := c.ask("RL.RENEW " + second +
		" TTL 8000"); !regexp.MustCompile(`^{"expires_ms" 7\d\d\d}$`).MatchString(got) {
		t.Errorf("a renewal: got %s", got)
	}
	c.askAll(
		step{"RL.RELEASE " + second, `{"released" true}`},
		step{"RL.RELEASE " + second, `{"released" false}`},
		step{"RL.RENEW " + second, "-ERR unknown-slot slot: the slot has ended or was released"},
		step{"RL.RELEASE nonsense", "-ERR unknown-slot slot: the slot has ended or was released"},
		step{"RL.RENEW " + second + " TTL 1",
			"-ERR bad-value TTL must be a whole number of milliseconds from 10 to 86400000"},
		step{"RL.ACQUIRE render acme N 0", "-ERR bad-value N must be a whole number from 1 to 1000000"},
		step{"RL.ACQUIRE a u", `-ERR bad-value the rule has no limit with "algorithm: concurrency"; use POST /v1/check`},
	)
	if got := c.ask("RL.CHECK render acme"); !strings.HasPrefix(got,
		`-ERR bad-value rule "render": the rule limits how many slots are held at once`) {
		t.Errorf("a check: got %s", got)
	}
	if got := c.ask("RL.ACQUIRE render acme N 2"); !strings.HasPrefix(got, `{"allowed" false`) {
		t.Errorf("two at once: got %s", got)
	}

	reserved := c.ask("RL.RESERVE model u COST 40 UNIT tokens")
	id := regexp.MustCompile(`"reservation" "([^"]+)"`).FindStringSubmatch(reserved)
	if id == nil || slotOf(reserved) == "" {
		t.Fatalf("a reservation: got %s", reserved)
	}
	c.ask("RL.SETTLE " + id[1] + " COST 10 UNIT tokens")
	c.askAll(step{"RL.RELEASE " + slotOf(reserved), `{"released" false}`})
}

// slowSlots is a decider that grants slots late.
type slowSlots struct {
	api.Decider
	begun, goOn chan struct{}
}

func (s *slowSlots) Acquire(q *limiter.Query, a *limiter.Answer) (limiter.Slot, error) {
	slot, err := s.Decider.Acquire(q, a)
	close(s.begun)
	<-s.goOn
	return slot, err
}

// halfWriter is a connection that accepts a number of bytes, and then fails.
type halfWriter struct {
	net.Conn
	accepts int
}

func (w *halfWriter) Write(b []byte) (int, error) {
	if len(b) > w.accepts {
		return w.accepts, net.ErrClosed
	}
	return len(b), nil
}

func (w *halfWriter) SetWriteDeadline(time.Time) error { return nil }

// A slot whose reply has gone out stays held, even if a later reply of the same
// write has not: its caller may work by now.
func TestSlots_OfAWriteThatFails(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ accepts, unsent int }{{0, 2}, {9, 2}, {10, 1}, {29, 1}, {30, 0}} {
		c := &session{stream: &halfWriter{accepts: test.accepts}, server: &Server{}, execution: &execution{}}
		c.execution.out.b = make([]byte, 40)
		c.execution.acquired = []unsentSlot{{end: 10}, {end: 30}}
		if err := c.flush(); err == nil {
			t.Fatal("the write succeeds")
		}
		expect.Equal(t, len(c.execution.acquired), test.unsent, "after %d bytes, slots to release", test.accepts)
	}
}

// A caller that sends nothing more, and reads still, gets the replies to what it
// asked before.
func TestSlots_OfAHalfClosedConnection(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	n.UseRules(slotRules)
	c := dial(t, n)
	c.send(words("RL.CHECK a ann") + words("RL.ACQUIRE render acme"))
	expect.NoError(t, c.Conn.(*net.TCPConn).CloseWrite())
	rest := c.rest()
	if !strings.Contains(rest, "remaining") {
		t.Errorf("got %q, without the check's reply", rest)
	}
}

// A slot whose caller can't be told is free again.
func TestSlots_OfWhoHungUp(t *testing.T) {
	t.Parallel()
	slow := &slowSlots{begun: make(chan struct{}), goOn: make(chan struct{})}
	n := startNode(t, func(c *apitest.Config) { slow.Decider, c.Decider = c.Decider, slow })
	n.UseRules(slotRules)
	c := dial(t, n)
	c.send(words("RL.ACQUIRE render acme"))
	<-slow.begun
	_ = c.Close()
	apitest.Until(t, "the node's system knows", func() bool {
		one := dial(t, n)
		defer one.Close()
		return one.ask("PING") == "+PONG"
	})
	close(slow.goOn)
	other := dial(t, n)
	apitest.Until(t, "the slot is free",
		func() bool { return strings.Contains(other.ask("RL.USAGE render acme"), `"holders" 0`) })
}
