package check

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	unit "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"sigs.k8s.io/yaml"
)

// readProto reads a part of a YAML file like Envoy: every field must be known and valid.
func readProto(t *testing.T, what string, part any, into interface {
	proto.Message
	ValidateAll() error
}) {
	t.Helper()
	text, err := yaml.Marshal(part)
	if err == nil {
		text, err = yaml.YAMLToJSON(text)
	}
	if err == nil {
		err = protojson.Unmarshal(text, into)
	}
	if err == nil {
		err = into.ValidateAll()
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func readYAML(t *testing.T, name string) (v map[string]any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "examples", name))
	if err == nil {
		err = yaml.Unmarshal(text, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Envoy accepts the examples for Envoy and Istio.
func TestEnvoyExamples(t *testing.T) {
	t.Parallel()
	readProto(t, "envoy.yaml", readYAML(t, "envoy/envoy.yaml"), &bootstrap.Bootstrap{})
	spec := readYAML(t, "istio/envoyfilter.yaml")["spec"].(map[string]any)
	for i, patch := range spec["configPatches"].([]any) {
		value := patch.(map[string]any)["patch"].(map[string]any)["value"].(map[string]any)
		if typed, ok := value["typed_config"].(map[string]any); ok {
			delete(typed, "@type")
			readProto(t, fmt.Sprintf("patch %d", i), typed, &filter.RateLimit{})
			continue
		}
		value["name"] = "any" // that of what is patched
		if patch.(map[string]any)["applyTo"] == "CLUSTER" {
			readProto(t, fmt.Sprintf("patch %d", i), value, &cluster.Cluster{})
			continue
		}
		value["domains"] = []string{"*"}
		readProto(t, fmt.Sprintf("patch %d", i), value, &route.VirtualHost{})
	}
}

// actionRules limits the descriptors that a route's actions make of a request.
const actionRules = `version: 1
rules: [{name: other, key: [ip], limits: [{limit: 5, per: 1m}]}]
envoy:
  - domain: actions
    descriptors:
      - {key: source_cluster, rate_limit: {unit: day, requests_per_unit: 2}}
      - {key: destination_cluster, rate_limit: {unit: day, requests_per_unit: 2}}
      - {key: api_key, rate_limit: {unit: day, requests_per_unit: 2}}
      - {key: query_match, value: yes, rate_limit: {unit: day, requests_per_unit: 2}}
      - {key: header_match, value: beta, rate_limit: {unit: day, requests_per_unit: 2}}
      - {key: remote_address, rate_limit: {unit: day, requests_per_unit: 2}}
      - {key: masked_remote_address, value: "10.1.*", rate_limit: {unit: day, requests_per_unit: 2}}
      - {key: generic_key, value: search, descriptors: [{key: api_key, rate_limit: {unit: day, requests_per_unit: 2}}]}
  - domain: load
    descriptors:
      - {key: k, rate_limit: {unit: year, requests_per_unit: 1000000}}
  - domain: llm
    descriptors:
      - {key: team, rate_limit: {unit: year, requests_per_unit: 10000}}
`

// fleet is three nodes that serve Envoy's protocol.
type fleet struct {
	t       *testing.T
	program string
	dir     string
	net     string
	mu      sync.Mutex // guards the fields below
	nodes   [3]*exec.Cmd
}

func newFleet(t *testing.T, net string) *fleet {
	t.Helper()
	f := &fleet{t: t, program: buildProgram(t), dir: t.TempDir(), net: net}
	if err := os.WriteFile(filepath.Join(f.dir, "rules.yaml"), []byte(actionRules), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for i := range f.nodes {
			if c := f.node(i); c != nil {
				_ = c.Process.Kill()
				_ = c.Wait()
			}
		}
	})
	for i := range f.nodes {
		f.start(i)
	}
	for i := range f.nodes {
		f.ready(i)
	}
	return f
}

func (f *fleet) node(i int) *exec.Cmd {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[i]
}

func (f *fleet) host(i int) string { return fmt.Sprintf("%s.%d", f.net, i+1) }

func (f *fleet) start(i int) {
	f.t.Helper()
	c := exec.Command(f.program, "serve", "--name", fmt.Sprintf("n%d", i+1), "--bind", f.host(i),
		"--data-dir", filepath.Join(f.dir, fmt.Sprint(i)),
		"--bootstrap-expect", "3", "--join", strings.Join([]string{f.host(0), f.host(1), f.host(2)},
			","), "--rules", filepath.Join(f.dir, "rules.yaml"), "--log-level", "warn")
	c.Stdout, c.Stderr = io.Discard, os.Stderr
	if err := c.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	f.nodes[i] = c
	f.mu.Unlock()
}

func (f *fleet) ready(i int) {
	f.t.Helper()
	eventually(f.t, f.host(i)+" is ready", func() bool {
		_, status := get("http://" + f.host(i) + ":8080/readyz")
		return status == http.StatusOK
	})
}

// stop ends a node with a signal.
func (f *fleet) stop(i int, how syscall.Signal) {
	f.t.Helper()
	c := f.node(i)
	if err := c.Process.Signal(how); err != nil {
		f.t.Fatal(err)
	}
	_ = c.Wait()
}

// sharedAddress returns one address for all nodes, like a Kubernetes service:
// each connection goes to some node that accepts it.
func (f *fleet) sharedAddress() string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { ln.Close() })
	next := atomic.Int64{}
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				for range 2 * len(f.nodes) {
					out, err := net.DialTimeout("tcp", f.host(int(next.Add(1))%len(f.nodes))+":8082", time.Second)
					if err != nil {
						continue
					}
					defer out.Close()
					go func() { io.Copy(out, in); out.(*net.TCPConn).CloseWrite() }()
					io.Copy(in, out)
					return
				}
			}()
		}
	}()
	return ln.Addr().String()
}

func dial(t *testing.T, address string) rls.RateLimitServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return rls.NewRateLimitServiceClient(conn)
}

// request returns a request with one descriptor of pairs of keys and values.
func request(domain string, pairs ...string) *rls.RateLimitRequest {
	d := &ratelimit.RateLimitDescriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return &rls.RateLimitRequest{Domain: domain, Descriptors: []*ratelimit.RateLimitDescriptor{d}}
}

// A client that sends Envoy's messages asks three nodes about the descriptors
// that a route's actions make of a request.
func TestEnvoyClient(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "127.0.84")
	for _, pairs := range [][]string{
		{"source_cluster", "web"}, {"destination_cluster", "app"}, {"api_key", "k1"},
		{"query_match", "yes"}, {"header_match", "beta"},
		{"remote_address", "192.0.2.7"}, {"masked_remote_address", "10.1.0.0/16"},
		{"generic_key", "search", "api_key", "k1"},
	} {
		for i, want := range []rls.RateLimitResponse_Code{rls.RateLimitResponse_OK,
			rls.RateLimitResponse_OK, rls.RateLimitResponse_OVER_LIMIT} {
			a, err := dial(t, f.host(i)+":8082").ShouldRateLimit(t.Context(),
				request("actions", pairs...), grpc.WaitForReady(true))
			if err != nil {
				t.Fatal(err)
			}
			s := a.GetStatuses()[0]
			if a.GetOverallCode() != want || s.GetCode() != want || s.GetCurrentLimit().GetRequestsPerUnit() != 2 ||
				s.GetCurrentLimit().GetUnit() != rls.RateLimitResponse_RateLimit_DAY ||
				s.GetLimitRemaining() != uint32(max(0, 1-i)) ||
				s.GetDurationUntilReset() == nil {
				t.Errorf("%v, request %d: have %v", pairs, i, a)
			}
		}
	}
	override := request("actions", "api_key", "mine")
	override.Descriptors[0].Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: unit.RateLimitUnit_HOUR}
	for i, want := range []rls.RateLimitResponse_Code{rls.RateLimitResponse_OK, rls.RateLimitResponse_OVER_LIMIT} {
		if a, err := dial(t, f.host(i)+":8082").ShouldRateLimit(t.Context(),
			override); err != nil || a.GetOverallCode() != want {
			t.Errorf("override, request %d: have %v, %v", i, a, err)
		}
	}
	conn, err := grpc.NewClient(f.host(0)+":8082", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, name := range []string{"", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"} {
		if h, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(),
			&grpc_health_v1.HealthCheckRequest{Service: name}); err != nil || h.GetStatus() != 1 {
			t.Errorf("health of %q: have %v, %v", name, h, err)
		}
	}
}

// No request fails while the nodes behind one address restart one after
// another. Killing a node costs its callers one retry.
func TestEnvoyRestarts(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "127.0.85")
	address := f.sharedAddress()
	var asked, failed, again atomic.Int64
	killing := atomic.Bool{}
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for i := range 6 {
		client := dial(t, address)
		callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				q := request("load", "k", fmt.Sprint(i, n%50))
				one, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				_, err := client.ShouldRateLimit(one, q)
				if err != nil && killing.Load() {
					again.Add(1)
					_, err = client.ShouldRateLimit(one, q, grpc.WaitForReady(true))
				}
				cancel()
				if asked.Add(1); err != nil && failed.Add(1) < 5 {
					t.Errorf("request %d of caller %d: %v", n, i, err)
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	for i := range f.nodes {
		f.stop(i, syscall.SIGTERM)
		f.start(i)
		f.ready(i)
	}
	restarted := asked.Load()
	killing.Store(true)
	f.stop(0, syscall.SIGKILL)
	time.Sleep(3 * time.Second)
	stop()
	callers.Wait()
	t.Logf("%d requests during three restarts, %d more during a kill; %d were retried, %d failed",
		restarted, asked.Load()-restarted, again.Load(), failed.Load())
	if restarted < 500 || again.Load() > 6 {
		t.Errorf("%d requests, %d retried", restarted, again.Load())
	}
}

// grpcurl finds the service by reflection and calls it with JSON.
func TestGrpcurl(t *testing.T) {
	t.Parallel()
	program := tool(t, "grpcurl", "bin", "bin/grpcurl")
	f := newFleet(t, "127.0.86")
	const service = "envoy.service.ratelimit.v3.RateLimitService"
	run := func(node int, args ...string) string {
		i := 0
		if args[0] == "-d" {
			i = 2
		}
		all := append([]string{"-plaintext", "-max-time", "20"}, args[:i]...)
		out, err := exec.Command(program, append(append(all, f.host(node)+":8082"), args[i:]...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("grpcurl %v: %v\n%s", args, err, out)
		}
		return strings.Join(strings.Fields(string(out)), " ")
	}
	if have, want := run(0, "list"), service+
		" grpc.health.v1.Health grpc.reflection.v1.ServerReflection"; have != want {
		t.Errorf("list: have %s, want %s", have, want)
	}
	for _, test := range []struct{ what, want string }{
		{service,
			"rpc ShouldRateLimit ( .envoy.service.ratelimit.v3.RateLimitRequest ) returns ( .envoy.service.ratelimit.v3.RateLimitResponse );"},
		{"envoy.service.ratelimit.v3.RateLimitRequest",
			"repeated .envoy.extensions.common.ratelimit.v3.RateLimitDescriptor descriptors = 2; uint32 hits_addend = 3;"},
		{"envoy.extensions.common.ratelimit.v3.RateLimitDescriptor",
			".google.protobuf.UInt64Value hits_addend = 3; bool is_negative_hits = 4;"},
	} {
		if have := run(1, "describe", test.what); !strings.Contains(have, test.want) {
			t.Errorf("describe %s: have %s", test.what, have)
		}
	}
	question := `{"domain": "actions", "descriptors": [{"entries": [{"key": "api_key", "value": "curl"}]}]}`
	for i, want := range []string{`"limitRemaining": 1`, `"overallCode": "OK"`, `"overallCode": "OVER_LIMIT"`} {
		if have := run(i, "-d", question, service+"/ShouldRateLimit"); !strings.Contains(have,
			want) || !strings.Contains(have, `"unit": "DAY"`) {
			t.Errorf("request %d: have %s", i, have)
		}
	}
	for i, name := range []string{"", "ratelimit", service} {
		if have := run(i, "-d", `{"service": "`+name+`"}`,
			"grpc.health.v1.Health/Check"); have != `{ "status": "SERVING" }` {
			t.Errorf("health of %q: have %s", name, have)
		}
	}
}

// 40 streams spend a budget. Each looks before it begins and is charged when it
// has ended, each time at another node; sometimes one node serves only looks.
// From the first look that begins after the budget is used up, all are refused.
func TestEnvoyBudget(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "127.0.87")
	var doors [3]rls.RateLimitServiceClient
	for i := range doors {
		doors[i] = dial(t, f.host(i)+":8082")
	}
	var spent []*budget
	for round := range 6 {
		b := &budget{t: t, doors: doors, charging: len(doors) - round%2,
			team: fmt.Sprint("t", round), open: map[int]int64{}}
		var streams sync.WaitGroup
		for i := range 40 {
			streams.Go(func() { b.spend(i) })
		}
		streams.Wait()
		if b.lateLooks > 0 {
			t.Errorf("%s: %d looks were allowed that began after the budget was used up", b.team, b.lateLooks)
		}
		if b.charged < tokens || b.charged-tokens > b.underWay {
			t.Errorf("%s: charged %d; overdrawn by %d, and %d were under way", b.team, b.charged,
				b.charged-tokens, b.underWay)
		}
		spent = append(spent, b)
	}
	for i, b := range spent {
		// until leases have ended
		eventually(t, fmt.Sprintf("%s has used the %d that were charged", b.team, b.charged), func() bool {
			var answer struct{ Limits []struct{ Used int64 } }
			body := post("http://"+f.host(i%len(doors))+":8080/v1/usage", `{"rule": "llm.team", "key": "`+b.team+`"}`)
			return json.Unmarshal([]byte(body), &answer) == nil && len(answer.Limits) == 1 &&
				answer.Limits[0].Used == b.charged
		})
	}
}

const tokens = 10_000

// budget is what the streams spend.
type budget struct {
	t        *testing.T
	doors    [3]rls.RateLimitServiceClient
	charging int // number of nodes that take charges
	team     string

	mu      sync.Mutex    // guards the fields below
	charged int64         // confirmed by nodes
	open    map[int]int64 // costs of the streams in progress
	usedUp  bool
	// what the last charge exceeded the budget by, plus the costs of streams that
	// had begun to look before
	underWay  int64
	lateLooks int // looks allowed after that
}

// ask sends a request with hits to one of the first nodes, and reports whether it is allowed.
func (b *budget) ask(nodes int, hits int64) bool {
	q := request("llm", "team", b.team)
	q.Descriptors[0].HitsAddend = wrapperspb.UInt64(uint64(hits))
	ctx, cancel := context.WithTimeout(b.t.Context(), maxWait)
	defer cancel()
	a, err := b.doors[rand.IntN(nodes)].ShouldRateLimit(ctx, q, grpc.WaitForReady(true))
	if err != nil {
		b.t.Error(err)
	}
	return a.GetOverallCode() == rls.RateLimitResponse_OK
}

// spend runs one stream after another until a look that began after the budget
// was used up is refused.
func (b *budget) spend(i int) {
	for end := time.Now().Add(maxWait); time.Now().Before(end); {
		b.mu.Lock()
		over := b.usedUp
		b.mu.Unlock()
		if !b.ask(len(b.doors), 0) {
			if over {
				return
			}
			continue
		}
		cost := 50 + rand.Int64N(300)
		b.mu.Lock()
		switch {
		case over:
			b.lateLooks++
		case b.usedUp: // during the look
			b.underWay += cost
		}
		b.open[i] = cost
		b.mu.Unlock()
		time.Sleep(time.Duration(rand.Int64N(int64(50 * time.Millisecond)))) // the stream runs
		b.ask(b.charging, cost)
		b.mu.Lock()
		b.charged += cost
		delete(b.open, i)
		if b.charged >= tokens && !b.usedUp {
			b.usedUp, b.underWay = true, b.charged-tokens
			for _, c := range b.open {
				b.underWay += c
			}
		}
		b.mu.Unlock()
	}
	b.t.Errorf("stream %d did not end", i)
}
