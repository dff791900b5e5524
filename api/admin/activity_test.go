package admin_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
)

func activity(n *apitest.Node) (r admin.ActivityReport) {
	n.T.Helper()
	resp, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/activity"})
	if resp.StatusCode != 200 || resp.Header.Get("Cache-Control") != "no-store" {
		n.T.Fatalf("have %d %v %s", resp.StatusCode, resp.Header, body)
	}
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		n.T.Fatal(err)
	}
	return r
}

func TestActivity(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	first := activity(n)
	if len(first.Checks) != 0 || len(first.Rules) != 0 || len(first.Nodes) != 1 ||
		first.Nodes[0].Name != "n1" || !first.Nodes[0].Answered {
		t.Errorf("have %+v", first)
	}
	for range 7 {
		n.Check(`{"rule":"login","key":"192.0.3.1"}`)
	}
	n.Check(`{"attributes":{"idea":"x"}}`)
	n.Check(`{"attributes":{"idea":"x"}}`)
	n.Check(`{"attributes":{"ip":"192.0.2.1"}}`)
	n.Check(`{"rule":"login","key":"192.0.3.1","peek":true}`)
	var have admin.ActivityReport
	apitest.Until(t, "both rules are reported", func() bool { have = activity(n); return len(have.Rules) == 2 })
	want := admin.CheckCounts{"allowed": {"owner": 7}, "refused": {"owner": 2, "list": 1}}
	if !reflect.DeepEqual(have.Checks, want) || have.AtMS < first.AtMS ||
		have.Nodes[0].Allowed != 7 || have.Nodes[0].Refused != 3 {
		t.Errorf("have %+v, want %v", have, want)
	}
	rules := []admin.RuleActivity{
		{"login", admin.CheckCounts{"allowed": {"owner": 5}, "refused": {"owner": 2}}},
		{"new-idea", admin.CheckCounts{"allowed": {"owner": 1}, "shadow-refused": {"owner": 1}}},
	}
	expect.DeepEqual(t, have.Rules, rules, "have.Rules")
}

// The counts of several nodes are added up per rule; members that don't answer are named.
func TestActivityOfSeveral(t *testing.T) {
	t.Parallel()
	id := func(b byte) ring.NodeID { return ring.NodeID{b} }
	one := func(allowed, refused int64) (c limiter.Counts) {
		c[limiter.DecisionAllowed][limiter.ByLease], c[limiter.DecisionRefused][limiter.ByOwner] = allowed, refused
		return c
	}
	n := startNode(t, func(c *apitest.Config) {
		c.Cluster = severalMembers{apitest.Alone{Name: "n1", ID: id(1)}, []admin.Member{
			{Member: cluster.Member{Name: "n2", ID: id(2)}},
			{Member: cluster.Member{Name: "n3", ID: id(3), State: gossip.Failed}},
			{Member: cluster.Member{Name: "n4", ID: id(4), State: gossip.Left}},
		}}
		c.Activity = func() []limiter.NodeActivity {
			return []limiter.NodeActivity{
				{Node: id(1), Boot: 1, Uptime: 5 * time.Second,
					Vitals: limiter.Vitals{Counters: 3, MaxCounters: 9, Memory: 5}, Checks: one(10, 1),
					Rules: []limiter.RuleCounts{{Rule: "b", Checks: one(10, 1)}}},
				{Node: id(2), Boot: 1 << 60, Uptime: time.Second, Checks: one(100, 2),
					Rules: []limiter.RuleCounts{{Rule: "a", Checks: one(1, 0)}, {Rule: "b", Checks: one(99, 2)}}},
			}
		}
	})
	have := activity(n)
	want := admin.ActivityReport{
		Node: "n1", AtMS: 5000, Checks: admin.CheckCounts{"allowed": {"lease": 110}, "refused": {"owner": 3}},
		Nodes: []admin.NodeActivity{
			admin.NewNodeActivity("n1", id(1).String(), true,
				admin.NodeActivity{Process: "0000000000000001", UptimeMS: 5000, Allowed: 10,
					Refused: 1, Vitals: admin.Vitals{Counters: 3, MaxCounters: 9, Memory: 5}}),
			admin.NewNodeActivity("n2", id(2).String(), true,
				admin.NodeActivity{Process: "1000000000000000", UptimeMS: 1000, Allowed: 100, Refused: 2}),
			admin.NewNodeActivity("n3", id(3).String(), false, admin.NodeActivity{}),
		},
		Rules: []admin.RuleActivity{
			{"b", admin.CheckCounts{"allowed": {"lease": 109}, "refused": {"owner": 3}}},
			{"a", admin.CheckCounts{"allowed": {"lease": 1}}},
		},
	}
	if !reflect.DeepEqual(have, want) {
		t.Errorf("have %+v\nwant %+v", have, want)
	}
}

// severalMembers is a cluster with several members.
type severalMembers struct {
	apitest.Alone
	others []admin.Member
}

func (s severalMembers) View() admin.ClusterView {
	v := s.Alone.View()
	v.Members = append(v.Members, s.others...)
	return v
}
