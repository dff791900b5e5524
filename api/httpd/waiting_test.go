package httpd

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/testca"
	"github.com/rlnode/rlnode/rules/document"
)

// The queue "slow" allows one check in ten minutes; "quick" allows 20 per
// second and holds answers for at most 100 ms.
const waitingRules = `version: 1
rules:
  - {name: slow, key: [q], max_delay: 1h, limits: [{limit: 6, per: 1h, algorithm: leaky-bucket, burst: 1000}]}
  - {name: quick, key: [q], max_delay: 1h, limits: [{limit: 2, per: 1s, algorithm: leaky-bucket, burst: 1000}]}
  - {name: short, key: [q], max_delay: 100ms, limits: [{limit: 1, per: 10s, algorithm: leaky-bucket, burst: 1000}]}
  - {name: all, key: [], limits: [{limit: 1000, per: 1h}]}
`

func startWaiting(t *testing.T, change func(*apitest.Config)) *node {
	n := startNode(t, change)
	doc, err := document.Parse([]byte(waitingRules))
	expect.NoError(t, err)
	if _, err := n.Rules.Use(doc); err != nil {
		t.Fatal(err)
	}
	return n
}

func waitOn(rule string) string {
	return fmt.Sprintf(`{"rule":%q,"key":"\u0022,\u0022delay_ms\u0022:7","wait":true}`, rule)
}

// readHeldAnswer reads the answer of a check with wait, whether it was held or not.
func readHeldAnswer(t *testing.T, r *bufio.Reader) (f map[string]any, closes bool) {
	t.Helper()
	status, body, closes := answer(t, r)
	if status != 200 {
		t.Fatalf("have %d %s", status, body)
	}
	return apitest.Fields(t, body), closes
}

// While an answer is held back, its connection takes neither a goroutine nor a
// slot. Afterwards it is served again, and requests sent meanwhile are answered
// in order.
func TestWaitKeepsTheConnection(t *testing.T) {
	t.Parallel()
	n := startWaiting(t, nil)
	began := time.Now()
	n.Check(waitOn("quick"))
	c := n.dial(t)
	if _, err := io.WriteString(c,
		post("/v1/check", good)+post("/v1/check", waitOn("quick"))+post("/v1/check", good)+
			post("/v1/check", waitOn("quick"))); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	for i, want := range []bool{false, true, false, true} {
		f, closes := readHeldAnswer(t, r)
		if have := f["waited"] == true; have != want || closes {
			t.Errorf("answer %d: have waited %v, closes %v, want %v: %v", i, have, closes, want, f)
		}
	}
	if took := time.Since(began); took < 995*time.Millisecond {
		t.Errorf("have both after %v, want them 1 s after the queue began", took)
	}
	if _, err := io.WriteString(c, post("/v1/check", good)); err != nil {
		t.Fatal(err)
	}
	readHeldAnswer(t, r)
	expect.Equal(t, n.server.held.count(), 0, "waiting")
}

func TestWaitOverTLS(t *testing.T) {
	t.Parallel()
	cert, key := testca.WritePair(t, t.TempDir(), "n1")
	n := startWaiting(t, func(c *apitest.Config) { c.CertFile, c.KeyFile = cert, key })
	c := tls.Client(n.dial(t), &tls.Config{InsecureSkipVerify: true})
	if _, err := io.WriteString(c, strings.Repeat(post("/v1/check", waitOn("quick")), 3)); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	for i, want := range []bool{false, true, true} {
		if f, _ := readHeldAnswer(t, r); (f["waited"] == true) != want {
			t.Errorf("answer %d: have %v, want waited %v", i, f, want)
		}
	}
}

// A rule's max_delay bounds how long an answer is held; the answer has the rest of the delay.
func TestWaitNoLongerThanMaxDelay(t *testing.T) {
	n := startWaiting(t, nil)
	n.Check(waitOn("short"))
	began := time.Now()
	_, f := n.Check(waitOn("short"))
	took := time.Since(began)
	left, err := fmt.Sscan(fmt.Sprint(f["delay_ms"]), new(int))
	if err != nil || left != 1 || f["waited"] != nil || took < 100*time.Millisecond || took > 5*time.Second {
		t.Errorf("have %v after %v", f, took)
	}
	if ms := fieldInt(t, f, "delay_ms"); ms < 9500 || ms > 9900 {
		t.Errorf("have %d ms left, want 10 s less what was waited", ms)
	}
}

func fieldInt(t *testing.T, f map[string]any, name string) (v int64) {
	t.Helper()
	if _, err := fmt.Sscan(fmt.Sprint(f[name]), &v); err != nil {
		t.Fatalf("%s: have %v", name, f[name])
	}
	return v
}

// Drain sends held answers, and later ones at once, with the rest of their delays.
func TestDrainAnswersThoseThatWait(t *testing.T) {
	t.Parallel()
	n := startWaiting(t, nil)
	n.Check(waitOn("slow"))
	const many = 50
	readers := make([]*bufio.Reader, many)
	for i := range readers {
		c := n.dial(t)
		if _, err := io.WriteString(c, post("/v1/check", waitOn("slow"))); err != nil {
			t.Fatal(err)
		}
		readers[i] = bufio.NewReader(c)
	}
	apitest.Until(t, "all answers are held", func() bool { return n.server.held.count() == many })
	_, metrics := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/metrics"})
	if want := fmt.Sprintf("\nrlnode_waiting %d\n", many); !strings.Contains(metrics, want) {
		t.Errorf("metrics lack %q", want)
	}
	n.Drain()
	for i, r := range readers {
		f, closes := readHeldAnswer(t, r)
		if ms := fieldInt(t, f, "delay_ms"); ms < 590_000 || f["waited"] != nil || !closes {
			t.Errorf("waiter %d: have %v, closes %v, want ten minutes or more, and the end", i, f, closes)
		}
	}
	if _, f := n.Check(waitOn("slow")); f["waited"] != nil || fieldInt(t, f, "delay_ms") < 590_000 {
		t.Errorf("while the node drains: have %v, want an answer at once", f)
	}
}

// Close sends held answers, too, even without a Drain before.
func TestCloseAnswersThoseThatWait(t *testing.T) {
	t.Parallel()
	n := startWaiting(t, nil)
	n.Check(waitOn("slow"))
	c := n.dial(t)
	if _, err := io.WriteString(c, post("/v1/check", waitOn("slow"))+post("/v1/check", good)); err != nil {
		t.Fatal(err)
	}
	apitest.Until(t, "the answer is held", func() bool { return n.server.held.count() == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := n.Node.Close(ctx); err != nil {
		t.Error(err)
	}
	if f, closes := readHeldAnswer(t, bufio.NewReader(c)); fieldInt(t, f, "delay_ms") < 590_000 || !closes {
		t.Errorf("have %v, closes %v", f, closes)
	}
}

// A caller that hangs up frees its slot; one that closes only its sending side gets its answer.
func TestHangUpFreesTheSlot(t *testing.T) {
	t.Parallel()
	n := startWaiting(t, nil)
	n.Check(waitOn("slow"))
	gone, half, quiet := n.dial(t), n.dial(t), n.dial(t)
	for _, c := range []net.Conn{gone, half, quiet} {
		if _, err := io.WriteString(c, post("/v1/check", waitOn("slow"))); err != nil {
			t.Fatal(err)
		}
	}
	apitest.Until(t, "all answers are held", func() bool { return n.server.held.count() == 3 })
	gone.Close()
	expect.NoError(t, half.(*net.TCPConn).CloseWrite())
	apitest.Until(t, "one held answer is left", func() bool { return n.server.held.count() == 1 })
	if f, closes := readHeldAnswer(t, bufio.NewReader(half)); fieldInt(t, f, "delay_ms") < 590_000 || !closes {
		t.Errorf("have %v, closes %v", f, closes)
	}
}

// Beyond the bound a check is answered at once, with its delay.
func TestWaitBeyondTheBound(t *testing.T) {
	t.Parallel()
	n := startWaiting(t, nil)
	n.server.held.mu.Lock()
	n.server.held.capacity = 1
	n.server.held.mu.Unlock()
	n.Check(waitOn("slow"))
	c := n.dial(t)
	if _, err := io.WriteString(c, post("/v1/check", waitOn("slow"))); err != nil {
		t.Fatal(err)
	}
	apitest.Until(t, "the answer is held", func() bool { return n.server.held.count() == 1 })
	if _, f := n.Check(waitOn("slow")); f["waited"] != nil || fieldInt(t, f, "delay_ms") < 590_000 {
		t.Errorf("have %v, want an answer at once", f)
	}
	_, metrics := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/metrics"})
	if !strings.Contains(metrics, "\nrlnode_wait_refused_total 1\n") {
		t.Error("the metrics do not count it")
	}
	for files, want := range map[int]int{1024: 448, 20_000: 8_750, 1 << 20: maxHeld} {
		expect.Equal(t, maxHeldFor(files), want, "%d files", files)
	}
}

// For an HTTP/1.0 client, the connection stays open exactly if the answer says so.
func TestWaitOverHTTP10(t *testing.T) {
	t.Parallel()
	n := startWaiting(t, nil)
	n.Check(waitOn("quick"))
	body := waitOn("quick")
	for header, want := range map[string]string{"": "close", "Connection: keep-alive\r\n": "keep-alive"} {
		c := n.dial(t)
		if _, err := fmt.Fprintf(c, "POST /v1/check HTTP/1.0\r\n%sContent-Length: %d\r\n\r\n%s",
			header, len(body), body); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		text := ""
		for !strings.HasSuffix(text, "\r\n\r\n") {
			line, err := r.ReadString('\n')
			if err != nil {
				t.Fatalf("after %q: %v", text, err)
			}
			text += line
		}
		if !strings.Contains(text, "Connection: "+want+"\r\n") {
			t.Errorf("have %q, want connection %s", text, want)
		}
	}
}

// TestDelayedCheckThatCanNotBeCharged: a check is delayed, but the budget has no
// room for its large answer. It gets an error at once, and the node goes on.
func TestDelayedCheckThatCanNotBeCharged(t *testing.T) {
	t.Parallel()
	n := startWaiting(t, nil)
	n.Check(waitOn("quick"))
	for n.Budget.Take(1024) {
	}

	refused := 0
	for size := api.UnchargedBytes - 1536; size < api.UnchargedBytes-512; size += 64 {
		// Empty the pools: buffers that an earlier answer has grown don't grow again.
		runtime.GC()
		runtime.GC()

		check := strings.Replace(waitOn("quick"), "{", `{"detail":true,`, 1)
		c := n.dial(t)
		_, err := io.WriteString(c, post("/v1/check", check+strings.Repeat(" ", size-len(check))))
		expect.NoError(t, err)

		status, body, _ := answer(t, bufio.NewReader(c))
		switch status {
		case 200:
		case 503:
			refused++
			if !strings.Contains(body, `"overloaded"`) {
				t.Errorf("%d bytes: got %s", size, body)
			}
		default:
			t.Fatalf("%d bytes: got %d %s", size, status, body)
		}
	}
	if refused == 0 {
		t.Error("each answer had room")
	}
}
