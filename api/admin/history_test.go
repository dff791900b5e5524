package admin_test

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
)

// Steps of several nodes are added up by the time at which they began. Members that don't answer are named. The dashboard's
// tests show the page the answer in testdata.
func TestHistoryOfSeveral(t *testing.T) {
	t.Parallel()
	id := func(b byte) ring.NodeID { return ring.NodeID{b} }
	step := func(number, allowed int64) (s limiter.StepCounts) {
		s.Number, s.Checks[limiter.DecisionAllowed][limiter.ByLease] = number, allowed
		return s
	}
	const now = 60_000_000
	n := startNode(t, func(c *apitest.Config) {
		c.Cluster = severalMembers{apitest.Alone{Name: "n1", ID: id(1)}, []admin.Member{
			{Member: cluster.Member{Name: "n2", ID: id(2)}}, {Member: cluster.Member{Name: "n3", ID: id(3), State: gossip.Failed}},
			{Member: cluster.Member{Name: "n4", ID: id(4), State: gossip.Left}},
		}}
		c.History = func() limiter.History {
			return limiter.History{Now: now, Nodes: []limiter.NodeHistory{
				{Node: id(1), Steps: []limiter.StepCounts{step(now-limiter.HistorySteps-1, 9), step(now-4, 3), step(now-3, 1), step(now-1, 2)}},
				// The clock of this node is ahead, and one step is given twice.
				{Node: id(2), Steps: []limiter.StepCounts{step(now-1, 30), step(now-1, 30), step(now, 500)}},
			}}
		}
	})
	resp, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/history"})
	var have admin.HistoryReport
	if err := json.Unmarshal([]byte(body), &have); err != nil || resp.StatusCode != 200 {
		t.Fatalf("have %d %s, %v", resp.StatusCode, body, err)
	}
	want := admin.HistoryReport{
		Node: "n1", StepMS: 30_000, EndMS: now * 30_000,
		Nodes: []admin.NodeSteps{admin.NewNodeSteps("n1", id(1).String(), true, 4), admin.NewNodeSteps("n2", id(2).String(), true, 3), admin.NewNodeSteps("n3", id(3).String(), false, 0)},
		Steps: []admin.StepReport{
			{AtMS: (now - 4) * 30_000, Nodes: 1, Checks: admin.CheckCounts{"allowed": {"lease": 3}}},
			{AtMS: (now - 3) * 30_000, Nodes: 1, Checks: admin.CheckCounts{"allowed": {"lease": 1}}}, {AtMS: (now - 1) * 30_000, Nodes: 2, Checks: admin.CheckCounts{"allowed": {"lease": 32}}},
		},
	}
	if !reflect.DeepEqual(have, want) {
		t.Errorf("have %+v\nwant %+v", have, want)
	}
	if kept, err := os.ReadFile("testdata/history.json"); err != nil || strings.TrimSpace(string(kept)) != strings.TrimSpace(body) {
		t.Errorf("%v; have %s\ntestdata/history.json has %s", err, body, kept)
	}
}

// A node says why it does not decide yet, until it does.
func TestStartingIsTold(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.Starting = true })
	n.Explain("waiting for n2")
	if _, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/cluster"}); !strings.Contains(body, `"starting":"waiting for n2"`) {
		t.Errorf("have %s", body)
	}
	n.Ready()
	if _, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/cluster"}); strings.Contains(body, "starting") {
		t.Errorf("a node that is ready: have %s", body)
	}
}
