package apitest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
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

// AskFrom sends a request on a new connection, and returns the answer's status
// and whether the answer closes the connection.
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

// SlotsToken is the token of callers in CheckSlots and CheckStrangers.
const SlotsToken = "rlt_of_the_tests_of_slots"

// TheirTokens gives a node SlotsToken, with all scopes.
func TheirTokens(c *Config) { c.AdminToken = SlotsToken }

const (
	slotsProbe = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
	mostSlots  = 63 // of 64: one is reserved for probes
)

// authorised returns request with SlotsToken.
func authorised(request string) string {
	return strings.Replace(request, "\r\n", "\r\nAuthorization: Bearer "+SlotsToken+"\r\n", 1)
}

// holdWithToken opens a connection, shows its token on it, and leaves it open.
func holdWithToken(t testing.TB, from, addr, request string) {
	t.Helper()
	c := DialFrom(t, from, addr)
	if _, err := io.WriteString(c, authorised(request)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("a caller with a token: got %v, %v", resp, err)
	}
}

// CheckSlots tests a plane with 64 slots and SlotsToken that listens on addr.
// Callers with a token that hold all slots, and others that keep taking spare
// ones, can't keep anyone from probing the node. usual is a request other than
// a probe.
func CheckSlots(t testing.TB, addr, usual string, conns *api.Connections) {
	t.Helper()
	count := func() int { open, _ := conns.Count(); return open }

	for i := range mostSlots {
		holdWithToken(t, fmt.Sprintf("127.0.1.%d", i%2+1), addr, usual)
	}

	for i := range 20 {
		from := fmt.Sprintf("127.0.2.%d", i+1)
		DialFrom(t, from, addr) // takes a spare seat
		status, closes := AskFrom(t, from, addr, slotsProbe)
		if status != 200 || !closes {
			t.Errorf("a probe: have %d, closes %v", status, closes)
		}

		status, closes = AskFrom(t, from, addr, authorised(usual))
		if status != 503 || !closes {
			t.Errorf("a request other than a probe: have %d, closes %v", status, closes)
		}
	}

	beyond := 0.0
	conns.Metrics(func(f metrics.Metric) {
		if f.Name == "connections_beyond_total" {
			beyond = f.Value
		}
	}, "")

	if beyond != 60 {
		t.Errorf("%v connections found no seat, want 60", beyond)
	}

	open := count()
	if open > mostSlots+2 {
		t.Errorf("%d connections are open, want at most %d", open, mostSlots+2)
	}
}

// CheckStrangers tests a plane like that of CheckSlots. Strangers that hold all
// slots, and come back, don't keep out callers with a token, nor close their
// connections.
func CheckStrangers(t testing.TB, addr, usual string, conns *api.Connections) {
	t.Helper()

	for _, addresses := range []int{1, 2, 4, 64} {
		holdWithToken(t, "127.0.3.1", addr, usual)
		strangers := func(n int) {
			for i := range n {
				c := DialFrom(t, fmt.Sprintf("127.0.4.%d", i%addresses+1), addr)
				if i%2 == 0 {
					_, _ = io.WriteString(c, usual) // the end of a stranger is no error
				}
			}
		}
		strangers(3 * mostSlots)
		Until(t, "all slots are taken", func() bool { open, _ := conns.Count(); return open >= mostSlots })

		for i := range 30 {
			if status, closes := AskFrom(t, fmt.Sprintf("127.0.5.%d", i+1), addr,
				authorised(usual)); status != 200 || closes {
				t.Errorf("%d addresses of strangers; caller %d with a token: have %d, closes %v",
					addresses, i, status, closes)
			}
			strangers(3)
		}
	}

	kept := mostSlots
	conns.Metrics(func(f metrics.Metric) {
		if f.Name == "connections_beyond_total" && f.Value > 0 {
			t.Errorf("%v callers found no slot", f.Value)
		}
		if f.Name == "connections" {
			kept = int(f.Value)
		}
	}, "")

	if kept > mostSlots {
		t.Errorf("%d slots are taken of %d", kept, mostSlots)
	}
}
