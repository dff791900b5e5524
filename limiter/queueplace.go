package limiter

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// QueuePlace is the cost that a delayed check has taken in advance. If the
// caller gives up, the place goes to another caller whose check takes the same.
// If there is none, the cost is given back.
type QueuePlace struct {
	ProceedAt time.Time // when the caller proceeds; the caller of Wait sets it first

	limiter *Limiter
	taken   []refund
	kind    string    // the same for places of the same size in the same queues
	until   time.Time // from then on, the owner can no longer tell what may come back
}

// giveBack gives the cost of the place back, unless the owner can no longer
// tell what may come back. Call it at most once.
func (qp *QueuePlace) giveBack() {
	if time.Now().Before(qp.until) {
		qp.limiter.sendRefunds(qp.taken)
	}
}

// QueuePlace returns the place of a delayed check with Query.Waits. It is nil
// if the check was not delayed, or if nothing of its cost could be given back.
func (a *Answer) QueuePlace() *QueuePlace { return a.queuePlace }

// setQueuePlace records what a's decided check has taken in advance.
func (l *Limiter) setQueuePlace(a *Answer) {
	// What was decided without the owner is a debt, which can't come back.
	if !a.Allowed || a.Delay() == 0 || a.DecidedBy < ByForward {
		return
	}
	qp := &QueuePlace{limiter: l, until: time.Now().Add(maxTakenAge)}
	if l.cluster == nil {
		qp.taken = a.refundsHere(l)
	} else {
		qp.taken = a.scratch.clusterCheck.refunds()
	}

	qp.taken = slices.DeleteFunc(qp.taken, func(rf refund) bool { return rf.isEmpty() })
	qp.kind = qp.kindOfTaken()
	if qp.kind != "" {
		a.queuePlace = qp
	}
}

// kindOfTaken returns the kind of what was taken; empty if nothing was.
func (qp *QueuePlace) kindOfTaken() string {
	var kind []byte
	for i := range qp.taken {
		for j := range qp.taken[i].ops {
			op := &qp.taken[i].ops[j]
			kind = counters.AppendKey(kind, op.Key)
			kind = binary.AppendVarint(kind, op.Cost)
			kind = op.Limit.Append(kind, 0)
		}
	}
	return string(kind)
}

// readLives reads the lives of the check's counters, on a standalone node. Call
// it before the Take: if a life ends in between, the cost can't be given back
// in the next one.
func (a *Answer) readLives(l *Limiter) {
	a.scratch.lives = a.scratch.lives[:0]
	for i := range a.scratch.match.Hits {
		p := ring.PartitionOf(a.scratch.match.Hits[i].Subject.Hi)
		a.scratch.lives = append(a.scratch.lives, l.table.Life(p))
	}
}

// refundsHere returns the refunds of what a's check took, on a standalone node.
func (a *Answer) refundsHere(l *Limiter) (list []refund) {
	first := 0
	for i := range a.scratch.match.Hits {
		h := &a.scratch.match.Hits[i]
		back := refund{takenCosts: takenCosts{subject: h.Subject.Hi, boot: l.boot, life: a.scratch.lives[i], steady: a.Now.Steady}}
		back.addTaken(a.scratch.ops[first:first+len(h.Limits)], algorithms.Instant{Steady: a.Now.Steady})
		list = append(list, back)
		first += len(h.Limits)
	}
	return list
}

// refunds returns the refunds of all that the check took from counters here and
// at other owners.
func (c *clusterCheck) refunds() (list []refund) {
	var asked []*pendingAsk
	for i := range c.subjects {
		s := &c.subjects[i]
		switch {
		case !s.admitted:
		case s.undo == undoHere:
			list = append(list, c.refundHere(s))
		case s.undo == undoAsked && !slices.Contains(asked, s.answeredBy):
			asked = append(asked, s.answeredBy)
			list = append(list, s.answeredBy.refunds()...)
		}
	}

	return list
}

// addTaken adds to the refund those of ops that took their cost. base is as for
// markOf.
func (rf *refund) addTaken(ops []counters.Op, base algorithms.Instant) {
	for i := range ops {
		if op := &ops[i]; op.Took() && op.Limit.Kind != algorithms.Concurrency { // slots are released by their IDs
			rf.ops = append(rf.ops, *op)
			rf.marks = append(rf.marks, markOf(op, base))
		}
	}
}

// mayDelay reports whether a limit of the prepared check may delay it. Blocks
// delay nothing: they are never taken.
func (a *Answer) mayDelay() bool {
	return slices.ContainsFunc(a.scratch.ops, func(op counters.Op) bool {
		return !op.Block && (op.Limit.MaxDelay > 0 || op.Limit.Kind == algorithms.LeakyBucket)
	})
}

// refundHere returns the refund of s's cost, and of its place, to this node's
// counters.
func (c *clusterCheck) refundHere(s *subject) refund {
	l := c.limiter
	back := refund{takenCosts: takenCosts{subject: s.keySubject, boot: l.boot, life: s.life, steady: s.decidedAt.Steady}}
	back.place = c.takeBackPlace(s)
	back.addTaken(c.ops(s), s.decidedAt)
	return back
}
