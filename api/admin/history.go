package admin

import (
	"net/http"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/internal/history"
	"github.com/rlnode/rlnode/internal/latency"
	"github.com/rlnode/rlnode/ring"
)

// maxHistoryRule bounds the name of a rule in a query, in bytes.
const maxHistoryRule = 128

// historyReport is what the nodes decided by minute or by hour. It leaves out
// steps for which no node has data.
type historyReport struct {
	Node     string        `json:"node"`    // the node that was asked
	StepMS   int64         `json:"step_ms"` // the length of a step
	EndMS    int64         `json:"end_ms"`  // when the newest minute ended, in Unix milliseconds
	Rule     string        `json:"rule,omitempty"`
	Nodes    []nodeSteps   `json:"nodes"`
	BoundsMS []float64     `json:"bounds_ms"` // of the buckets; the last one has none
	Steps    []stepReport  `json:"steps"`     // in ascending order
	Doors    []latencySum  `json:"doors"`     // of all steps
	Rules    []historyRule `json:"rules"`     // of all steps; those with most checks first
	Others   historyRule   `json:"others"`    // rules without counts of their own
}

// nodePart says whether an answer includes a node's data.
type nodePart struct {
	Name     string `json:"name"`
	ID       string `json:"id"`
	Answered bool   `json:"answered"`
}

type nodeSteps struct {
	nodePart
	Steps int `json:"steps"` // for how many steps the node has data
}

// historyCounts are numbers of checks.
type historyCounts struct {
	Checks        int64 `json:"checks"`
	Refused       int64 `json:"refused"`
	ShadowRefused int64 `json:"shadow_refused"`
}

type stepReport struct {
	AtMS  int64 `json:"at_ms"` // when it began
	Nodes int   `json:"nodes"` // how many nodes have data for it
	historyCounts
	Latency []latencySum `json:"latency"`
}

// latencySum is how long single checks took.
type latencySum struct {
	Door    string         `json:"door,omitempty"`
	Checks  int64          `json:"checks"`
	P50     float64        `json:"p50_ms"`
	P99     float64        `json:"p99_ms"`
	Buckets latency.Counts `json:"buckets"`
}

type historyRule struct {
	Rule string `json:"rule,omitempty"`
	historyCounts
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
}

// getHistory answers with what the nodes decided by minute in the last day, or
// by hour in the last 30 days.
func (s *Server) getHistory(w http.ResponseWriter, r *http.Request) error {
	params := r.URL.Query()
	by, err := choiceParam(params, "by", "minute", "hour")
	if err != nil {
		return err
	}

	q := history.Query{ByHour: by == "hour", Rule: params.Get("rule")}
	length, most := time.Minute, history.Minutes
	if q.ByHour {
		length, most = time.Hour, history.Hours
	}

	steps, err := countParam(params, most, most)
	if err != nil {
		return err
	}
	q.Steps = int64(steps)

	if len(q.Rule) > maxHistoryRule {
		return api.Errorf(api.BadValue, "rule: no name is longer than %d bytes", maxHistoryRule)
	}

	nodes := s.config.History(q)
	return s.reply(w, s.newHistoryReport(nodes, q.Rule, length))
}

func (s *Server) newHistoryReport(nodes []*history.NodeReport, rule string, length time.Duration) *historyReport {
	sum := history.Sum(nodes)
	r := &historyReport{
		Node: s.doors.Node, StepMS: length.Milliseconds(), EndMS: sum.Now * time.Minute.Milliseconds(), Rule: rule,
		Nodes: []nodeSteps{}, Steps: []stepReport{}, Rules: []historyRule{}, Others: newHistoryRule("", &sum.Others),
	}

	for _, bound := range latency.Bounds {
		r.BoundsMS = append(r.BoundsMS, inMillis(bound))
	}

	for i := range sum.Steps {
		step := &sum.Steps[i]
		r.Steps = append(r.Steps,
			stepReport{step.Number * r.StepMS, step.Nodes, historyCounts(step.Counts), latencySums(step.Doors)})
	}
	r.Doors = latencySums(history.SumDoors(sum.Steps))
	for i := range sum.Rules {
		r.Rules = append(r.Rules, newHistoryRule(sum.Rules[i].Name, &sum.Rules[i].Row))
	}

	var ids []ring.NodeID
	for _, n := range nodes {
		ids = append(ids, n.Node)
	}

	for i, part := range s.nodeParts(ids) {
		row := nodeSteps{nodePart: part}
		if i < len(nodes) {
			row.Steps = len(nodes[i].Steps)
		}
		r.Nodes = append(r.Nodes, row)
	}

	return r
}

func newHistoryRule(name string, row *history.Row) historyRule {
	return historyRule{name, historyCounts(row.Counts), quantile(&row.Latency, 0.5), quantile(&row.Latency, 0.99)}
}

// latencySums returns the latencies of the doors that were used.
func latencySums(doors []history.Door) []latencySum {
	list := []latencySum{}
	for i := range doors {
		c := &doors[i].Latency
		if n := c.Sum(); n > 0 {
			list = append(list, latencySum{doors[i].Name, n, quantile(c, 0.5), quantile(c, 0.99), *c})
		}
	}
	return list
}

func quantile(c *latency.Counts, q float64) float64 { return inMillis(c.Quantile(q)) }

// inMillis returns d in milliseconds, to 0.1 µs.
func inMillis(d time.Duration) float64 { return float64(d/100) / 10_000 }

// nodeParts returns the nodes that answered, in order, then the members that
// did not. answered[0] is this node.
func (s *Server) nodeParts(answered []ring.NodeID) (list []nodePart) {
	members := s.config.Cluster.View().Members
	names := map[ring.NodeID]string{}
	seen := map[ring.NodeID]bool{}
	for _, m := range members {
		names[m.ID] = m.Name
	}

	names[answered[0]] = s.doors.Node

	for _, id := range answered {
		seen[id] = true
		list = append(list, nodePart{names[id], id.String(), true})
	}

	for _, m := range members {
		if !seen[m.ID] && m.Name != s.doors.Node && m.State != gossip.Left {
			list = append(list, nodePart{m.Name, m.ID.String(), false})
		}
	}

	return list
}
