package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/ring"
)

// TestHostileCalls calls every method, mostly with nonsense, at a node without
// a secret, so that the calls reach everything behind the peer port. The node
// must keep running, and its memory use must return to its former size. HOSTILE
// sets the number of calls.
func TestHostileCalls(t *testing.T) {
	t.Parallel()
	calls, err := strconv.Atoi(os.Getenv("HOSTILE"))
	if err != nil {
		calls = 20_000
	}
	port := process.FreePort(t)
	s := start(t, t.TempDir(), "--peer-port", fmt.Sprint(port))
	m := &fleetNode{runningNode: s, fleet: &fleet{t: t}}
	c, err := m.cluster()
	expect.NoError(t, err)
	id := m.fleet.nodeID(c.Members[0].ID)
	random := rand.New(rand.NewPCG(3, 4))
	attack := func(calls int, region string) {
		p := strangerPeers(t, nil, region)
		defer p.Close()
		at := map[ring.NodeID]string{id: fmt.Sprintf("127.0.0.1:%d", port)}
		if region == "default" {
			p.SetNodes(at)
		} else {
			p.SetFarNodes(at)
		}
		slots := make(chan struct{}, 256)
		var under sync.WaitGroup
		var served atomic.Int64
		for range calls {
			method, body := peer.Method(random.IntN(256)), hostileBody(random)
			slots <- struct{}{}
			under.Add(1)
			p.Go(id, method, body, 100*time.Millisecond, func(_ []byte, err error) {
				if _, failed := errors.AsType[*peer.RemoteError](err); err == nil || failed {
					served.Add(1)
				}
				<-slots
				under.Done()
			})
			if !p.Reachable(id) {
				process.Eventually(t, "the node accepts calls", func() bool { return p.Reachable(id) })
			}
		}
		under.Wait()
		if served.Load() < int64(calls/2) {
			t.Errorf("only %d of %d calls were answered", served.Load(), calls)
		}
	}
	attack(5000, "default")
	before := memoryInUse(t, s)
	attack(calls/2, "default")
	attack(calls/2, "elsewhere")
	if status, text, err := s.call("POST", s.data+"/v1/check", "",
		`{"rule": "per-ip", "key": "198.51.100.7"}`); err != nil || status != 200 {
		t.Errorf("a check afterwards: %d, %v, %s", status, err, text)
	}
	process.Eventually(t, "memory returns to where it was",
		func() bool { return memoryInUse(t, s) <= before+before/10+4<<20 })
}

// memoryInUse returns the node's heap and stacks, after a garbage collection.
func memoryInUse(t *testing.T, s *runningNode) int64 {
	t.Helper()
	if _, _, err := s.call("GET", s.admin+"/debug/pprof/heap?gc=1", "", ""); err != nil {
		t.Fatal(err)
	}
	_, text, err := s.call("GET", s.admin+"/metrics", "", "")
	expect.NoError(t, err)
	sum := 0.0
	for line := range strings.Lines(text) {
		for _, name := range []string{"go_memstats_heap_inuse_bytes ", "go_memstats_stack_inuse_bytes "} {
			if value, ok := strings.CutPrefix(line, name); ok {
				n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
				expect.NoError(t, err)
				sum += n
			}
		}
	}
	if sum == 0 {
		t.Fatal("the node's metrics lack its memory use")
	}
	return int64(sum)
}

// hostileBody returns the body of a message, or something close to one.
func hostileBody(r *rand.Rand) []byte {
	switch r.IntN(4) {
	case 0:
		return nil
	case 1:
		texts := []string{"{}", "[]", "null", `{"id":"x"}`, `{"nodes":[{}]}`, `{"id":1e99}`,
			strings.Repeat(`{"a":`, 1000), `{"version":-1,"rules":"version: 1"}`}
		return []byte(texts[r.IntN(len(texts))])
	case 2:
		b := make([]byte, r.IntN(64))
		for i := range b {
			b[i] = []byte{0, 1, 0xff, 0x7f, 0x80}[r.IntN(5)]
		}
		return b
	}
	b := make([]byte, r.IntN(400))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}
