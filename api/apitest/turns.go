package apitest

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/metrics"
)

// TakesTurns tests that a door lets others be served between the requests of a
// caller that sends them ahead.
func TakesTurns(t *testing.T, door interface{ Metrics(metrics.Sink) }, conn net.Conn, request string) {
	t.Helper()
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	ahead := strings.Repeat(request, 256<<10/len(request))

	Until(t, "the caller has waited for its turn", func() (waited bool) {
		if _, err := io.WriteString(conn, ahead); err != nil {
			t.Fatal(err)
		}
		door.Metrics(func(m metrics.Metric) { waited = waited || m.Name == "connections_turns_total" && m.Value > 0 })
		return waited
	})
}
