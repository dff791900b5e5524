package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"os/exec"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// What a proxy must not let through. Its rules allow everything else, on both planes.
const (
	smuggledPath  = "/v1/adjust"       // on the data plane
	smuggledAdmin = "/v1/rules/hidden" // on the admin plane
)

// frontProxy is a proxy in front of both planes, which denies two paths.
type frontProxy struct {
	program string
	config  string // {ip}, {data}, {admin}, {dir}
	name    string
	args    []string
}

func frontProxies() []frontProxy {
	return []frontProxy{
		{"nginx", `
pid nginx.pid; error_log stderr; daemon off; worker_processes 1;
events {}
http {
	access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
	proxy_http_version 1.1; proxy_set_header Connection ""; proxy_request_buffering off;
	upstream data { server {data}; keepalive 8; }
	upstream admin { server {admin}; keepalive 8; }
	server { listen {ip}:8000; location = /v1/adjust { return 403; } location / { proxy_pass http://data; proxy_set_header Host localhost; } }
	server { listen {ip}:8001; location = /v1/rules/hidden { return 403; } location / { proxy_pass http://admin; proxy_set_header Host localhost; } }
}`, "nginx.conf", []string{"-p", ".", "-c", "nginx.conf", "-e", "stderr"}},
		{"caddy", `{
	admin off
	auto_https off
}
http://:8000 {
	bind {ip}
	@denied path /v1/adjust
	respond @denied 403
	reverse_proxy {data}
}
http://:8001 {
	bind {ip}
	@denied path /v1/rules/hidden
	respond @denied 403
	reverse_proxy {admin} {
		header_up Host localhost
	}
}
`, "Caddyfile", []string{"run", "--adapter", "caddyfile", "--config", "Caddyfile"}},
		{"haproxy", `
defaults
	mode http
	timeout connect 5s
	timeout client 5s
	timeout server 5s
	http-reuse always
frontend data
	bind {ip}:8000
	http-request deny if { path /v1/adjust }
	default_backend data
frontend admin
	bind {ip}:8001
	http-request deny if { path /v1/rules/hidden }
	default_backend admin
backend data
	server n {data}
backend admin
	http-request set-header Host localhost
	server n {admin}
`, "haproxy.cfg", []string{"-db", "-f", "haproxy.cfg"}},
	}
}

// start runs the proxy in front of node.
func (p frontProxy) start(t *testing.T, ip string, node *runningNode) {
	t.Helper()
	host := func(text string) string {
		u, err := url.Parse(text)
		expect.NoError(t, err)
		return u.Host
	}
	dir := t.TempDir()
	text := strings.NewReplacer("{ip}", ip, "{data}", host(node.data), "{admin}", host(node.admin)).Replace(p.config)
	expect.NoError(t, os.WriteFile(filepath.Join(dir, p.name), []byte(text), 0o600))
	log := &process.Output{}
	cmd := exec.Command(p.program, p.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = append(cleanEnv(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	expect.NoError(t, cmd.Start())
	var waiting sync.WaitGroup
	waiting.Go(func() { _ = cmd.Wait() }) // its log shows how it ended
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		waiting.Wait()
		if t.Failed() {
			t.Logf("log of %s:\n%.2000s", p.program, log)
		}
	})
	process.Eventually(t, p.program+" listens", func() bool {
		c, err := net.Dial("tcp", ip+":8001")
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// sendThrough sends text to a proxy, and reads what it answers.
func sendThrough(t *testing.T, address, text string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	expect.NoError(t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(300 * time.Millisecond))
	_, _ = io.WriteString(c, text) // a proxy may hang up
	_ = c.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, bufio.NewReader(c))
}

// Whatever two parsers may read differently, and whatever path may be written
// in two ways: what a proxy denies never reaches a plane behind it.
func TestProxiesAreNotPassed(t *testing.T) {
	t.Parallel()
	for i, p := range frontProxies() {
		t.Run(p.program, func(t *testing.T) {
			t.Parallel()
			e := example{program: p.program}
			e.skipUnlessInstalled(t)
			node := start(t, t.TempDir(), "--rules",
				file(t, "rules.yaml",
					"version: 1\nrules:\n  - {name: all, key: [], limits: [{limit: 1000000, per: 24h, algorithm: fixed-window}]}\n"))
			ip := fmt.Sprintf("127.0.63.%d", i+1)
			p.start(t, ip, node)

			adjust := apitest.Post(smuggledPath, `{"rule":"all","cost":1000}`, "Content-Type: application/json")
			rule := `{"key":[],"limits":[{"limit":1,"per":"1h"}]}`
			put := fmt.Sprintf("PUT %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", smuggledAdmin, len(rule), rule)
			for _, tt := range apitest.FramingCases {
				sendThrough(t, ip+":8000", tt.Send+adjust)
				sendThrough(t, ip+":8001", strings.ReplaceAll(tt.Send, "/v1/check", "/v1/try")+put)
			}
			for _, path := range apitest.OddPaths("/v1/check", smuggledPath) {
				sendThrough(t, ip+":8000", strings.Replace(adjust, smuggledPath, path, 1))
			}
			for _, path := range apitest.OddPaths("/v1/rules", smuggledAdmin) {
				sendThrough(t, ip+":8001", strings.Replace(put, smuggledAdmin, path, 1))
			}

			var used struct {
				Limits []struct{ Used int64 }
			}
			if usage, err := node.get("/v1/usage?rule=all", &used); err != nil ||
				len(used.Limits) != 1 || used.Limits[0].Used >= 1000 {
				t.Errorf("an adjustment passed the proxy: %s, %v", usage, err)
			}
			if status, body, err := node.call("GET", node.admin+smuggledAdmin, "", ""); status != http.StatusNotFound {
				t.Errorf("a rule passed the proxy: got %d %s, %v", status, body, err)
			}

			// The test sees it if something passes.
			if status, body, err := node.call("POST", node.data+smuggledPath, "",
				`{"rule":"all","cost":1000}`); status != 200 {
				t.Errorf("the adjustment itself: got %d %s, %v", status, body, err)
			}
			if usage, err := node.get("/v1/usage?rule=all", &used); err != nil || used.Limits[0].Used < 1000 {
				t.Errorf("the usage does not show an adjustment: %s", usage)
			}
		})
	}
}
