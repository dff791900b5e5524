package node

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/internal/process"
)

var long = flag.Bool("long", false, "run the tests that tolerate little beside them, too; make long does")

const slowQueue = `version: 1
rules:
  - {name: slow, key: [k], max_delay: 1m, limits: [{limit: 1, per: 6s, algorithm: leaky-bucket, burst: 100}]}
`

// numWaiting returns how many answers n holds back.
func (n *Node) numWaiting() (count float64) {
	n.data.Metrics(func(m metrics.Metric) {
		if m.Name == "waiting" {
			count = m.Value
		}
	})
	return count
}

// askToWait sends a check that waits for its turn, over a connection of its own.
func askToWait(t *testing.T, n *Node) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", n.DataAddr().String())
	expect.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	const body = `{"rule":"slow","key":"x","wait":true}`
	if _, err := fmt.Fprintf(c,
		"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body),
		body); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCallersAtOtherNodesMoveUp_long: a caller that hangs up leaves its place
// to those that wait behind it, also at other nodes.
func TestCallersAtOtherNodesMoveUp_long(t *testing.T) {
	if !*long {
		t.Skip("in real time, it tolerates little beside it: make long runs it")
	}
	t.Parallel()
	nodes := startCluster(t, 3, slowQueue, func(_ int, c *Config) { c.DataAddr = "127.0.0.1:0" })
	process.Eventually(t, "all own partitions", func() bool {
		s := nodes[0].cluster.State()
		return s.Settled && len(s.To.Members()) == 3
	})
	time.Sleep(1500 * time.Millisecond) // until the rates of buckets are known to be as they were

	began := time.Now()
	first := askToWait(t, nodes[0])
	expect.NoError(t, readAnswer(first, began))
	var waiting []net.Conn
	for i := range 3 { // for 6, 12 and 18 s
		waiting = append(waiting, askToWait(t, nodes[i]))
		process.Eventually(t, "it waits", func() bool { return nodes[i].numWaiting() == 1 })
	}
	held := time.Since(began)
	if held > 4*time.Second {
		t.Skipf("this machine took %v to ask three times", held)
	}

	_ = waiting[0].Close()
	passed := make(chan time.Duration, 2)
	for _, c := range waiting[1:] {
		go func() {
			if err := readAnswer(c, began); err != nil {
				t.Error(err)
			}
			passed <- time.Since(began)
		}()
	}

	// Which of the two has the place depends on which node it comes to first.
	for _, want := range []time.Duration{6 * time.Second, 12 * time.Second} {
		if got := <-passed; got > want+5*time.Second { // without moving up, 1 s later at the earliest
			t.Errorf("a caller goes on after %v, want about %v", got, want)
		}
	}
}

// readAnswer reads an answer that allows a check.
func readAnswer(c net.Conn, began time.Time) error {
	if err := c.SetReadDeadline(began.Add(time.Minute)); err != nil {
		return err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", r.Status)
	}
	return nil
}
