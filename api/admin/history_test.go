package admin_test

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/internal/history"
	"github.com/rlnode/rlnode/ring"
)

// Steps of several nodes are added up by the time at which they began. Members
// that don't answer are named. The dashboard's tests show the page the answer
// in testdata.
func TestHistoryOfSeveral(t *testing.T) {
	t.Parallel()
	id := func(b byte) ring.NodeID { return ring.NodeID{b} }
	step := func(number, checks, refused int64, bucket int) history.Step {
		s := history.Step{Number: number, Counts: history.Counts{Checks: checks, Refused: refused}}
		d := history.Door{Name: "data"}
		d.Latency[bucket] = checks
		s.Doors = []history.Door{d}
		return s
	}
	login := func(checks, refused, shadow int64) []history.Rule {
		return []history.Rule{{Name: "login",
			Row: history.Row{Counts: history.Counts{Checks: checks, Refused: refused, ShadowRefused: shadow}}}}
	}
	const now = 30_000_000
	var asked []history.Query
	n := startNode(t, func(c *apitest.Config) {
		c.Cluster = severalMembers{apitest.Alone{Name: "n1", ID: id(1)}, []admin.Member{
			{Member: cluster.Member{Name: "n2", ID: id(2)}},
			{Member: cluster.Member{Name: "n3", ID: id(3), State: gossip.Failed}},
			{Member: cluster.Member{Name: "n4", ID: id(4), State: gossip.Left}},
		}}
		c.History = func(q history.Query) []*history.NodeReport {
			asked = append(asked, q)
			return []*history.NodeReport{
				{Node: id(1), Now: now,
					Steps: []history.Step{step(now-4, 3, 1, 0), step(now-3, 1, 0, 8), step(now-1, 2, 0, 0)},
					Rules: login(6, 1, 0)},
				{Node: id(2), Now: now + 1,
					Steps: []history.Step{step(now-3, 0, 0, 0), step(now-1, 30, 0, 8)},
					Rules: login(30, 0, 7)},
			}
		}
	})
	resp, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/history"})
	var got admin.HistoryReport
	if err := json.Unmarshal([]byte(body), &got); err != nil || resp.StatusCode != 200 {
		t.Fatalf("got %d %s, %v", resp.StatusCode, body, err)
	}
	wantNodes := []admin.NodeSteps{
		admin.NewNodeSteps("n1", id(1).String(), true, 3),
		admin.NewNodeSteps("n2", id(2).String(), true, 2),
		admin.NewNodeSteps("n3", id(3).String(), false, 0),
	}
	if got.Node != "n1" || got.StepMS != 60_000 || got.EndMS != now*60_000 ||
		!reflect.DeepEqual(got.Nodes, wantNodes) || len(got.BoundsMS) != 15 {
		t.Errorf("got %+v", got)
	}
	last := got.Steps[len(got.Steps)-1]
	if len(got.Steps) != 3 || last.AtMS != (now-1)*60_000 || last.Nodes != 2 || last.Checks != 32 ||
		len(last.Latency) != 1 {
		t.Fatalf("got steps %+v", got.Steps)
	}
	if l := last.Latency[0]; l.Door != "data" || l.Checks != 32 || l.P50 != 0.7333 ||
		l.P99 != 0.9946 || l.Buckets[0] != 2 || l.Buckets[8] != 30 {
		t.Errorf("got latency %+v", l)
	}
	if len(got.Rules) != 1 || got.Rules[0].Rule != "login" || got.Rules[0].Checks != 36 ||
		got.Rules[0].Refused != 1 || got.Rules[0].ShadowRefused != 7 {
		t.Errorf("got rules %+v", got.Rules)
	}
	if kept, err := os.ReadFile("testdata/history.json"); err != nil ||
		strings.TrimSpace(string(kept)) != strings.TrimSpace(body) {
		t.Errorf("%v; got %s\ntestdata/history.json has %s", err, body, kept)
	}

	for query, want := range map[string]int{
		"by=hour&n=720&rule=login": 200, "by=minute&n=60": 200, "by=day": 400, "n=0": 400,
		"n=1441": 400, "by=hour&n=721": 400, "n=x": 400,
		"rule=" + strings.Repeat("r", 129): 400,
	} {
		if resp, body := n.Do(apitest.Call{Method: "GET",
			URL: n.AdminURL + "/v1/history?" + query}); resp.StatusCode != want {
			t.Errorf("%s: got %d %s, want %d", query, resp.StatusCode, body, want)
		}
	}
	if !slices.Contains(asked, history.Query{ByHour: true, Steps: 720, Rule: "login"}) ||
		!slices.Contains(asked, history.Query{Steps: 60}) {
		t.Errorf("asked %+v", asked)
	}
}

// A node says why it does not decide yet, until it does.
func TestStartingIsTold(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.Starting = true })
	n.Explain("waiting for n2")
	if _, body := n.Do(apitest.Call{Method: "GET",
		URL: n.AdminURL + "/v1/cluster"}); !strings.Contains(body, `"starting":"waiting for n2"`) {
		t.Errorf("have %s", body)
	}
	n.Ready()
	if _, body := n.Do(apitest.Call{Method: "GET",
		URL: n.AdminURL + "/v1/cluster"}); strings.Contains(body, "starting") {
		t.Errorf("a node that is ready: have %s", body)
	}
}
