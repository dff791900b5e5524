package httpd

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

// inDetail is a check whose answer has about 2,000 bytes.
const inDetail = `{"attributes":{"user":"u","both":"yes","ip":"198.51.100.7","tenant":"t","endpoint":"/e","idea":"i","q":"q"},"cost":0,"detail":true}`

// longBatch returns a batch whose answer takes several megabytes.
func longBatch(checks int) string {
	return `{"checks":[` + strings.Repeat(inDetail+",", checks-1) + inDetail + `]}`
}

// An answer is charged until it is written. If its caller does not read it, its
// connection is closed to make room for others.
func TestUnreadAnswersMakeRoom(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	n.server.handlers.Budget.Capacity = 14 << 20
	body := longBatch(4_000)
	unread := n.dial(t)
	if _, err := io.WriteString(unread, post("/v1/check/batch", body)); err != nil {
		t.Fatal(err)
	}
	apitest.Until(t, "the answer is on its way", func() bool {
		return n.server.handlers.Budget.Used() > 4<<20
	})
	if _, err := io.ReadFull(unread, make([]byte, 1)); err != nil { // only now is the answer complete
		t.Fatal(err)
	}
	if used := n.server.handlers.Budget.Used(); used < 4<<20 {
		t.Errorf("%d bytes are charged while an answer is not read", used)
	}
	// The same request from a caller that reads its answer must wait until the
	// first connection can be closed.
	if resp, text := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check/batch",
		Body: body}); resp.StatusCode != 200 || strings.Contains(text, `"overloaded"`) {
		t.Errorf("have %d, %.200s", resp.StatusCode, text)
	}
	expect.Equal(t, n.server.handlers.Budget.ClosedForRoom(), 1, "connections were closed")
	if _, err := io.Copy(io.Discard, unread); err == nil {
		if status, _, _ := answer(t, bufio.NewReader(unread)); status != 0 {
			t.Error("the connection that does not read stays open")
		}
	}
	apitest.Until(t, "the whole charge is given back", func() bool { return n.server.handlers.Budget.Used() == 0 })
}

// A connection whose body stalls is closed to make room for others, too.
func TestStalledBodiesMakeRoom(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	n.server.handlers.Budget.Capacity = 3 << 20
	for range 3 {
		stalled := n.dial(t)
		if _, err := io.WriteString(stalled,
			"POST /v1/check/batch HTTP/1.1\r\nHost: n\r\nContent-Length: 8000000\r\n\r\n"+
				strings.Repeat(" ", 600_000)); err != nil {
			t.Fatal(err)
		}
	}
	apitest.Until(t, "the bodies take up most of the budget",
		func() bool { return n.server.handlers.Budget.Used() > 2500<<10 })
	if resp, text := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check/batch",
		Body: longBatch(400)}); resp.StatusCode != 200 || strings.Contains(text, `"overloaded"`) {
		t.Errorf("have %d, %.200s", resp.StatusCode, text)
	}
	if have := n.server.handlers.Budget.ClosedForRoom(); have == 0 {
		t.Error("no connection was closed")
	}
}

// A batch's answer is bounded; checks beyond the bound are not decided and cost nothing.
func TestBatchAnswersAreBounded(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	const checks = 10_000
	body := `{"checks":[` + strings.Repeat(inDetail+",", checks-1) + `{"attributes":{"kind":"all"},"detail":true}]}`
	resp, text := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check/batch", Body: body})
	results := strings.Count(text, `"allowed":`) // of checks and of their limits
	if resp.StatusCode != 200 || len(text) > maxBatchAnswer+checks*200 || !strings.HasSuffix(text, `}]}`) {
		t.Errorf("have %d, %d bytes, %d results", resp.StatusCode, len(text), results)
	}
	if !strings.Contains(text[len(text)-400:], string(api.TooLarge)) {
		t.Errorf("the last check was decided: %s", text[len(text)-400:])
	}
	if _, f := n.Check(`{"attributes":{"kind":"all"},"peek":true,"cost":0}`); fmt.Sprint(f["remaining"]) != "1000000" {
		t.Errorf("a check that was not decided was charged: %v", f)
	}
}

// Without room a request is refused in bounded time, and the answer names the bound.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	n.server.handlers.Budget.Capacity = 1 << 20
	n.server.handlers.Budget.Take(1 << 20)
	resp, body := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check/batch", Body: longBatch(200)})
	if resp.StatusCode != 503 || apitest.NoteCode([]byte(body)) != api.Overloaded ||
		!strings.Contains(body, "1048576") {
		t.Errorf("have %d %s", resp.StatusCode, body)
	}
	if status, f := n.Check(good); status != 200 {
		t.Errorf("a small check: have %d %v", status, f)
	}
	n.server.handlers.Budget.Give(1 << 20)
	if resp, body := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check/batch",
		Body: longBatch(200)}); resp.StatusCode != 200 {
		t.Errorf("have %d %s", resp.StatusCode, body)
	}
}

// A request that arrives in pieces gets the same answer, wherever the room ends.
func TestNoRoom_InPieces(t *testing.T) {
	t.Parallel()
	small, long := post("/v1/check", good), post("/v1/check/batch", longBatch(200))
	for _, test := range []struct {
		name    string
		request string
		first   int // bytes that arrive first
	}{
		{"head", post("/v1/check", good, "X-Long: "+strings.Repeat("x", 8<<10)), 7 << 10},
		{"small body", small, len(small) - 10},
		{"large body, its beginning", long, len(long) - len(longBatch(200)) + 10},
		{"large body, its end", long, len(long) - 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n := startNode(t, nil)
			n.server.handlers.Budget.Capacity = 1 << 20
			n.server.handlers.Budget.Take(1 << 20)
			c := n.dial(t)
			if _, err := io.WriteString(c, test.request[:test.first]); err != nil {
				t.Fatal(err)
			}
			status, body, _ := answer(t, bufio.NewReader(c))
			if status != 503 || apitest.NoteCode([]byte(body)) != api.Overloaded ||
				!strings.Contains(body, "1048576") {
				t.Errorf("have %d %s", status, body)
			}
		})
	}
}
