package admin

import (
	"fmt"
	"net/http"

	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
)

// activityReport is what the nodes have decided so far. Rates can be derived
// from two reports in which the same nodes answered and no process was
// replaced.
type activityReport struct {
	Node   string         `json:"node"`  // the node that was asked
	AtMS   int64          `json:"at_ms"` // the time of the report, since that node's process started
	Nodes  []nodeActivity `json:"nodes"`
	Checks checkCounts    `json:"checks"` // of all nodes that answered
	Rules  []ruleActivity `json:"rules"`  // of the same nodes; a check counts for each rule that applied to it
}

// nodeActivity is one node's activity. A node that did not answer has only a name and an ID.
type nodeActivity struct {
	nodePart
	Process  string `json:"process,omitempty"` // changes when the node restarts, and its counts with it
	UptimeMS int64  `json:"uptime_ms,omitempty"`
	Allowed  int64  `json:"allowed"`
	Refused  int64  `json:"refused"`
	Vitals   vitals `json:"vitals,omitzero"`
}

// vitals is what a node takes of its machine, and the bounds of that. Unknown
// figures are left out.
type vitals struct {
	Counters    int64 `json:"counters"`
	MaxCounters int64 `json:"max_counters,omitempty"`
	Memory      int64 `json:"memory_bytes,omitempty"`
	MaxMemory   int64 `json:"max_memory_bytes,omitempty"`
	Disk        int64 `json:"disk_bytes,omitempty"`
	DiskFree    int64 `json:"disk_free_bytes,omitempty"`
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
	nodes := s.config.Activity() // this node first
	r := activityReport{Node: s.doors.Node, AtMS: nodes[0].Uptime.Milliseconds(),
		Nodes: []nodeActivity{}, Rules: []ruleActivity{}}
	var all limiter.Counts
	var ids []ring.NodeID
	var order []string

	rules := map[string]*limiter.Counts{}
	for i := range nodes {
		n := &nodes[i]
		all.Add(&n.Checks)
		ids = append(ids, n.Node)

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

	for i, part := range s.nodeParts(ids) {
		row := nodeActivity{nodePart: part}
		if i < len(nodes) {
			n := &nodes[i]
			row.Process = fmt.Sprintf("%016x", n.Boot)
			row.UptimeMS = n.Uptime.Milliseconds()
			row.Vitals = vitals(n.Vitals)
			row.Allowed = sum(n.Checks[limiter.DecisionAllowed][:])
			row.Refused = sum(n.Checks[limiter.DecisionRefused][:])
		}
		r.Nodes = append(r.Nodes, row)
	}

	return s.reply(w, r)
}

func sum(list []int64) (n int64) {
	for _, v := range list {
		n += v
	}
	return n
}
