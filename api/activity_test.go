package api

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
)

func (n *node) activity() (r activityReport) {
	n.t.Helper()
	resp, body := n.do(call{method: "GET", url: n.adm + "/v1/activity"})
	if resp.StatusCode != 200 || resp.Header.Get("Cache-Control") != "no-store" {
		n.t.Fatalf("have %d %v %s", resp.StatusCode, resp.Header, body)
	}
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		n.t.Fatal(err)
	}
	return r
}

func TestActivity(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	first := n.activity()
	if len(first.Checks) != 0 || len(first.Rules) != 0 || len(first.Nodes) != 1 || first.Nodes[0].Name != "n1" || !first.Nodes[0].Answered {
		t.Errorf("have %+v", first)
	}
	for range 7 {
		n.check(`{"rule":"login","key":"192.0.3.1"}`)
	}
	n.check(`{"attributes":{"idea":"x"}}`)
	n.check(`{"attributes":{"idea":"x"}}`)
	n.check(`{"attributes":{"ip":"192.0.2.1"}}`)
	n.check(`{"rule":"login","key":"192.0.3.1","peek":true}`)
	var have activityReport
	until(t, "the counts are told", func() bool { have = n.activity(); return len(have.Rules) == 2 })
	want := checkCounts{"allowed": {"owner": 7}, "refused": {"owner": 2, "list": 1}}
	if !reflect.DeepEqual(have.Checks, want) || have.AtMS < first.AtMS || have.Nodes[0].Allowed != 7 || have.Nodes[0].Refused != 3 {
		t.Errorf("have %+v, want %v", have, want)
	}
	rules := []ruleActivity{
		{"login", checkCounts{"allowed": {"owner": 5}, "refused": {"owner": 2}}},
		{"new-idea", checkCounts{"allowed": {"owner": 1}, "shadow-refused": {"owner": 1}}},
	}
	if !reflect.DeepEqual(have.Rules, rules) {
		t.Errorf("have %v, want %v", have.Rules, rules)
	}
}

// The counts of several nodes are added up per rule; members that don't answer are named.
func TestActivityOfSeveral(t *testing.T) {
	t.Parallel()
	id := func(b byte) ring.NodeID { return ring.NodeID{b} }
	one := func(allowed, refused int64) (c limiter.Counts) {
		c[limiter.DecisionAllowed][limiter.ByLease], c[limiter.DecisionRefused][limiter.ByOwner] = allowed, refused
		return c
	}
	n := startNode(t, func(c *Config) {
		c.Cluster = several{Alone{Name: "n1", ID: id(1)}, []Member{
			{Member: cluster.Member{Name: "n2", ID: id(2)}}, {Member: cluster.Member{Name: "n3", ID: id(3), State: gossip.Failed}},
			{Member: cluster.Member{Name: "n4", ID: id(4), State: gossip.Left}},
		}}
		c.Activity = func() []limiter.NodeActivity {
			return []limiter.NodeActivity{
				{Node: id(1), Incarnation: 1, Uptime: 5 * time.Second, Checks: one(10, 1), Rules: []limiter.RuleCounts{{Rule: "b", Checks: one(10, 1)}}},
				{Node: id(2), Incarnation: 1 << 60, Uptime: time.Second, Checks: one(100, 2),
					Rules: []limiter.RuleCounts{{Rule: "a", Checks: one(1, 0)}, {Rule: "b", Checks: one(99, 2)}}},
			}
		}
	})
	have := n.activity()
	want := activityReport{
		Node: "n1", AtMS: 5000, Checks: checkCounts{"allowed": {"lease": 110}, "refused": {"owner": 3}},
		Nodes: []nodeActivity{
			{Name: "n1", ID: id(1).String(), Answered: true, Process: "0000000000000001", UptimeMS: 5000, Allowed: 10, Refused: 1},
			{Name: "n2", ID: id(2).String(), Answered: true, Process: "1000000000000000", UptimeMS: 1000, Allowed: 100, Refused: 2},
			{Name: "n3", ID: id(3).String()},
		},
		Rules: []ruleActivity{
			{"b", checkCounts{"allowed": {"lease": 109}, "refused": {"owner": 3}}}, {"a", checkCounts{"allowed": {"lease": 1}}},
		},
	}
	if !reflect.DeepEqual(have, want) {
		t.Errorf("have %+v\nwant %+v", have, want)
	}
}

// several is a cluster with further members.
type several struct {
	Alone
	others []Member
}

func (s several) View() ClusterView {
	v := s.Alone.View()
	v.Members = append(v.Members, s.others...)
	return v
}
