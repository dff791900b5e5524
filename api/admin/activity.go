package admin

import (
	"fmt"
	"net/http"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/limiter"
)

// activityReport is what the nodes have decided so far. Rates can be derived from two reports in which the same nodes answered
// and no process was replaced.
type activityReport struct {
	Node   string         `json:"node"`  // the node that was asked
	AtMS   int64          `json:"at_ms"` // the time of the report, since that node's process started
	Nodes  []nodeActivity `json:"nodes"`
	Checks checkCounts    `json:"checks"` // of all nodes that answered
	Rules  []ruleActivity `json:"rules"`  // of the same nodes; a check counts for each rule that applied to it
}

// nodeActivity is one node's activity. A node that did not answer has only a name and an ID.
type nodeActivity struct {
	Name     string `json:"name"`
	ID       string `json:"id"`
	Answered bool   `json:"answered"`
	Process  string `json:"process,omitempty"` // changes when the node restarts, and its counts with it
	UptimeMS int64  `json:"uptime_ms,omitempty"`
	Allowed  int64  `json:"allowed"`
	Refused  int64  `json:"refused"`
}

type ruleActivity struct {
	Rule   string      `json:"rule"`
	Checks checkCounts `json:"checks"`
}

// checkCounts counts checks by decision and by decided_by; zeros are left out.
type checkCounts map[string]map[string]int64

func newCheckCounts(c *limiter.Counts) checkCounts {
	out := checkCounts{}
	for decision := range c {
		for by, n := range c[decision] {
			if n == 0 {
				continue
			}
			name := limiter.DecisionNames[decision]
			if out[name] == nil {
				out[name] = map[string]int64{}
			}
			out[name][limiter.DecidedBy(by).String()] = n
		}
	}
	return out
}

// getActivity answers with what the nodes have decided since they started.
func (s *Server) getActivity(w http.ResponseWriter, _ *http.Request) error {
	r := activityReport{Node: s.doors.Node, Nodes: []nodeActivity{}, Rules: []ruleActivity{}}
	nodes := s.config.Activity()
	var all limiter.Counts
	var order []string
	rules := map[string]*limiter.Counts{}
	for i := range nodes {
		n := &nodes[i]
		all.Add(&n.Checks)
		for j := range n.Rules {
			rule := &n.Rules[j]
			if rules[rule.Rule] == nil {
				rules[rule.Rule] = &limiter.Counts{}
				order = append(order, rule.Rule)
			}
			rules[rule.Rule].Add(&rule.Checks)
		}
	}
	r.Checks = newCheckCounts(&all)
	for _, name := range order {
		r.Rules = append(r.Rules, ruleActivity{Rule: name, Checks: newCheckCounts(rules[name])})
	}
	r.addNodes(nodes, s.config.Cluster.View().Members)
	return s.reply(w, r)
}

// addNodes adds the nodes to r, those that answered and then the other members, with their names. nodes[0] is this node.
func (r *activityReport) addNodes(nodes []limiter.NodeActivity, members []Member) {
	r.AtMS = nodes[0].Uptime.Milliseconds()
	names := map[string]string{}
	for _, m := range members {
		names[m.ID.String()] = m.Name
	}
	answered := map[string]bool{}
	for i := range nodes {
		n := &nodes[i]
		one := nodeActivity{ID: n.Node.String(), Answered: true, Process: fmt.Sprintf("%016x", n.Incarnation), UptimeMS: n.Uptime.Milliseconds()}
		if i == 0 {
			one.Name = r.Node
		} else {
			one.Name = names[one.ID]
		}
		one.Allowed, one.Refused = sum(n.Checks[limiter.DecisionAllowed][:]), sum(n.Checks[limiter.DecisionRefused][:])
		answered[one.ID] = true
		r.Nodes = append(r.Nodes, one)
	}
	for _, m := range members {
		if id := m.ID.String(); !answered[id] && m.Name != r.Node && m.State != gossip.Left {
			r.Nodes = append(r.Nodes, nodeActivity{Name: m.Name, ID: id})
		}
	}
}

func sum(list []int64) (n int64) {
	for _, one := range list {
		n += one
	}
	return n
}
