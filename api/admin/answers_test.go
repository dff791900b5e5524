package admin_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api/apitest"
)

// Who asks for metrics and does not read them costs the system little memory,
// and loses the connection soon.
func TestUnreadAnswers(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	conn := dialAdmin(t, n).(*net.TCPConn)
	_ = conn.SetReadBuffer(4096)
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(conn, strings.Repeat("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 2000))
		sent <- err
	}()
	apitest.Until(t, "what is not read is charged", func() bool { return n.Budget.Used() > 0 })
	apitest.UntilWithin(t, 40*time.Second, "the connection is closed", func() bool {
		open, _ := n.Admin.Connections().Count()
		return open == 0
	})
	apitest.Until(t, "nothing is charged any more", func() bool { return n.Budget.Used() == 0 })

	got, _ := io.Copy(io.Discard, conn) // the reset ends it, too
	if got > 1<<20 {
		t.Errorf("the system held %d bytes for a caller that did not read", got)
	}
	conn.Close()
	<-sent
}

// However many ask for metrics at once, they are collected a few times only,
// and everybody gets some that are not older than the request.
func TestManyAskForMetrics(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	var asking sync.WaitGroup
	for range 64 {
		asking.Go(func() {
			resp, body := n.Do(apitest.Call{Method: http.MethodGet, URL: n.AdminURL + "/metrics"})
			if resp.StatusCode != 200 || !strings.Contains(body, "rlnode_ready 1") {
				t.Errorf("got %d %.100s", resp.StatusCode, body)
			}
		})
	}
	asking.Wait()
}
