package main

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	bytesorder "encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/internal/testca"
)

var (
	holdAll = flag.Bool("hold", false,
		"hold connections of all shapes, from 1, 4 and 64 addresses, at all doors; make hostile does")
	holdOnly     = flag.String("hold-only", "", "hold only those whose name contains this")
	otherProgram = flag.String("program", "", "test this program instead of what is here")
)

// What the shipped containers are given: see docker-compose.yml and the chart's values.
const (
	shippedLimit = 512 << 20
	shippedGo    = "400MiB"
	shippedTable = "2000000"
)

const holdToken = "rlt_of_the_test_that_holds_connections"

// shape is what a connection of a stranger has sent before it falls silent.
type shape struct {
	name string
	door string // data, admin, grpc or redis
	send string
	// reads means that it reads the answer. Others never read.
	reads bool
}

func holdingShapes() []shape {
	check := "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n{\"rule\":\"all\"}"
	probe := "GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
	head := "X: " + strings.Repeat("x", 15_000) + "\r\n"
	half := "POST /v1/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n%s"
	health := "/grpc.health.v1.Health/Check"
	return []shape{
		{"nothing", "data", "", false},
		{"a small request", "data", check, true},
		{"a long line", "data", "GET /" + strings.Repeat("x", 16_000), false},
		{"a large head refused", "data", strings.Replace(check, "Content", head+"Content", 1), true},
		{"a large head answered", "data", probe + head + "\r\n", true},
		{"half a body", "data", fmt.Sprintf(half, "check", "{"), false},
		{"half a large body", "data", fmt.Sprintf(half, "check/batch", strings.Repeat(" ", 15_000)), false},
		{"unread answers", "data", strings.Repeat(probe+"\r\n", 4000), false},

		{"a small request", "admin", probe + "\r\n", true},
		{"a long line", "admin", "GET /" + strings.Repeat("x", 16_000), false},
		{"a large head answered", "admin", probe + head + "\r\n", true},
		{"half a body", "admin", fmt.Sprintf(half, "try", "{"), false},
		{"unread metrics", "admin", strings.Repeat("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 200), false},

		{"nothing", "redis", "", false},
		{"a small command", "redis", "PING\r\n", true},
		{"half a command", "redis", "*2\r\n$4\r\nAUTH\r\n$16000\r\n" + strings.Repeat("x", 15_000), false},
		{"half an array", "redis", "*10\r\n" + strings.Repeat("$1500\r\n"+strings.Repeat("x", 1500)+"\r\n", 9), false},
		{"unread replies", "redis", strings.Repeat("PING\r\n", 20_000), false},

		{"only settings", "grpc", string(preface()), false},
		{"half-sent calls", "grpc",
			halfCalls("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", 100), false},
		{"half-sent health checks", "grpc", halfCalls(health, 100), false},
		{"health watches", "grpc", wholeCalls("/grpc.health.v1.Health/Watch", 20), false},
		{"a large head", "grpc", largeCall(health), false},
	}
}

// http2Frame returns a frame.
func http2Frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(bytesorder.BigEndian.AppendUint32(b, stream), payload...)
}

func preface() []byte {
	return append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), http2Frame(4, 0, 0, nil)...)
}

// callHead returns the frame of a call's headers.
func callHead(path string, stream uint32, more ...string) []byte {
	var block []byte
	list := append([]string{":method", "POST", ":scheme", "http", ":path", path, ":authority", "n",
		"content-type", "application/grpc", "te", "trailers"}, more...)
	for pair := range slices.Chunk(list, 2) {
		block = append(block, 0)
		for _, s := range pair {
			if len(s) < 127 {
				block = append(append(block, byte(len(s))), s...)
				continue
			}
			block = append(block, 127)
			block = append(bytesorder.AppendUvarint(block, uint64(len(s)-127)), s...)
		}
	}
	return http2Frame(1, 4, stream, block)
}

func halfCalls(path string, calls int) string {
	b := preface()
	for i := range calls {
		stream := uint32(2*i + 1)
		b = append(b, callHead(path, stream)...)
		b = append(b, http2Frame(0, 0, stream, []byte{0, 0, 0, 100, 0, 0})...)
	}
	return string(b)
}

func wholeCalls(path string, calls int) string {
	b := preface()
	for i := range calls {
		stream := uint32(2*i + 1)
		b = append(b, callHead(path, stream)...)
		b = append(b, http2Frame(0, 1, stream, []byte{0, 0, 0, 0, 0})...)
	}
	return string(b)
}

func largeCall(path string) string {
	return string(append(preface(), callHead(path, 1, "x", strings.Repeat("x", 15_000))...))
}

// holding is a node, and the strangers who hold connections to it.
type holding struct {
	t      *testing.T
	node   *runningNode
	doors  map[string]string // addresses
	config *tls.Config       // nil: plain text
	token  string
	places int // of the door that is held

	mu   sync.Mutex // guards held
	held []net.Conn
}

// startHolding starts a node as the containers do.
func startHolding(t *testing.T, tokens, secured bool, args ...string) *holding {
	t.Helper()
	h := &holding{t: t}
	grpc, redis := process.FreePort(t), process.FreePort(t)
	args = append([]string{
		"serve", "--data-dir", t.TempDir(), "--http-port", "0", "--admin-port", "0", "--grpc-port",
		fmt.Sprint(grpc), "--redis-port", fmt.Sprint(redis),
		"--max-counters", shippedTable,
	}, args...)
	if tokens {
		h.token = holdToken
		args = append(args, "--tokens-file",
			file(t, "tokens.yaml",
				"tokens:\n- {name: t, scopes: [admin], sha256: "+fmt.Sprintf("%x",
					sha256.Sum256([]byte(holdToken)))+"}\n"))
	}
	if secured {
		cert, key := testca.WritePair(t, t.TempDir(), "localhost")
		args = append(args, "--http-cert", cert, "--http-key", key)
		h.config = &tls.Config{InsecureSkipVerify: true}
	}
	h.node = newRunningNode(t)
	h.node.launch([]string{"GOMEMLIMIT=" + shippedGo}, args)
	h.node.awaitReady()
	h.doors = map[string]string{"grpc": fmt.Sprintf("127.0.0.1:%d", grpc), "redis": fmt.Sprintf("127.0.0.1:%d", redis)}
	for door, text := range map[string]string{"data": h.node.data, "admin": h.node.admin} {
		u, err := url.Parse(text)
		expect.NoError(t, err)
		h.doors[door] = u.Host
	}
	return h
}

// metric returns a metric of the node, 0 if it has none of that name.
func (h *holding) metric(name string) (v float64) {
	status, text, err := h.node.call("GET", h.node.admin+"/metrics", h.token, "")
	if err != nil || status != http.StatusOK {
		h.t.Fatalf("metrics: got %d, %v", status, err)
	}
	for line := range strings.Lines(text) {
		if n, _ := fmt.Sscanf(line, name+" %g", &v); n == 1 {
			return v
		}
	}
	return 0
}

// live returns the bytes that the node's program uses after a collection.
func (h *holding) live() float64 {
	if _, _, err := h.node.call("GET", h.node.admin+"/debug/pprof/heap?gc=1", h.token, ""); err != nil {
		h.t.Fatal(err)
	}
	return h.metric("go_memstats_alloc_bytes") + h.metric("go_memstats_stack_inuse_bytes")
}

// open opens n connections from so many addresses, each of which sends what s
// says, and holds those that the node accepts.
func (h *holding) open(s shape, n, addresses int) {
	var opening sync.WaitGroup
	next := atomic.Int64{}
	for range 32 {
		opening.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				if c := h.openOne(s, i%addresses); c != nil {
					h.mu.Lock()
					h.held = append(h.held, c)
					h.mu.Unlock()
				}
			}
		})
	}
	opening.Wait()
}

func (h *holding) openOne(s shape, address int) net.Conn {
	d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 4, byte(address+1))}}
	c, err := d.Dial("tcp", h.doors[s.door])
	if err != nil {
		return nil
	}
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if h.config != nil {
		config := h.config.Clone()
		if s.door == "grpc" {
			config.NextProtos = []string{"h2"}
		}
		secured := tls.Client(c, config)
		if secured.Handshake() != nil {
			c.Close()
			return nil
		}
		c = secured
	}
	_, err = io.WriteString(c, s.send) // stops where nobody reads
	switch {
	case err != nil || !s.reads:
	case s.door == "redis":
		_, err = bufio.NewReaderSize(c, 64).ReadString('\n')
	default:
		var resp *http.Response
		if resp, err = http.ReadResponse(bufio.NewReader(c), nil); err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
		}
	}
	if err != nil && s.reads {
		c.Close()
		return nil
	}
	return c
}

func (h *holding) letGo() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.held {
		c.Close()
	}
	h.held = nil
}

// processor returns how much processor time the node has used.
func (h *holding) processor() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.node.cmd.Process.Pid))
	expect.NoError(h.t, err)
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var user, system int64
	_, _ = fmt.Sscan(fields[11], &user)
	_, _ = fmt.Sscan(fields[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond // the kernel's tick is 10 ms
}

// asking is somebody else who makes checks, each over a connection of its own.
type asking struct {
	stop, done chan struct{}
	took       []time.Duration
	failed     []string
}

func (h *holding) ask() *asking {
	a := &asking{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(a.done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-a.stop:
				return
			case <-tick.C:
			}
			client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
				DisableKeepAlives: true, TLSClientConfig: h.config,
				DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 3, 1)}}).DialContext,
			}}
			r, _ := http.NewRequest("POST", h.node.data+"/v1/check",
				strings.NewReader(`{"attributes":{"ip":"198.51.100.7"},"cost":0}`))
			r.Header.Set("Content-Type", "application/json")
			if h.token != "" {
				r.Header.Set("Authorization", "Bearer "+h.token)
			}
			began := time.Now()
			resp, err := client.Do(r)
			if err != nil {
				a.failed = append(a.failed, err.Error())
				continue
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				a.failed = append(a.failed, resp.Status)
				continue
			}
			a.took = append(a.took, time.Since(began))
		}
	}()
	return a
}

// end returns the slowest but one in a hundred, and the failures.
func (a *asking) end() (p99 time.Duration, checks int, failed []string) {
	close(a.stop)
	<-a.done
	slices.Sort(a.took)
	if len(a.took) > 0 {
		p99 = a.took[len(a.took)*99/100]
	}
	return p99, len(a.took), a.failed
}

// Connections of strangers that hold on to what they can get leave a node
// within its memory, and deciding.
func TestHostileConnections(t *testing.T) {
	if raceDetector {
		t.Skip("measures the memory of the real thing")
	}
	raiseFileLimit()
	for _, tokens := range []bool{true, false} {
		for _, secured := range []bool{false, true} {
			for _, s := range holdingShapes() {
				for _, addresses := range []int{1, 4, 64} {
					name := fmt.Sprintf("%s %s tokens=%v tls=%v addresses=%d", s.door, s.name,
						tokens, secured, addresses)
					quick := !secured && addresses == 4 &&
						slices.Contains([]string{"half a body", "half-sent calls", "half a command"}, s.name)
					switch {
					case *holdOnly != "" && !strings.Contains(name, *holdOnly):
						continue
					case !*holdAll && !(quick && tokens):
						continue
					}
					t.Run(name, func(t *testing.T) {
						if !*holdAll {
							t.Parallel()
						}
						holdOne(t, s, tokens, secured, addresses)
					})
				}
			}
		}
	}
}

// calm is what a node that holds silent connections may take of a processor
// more than one without them.
const calm = 0.05

// holdOne holds connections of one shape, and judges the node.
func holdOne(t *testing.T, s shape, tokens, secured bool, addresses int) {
	var args []string
	silence := 3 * time.Second
	if !*holdAll {
		args, silence = []string{"--max-connections", "256"}, 500*time.Millisecond
	}
	h := startHolding(t, tokens, secured, args...)
	defer h.letGo()
	door := map[string]string{"grpc": "envoy"}[s.door]
	door = cmp.Or(door, s.door)
	h.places = int(h.metric(fmt.Sprintf("rlnode_connections_max{door=%q}", door)))
	if *otherProgram != "" {
		h.places = cmp.Or(h.places, map[string]int{"data": 9800, "admin": 500, "grpc": 1500}[s.door])
	}
	if h.places == 0 {
		t.Fatal("the node does not tell its places")
	}

	// Somebody else asks before and after: what that costs, handshakes above all,
	// is not the strangers' doing.
	others := h.ask()
	restBegan, restUsed := time.Now(), h.processor()
	timer := time.NewTimer(silence)
	<-timer.C
	idle := float64(h.processor()-restUsed) / float64(time.Since(restBegan))
	p99Before, _, failedBefore := others.end()
	before, residentBefore := h.live(), resident(t, h.node)

	others = h.ask()
	opened := time.Now()
	h.open(s, h.places*3/2, addresses)
	tookOpening := time.Since(opened)
	p99Opening, checksOpening, failedOpening := others.end()

	// The strangers are silent now. What they have sent is worked off first.
	others = h.ask()
	silentBegan := time.Now()
	busy := 1.0
	for busy > idle+calm && time.Since(silentBegan) < 10*silence {
		began, used := time.Now(), h.processor()
		timer.Reset(silence)
		<-timer.C
		busy = float64(h.processor()-used) / float64(time.Since(began))
	}
	calmAfter := time.Since(silentBegan) - silence
	p99, checks, failed := others.end()
	most := statusOf(t, h.node, "VmHWM")
	places := int(h.metric(fmt.Sprintf("rlnode_connections{door=%q}", door)))
	if *otherProgram != "" && places == 0 {
		places = len(h.held)
	}
	holds := (h.live() - before) / float64(max(1, places))
	residentHeld := float64(resident(t, h.node)-residentBefore) / float64(max(1, places))

	t.Logf("places %d, taken %d, opened in %.1f s; live %.1f KiB and resident %.1f KiB a connection; resident at most %d MiB; "+
		"processor %.1f %% (%.1f %% before) %.0f s after; others' checks: p99 %v before, %v while they open, %v of %d while silent",
		h.places, places, tookOpening.Seconds(), holds/1024, residentHeld/1024, most>>20, 100*busy,
		100*idle, calmAfter.Seconds(), p99Before, p99Opening, p99, checks)
	if len(failedBefore) > 0 {
		t.Errorf("others' checks failed before a stranger came: %.300q", failedBefore)
	}
	// Without tokens, nothing but its address tells a caller from a stranger.
	if failures := len(failed) + len(failedOpening); failures > 0 && (tokens || failures > (checks+checksOpening)/10) {
		t.Errorf("others' checks failed: %d while they open, %d while silent: %.300q",
			len(failedOpening), len(failed), append(failedOpening, failed...))
	}
	if most > shippedLimit {
		t.Errorf("resident memory was %d MiB, want at most %d", most>>20, shippedLimit>>20)
	}
	if *holdAll && busy > idle+calm {
		t.Errorf("the node takes %.1f %% of a processor %v after they have fallen silent, and took %.1f %% before",
			100*busy, calmAfter, 100*idle)
	}
	if *holdAll && tokens && p99 > 100*time.Millisecond {
		t.Errorf("others' checks took %v at p99, want at most 100 ms", p99)
	}

	// All comes back.
	h.letGo()
	process.Within(t, time.Minute, "all places are free again", func() bool {
		return h.metric(fmt.Sprintf("rlnode_connections{door=%q}", door)) <= 4
	})
	// Go keeps the descriptors of goroutines that have ended, and uses them again.
	process.Within(t, time.Minute, "the memory is free again", func() bool { return h.live()-before < 16<<20 })
}
