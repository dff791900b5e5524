// Package apitest starts a node's doors for tests, with a limiter behind them and no cluster.
package apitest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/history"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/internal/tracing"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/limiter/loads"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules/document"
)

// Main runs a package's tests and returns the exit code. It fails if no test
// has provoked one of the codes, or if goroutines are left over.
func Main(m *testing.M, codes ...api.Code) (code int) {
	code = m.Run()
	args := strings.Join(os.Args, " ")
	if code == 0 && len(os.Args) > 1 &&
		!strings.Contains(args, "-test.run") && !strings.Contains(args, "-test.fuzz") {
		for _, c := range codes {
			if _, ok := provoked.Load(c); !ok {
				fmt.Printf("no test provokes the code %s\n", c)
				code = 1
			}
		}
	}

	if code == 0 {
		// fasthttp has a goroutine that updates the Date header forever, and one that
		// notices only every ten seconds that its worker pool was stopped.
		if err := goleak.Find(goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
			goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2")); err != nil {
			fmt.Println(err)
			code = 1
		}
	}

	return code
}

// provoked is the set of error codes that the tests have seen in answers.
var provoked sync.Map

// Rules are the rules of a node under test.
const Rules = `
version: 1
lists:
  deny: [{ip: 192.0.2.0/24}]
  allow: [{tenant: internal}]
rules:
  - name: login
    key: [ip]
    limits: [{limit: 5, per: 1h, algorithm: sliding-window-log}]
  - name: pair
    key: [tenant, endpoint]
    limits: [{limit: 3, per: 1h, algorithm: token-bucket}]
  - name: all
    key: []
    match: {kind: all}
    limits: [{limit: 1000000, per: 1h, algorithm: fixed-window}]
  - name: a
    key: [user]
    limits: [{limit: 5, per: 1h, algorithm: token-bucket}]
  - name: b
    key: [user]
    match: {both: "yes"}
    limits: [{limit: 3, per: 1h, algorithm: token-bucket}, {limit: 100, per: 1h, unit: tokens, algorithm: token-bucket}]
  - name: queue
    key: [q]
    limits: [{limit: 20, per: 1s, burst: 5, algorithm: leaky-bucket}]
  - name: new-idea
    key: [idea]
    shadow: true
    limits: [{limit: 1, per: 1h, algorithm: token-bucket}]
tiers:
  free: {limits: [{limit: 100, per: 1h}]}
`

type (
	shared = api.Config
	plane  = admin.Config
)

// Config configures both planes. Addresses are on loopback.
type Config struct {
	shared
	plane
	ReadTimeout time.Duration
	Tracer      *tracing.Tracer
	Starting    bool // not ready
}

// Plane returns the configuration of the admin plane.
func (c *Config) Plane() admin.Config { return c.plane }

// DataPlane is the data plane of a node under test.
type DataPlane interface {
	Addr() net.Addr
	Metrics(metrics.Sink)
	Close(context.Context) error
}

// Node is a node under test.
type Node struct {
	*api.Doors
	T                 testing.TB
	Data              DataPlane
	Admin             *admin.Server
	DataURL, AdminURL string
	Rules             *MemoryRules
	Table             *counters.Table
	Client            *http.Client
	Clock             *limiter.Clock
	Config            Config

	Closed error // the result of Close

	once sync.Once
}

// Start starts a node on free ports. change, which may be nil, changes its
// configuration, and open opens its data plane. The node is ready unless
// Config.Starting is set.
func Start(t testing.TB, change func(*Config), open func(*api.Doors, Config) (DataPlane, error)) *Node {
	t.Helper()

	table := counters.New(100_000)
	clock := limiter.NewClock()
	l := limiter.New(table, clock)
	n := &Node{T: t, Clock: clock, Rules: &MemoryRules{Limiter: l}, Table: table}
	n.UseRules(Rules)

	past := history.Open(history.Config{Self: ring.NodeID{1},
		Now: func() int64 { return clock.Now().Wall }, Events: &history.Events{}})

	n.Config = Config{
		shared: api.Config{
			Node: "n1", Version: "test", Decider: l, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Health: func() api.ClusterHealth { return api.ClusterHealth{Connected: true, LeaderKnown: true} },
		},
		plane: admin.Config{
			Addr: "127.0.0.1:0", Subjects: l, Rules: n.Rules, Entries: n.Rules,
			Cluster:    Alone{Name: "n1", ID: ring.NodeID{1}, Address: "127.0.0.1", Region: "default"},
			Membership: &Members{}, Levels: Levels{}, Regions: NoRegions{},
			Loads:   loads.New(loads.Config{Now: func() time.Duration { return 0 }}),
			CatchUp: func(context.Context) error { return nil },
			// These checks are part of the data plane, which a test may replace.
			Checks: func(http.ResponseWriter, *http.Request) error {
				return api.Errorf(api.NotFound, "there are no checks here")
			},
			Activity: l.Activity, History: past.Report, Events: past.Events,
			Metrics: []metrics.Source{l.Metrics, table.Metrics},
		},
	}
	if change != nil {
		change(&n.Config)
	}

	var err error
	n.Doors, err = api.Open(n.Config.shared)
	if err != nil {
		t.Fatal(err)
	}
	n.Data, err = open(n.Doors, n.Config)
	if err != nil {
		t.Fatal(err)
	}

	n.Config.Metrics = append(n.Config.Metrics, n.Data.Metrics)
	n.Admin, err = admin.Open(n.Doors, n.Config.plane)
	if err != nil {
		t.Fatal(err)
	}

	transport := &http.Transport{DisableCompression: true}
	n.Client = &http.Client{Transport: transport, Timeout: 20 * time.Second}
	scheme := "http://"
	if n.TLS != nil {
		scheme = "https://"
	}

	n.DataURL, n.AdminURL = scheme+n.Data.Addr().String(), scheme+n.Admin.Addr().String()
	if !n.Config.Starting {
		n.Ready()
	}

	t.Cleanup(func() {
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()

		if err := n.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := clock.Close(); err != nil {
			t.Errorf("close clock: %v", err)
		}

		table.Close()
	})
	return n
}

// Close closes all doors, as a node does.
func (n *Node) Close(ctx context.Context) error {
	n.once.Do(func() {
		n.Drain()
		n.Closed = errors.Join(n.Data.Close(ctx), n.Admin.Close(ctx))
		n.Doors.Close()
	})
	return n.Closed
}

// UseRules puts a document in force.
func (n *Node) UseRules(src string) {
	n.T.Helper()
	doc, err := document.Parse([]byte(src))
	if err == nil {
		_, err = n.Rules.Use(doc)
	}
	if err != nil {
		n.T.Fatal(err)
	}
}

// TokenEntry returns the line of a tokens file for the token text.
func TokenEntry(name, text, scopes string) string {
	return fmt.Sprintf("- {name: %s, scopes: [%s], sha256: %x}\n", name, scopes, sha256.Sum256([]byte(text)))
}

// ConfinedEntry is like TokenEntry, for a token that is confined to namespaces.
func ConfinedEntry(name, text, scopes, namespaces string) string {
	return fmt.Sprintf("- {name: %s, scopes: [%s], namespaces: [%s], sha256: %x}\n", name, scopes,
		namespaces, sha256.Sum256([]byte(text)))
}

// TokensFile writes a tokens file with the given entries, and returns its name.
func TokensFile(t testing.TB, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "tokens.yaml")
	WriteFile(t, name, "tokens:\n"+strings.Join(lines, ""))
	return name
}

// WriteFile writes a file.
func WriteFile(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Error(err)
	}
}

// Call is one HTTP request.
type Call struct {
	Method string
	URL    string
	Body   string
	Header map[string]string
}

// Do makes a call and returns the answer with its body. It records error codes as provoked.
func (n *Node) Do(c Call) (*http.Response, string) {
	n.T.Helper()
	req, err := http.NewRequest(c.Method, c.URL, strings.NewReader(c.Body))
	if err != nil {
		n.T.Fatal(err)
	}

	for k, v := range c.Header {
		req.Header.Set(k, v)
	}

	resp, err := n.Client.Do(req)
	if err != nil {
		n.T.Fatalf("%s %s: %v", c.Method, c.URL, err)
	}

	defer resp.Body.Close()

	body, err := io.ReadAll(resp.Body)
	if err != nil {
		n.T.Fatalf("%s %s: %v", c.Method, c.URL, err)
	}

	NoteCode(body)
	return resp, string(body)
}

// NoteCode records the error codes in an answer as provoked, including those of
// a batch's results. It returns the code of the answer itself.
func NoteCode(body []byte) api.Code {
	var p struct {
		Code    api.Code
		Results []struct{ Error struct{ Code api.Code } }
	}
	if json.Unmarshal(body, &p) != nil {
		return ""
	}

	if p.Code != "" {
		provoked.Store(p.Code, true)
	}

	for _, r := range p.Results {
		if r.Error.Code != "" {
			provoked.Store(r.Error.Code, true)
		}
	}

	return p.Code
}

// Check calls POST /v1/check and returns the status and the answer's fields.
func (n *Node) Check(body string) (int, map[string]any) {
	n.T.Helper()
	resp, text := n.Do(Call{Method: "POST", URL: n.DataURL + "/v1/check", Body: body})
	return resp.StatusCode, Fields(n.T, text)
}

// Fields returns the fields of a JSON object.
func Fields(t testing.TB, text string) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	return m
}

// Until polls ok, which must return true within 10 seconds. what describes the condition.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	UntilWithin(t, 10*time.Second, what, ok)
}

// UntilWithin is like Until, with another timeout.
func UntilWithin(t testing.TB, while time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(while)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not true within %v: %s", while, what)
		}
		<-tick.C
	}
}

// The codes that each plane can answer. Together they are all codes.
var (
	DataCodes = []api.Code{
		api.BadJSON, api.UnknownField, api.BadValue, api.MissingKey, api.BadRequest,
		api.Unauthorized, api.Forbidden, api.Denied, api.CrossOrigin,
		api.RateLimited, api.CostAboveLimit, api.Reduced, api.Blocked,
		api.UnknownRule, api.UnknownReservation, api.NotFound, api.MethodNotAllowed, api.Timeout,
		api.TooLarge, api.TooMuchWork, api.HeadersTooLarge,
		api.Internal, api.NotReady, api.Draining, api.Overloaded, api.TooManyReservations,
		api.TooManySlots, api.UnknownSlot, api.TryAgain, api.RequestIDReused, api.UnknownLimit,
	}
	AdminCodes = []api.Code{
		api.BadJSON, api.UnknownField, api.BadValue, api.MissingKey, api.Unauthorized,
		api.Forbidden, api.CrossOrigin, api.WrongHost,
		api.UnknownRule, api.NotFound, api.MethodNotAllowed, api.Timeout, api.Conflict,
		api.TooLarge, api.InvalidRules, api.NotReady,
		api.NoLeader, api.NoOwner, api.Refused, api.OnlyMember, api.LevelRefused, api.NoPrimary,
		api.WriteFailed, api.Overloaded,
		api.Incomplete, api.InDocument, api.TooManyEntries,
	}
)
