package admin

import (
	"net/http"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
)

// historyReport is what the nodes decided in each step of the last hour. It leaves out steps for which no node has data.
type historyReport struct {
	Node   string       `json:"node"`    // the node that was asked
	StepMS int64        `json:"step_ms"` // the length of a step
	EndMS  int64        `json:"end_ms"`  // when the newest step ended, in Unix milliseconds
	Nodes  []nodeSteps  `json:"nodes"`
	Steps  []stepReport `json:"steps"` // in ascending order
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

type stepReport struct {
	AtMS   int64       `json:"at_ms"` // when it began
	Nodes  int         `json:"nodes"` // how many nodes have data for it
	Checks checkCounts `json:"checks"`
}

// getHistory answers with what the nodes decided in the last hour.
func (s *Server) getHistory(w http.ResponseWriter, _ *http.Request) error {
	h := s.config.History()
	step := limiter.HistoryStep.Milliseconds()
	r := historyReport{Node: s.doors.Node, StepMS: step, EndMS: h.Now * step, Nodes: []nodeSteps{}, Steps: []stepReport{}}
	steps, nodes := map[int64]*limiter.Counts{}, map[int64]int{}
	have := map[ring.NodeID]int{}
	var ids []ring.NodeID
	for i := range h.Nodes {
		n := &h.Nodes[i]
		ids, have[n.Node] = append(ids, n.Node), len(n.Steps)
		for j := range n.Steps {
			number := n.Steps[j].Number
			if j > 0 && number <= n.Steps[j-1].Number {
				continue // malformed: steps must ascend
			}
			if nodes[number]++; steps[number] == nil {
				steps[number] = &limiter.Counts{}
			}
			steps[number].Add(&n.Steps[j].Checks)
		}
	}
	for number := h.Now - limiter.HistorySteps; number < h.Now; number++ {
		if steps[number] != nil {
			r.Steps = append(r.Steps, stepReport{number * step, nodes[number], newCheckCounts(steps[number])})
		}
	}
	for i, part := range s.nodeParts(ids) {
		one := nodeSteps{nodePart: part}
		if i < len(ids) {
			one.Steps = have[ids[i]]
		}
		r.Nodes = append(r.Nodes, one)
	}
	return s.reply(w, r)
}

// nodeParts returns the nodes that answered, in order, then the members that did not. answered[0] is this node.
func (s *Server) nodeParts(answered []ring.NodeID) (list []nodePart) {
	members := s.config.Cluster.View().Members
	names, seen := map[ring.NodeID]string{}, map[ring.NodeID]bool{}
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
