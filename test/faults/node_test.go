//go:build faults

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// condition is what the tests have done to a node.
type condition int32

const (
	down condition = iota
	starting
	live
	draining
	paused
)

// node is a node of a fleet, across its restarts.
type node struct {
	*host
	t       *testing.T
	dir     string
	args    []string
	program string
	wall    string // the file that steps its wall clock
	spare   bool   // not among the cluster's founders
	client  *http.Client
	cmd     *exec.Cmd
	exited  chan struct{}
	log     process.Output

	// state has a condition in the low byte and above it a number that grows with
	// each change: if a check's node had the same state before and after, it was
	// undisturbed meanwhile.
	state   atomic.Int64
	process int
	records []string // files, one per process
}

func (n *node) is() condition { return condition(n.state.Load() & 0xff) }

func (n *node) become(c condition) {
	for {
		old := n.state.Load()
		if n.state.CompareAndSwap(old, (old>>8+1)<<8|int64(c)) {
			return
		}
	}
}

// up starts the node's process, and marks the node live once it is ready.
func (n *node) up() {
	n.t.Helper()
	n.process++
	file := filepath.Join(filepath.Dir(n.dir), fmt.Sprintf("%s-%d.record", n.name, n.process))
	n.records = append(n.records, file)
	n.cmd = exec.Command(n.program, n.args...)
	n.cmd.Env = append(os.Environ(), "RLNODE_RECORD="+file, "RLNODE_WALL="+n.wall)
	n.cmd.Stdout, n.cmd.Stderr = &n.log, &n.log
	n.become(starting)
	expect.NoError(n.t, n.start(n.cmd))
	n.exited = make(chan struct{})
	go func(c *exec.Cmd, exited chan struct{}) {
		_ = c.Wait() // callers read the state themselves
		close(exited)
	}(n.cmd, n.exited)
	go n.awaitReady(n.cmd, n.exited)
}

// awaitReady acts as the load balancer, which polls /readyz.
func (n *node) awaitReady(c *exec.Cmd, exited chan struct{}) {
	for {
		select {
		case <-exited:
			return
		case <-time.After(20 * time.Millisecond):
		}
		if n.is() != starting || n.cmd != c {
			return
		}
		if status, _, _, err := n.call("GET", 8080, "/readyz", "", nil); err == nil && status == 200 {
			n.become(live)
			return
		}
	}
}

func (n *node) signal(s syscall.Signal) {
	n.t.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		n.t.Fatalf("%s: %v: %v", n.name, s, err)
	}
}

func (n *node) kill() {
	n.become(down)
	n.signal(syscall.SIGKILL)
	<-n.exited
	n.client.CloseIdleConnections()
}

func (n *node) pause() {
	n.become(paused)
	n.signal(syscall.SIGSTOP)
}

func (n *node) resume() {
	n.signal(syscall.SIGCONT)
	n.become(live)
}

// stop ends the node with SIGTERM. Checks continue until /readyz fails.
func (n *node) stop() {
	n.t.Helper()
	n.signal(syscall.SIGTERM)
	for n.is() == live {
		if status, _, _, err := n.call("GET", 8080, "/readyz", "", nil); err != nil || status != 200 {
			n.become(draining)
		}
	}
	select {
	case <-n.exited:
	case <-time.After(15 * time.Second):
		n.t.Errorf("%s: no end 15 s after SIGTERM", n.name)
		n.kill()
	}
	n.become(down)
	n.client.CloseIdleConnections()
	expect.Equal(n.t, n.cmd.ProcessState.ExitCode(), 0, "%s: exit code after SIGTERM", n.name)
}

// call makes a request to the node; header may be nil.
func (n *node) call(
	method string, port int, path, body string, header map[string]string,
) (int, http.Header, string, error) {
	return n.callFor(10*time.Second, method, port, path, body, header)
}

func (n *node) callFor(
	d time.Duration, method string, port int, path, body string, header map[string]string,
) (int, http.Header, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method,
		fmt.Sprintf("http://%s:%d%s", n.ip, port, path), strings.NewReader(body))
	if err != nil {
		return 0, nil, "", err
	}
	for k, v := range header {
		r.Header.Set(k, v)
	}
	resp, err := n.client.Do(r)
	if err != nil {
		return 0, nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(text), err
}

// get makes a request to the admin plane and parses the answer.
func (n *node) get(path string, to any) error { return n.getFor(2*time.Second, path, to) }

func (n *node) getFor(d time.Duration, path string, to any) error {
	status, _, text, err := n.callFor(d, "GET", 8081, path, "", nil)
	if err == nil && status != 200 {
		err = fmt.Errorf("status %d: %s", status, text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	return json.Unmarshal([]byte(text), to)
}

// clusterState is the answer of GET /v1/cluster.
type clusterState struct {
	Epoch        int64  `json:"epoch"`
	Settled      bool   `json:"settled"`
	View         string `json:"view"`
	Leader       string `json:"leader"`
	RulesVersion int64  `json:"rules_version"`
	Recorded     int64  `json:"recorded_version"`
	Members      []struct {
		Name       string `json:"name"`
		State      string `json:"state"`
		Voter      bool   `json:"voter"`
		Leader     bool   `json:"leader"`
		InRing     bool   `json:"in_ring"`
		Partitions int    `json:"partitions"`
	} `json:"members"`
	Regions []struct {
		Name      string `json:"name"`
		Primary   bool   `json:"primary"`
		Reachable bool   `json:"reachable"`
		Committed bool   `json:"committed"`
		Members   int    `json:"members"`
	} `json:"regions"`
}

func (n *node) cluster() (c clusterState, err error) {
	err = n.get("/v1/cluster", &c)
	return c, err
}

// used returns what the owner has counted for a subject, without fallback counters.
func (n *node) used(r *rule, key int, name string) (int64, error) {
	var u struct {
		Limits []struct {
			Used int64 `json:"used"`
		} `json:"limits"`
	}
	status, _, text, err := n.callFor(2*time.Second, "POST", 8080, "/v1/usage", "{"+r.subject(key, name)+"}", nil)
	if err == nil && status != 200 {
		err = fmt.Errorf("status %d: %s", status, text)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", n.name, err)
	}
	if err := json.Unmarshal([]byte(text), &u); err != nil {
		return 0, err
	}
	if len(u.Limits) != 1 {
		return 0, fmt.Errorf("%s: %d limits", n.name, len(u.Limits))
	}
	return u.Limits[0].Used, nil
}

// ownerOf asks for a subject's owner and standby. It is patient: the answer
// stays true, and a busy machine may keep a node waiting for seconds.
func (n *node) ownerOf(rule, key string) (owner, standby string, err error) {
	var o struct{ Owner, Standby string }
	err = n.getFor(agreeTime, "/v1/owner?rule="+rule+"&key="+key, &o)
	return o.Owner, o.Standby, err
}
