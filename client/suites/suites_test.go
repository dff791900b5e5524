// Package suites runs the libraries' own tests with rlnode's stores in place of
// theirs: see "make suites".
package suites

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/httpd"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
)

var checkouts = flag.String("suites", "",
	"a folder with a checkout of each library, by its name in libraries; empty: the tests are skipped")

// libraries are the libraries with stores, and the adapter that runs each suite.
var libraries = []struct{ name, adapter string }{
	{"limits", "python/run"},
	{"flask-limiter", "python/run"},
	{"slowapi", "python/run"},
	{"express-rate-limit", "js/run.mjs"},
	{"hono-rate-limiter", "js/run.mjs"},
	{"fastify-rate-limit", "js/run.mjs"},
	{"nestjs-throttler", "js/run.mjs"},
	{"rate-limiter-flexible", "js/run.mjs"},
}

// TestSuites fails if a test fails that its adapter does not list as different
// on purpose, and if a listed one passes.
func TestSuites(t *testing.T) {
	if *checkouts == "" {
		t.Skip("no -suites")
	}
	root, err := filepath.Abs(*checkouts)
	expect.NoError(t, err)
	for _, library := range libraries {
		t.Run(library.name, func(t *testing.T) {
			folder := filepath.Join(root, library.name)
			if _, err := os.Stat(folder); err != nil {
				t.Skip(err)
			}
			adapter, err := filepath.Abs(library.adapter)
			expect.NoError(t, err)
			command := exec.Command(adapter, library.name, folder)
			command.Env = append(os.Environ(), "SUITE_NODE="+serve(t))
			output, err := command.CombinedOutput()
			t.Logf("%s", output)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// serve starts a node whose clock follows its callers', and returns its
// address. The suites set their processes' clocks forward to have windows end.
func serve(t *testing.T) string {
	n := apitest.Start(t, nil, func(d *api.Doors, c apitest.Config) (apitest.DataPlane, error) {
		return httpd.Open(d, httpd.Config{Addr: "127.0.0.1:0", ReadTimeout: c.ReadTimeout})
	})
	n.UseRules("version: 1\nrules: []\n")
	target, err := url.Parse(n.DataURL)
	expect.NoError(t, err)
	follower := clockFollower{clock: n.Clock}
	forward := httputil.NewSingleHostReverseProxy(target)
	proxy := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		follower.follow(r.Header.Get("Suite-Clock"))
		forward.ServeHTTP(w, r)
	})}
	listener, err := api.Listen("127.0.0.1:0")
	expect.NoError(t, err)
	go proxy.Serve(listener)
	t.Cleanup(func() { proxy.Close() })
	return fmt.Sprint("http://", listener.Addr())
}

// longest is how far a test sets its clock forward. Beyond it, its clock began
// in 1970, and is the true one again.
const longest = 5 * 366 * 24 * time.Hour

// overtaken is by how much a call may be late, at most, without that its clock
// was set back. It is less than what tests set clocks forward by: the next one
// is at the true time again.
const overtaken = 50 * time.Millisecond

// clockFollower sets a node's clock to that of its caller, which tests may stop or set forward.
type clockFollower struct {
	clock *limiter.Clock

	mu    sync.Mutex // guards the rest
	begun bool
	last  time.Duration // what the caller's clock said, in Unix time
	ahead time.Duration // of the node
}

// follow reads what time it is for a caller, in Unix milliseconds.
func (f *clockFollower) follow(header string) {
	ms, err := strconv.ParseFloat(header, 64)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Duration(ms * float64(time.Millisecond))
	step := now - f.last
	switch {
	case !f.begun && now < longest:
		f.begun, f.ahead = true, time.Duration(f.clock.Now().Steady)-now
	case !f.begun:
		f.begun = true // the same time as here, which counts nothing yet
	case step < -overtaken || step > longest:
		f.ahead -= step // a test begins, or ends
	case step < 0:
		return // calls have overtaken each other
	}
	f.last = now
	f.clock.Set(int64(now + f.ahead))
}
