package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
)

var (
	_ client.Checker = (*Node)(nil)
	_ client.Checker = (*client.Client)(nil)
)

const startTimeout = time.Minute

// startReady starts a node and waits until it is ready. The node closes with the test.
func startReady(t *testing.T, c Config) *Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	n, err := Start(ctx, c)
	expect.NoError(t, err)
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	expect.NoError(t, n.WaitReady(ctx))
	return n
}

// checkGoroutineLeaks fails the test if goroutines are left after its nodes have closed.
func checkGoroutineLeaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		// A last probe by memberlist ends by itself, when its answer is due.
		for until := time.Now().Add(5 * time.Second); goleak.Find(before) != nil && time.Now().Before(until); {
			time.Sleep(10 * time.Millisecond)
		}
		goleak.VerifyNone(t, before)
	})
}

// A Config with rules alone makes a node that decides, opens no port and leaves nothing behind.
func TestNodeByItself(t *testing.T) {
	checkGoroutineLeaks(t)
	sockets := openSockets(t)
	n := startReady(t, Config{Rules: []byte(exactRules(3))})
	if have := openSockets(t); have > sockets {
		t.Errorf("the node has opened %d sockets", have-sockets)
	}
	for i := range 5 {
		d, err := n.Check(t.Context(), client.Request{Rule: "year", Key: []string{"k"}})
		if err != nil || d.Allowed != (i < 3) || d.DecidedBy != client.ByOwner {
			t.Errorf("check %d: have %+v, %v", i, d, err)
		}
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	d, err := n.Check(t.Context(), client.Request{Rule: "year", Key: []string{"k"}})
	if !errors.Is(err, client.ErrClosed) || !d.Allowed || d.DecidedBy != client.ByError {
		t.Errorf("after Close: have %+v, %v", d, err)
	}
}

// openSockets counts the sockets of this process.
func openSockets(t *testing.T) (count int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0 // this system has no /proc
	}
	for _, fd := range fds {
		if link, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(link, "socket:") {
			count++
		}
	}
	return count
}

// startCluster starts n nodes in this process, on loopback, as one cluster.
func startCluster(t *testing.T, n int, rules string, adjust func(i int, c *Config)) []*Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	var nodes []*Node
	// Each waits for the callers at its listeners, so they stop at the same time.
	t.Cleanup(func() {
		var stops sync.WaitGroup
		for _, one := range nodes {
			stops.Go(func() {
				if err := one.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		stops.Wait()
	})

	var join []string
	for i := range n {
		c := Config{
			Name: fmt.Sprintf("n%d", i+1), Rules: []byte(rules), ClusterBind: "127.0.0.1",
			GossipPort: process.FreePort(t), Join: join,
			BootstrapExpect: 1,
		}
		if i > 0 {
			c.BootstrapExpect = 0
		}
		if adjust != nil {
			adjust(i, &c)
		}
		join = append(join, fmt.Sprintf("127.0.0.1:%d", c.GossipPort))
		one, err := Start(ctx, c)
		expect.NoError(t, err)
		nodes = append(nodes, one)
		expect.NoError(t, one.WaitReady(ctx))
	}
	return nodes
}

// Nodes in one program are a normal cluster: together they admit the limit.
func TestNodesInOneProgram(t *testing.T) {
	checkGoroutineLeaks(t)
	nodes := startCluster(t, 2, exactRules(100), nil)
	process.Eventually(t, "both own partitions", func() bool {
		s := nodes[0].cluster.State()
		return s.Settled && len(s.To.Members()) == 2
	})
	admitted, by := 0, map[client.DecidedBy]int{}
	for i := range 2 * 3 * 100 {
		d, err := nodes[i%2].Check(t.Context(), client.Request{Rule: "year", Key: []string{fmt.Sprint(i / 2 % 3)}})
		expect.NoError(t, err)
		if d.Allowed {
			admitted++
		}
		by[d.DecidedBy]++
	}
	if admitted != 3*100 || by[client.ByOwner] == 0 || by[client.ByForward] == 0 {
		t.Errorf("%d admitted, want 300; decided by %v", admitted, by)
	}
	// When one node closes, the other has what it counted. The first node is the
	// only voter: without it, the second would wait in vain for a leader when it
	// closes.
	if err := nodes[1].Close(); err != nil {
		t.Error(err)
	}
	for i := range 3 {
		if d, err := nodes[0].Check(t.Context(),
			client.Request{Rule: "year", Key: []string{fmt.Sprint(i)}}); err != nil || d.Allowed {
			t.Errorf("key %d after the other node has closed: have %+v, %v", i, d, err)
		}
	}
}

// A start that fails leaves nothing behind: no goroutine, no socket, no lock.
func TestStartLeavesNothing(t *testing.T) {
	checkGoroutineLeaks(t)
	sockets := openSockets(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	dir := t.TempDir()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		config Config
		ctx    context.Context
		want   string
	}{
		"invalid rules":      {config: Config{Rules: []byte("rules: 1")}, want: "Rules: "},
		"peer port in use":   {config: Config{ClusterBind: "127.0.0.1", PeerPort: port}, want: "in use"},
		"gossip port in use": {config: Config{ClusterBind: "127.0.0.1", GossipPort: port}, want: "in use"},
		"admin port in use": {config: Config{DataAddr: "127.0.0.1:0",
			AdminAddr: taken.Addr().String()}, want: "in use"},
		"missing secret file":    {config: Config{ClusterSecretFile: "/nowhere"}, want: "ClusterSecretFile: "},
		"file as a directory":    {config: Config{DataDir: "/dev/null"}, want: "not a directory"},
		"cancelled at the start": {config: Config{}, ctx: over, want: context.Canceled.Error()},
	} {
		if test.ctx == nil {
			test.ctx = t.Context()
		}
		if test.config.DataDir == "" {
			test.config.DataDir = dir
		}
		n, err := Start(test.ctx, test.config)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: have %v, want %q", name, err, test.want)
		}
		if n != nil {
			n.Close()
		}
	}
	if have := openSockets(t); have > sockets+1 {
		t.Errorf("%d sockets are left", have-sockets-1)
	}
	startReady(t, Config{DataDir: dir}) // the lock is free
	if _, err := Start(t.Context(), Config{DataDir: dir}); !errors.Is(err, persist.ErrInUse) {
		t.Errorf("a directory in use by another node: have %v", err)
	}
}

// A node with a data directory keeps its counters across restarts. A goroutine
// that it leaves behind would fail the test.
func TestNodeKeepsItsCounters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, nodeKeepsItsCounters)
}

func nodeKeepsItsCounters(t *testing.T) {
	dir := t.TempDir()
	for restart := range 3 {
		n := startReady(t, Config{DataDir: dir, Rules: []byte(exactRules(3)), UsageMonths: 1})
		d, err := n.Check(t.Context(), client.Request{Rule: "year", Key: []string{"k"}})
		if err != nil || d.Remaining != int64(2-restart) {
			t.Errorf("after %d restarts: have %+v, %v", restart, d, err)
		}
		expect.NoError(t, n.Close())
	}
}

// Once the last checkpoint is written, nothing is decided that it would not have.
func TestNodeDecidesNothingAfterItsLastCheckpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startReady(t, Config{DataDir: t.TempDir(), Rules: []byte(exactRules(3))})
		expect.NoError(t, n.closeFiles(t.Context()))
		for p := range ring.Partitions {
			if n.table.IsOpen(p) {
				t.Fatalf("partition %d is open", p)
			}
		}
		expect.NoError(t, n.Close())
	})
}

const embedRules = `
version: 1
default: deny
headers: {ietf: true, x_ratelimit: true}
lists: {deny: [{ip: 192.0.2.0/24}]}
inline: {namespaces: [inline, shadow, exact, several, "ü*"]}
rules:
  - {name: few, key: [ip], limits: [{limit: 2, per: 1h, algorithm: fixed-window}, {name: tokens, limit: 100, per: 1h, unit: tokens, algorithm: token-bucket}]}
  - {name: slow, key: [ip], match: {endpoint: /slow}, max_delay: 1h, limits: [{limit: 1, per: 1m, algorithm: leaky-bucket, burst: 5}]}
  - {name: shadow, key: [ip], shadow: true, limits: [{limit: 1, per: 1h}]}
  - {name: all, key: [], match: {endpoint: /all}, limits: [{limit: 1000, per: 1h}]}
`

var fewLimits = []client.Limit{
	{Limit: 2, Per: "1h", Algorithm: "fixed-window", FromFirst: true},
	{Limit: 100, Per: "365d", Algorithm: "token-bucket", Burst: 100, Unit: "tokens", Name: "t"},
}

// Inline limits: an embedded node checks, peeks, counts and reserves with them.
// A reservation accepts mode check only.
func TestLimitsInProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, limitsInProcess)
}

func limitsInProcess(t *testing.T) {
	n := startReady(t, Config{})
	q := client.Request{Namespace: "shop", Key: []string{"user-42"}, Limits: fewLimits}
	for i := range 3 {
		d, err := n.Check(t.Context(), q)
		if err != nil || d.Allowed != (i < 2) || d.Used != min(int64(i)+1, 2) || d.Rule != "inline" || d.Counted {
			t.Errorf("check %d: have %+v, %v", i, d, err)
		}
	}
	q.Mode, q.Cost = client.CountMode, 5
	if d, err := n.Check(t.Context(), q); err != nil || d.Allowed || !d.Counted || d.Used != 7 {
		t.Errorf("count: have %+v, %v", d, err)
	}
	q.RequestID = strings.Repeat("x", 65)
	if d, err := n.Check(t.Context(), q); !errors.Is(err, client.ErrRequest) || d.Allowed || d.Counted {
		t.Errorf("a count with a long id: have %+v, %v", d, err)
	}
	q.RequestID = ""
	if d, err := n.Peek(t.Context(), q); err != nil || d.Allowed || d.Counted || d.Used != 7 {
		t.Errorf("peek: have %+v, %v", d, err)
	}
	var e *client.Error
	if r, err := n.Reserve(t.Context(), q, time.Minute); !errors.As(err, &e) ||
		e.Code != "bad-value" || r.Allowed || r.ID != "" {
		t.Errorf("reserve in mode count: have %+v, %v", r, err)
	}
	q.Mode, q.Cost = "", 0
	if u, err := n.AdjustCosts(t.Context(), q, map[string]int64{"requests": -3}); err != nil ||
		u.Limits[0].Used != 4 || u.Namespace != "shop" || u.Rule != "" {
		t.Errorf("adjust: have %+v, %v", u, err)
	}
	if u, err := n.Usage(t.Context(), client.Request{Namespace: "shop", Key: q.Key}); err != nil ||
		len(u.Limits) != 1 || u.Limits[0].Used != 4 || u.Unknown != 0 {
		t.Errorf("usage without limits: have %+v, %v", u, err)
	}
	one := q
	one.LimitName = "t"
	if u, err := n.AdjustCosts(t.Context(), one, map[string]int64{"tokens": 7}); err != nil ||
		len(u.Limits) != 1 || u.Limits[0].Applied != 7 || u.Applied["tokens"] != 7 {
		t.Errorf("adjust one limit: have %+v, %v", u, err)
	}
	if u, err := n.Reset(t.Context(), one); err != nil || len(u.Limits) != 1 ||
		u.Limits[0].Name != "t" || u.Limits[0].Used != 0 || u.Applied != nil {
		t.Errorf("reset one limit: have %+v, %v", u, err)
	}
	if u, err := n.Usage(t.Context(), q); err != nil || u.Limits[0].Used != 4 || u.Limits[1].Used != 0 {
		t.Errorf("usage after that: have %+v, %v", u, err)
	}
	one.LimitName = "nobody"
	if _, err := n.Reset(t.Context(), one); !errors.As(err, &e) || e.Code != "unknown-limit" {
		t.Errorf("reset a limit that there is not: have %v", err)
	}
	one.LimitName, one.Bill = "", true
	_, err := n.AdjustCosts(t.Context(), one, map[string]int64{"requests": 1})
	if !errors.As(err, &e) || e.Code != "bad-value" {
		t.Errorf("a bill of limits that come with the call: have %v", err)
	}
	if u, err := n.Reset(t.Context(), q); err != nil || u.Limits[0].Used != 0 {
		t.Errorf("reset: have %+v, %v", u, err)
	}
	for _, tc := range []struct {
		wrong client.Request
		want  string
	}{
		{client.Request{Key: q.Key}, "Rule is missing"},
		{client.Request{Rule: "few", Namespace: "shop"}, "set either Rule"},
		{client.Request{Namespace: "shop", Limits: make([]client.Limit, 9)}, "Limits has 9 limits"},
		{client.Request{Namespace: "shop", RequestID: strings.Repeat("x", 65)}, "RequestID has 65 bytes"},
		{client.Request{Namespace: "shop", Key: q.Key, LimitName: "t"}, "there are no Limits"},
		{client.Request{Rule: "few", Key: make([]string, 33)}, "Key has 33 values"},
	} {
		if _, err := n.Usage(t.Context(), tc.wrong); !errors.Is(err, client.ErrRequest) ||
			!strings.Contains(err.Error(), tc.want) {
			t.Errorf("usage of %+v: have %v, want %s", tc.wrong, err, tc.want)
		}
	}
	many := client.Request{Attributes: map[string]string{}}
	for i := range 33 {
		many.Attributes[fmt.Sprint(i)] = "x"
	}
	if _, err := n.Check(t.Context(), many); !errors.Is(err, client.ErrRequest) ||
		!strings.Contains(err.Error(), "Attributes has 33 attributes") {
		t.Errorf("33 attributes: have %v", err)
	}
	long := map[string]int64{strings.Repeat("u", 1025): 1}
	if _, err := n.AdjustCosts(t.Context(), q, long); !errors.Is(err, client.ErrRequest) ||
		!strings.Contains(err.Error(), "a unit has 1025 bytes") {
		t.Errorf("a long unit: have %v", err)
	}
	if _, err := n.AdjustCosts(t.Context(), q, map[string]int64{"requests": 0}); !errors.Is(err, client.ErrRequest) {
		t.Errorf("adjusting by 0: have %v", err)
	}
	q = client.Request{Subjects: []client.Subject{{Key: []string{"a"}, Limits: fewLimits},
		{Key: []string{"b"}, Limits: fewLimits, Mode: client.CountMode}}}
	if r, err := n.Reserve(t.Context(), q, time.Minute); !errors.As(err, &e) ||
		e.Code != "bad-value" || r.Allowed || r.ID != "" {
		t.Errorf("reserve with one subject in mode count: have %+v, %v", r, err)
	}
	q.Subjects[1].Mode = ""
	if d, err := n.Peek(t.Context(), q); err != nil || !d.Allowed || d.Used != 1 {
		t.Errorf("peek at two: have %+v, %v", d, err)
	}
	if r, err := n.Reserve(t.Context(), q, time.Minute); err != nil || !r.Allowed || r.ID == "" || r.Used != 1 {
		t.Errorf("reserve: have %+v, %v", r, err)
	}
	if q.Subjects[0].Mode != "" {
		t.Errorf("the caller's subject is now %+v", q.Subjects[0])
	}
	q.Subjects[0].Key = make([]string, 33)
	if _, err := n.Check(t.Context(), q); !errors.Is(err, client.ErrRequest) {
		t.Errorf("33 values in a key: have %v", err)
	}
}

// Decisions in process and over HTTP are identical, word for word.
func TestDecisionsAreThoseOfTheDataPlane(t *testing.T) {
	t.Parallel()
	n := startReady(t, Config{Rules: []byte(embedRules), DataAddr: "127.0.0.1:0"})
	c, err := client.New(client.Options{Nodes: []string{"http://" + n.DataAddr().String()}})
	expect.NoError(t, err)
	defer c.Close()
	ask := func(q client.Request) {
		t.Helper()
		q.Detail, q.Headers = true, true
		here, herr := n.Peek(t.Context(), q)
		there, terr := c.Peek(t.Context(), q)
		headers := [2]*httptest.ResponseRecorder{httptest.NewRecorder(), httptest.NewRecorder()}
		here.SetHeaders(headers[0].Header())
		there.SetHeaders(headers[1].Header())
		for i := range headers {
			h := headers[i].Header()
			h.Del("X-Ratelimit-Reset") // it may differ by a second, as t may
			h.Set("Ratelimit", headerTime.ReplaceAllString(h.Get("Ratelimit"), "t="))
		}
		if have, want := withoutTimes(here), withoutTimes(there); !reflect.DeepEqual(have, want) ||
			!reflect.DeepEqual(headers[0].Header(), headers[1].Header()) {
			t.Errorf("%+v:\nhave %+v %v\nwant %+v %v", q, have, headers[0].Header(), want, headers[1].Header())
		}
		var mine, its *client.Error
		if errors.As(terr, &its) != errors.As(herr, &mine) || its != nil &&
			(mine.Status != its.Status || mine.Code != its.Code || mine.Detail != its.Detail) {
			t.Errorf("%+v: have %v, want %v", q, herr, terr)
		}
		if (herr == nil) != (terr == nil) || errors.Is(herr, client.ErrRequest) != errors.Is(terr, client.ErrRequest) {
			t.Errorf("%+v: have %v, want %v", q, herr, terr)
		}
	}
	attributes := func(endpoint,
		ip string) map[string]string {
		return map[string]string{"endpoint": endpoint, "ip": ip}
	}
	for _, q := range []client.Request{
		{Attributes: attributes("/x", "198.51.100.7")},
		{Attributes: attributes("/slow", "198.51.100.7")},
		{Attributes: attributes("/all", "198.51.100.7")},
		{Attributes: attributes("/x", "192.0.2.1")},
		{Attributes: map[string]string{"other": "x"}},
		{Rule: "few", Key: []string{"198.51.100.8"}},
		{Rule: "few", Key: []string{strings.Repeat("ü", 2000)}, Cost: 5},
		{Rule: "few", Key: []string{"k"}, Costs: map[string]int64{"tokens": 101}},
		{Rule: "few", Key: []string{"k"}, Costs: map[string]int64{"tokens": 1 << 60, "requests": 0}},
		{Rule: "few", Key: []string{"a", "b"}},
		{Rule: "nobody", Key: []string{"k"}},
		{Rule: "all"},
		{},
		{Rule: "few", Key: []string{"k"}, Cost: -1},
		{Rule: "few", Key: []string{"counted"}, Mode: client.CountMode, Cost: 3},
		{Key: []string{"192.0.2.1"}, Limits: fewLimits},
		{Namespace: strings.Repeat("ü", 2000), Key: []string{"a", strings.Repeat("ü", 2000)},
			Limits: fewLimits, Costs: map[string]int64{"tokens": 101}},
		{Namespace: "shadow", Key: []string{}, Limits: fewLimits, Shadow: true, Cost: 3},
		{Namespace: "exact", Key: []string{"k"}, Limits: fewLimits, Exact: true, Mode: client.CountMode, Cost: 3},
		{Subjects: []client.Subject{
			{Namespace: "several", Key: []string{"a"}, Limits: fewLimits},
			{Namespace: "several", Key: []string{"b"}, Limits: fewLimits[1:], Cost: 2, Mode: client.CountMode},
		}},
		{Key: []string{"k"}, Limits: []client.Limit{{Limit: 1, Per: "1m", Algorithm: "leaky"}}},
		{Key: []string{"k"}, Limits: []client.Limit{{Limit: 1, Per: "soon"}}},
		{Key: []string{"k"}, Limits: []client.Limit{{Limit: 1, Per: "day", FromFirst: true}}},
		{Namespace: "closed", Key: []string{"k"}, Limits: fewLimits},
		{Subjects: []client.Subject{{Key: []string{"a"}, Limits: fewLimits}, {Key: []string{"a"}, Limits: fewLimits}}},
		{Rule: "few", Key: []string{"k"}, Limits: fewLimits},
	} {
		ask(q)
		if _, err := n.Check(t.Context(), q); err == nil {
			ask(q)
		}
		n.Check(t.Context(), q)
		ask(q)
	}
}

var headerTime = regexp.MustCompile(`t=\d+`)

// withoutTimes returns d without the parts that differ from call to call.
func withoutTimes(d client.Decision) client.Decision {
	d.ResetAfter, d.RetryAfter, d.Delay = d.ResetAfter.Round(time.Minute), d.RetryAfter.Round(time.Minute), d.Delay.Round(time.Minute)
	d.MoreAfter = d.MoreAfter.Round(time.Minute)
	for i := range d.Limits {
		l := &d.Limits[i]
		l.ResetAfter, l.RetryAfter, l.MoreAfter = l.ResetAfter.Round(time.Minute), l.RetryAfter.Round(time.Minute), l.MoreAfter.Round(time.Minute)
	}
	out := client.Decision{}
	have, want := reflect.ValueOf(&out).Elem(), reflect.ValueOf(d)
	for i := range want.NumField() {
		if want.Type().Field(i).IsExported() {
			have.Field(i).Set(want.Field(i))
		}
	}
	out.Reason, _, _ = strings.Cut(out.Reason, "retry in")
	if len(out.Violated) == 0 {
		out.Violated = nil
	}
	return out
}

// Reservations, adjustments and a middleware work in process.
func TestEmbeddedCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, embeddedCalls)
}

func embeddedCalls(t *testing.T) {
	n := startReady(t, Config{Rules: []byte(embedRules)})
	q := client.Request{Rule: "few", Key: []string{"k"}, Costs: map[string]int64{"tokens": 60}}
	r, err := n.Reserve(t.Context(), q, 0)
	if err != nil || !r.Allowed || r.ID == "" {
		t.Fatalf("have %+v, %v", r, err)
	}
	for range 2 {
		s, err := n.Settle(t.Context(), r.ID, map[string]int64{"tokens": 10})
		if err != nil || !s.Settled || s.Costs["tokens"] != 10 || s.Remaining != 90 {
			t.Errorf("have %+v, %v", s, err)
		}
	}
	for _, ttl := range []time.Duration{-1, -2, 2 * time.Hour} {
		if r, err := n.Reserve(t.Context(), q, ttl); !errors.Is(err, client.ErrRequest) || r.Allowed || r.ID != "" {
			t.Errorf("for %v: have %+v, %v", ttl, r, err)
		}
	}
	if _, err := n.Settle(t.Context(), "nothing", nil); err == nil {
		t.Error("settled a reservation that never existed")
	}
	u, err := n.Adjust(t.Context(), "few", []string{"k"}, 1)
	if err != nil || len(u.Limits) != 2 || u.Limits[0].Used != 2 {
		t.Errorf("have %+v, %v", u, err)
	}
	var passed atomic.Int64
	handler := client.Middleware(n,
		client.MiddlewareOptions{Rule: "few", Key: func(*http.Request) []string { return []string{"m"} }})(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed.Add(1) }))
	last := 0
	for range 3 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		last = w.Code
		if w.Header().Get("RateLimit") == "" {
			t.Errorf("no rate headers: %v", w.Header())
		}
	}
	if passed.Load() != 2 || last != http.StatusTooManyRequests {
		t.Errorf("%d passed, and the last answer was %d", passed.Load(), last)
	}
}

// Until a node is ready, OnError decides.
func TestNotReady(t *testing.T) {
	checkGoroutineLeaks(t)
	for _, test := range []struct {
		onError client.OnError
		want    bool
	}{{client.Open, true}, {client.Closed, false}} {
		n, err := Start(t.Context(),
			Config{ClusterBind: "127.0.0.1", BootstrapExpect: 3, Join: []string{"127.0.0.1:1"}, OnError: test.onError})
		expect.NoError(t, err)
		d, err := n.Check(t.Context(), client.Request{Attributes: map[string]string{"ip": "198.51.100.7"}})
		if !errors.Is(err, client.ErrUnavailable) || d.Allowed != test.want {
			t.Errorf("have %+v, %v", d, err)
		}
		d, _ = n.Check(t.Context(), client.Request{Rule: "r", Key: []string{"k"}, Cost: 7, Mode: client.AtMostMode})
		if want := map[bool]int64{true: 7}[test.want]; d.Granted != want {
			t.Errorf("at most 7: got %d granted, want %d", d.Granted, want)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		expect.ErrorIs(t, n.WaitReady(ctx), context.DeadlineExceeded, "n.WaitReady(ctx)")
		cancel()
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		expect.ErrorIs(t, n.WaitReady(t.Context()), client.ErrClosed, "n.WaitReady(t.Context())")
	}
}

func TestDefaults(t *testing.T) {
	c, err := Config{Region: "us", ClusterBind: "127.0.0.1"}.complete()
	if err != nil || c.PrimaryRegion != "us" || c.BootstrapExpect != 1 ||
		c.Advertise != "127.0.0.1" || c.MaxCounters != defaultCounters ||
		c.ReservationBytes != counters.DefaultReservationBytes || c.Name == "" {
		t.Errorf("have %+v, %v", c, err)
	}
	if c, err = (Config{ClusterBind: "127.0.0.1",
		Join: []string{"localhost"}}).complete(); err != nil || c.BootstrapExpect != 0 || c.Region != "default" {
		t.Errorf("have %+v, %v", c, err)
	}
}

// Each mistake is reported with the name of its field.
func TestMistakes(t *testing.T) {
	for _, test := range []struct {
		config Config
		want   []string
	}{
		{Config{}, nil},
		{Config{Name: "a\nb"}, []string{"Name: "}},
		{Config{MaxCounters: -1, BootstrapExpect: 6, ClusterBind: "127.0.0.1"},
			[]string{"MaxCounters: ", "BootstrapExpect: "}},
		{Config{ReservationBytes: 1000}, []string{"ReservationBytes: 1000 is not in"}},
		{Config{Join: []string{"n2"}}, []string{"Join: ", "ClusterBind"}},
		{Config{BootstrapExpect: 3}, []string{"BootstrapExpect: ", "ClusterBind"}},
		{Config{ClusterBind: "0.0.0.0"}, []string{"ClusterBind: ", "ClusterSecretFile", "InsecureCluster"}},
		{Config{ClusterBind: "127.0.0.1", Join: []string{"10.0.0.1"}}, []string{"Join: 10.0.0.1"}},
		{Config{ClusterBind: "127.0.0.1", Join: []string{"127.0.0.1:0"}}, []string{"Join: "}},
		{Config{ClusterBind: "here"}, []string{"ClusterBind: "}},
		{Config{ClusterBind: "127.0.0.1", Advertise: "0.0.0.0", PeerPort: 70000},
			[]string{"Advertise: ", "PeerPort: 70000"}},
		{Config{DataAddr: "8080"}, []string{"DataAddr: "}},
		{Config{CertFile: "x"}, []string{"CertFile: ", "KeyFile"}},
		{Config{UsageMonths: 1}, []string{"UsageMonths: ", "DataDir"}},
		{Config{UsageSubjects: -1}, []string{"UsageSubjects: "}},
		{Config{APIToken: "a b", AdminHosts: []string{"a:b"}}, []string{"APIToken: ", "AdminHosts: "}},
		{Config{Region: strings.Repeat("x", 65), Zone: "a\x00"}, []string{"Region: ", "Zone: "}},
		{Config{GossipKey: []byte("short")}, []string{"GossipKey: it has 5 bytes", "TLSCert"}},
		{Config{OTLPEndpoint: "nowhere", TraceRatio: 2}, []string{"OTLPEndpoint: ", "TraceRatio: 2 is not in 0…1"}},
		{Config{TraceRatio: -0.5}, []string{"TraceRatio: -0.5 is not in 0…1"}},
		{Config{TraceRatio: math.NaN()}, []string{"TraceRatio: NaN is not in 0…1"}},
		{Config{OnError: 7}, []string{"OnError: "}},
		{Config{Rules: []byte("version: 1\nrules: [{name: a}]")}, []string{"Rules: ", "2"}},
	} {
		err := test.config.Validate()
		if (err == nil) != (test.want == nil) {
			t.Errorf("%+v: have %v", test.config, err)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in %q", want, err)
			}
		}
	}
}

// A check in process of a subject that this node owns allocates nothing.
func TestCheckAllocatesNothing(t *testing.T) {
	if raceDetector {
		t.Skip("under the race detector, sync.Pool drops items at random")
	}
	n := startReady(t, Config{Rules: []byte(exactRules(1 << 30))})
	for _, q := range []client.Request{
		{Rule: "year", Key: []string{"k"}},
		{Namespace: "n", Key: []string{"k"}, Limits: []client.Limit{{Limit: 1 << 30, Per: "1h"}}},
	} {
		if have := testing.AllocsPerRun(1000, func() { n.Check(t.Context(), q) }); have != 0 {
			t.Errorf("%+v: have %g allocations", q, have)
		}
	}
}

// BenchmarkCheck measures a check in process of a subject that this node owns,
// from one goroutine and from all.
func BenchmarkCheck(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), startTimeout)
	defer cancel()
	n, err := Start(ctx, Config{Rules: []byte(exactRules(1 << 30))})
	expect.NoError(b, err)
	defer n.Close()
	expect.NoError(b, n.WaitReady(ctx))
	q := client.Request{Rule: "year", Key: []string{"k"}}
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if d, err := n.Check(ctx, q); !d.Allowed {
				b.Fatal(err)
			}
		}
	})
	b.Run("all", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if d, err := n.Check(ctx, q); !d.Allowed {
					b.Fatal(err)
				}
			}
		})
	})
}

// Close waits for the goroutines that slots have started, and lets no others start.
func TestGo_AfterClose(t *testing.T) {
	n, err := Start(t.Context(), Config{Rules: []byte(exactRules(3))})
	expect.NoError(t, err)
	ended := make(chan struct{})
	expect.Equal(t, n.Go(func() { <-n.ctx.Done(); close(ended) }), true, "started before Close")
	expect.NoError(t, n.Close())
	select {
	case <-ended:
	default:
		t.Error("Close has not waited")
	}
	expect.Equal(t, n.Go(func() { t.Error("it runs") }), false, "started after Close")
}

// TestCloseGivesUp: Close returns in time although a goroutine of the node, or
// one of its own steps, waits for a disk that hangs. The steps go on when the
// disk answers.
func TestCloseGivesUp(t *testing.T) {
	t.Parallel()
	for name, hang := range map[string]func(n *Node, disk <-chan struct{}){
		"a goroutine": func(n *Node, disk <-chan struct{}) { n.loops.Go(func() { <-disk }) },
		"a step": func(n *Node, disk <-chan struct{}) {
			n.onRelease(func(context.Context) error { <-disk; return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, err := Start(t.Context(), Config{Rules: []byte(exactRules(3))})
				expect.NoError(t, err)
				expect.NoError(t, n.WaitReady(t.Context()))
				disk := make(chan struct{})
				hang(n, disk)

				began := time.Now()
				closed := make(chan error, 1)
				go func() { closed <- n.Close() }()
				time.Sleep(10 * time.Second)
				synctest.Wait()
				select {
				case err := <-closed:
					expect.ErrorIs(t, err, context.DeadlineExceeded, "Close")
				default:
					t.Error("Close goes on after", time.Since(began))
				}
				expect.Equal(t, len(n.releaseSteps) > 0, true, "parts are open while the disk hangs")

				close(disk)
				time.Sleep(time.Minute)
				synctest.Wait()
				expect.Equal(t, len(n.releaseSteps), 0, "parts that are open in the end")
			})
		})
	}
}
