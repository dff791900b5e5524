package check

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// board is the part of Grafana's JSON that the tests read.
type board struct {
	UID           string
	SchemaVersion int
	ID            *int
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
	Panels []struct {
		ID         int
		Type       string
		Title      string
		GridPos    struct{ X, Y, W, H int }
		Datasource struct{ Type, UID string }
		Targets    []struct {
			Expr       string
			Datasource struct{ Type, UID string }
		}
	}
}

func readBoard(t *testing.T) board {
	t.Helper()
	text, err := os.ReadFile(root + "/deploy/grafana/rlnode.json")
	if err != nil {
		t.Fatal(err)
	}
	var b board
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// alert is a rule in the alerts file.
type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func readAlerts(t *testing.T) []alert {
	t.Helper()
	text, err := os.ReadFile(root + "/deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []alert
		}
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		t.Fatal(err)
	}
	return file.Groups[0].Rules
}

// tool finds a program on PATH, or in the folder into which a rule of the Makefile installs it.
func tool(t *testing.T, name, folder, rule string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path, err := filepath.Abs(filepath.Join(root, folder, name))
	if _, missing := os.Stat(path); err != nil || missing != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%s is not installed", name)
		}
		t.Skipf("%s is not installed: run `make %s`", name, rule)
	}
	return path
}

func TestBoard(t *testing.T) {
	b := readBoard(t)
	if b.UID != "rlnode" || b.ID != nil || b.SchemaVersion < 39 {
		t.Errorf("uid %q, id %v, schemaVersion %d", b.UID, b.ID, b.SchemaVersion)
	}
	var variables []string
	for _, v := range b.Templating.List {
		variables = append(variables, v.Name)
	}
	if want := []string{"datasource", "job", "instance", "rule"}; !slices.Equal(variables, want) {
		t.Errorf("variables: have %v, want %v", variables, want)
	}
	shown := ""
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range b.Panels {
		if ids[p.ID] {
			t.Errorf("%s: the id %d is used twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s overlaps %s or the edge of the page", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		for _, target := range p.Targets {
			if p.Datasource.UID != "${datasource}" || target.Datasource.UID != "${datasource}" {
				t.Errorf("%s: its data source is not the board's", p.Title)
			}
			if !strings.Contains(target.Expr, `job=~"$job"`) {
				t.Errorf("%s: %s does not select the chosen jobs", p.Title, target.Expr)
			}
			shown += target.Expr + "\n"
		}
	}

	// A person whom an alert wakes sees on the board since when.
	for _, a := range readAlerts(t) {
		for _, name := range metricName.FindAllString(a.Expr, -1) {
			if strings.HasPrefix(name, "rlnode_") && !regexp.MustCompile(name+`\b`).MatchString(shown) {
				t.Errorf("%s: the board does not show %s", a.Alert, name)
			}
		}
	}
}

// metricName matches the names of metrics in a query.
var metricName = regexp.MustCompile(`\b(rlnode|process|go)_[a-z0-9_]+`)

// promtool accepts the alerts and their tests pass. Each alert has a test.
func TestAlerts(t *testing.T) {
	t.Parallel()
	promtool := tool(t, "promtool", "bin/prometheus", "prometheus")
	run := func(args ...string) {
		t.Helper()
		cmd := exec.Command(promtool, args...)
		cmd.Dir = root + "/deploy/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	run("check", "rules", "--lint-fatal", "alerts.yaml")
	run("test", "rules", "alerts_test.yaml")
	run("check", "config", "--syntax-only", "../compose/prometheus.yml")
	tests, err := os.ReadFile(root + "/deploy/prometheus/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range readAlerts(t) {
		if !strings.Contains(string(tests), `alertname="`+a.Alert+`"`) {
			t.Errorf("%s: no test in alerts_test.yaml expects it to fire", a.Alert)
		}
		if a.Labels["severity"] == "" || a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s: severity, summary or description is missing", a.Alert)
		}
	}
}

const boardRules = `version: 1
rules:
  - name: per-ip
    key: [ip]
    usage: monthly
    limits: [{limit: 20, per: 10s}]
  - name: shadow
    shadow: true
    key: [ip]
    limits: [{limit: 5, per: 10s}]
  - name: api
    key: [api_key]
    limits: [{limit: 100000, per: 1s, algorithm: token-bucket}]
    adaptive: {source: node-cpu, steps: [{above: 500, factor: 0.5}]}
  - name: world
    match: {endpoint: /world}
    scope: global
    key: [api_key]
    limits: [{limit: 100, per: 1m, algorithm: fixed-window}]
  - name: jobs
    match: {endpoint: /jobs}
    key: [api_key]
    limits: [{limit: 3, ttl: 5s, algorithm: concurrency}]
`

// With three nodes of one region and one of another under load, and Prometheus
// scraping them, every metric that the board or an alert names exists, every
// query of the board returns data, and no alert fires.
func TestBoardHasData(t *testing.T) {
	t.Parallel()
	prometheus := tool(t, "prometheus", "bin/prometheus", "prometheus")
	program := buildProgram(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(boardRules), 0o644); err != nil {
		t.Fatal(err)
	}
	// so that there are certificates that may end
	tls := []string{"--gossip-key", base64.StdEncoding.EncodeToString(make([]byte, 32))}
	for name, text := range certificate(t, nil) {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		tls = append(tls,
			map[string]string{"tls.crt": "--tls-cert", "tls.key": "--tls-key", "ca.crt": "--tls-ca"}[name],
			file)
	}
	var urls []string
	for i, name := range []string{"n1", "n2", "n3", "u1"} {
		args := []string{"serve", "--name", name, "--bind", fmt.Sprintf("127.0.77.%d", i+1),
			"--data-dir", filepath.Join(dir, name), "--primary-region", "eu",
			"--rules", filepath.Join(dir, "rules.yaml"), "--log-level", "warn", "--redis-port", "6379"}
		if name == "u1" {
			args = append(args, "--region", "us", "--wan-join", "127.0.77.1,127.0.77.2,127.0.77.3")
		} else {
			args = append(args, "--region", "eu", "--bootstrap-expect", "3", "--join",
				"127.0.77.1,127.0.77.2,127.0.77.3")
		}
		background(t, program, append(args, tls...)...)
		urls = append(urls, fmt.Sprintf("http://127.0.77.%d", i+1))
	}
	for _, u := range urls {
		eventually(t, u+" is ready", func() bool {
			_, status := get(u + ":8080/readyz")
			return status == http.StatusOK
		})
	}
	const address = "127.0.77.100:9090" // beside the nodes' addresses
	background(t, prometheus, "--config.file="+prometheusConfig(t, dir),
		"--storage.tsdb.path="+filepath.Join(dir, "tsdb"),
		"--web.listen-address="+address, "--log.level=warn")
	load(t, urls)

	b := readBoard(t)
	var queries []string
	for _, p := range b.Panels {
		for _, target := range p.Targets {
			queries = append(queries, strings.NewReplacer(
				"$job", "rlnode.*", "$instance", ".*", "$rule", ".*", "$__rate_interval", "5s",
			).Replace(target.Expr))
		}
	}
	if len(queries) < 60 {
		t.Fatalf("the board has %d queries", len(queries))
	}
	checkNames(t, urls, queries, b)
	var lacks []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("without data:\n%s", strings.Join(lacks, "\n"))
		}
	})
	eventually(t, "every query of the board returns data", func() bool {
		lacks = slices.DeleteFunc(slices.Clone(queries), func(q string) bool { return hasData(t, address, q) })
		return len(lacks) == 0
	})
	checkRules(t, address)
}

// checkNames checks that the nodes export the metrics that queries name.
func checkNames(t *testing.T, urls, queries []string, b board) {
	t.Helper()
	texts := slices.Clone(queries)
	for _, v := range b.Templating.List {
		texts = append(texts, v.Definition)
	}
	for _, a := range readAlerts(t) {
		texts = append(texts, a.Expr)
	}
	var names []string
	for _, text := range texts {
		names = append(names, metricName.FindAllString(text, -1)...)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	var lacks []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("not shown: %v", lacks)
		}
	})
	eventually(t, "nodes show every metric that the board or an alert names", func() bool {
		shown := ""
		for _, u := range urls {
			text, _ := get(u + ":8081/metrics")
			shown += text
		}
		lacks = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			return strings.Contains(shown, "\n"+name+" ") || strings.Contains(shown, "\n"+name+"{")
		})
		return len(lacks) == 0
	})
}

// hasData reports whether a query returned data within the last half minute.
func hasData(t *testing.T, address, query string) bool {
	t.Helper()
	now := time.Now()
	text, status := get("http://" + address + "/api/v1/query_range?" + url.Values{
		"query": {query}, "step": {"1"}, "start": {fmt.Sprint(now.Add(-30 * time.Second).Unix())},
		"end": {fmt.Sprint(now.Unix())},
	}.Encode())
	if status == http.StatusBadRequest {
		t.Fatalf("%s: %s", query, text)
	}
	var answer struct {
		Data struct {
			Result []struct{ Values [][2]any }
		}
	}
	if json.Unmarshal([]byte(text), &answer) != nil {
		return false
	}
	for _, series := range answer.Data.Result {
		if slices.ContainsFunc(series.Values, func(v [2]any) bool { return v[1] != "NaN" }) {
			return true
		}
	}
	return false
}

// checkRules checks the state of the alerts in Prometheus itself.
func checkRules(t *testing.T, address string) {
	t.Helper()
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, State, LastError string }
			}
		}
	}
	eventually(t, "Prometheus has evaluated each alert", func() bool {
		text, _ := get("http://" + address + "/api/v1/rules")
		if json.Unmarshal([]byte(text), &answer) != nil || len(answer.Data.Groups) != 1 {
			return false
		}
		return !slices.ContainsFunc(answer.Data.Groups[0].Rules,
			func(r struct{ Name, Health, State, LastError string }) bool { return r.Health == "unknown" })
	})
	for _, r := range answer.Data.Groups[0].Rules {
		if r.Health != "ok" || r.State == "firing" {
			t.Errorf("%s: health %s, state %s, %s", r.Name, r.Health, r.State, r.LastError)
		}
	}
}

func prometheusConfig(t *testing.T, dir string) string {
	t.Helper()
	alerts, err := filepath.Abs(root + "/deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "prometheus.yml")
	err = os.WriteFile(path, []byte(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [`+alerts+`]
scrape_configs:
  - job_name: rlnode
    static_configs: [{targets: ["127.0.77.1:8081", "127.0.77.2:8081", "127.0.77.3:8081"]}]
  - job_name: rlnode-us
    static_configs: [{targets: ["127.0.77.4:8081"]}]
`), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// load sends the nodes a hundred checks per second in all, until the test ends.
func load(t *testing.T, urls []string) {
	stop := make(chan struct{})
	var running sync.WaitGroup
	t.Cleanup(func() { close(stop); running.Wait() })
	running.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			node := urls[i%len(urls)]
			attributes := fmt.Sprintf(`{"ip": "198.51.100.%d", "api_key": "k%d", "endpoint": "/world"}`, i%7, i%11)
			post(node+":8080/v1/check", `{"attributes": `+attributes+`}`)
			if i%10 == 7 {
				askRedisDoor(strings.TrimPrefix(node, "http://") + ":6379")
				askEnvoyDoor(node + ":8082")
			}
			if i%10 == 5 {
				answer := post(node+":8080/v1/acquire", `{"rule": "jobs", "key": "k1"}`)
				var acquired struct{ Slot string }
				if json.Unmarshal([]byte(answer), &acquired) == nil && acquired.Slot != "" {
					post(node+":8080/v1/release", fmt.Sprintf(`{"slot": %q}`, acquired.Slot))
				}
			}
			if i%10 == 0 {
				answer := post(node+":8080/v1/reserve",
					fmt.Sprintf(`{"attributes": %s, "ttl_ms": 60000, "request_id": "r%d"}`, attributes, i/40))
				var reserved struct{ Reservation string }
				if json.Unmarshal([]byte(answer), &reserved) == nil && reserved.Reservation != "" {
					post(node+":8080/v1/settle",
						fmt.Sprintf(`{"reservation": %q, "costs": {"requests": 1}}`, reserved.Reservation))
				}
			}
		}
	})
}

var client = &http.Client{Timeout: 10 * time.Second}

func get(url string) (string, int) {
	resp, err := client.Get(url)
	if err != nil {
		return "", 0
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return string(text), resp.StatusCode
}

func post(url, body string) string {
	resp, err := client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}

// askRedisDoor sends one command to a node's door of Redis.
func askRedisDoor(address string) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = c.Write([]byte("CL.THROTTLE k1 100 100 60\r\n"))
	_, _ = c.Read(make([]byte, 100))
}

var http2Client = func() *http.Client {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Timeout: 10 * time.Second, Transport: transport}
}()

// askEnvoyDoor sends a request of Envoy's, which no rule matches, to a node's door for Envoy.
func askEnvoyDoor(url string) {
	const request = "\n\x01d\x12\x08\n\x06\n\x01k\x12\x01v" // domain d, one descriptor with k: v
	body := strings.NewReader("\x00\x00\x00\x00" + string(rune(len(request))) + request)
	resp, err := http2Client.Post(url+
		"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", "application/grpc", body)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
}

var (
	programOnce sync.Once
	programPath string
	programErr  error
)

// buildProgram builds the node's program like a release.
func buildProgram(t *testing.T) string {
	t.Helper()
	programOnce.Do(func() {
		dir, err := os.MkdirTemp("", "rlnode-program-*")
		if err != nil {
			programErr = err
			return
		}
		removeAtEnd(dir)
		programPath = filepath.Join(dir, "rlnode")
		cmd := exec.Command("go", "build", "-trimpath", "-o", programPath, "./cmd/rlnode")
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			programErr = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if programErr != nil {
		t.Fatal(programErr)
	}
	return programPath
}

// background runs a program until the test ends.
func background(t *testing.T, program string, args ...string) {
	t.Helper()
	var output bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%v:\n%s", args, &output)
		}
	})
}
