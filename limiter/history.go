package limiter

import (
	"sync"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// HistoryStep is the length of a step of the history. The wall clock numbers the steps, starting in 1970, so that steps of
	// different nodes can be added up.
	HistoryStep = 30 * time.Second
	// HistorySteps is how many steps a node keeps: an hour, in 21 kB.
	HistorySteps = 120
)

// StepCounts counts the checks that a node decided within one step.
type StepCounts struct {
	Number int64 // the step began Number × HistoryStep after 1970
	Checks Counts
}

// NodeHistory is what one node decided in each full step of the last hour. Steps before the process started, or while it was
// suspended, are missing.
type NodeHistory struct {
	Node  ring.NodeID  // zero for a standalone node
	Steps []StepCounts // in ascending order
}

// History is what the nodes decided within the last hour.
type History struct {
	Now   int64         // this node's current step, which is not over yet
	Nodes []NodeHistory // this node first, then every other node that answered
}

// history keeps a node's own steps.
type history struct {
	mu           sync.Mutex // guards the fields below
	current      int64      // the current step; 0 before the first reading
	countsBefore Counts     // what was decided before the current step
	steps        [HistorySteps]StepCounts
}

// step returns the number of the current step, by the wall clock.
func (l *Limiter) step() int64 { return l.clock.Now().Wall / int64(HistoryStep) }

// EndHistoryStep records what was decided in a step, once the step is over. Call it every second.
func (l *Limiter) EndHistoryStep() {
	l.seconds.Add(1)
	active, now := l.inForce.Load(), l.step()
	if active == nil {
		return
	}
	if l.history.endSteps(now, active.checks) {
		for _, t := range l.tops {
			t.endStep()
		}
		active.endUseStep(now)
	}
}

// endSteps ends the steps before now, and reports whether there were any.
func (h *history) endSteps(now int64, read func() Counts) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current == 0 {
		h.current = now // everything counted so far belongs to this step
	}
	if now <= h.current {
		return false
	}
	checks := read()
	if now == h.current+1 { // otherwise the counts can't be assigned to steps
		step := StepCounts{Number: h.current, Checks: checks}
		step.Checks.subtract(&h.countsBefore)
		h.steps[h.current%HistorySteps] = step
	}
	h.current, h.countsBefore = now, checks
	return true
}

// list returns the steps in the hour before now.
func (h *history) list(now int64) (steps []StepCounts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for n := max(now-HistorySteps, 1); n < now; n++ {
		if s := &h.steps[n%HistorySteps]; s.Number == n {
			steps = append(steps, *s)
		}
	}
	return steps
}

// History returns what each node decided in the last hour: this node, and every other node that answers within half a second.
// The caller must not modify the result.
func (l *Limiter) History() History {
	return History{Now: l.step(), Nodes: l.historyRound.latest(func() []NodeHistory {
		all := []NodeHistory{l.historyHere()}
		if l.membership != nil {
			gatherFrom(l.membership, MethodHistory, nil, func(from ring.NodeID, h *NodeHistory) {
				h.Node = from
				all = append(all, *h)
			})
		}
		return all
	})}
}

func (l *Limiter) historyHere() NodeHistory {
	h := NodeHistory{Steps: l.history.list(l.step())}
	if l.membership != nil {
		h.Node = l.membership.Self
	}
	return h
}

// Code implements wire.Message.
func (h *NodeHistory) Code(c *wire.Coder) {
	const maxNumber = 1 << 40
	wire.List(c, &h.Steps, HistorySteps, 1+countsLen, func(s *StepCounts) {
		wire.Number(c, &s.Number, maxNumber)
		s.Checks.code(c)
	})
}
