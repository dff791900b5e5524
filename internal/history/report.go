package history

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// The messages between nodes. Each has a reply.
const (
	MethodHistory peer.Method = 144 + iota // asks a node for its history
	MethodEvents                           // and for its events
)

// CodeMessage is the code of a call that can't be answered.
const CodeMessage peer.Code = 144

const (
	// Minutes and Hours are how many steps a history has.
	Minutes, Hours = 24 * 60, 30 * 24
	// gatherTimeout bounds how long a node waits for the others.
	gatherTimeout = 500 * time.Millisecond
	// roundAge is how long the answers to a question are used for further callers.
	roundAge = time.Second
	// maxServing bounds the other nodes' questions that are answered at once.
	maxServing = 8
	// maxSums bounds the rules of a report. Each segment may have other rules.
	maxSums = 1000
)

// Query asks for steps.
type Query struct {
	ByHour bool  // steps of hours instead of minutes
	Steps  int64 // how many, up to the newest one; 0 for all. The newest hour is the current one.
	Rule   string
}

// Code implements wire.Message.
func (q *Query) Code(c *wire.Coder) {
	c.Flags(&q.ByHour)
	wire.Number(c, &q.Steps, Minutes)
	c.Text(&q.Rule, maxName)
}

// Step is what one or several nodes decided in a step.
type Step struct {
	Number int64
	Nodes  int // how many nodes have data for it
	Counts
	Doors []Door // of a rule: one without a name
}

// NodeReport is one node's history, or the sum of several.
type NodeReport struct {
	Node   ring.NodeID
	Now    int64  // the minute that is not over yet
	Steps  []Step // in ascending order; those without data are missing
	Rules  []Rule // what was decided in these steps, by rule; those with most checks first
	Others Row    // and by rules that have no counts of their own
}

// Code implements wire.Message.
func (r *NodeReport) Code(c *wire.Coder) {
	wire.Number(c, &r.Now, maxNumber)
	wire.List(c, &r.Steps, Minutes+1, 4, func(s *Step) {
		wire.Number(c, &s.Number, maxNumber)
		s.Counts.code(c)
		codeDoors(c, &s.Doors)
		s.Nodes = 1
	})
	wire.List(c, &r.Rules, maxSums, 1+3, func(rule *Rule) {
		c.Text(&rule.Name, maxName)
		rule.Row.code(c)
	})
	r.Others.code(c)

	for i := 1; c.Reads() && i < len(r.Steps); i++ {
		c.Require(r.Steps[i-1].Number < r.Steps[i].Number)
	}
}

// here returns this node's own history.
func (h *History) here(q Query) *NodeReport {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &NodeReport{Node: h.config.Self, Now: h.minute}
	t := &h.minutes
	last := h.minute - 1
	most := int64(Minutes)
	if q.ByHour {
		t = &h.hours
		last, most = last/minutesInHour, Hours
	}
	if q.Steps > 0 {
		most = min(most, q.Steps)
	}
	from := max(last-most+1, 0)

	sums := map[string]*Row{}
	for first := from / t.size * t.size; first <= last; first += t.size {
		if g := t.segment(first); g != nil {
			r.addSegment(g, q.Rule, from, last, sums)
		}
	}
	for name, row := range sums {
		r.Rules = append(r.Rules, Rule{Name: name, Row: *row})
	}
	r.sortRules()
	r.Rules = r.Rules[:min(len(r.Rules), maxSums)]
	return r
}

func (r *NodeReport) sortRules() {
	slices.SortFunc(r.Rules, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(b.Checks, a.Checks), cmp.Compare(a.Name, b.Name))
	})
}

// addSegment adds the steps of g that are from…last, all or those of a rule.
func (r *NodeReport) addSegment(g *segment, rule string, from, last int64, sums map[string]*Row) {
	at := slices.Index(g.names, rule)
	for i := range g.steps {
		s := &g.steps[i]
		if s.number < from || s.number > last {
			continue
		}

		r.Others.Add(&s.others)

		for j := range s.rules {
			name := g.names[j]
			if sums[name] == nil {
				sums[name] = &Row{}
			}
			sums[name].Add(&s.rules[j])
		}

		switch {
		case rule == "":
			r.Steps = append(r.Steps, Step{Number: s.number, Nodes: 1, Counts: s.total, Doors: s.doors})
		case at >= 0 && at < len(s.rules):
			r.Steps = append(r.Steps,
				Step{Number: s.number, Nodes: 1, Counts: s.rules[at].Counts,
					Doors: []Door{{Latency: s.rules[at].Latency}}})
		case at >= 0 || s.others.Checks == 0: // the rule was not used; otherwise it may be among the others
			r.Steps = append(r.Steps, Step{Number: s.number, Nodes: 1})
		}
	}
}

// Handle registers the answers to other nodes' questions.
func (h *History) Handle(p *peer.Peers) {
	p.Handle(MethodHistory, peer.Near, func(c *peer.Call) {
		var q Query
		if err := wire.Decode(c.Body, &q, "question about the history"); err != nil {
			c.Fail(CodeMessage, err.Error())
			return
		}
		h.serve(c, func() wire.Message { return h.here(q) })
	})
	p.Handle(MethodEvents, peer.Near, func(c *peer.Call) {
		h.serve(c, func() wire.Message { return h.eventsHere() })
	})
}

// serve answers a call in a goroutine of its own.
func (h *History) serve(c *peer.Call, answer func() wire.Message) {
	if !h.calls.Go(func() { c.Reply(wire.Encode(nil, answer())) }) {
		c.Fail(CodeMessage, "too many ask for the history, or this node stops")
	}
}

// Close refuses further questions and waits for those being answered.
func (h *History) Close() error {
	<-h.calls.Close()
	return nil
}

// round caches the answers to the last question, so that many callers cost no more than one.
type round[Q comparable, R any] struct {
	mu    sync.Mutex // held while nodes are asked; guards the rest
	query Q
	at    time.Time
	nodes []*R
}

// latest returns the answers to the last question if it was the same and
// recent, and otherwise asks.
func (rn *round[Q, R]) latest(q Q, ask func() []*R) []*R {
	rn.mu.Lock()
	defer rn.mu.Unlock()
	if rn.nodes == nil || rn.query != q || time.Since(rn.at) > roundAge {
		rn.nodes = ask()
		rn.query = q
		rn.at = time.Now()
	}
	return rn.nodes
}

// Report returns the history of each node: of this one, and of every other one
// that answers within half a second. The caller must not modify it.
func (h *History) Report(q Query) []*NodeReport {
	return h.reports.latest(q, func() []*NodeReport {
		return append([]*NodeReport{h.here(q)},
			ask(h, MethodHistory, wire.Encode(nil, &q), func(r *NodeReport, from ring.NodeID) { r.Node = from })...)
	})
}

// NodeEvents is what one node logged in the last day.
type NodeEvents struct {
	Node   ring.NodeID
	Events []Event // the oldest first
}

// Code implements wire.Message.
func (n *NodeEvents) Code(c *wire.Coder) { (*eventList)(&n.Events).Code(c) }

func (h *History) eventsHere() *NodeEvents {
	from := (h.config.Now() - int64(eventAge)) / int64(time.Millisecond)
	return &NodeEvents{h.config.Self, h.config.Events.since(from)}
}

// Events returns what each node logged in the last day: this one, and every
// other one that answers within half a second. The caller must not modify it.
func (h *History) Events() []*NodeEvents {
	return h.lines.latest(struct{}{}, func() []*NodeEvents {
		return append([]*NodeEvents{h.eventsHere()},
			ask(h, MethodEvents, nil, func(n *NodeEvents, from ring.NodeID) { n.Node = from })...)
	})
}

// ask returns the replies of the other nodes that answer in time. name notes in
// a reply which node it is from.
func ask[R any, M interface {
	*R
	wire.Message
}](h *History, method peer.Method, body []byte, name func(reply *R, from ring.NodeID)) (list []*R) {
	if h.config.Peers == nil {
		return nil
	}

	others := h.config.Others()

	// The channel has room for all answers: a goroutine that delivers a reply
	// must not wait.
	answers := make(chan *R, len(others))
	for _, id := range others {
		h.config.Peers.Go(id, method, body, gatherTimeout, func(b []byte, err error) {
			reply := new(R)
			if err != nil || wire.Decode(b, M(reply), "reply") != nil {
				answers <- nil
				return
			}
			name(reply, id)
			answers <- reply
		})
	}

	for range others {
		if reply := <-answers; reply != nil {
			list = append(list, reply)
		}
	}

	return list
}

// Sum adds up the histories of several nodes. Its Node and Now are those of the first.
func Sum(nodes []*NodeReport) *NodeReport {
	all := &NodeReport{Node: nodes[0].Node, Now: nodes[0].Now}
	steps := map[int64]*Step{}
	rules := map[string]*Row{}

	for _, n := range nodes {
		all.Others.Add(&n.Others)
		for i := range n.Steps {
			s := &n.Steps[i]
			if steps[s.Number] == nil {
				steps[s.Number] = &Step{Number: s.Number}
			}
			sum := steps[s.Number]
			sum.Nodes++
			sum.add(&s.Counts)
			addDoors(&sum.Doors, s.Doors)
		}

		for i := range n.Rules {
			name := n.Rules[i].Name
			if rules[name] == nil {
				rules[name] = &Row{}
			}
			rules[name].Add(&n.Rules[i].Row)
		}
	}

	for _, s := range steps {
		all.Steps = append(all.Steps, *s)
	}
	slices.SortFunc(all.Steps, func(a, b Step) int { return cmp.Compare(a.Number, b.Number) })

	for name, row := range rules {
		all.Rules = append(all.Rules, Rule{Name: name, Row: *row})
	}
	all.sortRules()
	return all
}

// SumDoors adds up the latencies of steps.
func SumDoors(list []Step) (sum []Door) {
	for i := range list {
		addDoors(&sum, list[i].Doors)
	}
	return sum
}
