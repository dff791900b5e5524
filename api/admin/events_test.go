package admin_test

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/internal/history"
	"github.com/rlnode/rlnode/ring"
)

// What several nodes log at about the same time is one event; the latest come first.
func TestEventsOfSeveral(t *testing.T) {
	t.Parallel()
	id := func(b byte) ring.NodeID { return ring.NodeID{b} }
	event := func(seconds int64, text string, fields ...history.Field) history.Event {
		return history.Event{At: seconds * 1000, Text: text, Fields: fields, Count: 1}
	}
	version := history.Field{Name: "version", Value: "3"}
	n := startNode(t, func(c *apitest.Config) {
		c.Cluster = severalMembers{apitest.Alone{Name: "n1", ID: id(1)}, []admin.Member{
			{Member: cluster.Member{Name: "n2", ID: id(2)}}, {Member: cluster.Member{Name: "n3", ID: id(3)}},
		}}
		c.Events = func() []*history.NodeEvents {
			return []*history.NodeEvents{
				{Node: id(1),
					Events: []history.Event{event(100, "n3 has failed"), event(150, "rules are in force", version)}},
				{Node: id(2),
					Events: []history.Event{event(50, "n3 has failed"), event(101, "n3 has failed"),
						event(151, "rules are in force", version)}},
			}
		}
	})
	resp, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/events"})
	want := `"events":[` +
		`{"at_ms":151000,"level":"info","text":"rules are in force","fields":{"version":"3"},"nodes":["n1","n2"],"count":1},` +
		`{"at_ms":101000,"level":"info","text":"n3 has failed","fields":{},"nodes":["n1","n2"],"count":1},` +
		`{"at_ms":50000,"level":"info","text":"n3 has failed","fields":{},"nodes":["n2"],"count":1}]`
	if resp.StatusCode != 200 || !strings.Contains(body, want) ||
		!strings.Contains(body, `{"name":"n3","id":"03000000000000000000000000000000","answered":false}`) {
		t.Errorf("got %d %s\nwant %s", resp.StatusCode, body, want)
	}
	if _, body := n.Do(apitest.Call{Method: "GET",
		URL: n.AdminURL + "/v1/events?n=1"}); strings.Count(body, `"at_ms"`) != 1 {
		t.Errorf("n=1: got %s", body)
	}
	if resp, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/events?n=1001"}); resp.StatusCode != 400 {
		t.Errorf("n=1001: got %d %s", resp.StatusCode, body)
	}
}
