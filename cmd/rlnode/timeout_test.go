package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// A command waits as long as --timeout says, also one that usually waits longer.
func TestTimeoutIsAsGiven(t *testing.T) {
	t.Parallel()
	node := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // with the body read, the end of the connection ends r's context
		<-r.Context().Done()
	}))
	defer node.Close()

	short := 50 * time.Millisecond
	env := &environment{ctx: t.Context(), stdout: io.Discard, stderr: io.Discard}
	remove, leave := &removeCmd{Name: "n2"}, &leaveCmd{}
	remove.Admin, remove.Timeout = node.URL, &short
	leave.Admin, leave.Timeout = node.URL, &short
	for _, c := range []interface{ Run(*environment) error }{remove, leave} {
		if err := c.Run(env); err == nil || !strings.Contains(err.Error(), "within 50ms") {
			t.Errorf("%T: got %v, want no answer within 50ms", c, err)
		}
	}

	var c connection
	expect.Equal(t, c.timeoutOr(departTimeout), time.Minute, "without --timeout")
}
