package httpd

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
)

// canned is a connection that delivers each element of reads in one piece, and
// records what the server sends.
type canned struct {
	net.Conn // nil: the other methods are unused
	reads    []string
	sent     bytes.Buffer
	set      []time.Time // read deadlines
}

var nowhere = &net.TCPAddr{}

func (c *canned) Read(b []byte) (int, error) {
	if len(c.reads) == 0 {
		return 0, io.EOF
	}
	n := copy(b, c.reads[0])
	c.reads[0] = c.reads[0][n:]
	if c.reads[0] == "" {
		c.reads = c.reads[1:]
	}
	return n, nil
}

func (c *canned) Write(b []byte) (int, error)        { return c.sent.Write(b) }
func (c *canned) Close() error                       { return nil }
func (c *canned) LocalAddr() net.Addr                { return nowhere }
func (c *canned) RemoteAddr() net.Addr               { return nowhere }
func (c *canned) SetReadDeadline(t time.Time) error  { c.set = append(c.set, t); return nil }
func (c *canned) SetWriteDeadline(t time.Time) error { return nil }

// startData starts a data plane without a node.
func startData(t testing.TB, d api.Decider) *Server {
	return startHandlers(t, handlersOf(d))
}

// startHandlers starts a server for plane without a node.
func startHandlers(t testing.TB, p *handlers) *Server {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	s := start(p, ln, 0)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// serveBothWays serves reads with and without the fast path, and returns the
// answers and how many of them the fast path gave.
func serveBothWays(t testing.TB, s *Server, reads ...string) (with, without string, fast int) {
	serve := func() string {
		c := &canned{reads: append([]string{}, reads...)}
		one := s.wrap(track(t, s.conns, c))
		s.serve(one)
		return dates.ReplaceAllString(c.sent.String(), "Date: now")
	}
	s.fast = func(c *connection, b []byte) (bool, error) {
		done, err := s.serveFast(c, b)
		if done {
			fast++
		}
		return done, err
	}
	with = serve()
	s.fast = nil
	return with, serve(), fast
}

var dates = regexp.MustCompile("Date: [^\r]* GMT")

// opening is a request that the fast path does not take.
const opening = "GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n"

// batchOf returns a batch of n times the same check.
func batchOf(n int, check string) string {
	return post("/v1/check/batch", `{"checks":[`+strings.Repeat(check+",", n-1)+check+`]}`)
}

func fastPost(body string, lines ...string) string {
	return post("/v1/check", body, lines...)
}

// The fast path answers the same bytes as the library, and takes only plain requests.
func TestFastPath(t *testing.T) {
	allowed, refused := newFixed(), newFixed()
	refused.refuse(1, 3*time.Second)
	waits := `{"rule":"tenant","key":"k","wait":true}`
	tests := []struct {
		name  string
		sent  string
		quick int
	}{
		{"plain", fastPost(plainCheck), 1},
		{"with headers",
			fastPost(plainCheck, "Content-Type: application/json", "user-agent: me/1.0",
				"X-A-1: ~ %\"", "Connection: keep-alive"),
			1},
		{"a port", strings.Replace(fastPost(plainCheck), "Host: n\r\n", "hOST: a-1.example:8080\r\n", 1), 1},
		{"not JSON", fastPost(`{"rule"`), 1},
		{"no object", fastPost(`[]`), 1},
		{"unknown field", fastPost(`{"rule":"tenant","kez":"k"}`), 1},
		{"not UTF-8", fastPost("{\"rule\":\"\xff\"}"), 1},
		{"detail", fastPost(`{"rule":"tenant","key":"k","detail":true}`), 1},
		{"a batch", batchOf(3, plainCheck), 1},
		{"a batch of attributes", batchOf(200, `{"attributes":{"user":"k","path":"/"}}`), 1},
		{"a batch with a wrong check", batchOf(3, plainCheck+`,{"rule":"tenant","key":7},7`), 1},
		{"a large answer to a batch", batchOf(30, `{"rule":"tenant","key":"k","detail":true}`), 1},
		{"an answer of more than one write", batchOf(180, `{"rule":"tenant","key":"k","detail":true}`), 1},
		{"a batch of no checks", post("/v1/check/batch", `{"checks":[]}`), 1},
		{"a batch that is none", post("/v1/check/batch", `{"checks":[{}`), 1},
		{"a batch of more than is read at once", batchOf(600, plainCheck), 0},
		{"a batch with wait", batchOf(2, waits), 0},
		{"wait", fastPost(waits), 0},
		{"wait with an escape", fastPost(strings.Replace(waits, "wait", `w\u0061it`, 1)), 0},
		{"two lengths, one of them none",
			strings.Replace(fastPost(plainCheck), "Host: n\r\n", "Host: n\r\nContent-Length: x\r\n", 1),
			0},
		{"blanks around a value", fastPost(plainCheck, "Authorization:  Bearer a "), 0},
		{"two", fastPost(plainCheck) + fastPost(plainCheck), 0},
		{"more than a request", fastPost(plainCheck) + "P", 0},
		{"another path", post("/v1/reserve", plainCheck), 0},
		{"a query", post("/v1/check?x", plainCheck), 0},
		{"another method", "PUT" + fastPost(plainCheck)[4:], 0},
		{"HTTP/1.0", strings.Replace(fastPost(plainCheck), "HTTP/1.1", "HTTP/1.0", 1), 0},
		{"chunks", fastPost("0\r\n\r\n", "Transfer-Encoding: chunked"), 0},
		{"length twice", fastPost(plainCheck, "content-length: 27"), 0},
		{"length with a sign", strings.Replace(fastPost(plainCheck), "Length: ", "Length: +", 1), 0},
		{"length with a zero", strings.Replace(fastPost(plainCheck), "Length: ", "Length: 0", 1), 0},
		{"no length", "POST /v1/check HTTP/1.1\r\nHost: n\r\n\r\n", 0},
		{"length 0", fastPost(""), 0},
		{"no host", "POST /v1/check HTTP/1.1\r\nContent-Length: 27\r\n\r\n" + plainCheck, 0},
		{"two hosts", fastPost(plainCheck, "Host: m"), 0},
		{"an odd host", strings.Replace(fastPost(plainCheck), "Host: n", "Host: n:x", 1), 0},
		{"address of IPv6", strings.Replace(fastPost(plainCheck), "Host: n", "Host: [::1]", 1), 0},
		{"closes", fastPost(plainCheck, "Connection: close"), 0},
		{"expects", fastPost(plainCheck, "Expect: 100-continue"), 0},
		{"of a page", fastPost(plainCheck, "Origin: https://evil.example"), 0},
		{"of a page, in capitals", fastPost(plainCheck, "ORIGIN: null"), 0},
		{"of another site", fastPost(plainCheck, "sec-fetch-site: cross-site"), 0},
		{"expects something else", fastPost(plainCheck, "expect: x"), 0},
		{"trailer", fastPost(plainCheck, "Trailer: Host"), 0},
		{"a line goes on", fastPost(plainCheck, "X: y\r\n z"), 0},
		{"a line ends otherwise", fastPost(plainCheck, "X: y\nZ: z"), 0},
		{"no blank before a value", fastPost(plainCheck, "X:y"), 0},
		{"no value", fastPost(plainCheck, "X:"), 0},
		{"a blank behind a name", fastPost(plainCheck, "X : y"), 0},
		{"no name", fastPost(plainCheck, ": y"), 0},
		{"a byte that is no ASCII", fastPost(plainCheck, "X: \xff"), 0},
		{"a NUL", fastPost(plainCheck, "X: \x00"), 0},
	}
	for _, f := range []*fixed{allowed, refused} {
		s := startData(t, f)
		for _, tt := range tests {
			with, without, fast := serveBothWays(t, s, opening, tt.sent, opening)
			if with != without {
				t.Errorf("%s: have\n%s\nwant\n%s", tt.name, with, without)
			}
			expect.Equal(t, fast, tt.quick, "%s: answers on the fast path", tt.name)
		}
	}
}

// The library handles any request that arrives in pieces; the next one is quick again.
func TestFastPathBeginsAndGoesOn(t *testing.T) {
	s := startData(t, newFixed())
	for _, one := range []string{fastPost(plainCheck), batchOf(2, plainCheck)} {
		for cut := 1; cut < len(one); cut++ {
			with, without, fast := serveBothWays(t, s, one, one[:cut], one[cut:], one, one+one[:cut], one[cut:], one)
			if with != without || fast != 3 || strings.Count(with, "HTTP/1.1 200 OK") != 6 {
				t.Fatalf("cut at %d: %d answers on the fast path, want 3; have\n%s\nwant\n%s", cut, fast, with, without)
			}
		}
	}
}

func TestFastPathAsksForTheToken(t *testing.T) {
	s := startHandlers(t, planeWithTokens(t, newFixed(), "secret", ""))
	for _, tt := range []struct {
		lines  []string
		status string
		quick  int
	}{
		{nil, "401 Unauthorized", 1},
		{[]string{"Authorization: Bearer wrong"}, "401 Unauthorized", 1},
		{[]string{"authorization: bearer secret"}, "200 OK", 1},
		{[]string{"Authorization: Bearer secret", "Authorization: Bearer secret"}, "", 0},
	} {
		one := fastPost(plainCheck, tt.lines...)
		with, without, fast := serveBothWays(t, s, opening, one, one, one)
		if with != without || fast != 3*tt.quick || !strings.Contains(with, tt.status) {
			t.Errorf("%q: %d answers on the fast path, want %d; have\n%s\nwant\n%s", tt.lines, fast,
				tt.quick, with, without)
		}
	}
}

// Remembering the head changes no answer, whether the length or the token differs.
func TestFastPathOfOtherHeads(t *testing.T) {
	s := startHandlers(t, planeWithTokens(t, newFixed(), "secret", ""))
	right, wrong := fastPost(plainCheck, "Authorization: Bearer secret"), fastPost(plainCheck,
		"Authorization: Bearer secreT")
	longer := fastPost(plainCheck+"  ", "Authorization: Bearer secret")
	bare := fastPost(plainCheck)
	large := fastPost(plainCheck, "X: "+strings.Repeat("y", maxFastHead), "Authorization: Bearer secret")
	batch := strings.Replace(batchOf(2, plainCheck), "Host:", "Authorization: Bearer secret\r\nHost:", 1)
	reads := []string{opening, right, batch, batch, right, right, wrong, right, wrong, longer,
		right, longer, longer[:len(longer)-1], " ", bare, bare, right, large, large, right}
	with, without, fast := serveBothWays(t, s, reads...)
	if with != without || fast != len(reads)-3 {
		t.Errorf("%d answers on the fast path, want %d; have\n%s\nwant\n%s", fast, len(reads)-3, with, without)
	}
	expect.Equal(t, strings.Count(with, "401 Unauthorized"), 4, "refusals")
}

func TestFastPathHangsUpAfterAPanic(t *testing.T) {
	s := startData(t, panics{newFixed()})
	with, without, fast := serveBothWays(t, s, opening, fastPost(plainCheck), opening)
	if with != without || fast != 1 || !strings.Contains(with, "HTTP/1.1 500") ||
		!strings.Contains(with, "Connection: close") {
		t.Errorf("%d answers on the fast path; have\n%s\nwant\n%s", fast, with, without)
	}
}

type panics struct{ api.Decider }

func (panics) Check(*limiter.Query, *limiter.Answer) error { panic("for a test") }

func FuzzQuickWay(f *testing.F) {
	for _, sent := range []string{fastPost(plainCheck), batchOf(2, plainCheck),
		fastPost(plainCheck, "Authorization: x", "Connection: close"), opening} {
		f.Add(sent)
	}
	s := startData(f, newFixed())
	f.Fuzz(func(t *testing.T, sent string) {
		if with, without, _ := serveBothWays(t, s, opening, sent, opening); with != without {
			t.Errorf("%q: have\n%s\nwant\n%s", sent, with, without)
		}
	})
}

// slowFixed decides when the test lets it.
type slowFixed struct {
	*fixed
	asked, decide chan struct{}
}

func (s *slowFixed) Check(q *limiter.Query, a *limiter.Answer) error {
	s.asked <- struct{}{}
	<-s.decide
	return s.fixed.Check(q, a)
}

// If a server closes while the fast path decides, it sends the answer with
// Connection: close, and waits for that.
func TestCloseWaitsForTheFastPath(t *testing.T) {
	f := &slowFixed{newFixed(), make(chan struct{}), make(chan struct{})}
	s := startData(t, f)
	var served atomic.Pointer[connection]
	s.fast = func(c *connection, b []byte) (bool, error) {
		served.Store(c)
		return s.serveFast(c, b)
	}
	c, err := net.Dial("tcp", s.Addr().String())
	expect.NoError(t, err)
	defer c.Close()
	r := bufio.NewReader(c)
	for _, send := range []string{opening, fastPost(plainCheck)} {
		if _, err := io.WriteString(c, send); err != nil {
			t.Fatal(err)
		}
		if send == opening {
			if status, body, _ := answer(t, r); status != 200 {
				t.Fatalf("have %d %s", status, body)
			}
		}
	}
	<-f.asked
	closed := make(chan error, 1)
	go func() { closed <- s.Close(t.Context()) }()
	apitest.Until(t, "the server wants to close the connection", served.Load().closesAfterAnswer)
	close(f.decide)
	if status, body, closes := answer(t, r); status != 200 || !closes {
		t.Errorf("have %d %s, closes %v", status, body, closes)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("have %v, want the end", err)
	}
}

// Requests that arrive in one piece do not each move a timer, whichever way
// answers them. A deadline is never earlier than the library requested, nor
// later than the slack allows.
func TestDeadlinesAreSeldomMoved(t *testing.T) {
	s := startData(t, newFixed())
	for _, requests := range []string{fastPost(plainCheck), post("/v1/check?x", plainCheck)} {
		c := &canned{}
		for range 1000 {
			c.reads = append(c.reads, requests)
		}
		one := s.wrap(track(t, s.conns, c))
		before := time.Now()
		s.serve(one)
		after := time.Now()
		slack := dataReadTimeout / slackDivisor
		if most := 2 + int(after.Sub(before)/slack); len(c.set) > most+1 {
			t.Errorf("%d deadlines for 1000 requests, want %d", len(c.set), most)
		}
		last := c.set[len(c.set)-1]
		if last.Before(before.Add(dataIdleTimeout)) || last.After(after.Add(dataIdleTimeout+slack)) {
			t.Errorf("the last deadline is %v after the end, want %v", last.Sub(after), dataIdleTimeout)
		}
	}
}

// A deadline that is brought forward is moved.
func TestDeadlineComesEarlier(t *testing.T) {
	ours := &transport{began: time.Now(), slack: time.Second}
	c := &canned{reads: []string{"a", "b", "c", "d", "e"}}
	one := ours.wrap(track(t, api.NewConnections(api.ConnectionsConfig{}), c))
	now := ours.began.Add(time.Minute)
	var want []string
	for _, step := range []struct {
		at   time.Time
		want string
	}{
		{now, "1s"}, {now.Add(500 * time.Millisecond), ""}, {now.Add(-10 * time.Second), "-9s"},
		{time.Time{}, "none"}, {now, "1s"},
	} {
		expect.NoError(t, one.SetReadDeadline(step.at))
		if _, err := one.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if step.want != "" {
			want = append(want, step.want)
		}
	}
	var have []string
	for _, at := range c.set {
		if at.IsZero() {
			have = append(have, "none")
		} else {
			have = append(have, at.Sub(now).String())
		}
	}
	if fmt.Sprint(have) != fmt.Sprint(want) {
		t.Errorf("have %v, want %v", have, want)
	}
}

// A caller that used the fast path and then stalls in the middle of a request
// is cut off in time, like any other.
func TestFastThenSlow(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.ReadTimeout = 250 * time.Millisecond })
	c := n.dial(t)
	r := bufio.NewReader(c)
	one := fastPost(good)
	for range 3 {
		if _, err := io.WriteString(c, one); err != nil {
			t.Fatal(err)
		}
		if status, body, _ := answer(t, r); status != 200 {
			t.Fatalf("have %d %s", status, body)
		}
	}
	if _, err := io.WriteString(c, one[:len(one)-1]); err != nil {
		t.Fatal(err)
	}
	if status, body, closes := answer(t, r); status != 408 || !closes {
		t.Errorf("have %d %s, closes %v", status, body, closes)
	}
}

// counting counts the checks that it decides.
type counting struct {
	*fixed
	checks int
}

func (c *counting) Check(q *limiter.Query, a *limiter.Answer) error {
	c.checks++
	return c.fixed.Check(q, a)
}

// A request whose connection a shutdown has closed is not decided: its caller
// gets no answer, and asks another node.
func TestClosedConnectionsAreNotDecided(t *testing.T) {
	check := fastPost(`{"rule":"ip","key":"k"}`)
	for name, tt := range map[string]struct {
		closes func(s *Server, c *connection)
		want   int
	}{
		"closed":                       {func(_ *Server, c *connection) { _ = c.Close() }, 0},
		"before anything was received": {func(s *Server, _ *connection) { s.conns.CloseSilent() }, 0},
		"never":                        {func(*Server, *connection) {}, 1},
	} {
		for _, fast := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " ", fast), func(t *testing.T) {
				d := &counting{fixed: newFixed()}
				s := startData(t, d)
				if !fast {
					s.fast = nil
				}
				c := s.wrap(track(t, s.conns, &canned{reads: []string{check}}))
				tt.closes(s, c)
				s.serve(c)
				expect.Equal(t, d.checks, tt.want, "checks decided")
			})
		}
	}
}
