package apitest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/internal/metrics"
)

// DialFrom connects to an address from the given loopback address.
func DialFrom(t testing.TB, from, to string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// AskFrom sends a request on a new connection, and returns the answer's status and whether the answer closes the connection.
func AskFrom(t testing.TB, from, to, request string) (status int, closes bool) {
	t.Helper()
	c := DialFrom(t, from, to)
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, true
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, true
	}
	NoteCode(body)
	return resp.StatusCode, resp.Close
}

// CheckSlots tests a plane with 64 slots that listens on addr. Callers that hold all slots, and keep taking spare ones, can't
// keep others from probing the node. A single address leaves a quarter of the slots to others. usual is a request other than a
// probe.
func CheckSlots(t testing.TB, addr, usual string, conns *api.Connections) {
	t.Helper()
	probe := "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
	const most = 63 // one of 64 is reserved for probes
	count := func() int { open, _ := conns.Count(); return open }
	open := func(n int) func() bool { return func() bool { return count() == n } }
	gateway := most - most/4
	for range gateway {
		DialFrom(t, "127.0.0.1", addr)
	}
	Until(t, "an address has all the slots that it may take", open(gateway))
	if status, closes := AskFrom(t, "127.0.0.1", addr, usual); status != 503 || !closes {
		t.Errorf("one more from the same address: have %d, closes %v", status, closes)
	}
	if status, closes := AskFrom(t, "127.0.0.2", addr, usual); status != 200 || closes {
		t.Errorf("from another address: have %d, closes %v", status, closes)
	}
	Until(t, "those are closed", open(gateway))
	for i := range most - gateway {
		DialFrom(t, fmt.Sprintf("127.0.1.%d", i+1), addr)
	}
	Until(t, "all slots are taken", open(most))
	for i := range 20 {
		from := fmt.Sprintf("127.0.2.%d", i+1)
		DialFrom(t, from, addr) // takes a spare slot
		if status, closes := AskFrom(t, from, addr, probe); status != 200 || !closes {
			t.Errorf("a probe: have %d, closes %v", status, closes)
		}
		if status, closes := AskFrom(t, from, addr, usual); status != 503 || !closes {
			t.Errorf("a request other than a probe: have %d, closes %v", status, closes)
		}
	}
	have := 0.0
	conns.Metrics(func(f metrics.Metric) { have = f.Value }, "")
	if have != 61 {
		t.Errorf("%v connections found no slot, want 61", have)
	}
	if have := count(); have > most+2 {
		t.Errorf("%d connections are open, want at most %d", have, most+2)
	}
}
