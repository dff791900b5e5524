package resp

import (
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

const (
	// maxRun bounds the checks that are decided together.
	maxRun = 256
	// checkMemory is roughly what a check of a run takes in bytes, and freeChecks
	// how many of them are not charged to the budget.
	checkMemory = 2 << 10
	freeChecks  = api.UnchargedBytes / checkMemory
)

// worker is what it takes to execute the commands that arrived together. It is reused.
type worker struct {
	out  writer
	args [][]byte // of the command being read

	// checks are the checks of the current run, which is not decided yet. Only the
	// first pending of them are in use.
	checks  []*check
	pending int
	charged int64     // bytes charged for checks
	hasMore bool      // another command has arrived, or the beginning of one
	began   time.Time // when the input had arrived

	acquired []limiter.Slot // those whose ids have not been sent yet

	queries []*limiter.Query
	answers []*limiter.Answer
	errs    []error
}

// check is a command that asks for a decision. It refers to the input.
type check struct {
	limiter.Query
	subject [1]limiter.Subject // what Subjects is a part of, if the command brings its limit
	limit   [1]rules.InlineLimit
	values  [1]string // what Key is a part of, mostly
	answer  limiter.Answer
	spec    *spec // of the command

	// failure is the reply if the command can't be decided.
	failure failure
	// reply writes the decision.
	reply func(*Server, *writer, *check)
}

func (s *Server) worker() *worker {
	if w, ok := s.workers.Get().(*worker); ok {
		return w
	}
	return &worker{}
}

// putBack returns w to the pool. What refers to input is cleared already.
func (s *Server) putBack(w *worker) {
	if w.charged > 0 {
		s.Budget.Give(w.charged)
		w.charged = 0
	}
	w.out.b = api.Reuse(w.out.b)
	if cap(w.args) > maxStrangerArguments {
		w.args = nil
	}
	// They point into the input, whose buffer another connection gets.
	clear(w.args[:cap(w.args)])
	s.workers.Put(w)
}

// makeRoom reports whether the run may have another check. It charges the budget for long runs.
func (w *worker) makeRoom(b *api.Budget) bool {
	taken := freeChecks + int(w.charged/checkMemory)
	if w.pending < taken {
		return true
	}
	// There are twice as many each time, so that a long run asks the budget
	// only a few times.
	if !b.Take(int64(taken) * checkMemory) {
		return false
	}
	w.charged += int64(taken) * checkMemory
	return true
}

// next returns an empty check at the end of the run.
func (w *worker) next() *check {
	if w.pending == len(w.checks) {
		w.checks = append(w.checks, &check{})
	}
	w.pending++
	return w.checks[w.pending-1]
}

// reset empties q, but keeps its slices.
func (q *check) reset() {
	clear(q.Key)
	clear(q.Costs)
	q.Query = limiter.Query{Key: q.Key[:0], Costs: q.Costs[:0]}
	costs := q.subject[0].Costs
	clear(costs)
	q.subject[0] = limiter.Subject{Costs: costs[:0]}
	q.values[0] = ""
	q.failure = ""
	q.reply = nil
	q.spec = nil
}

// setLimit makes q a check of one key under one limit that the command brings.
func (q *check) setLimit(namespace string, key []byte, limit rules.InlineLimit, cost int64) {
	q.values[0] = keyText(key)
	q.limit[0] = limit
	subject := &q.subject[0]
	subject.Namespace = namespace
	subject.Key = q.values[:]
	subject.Limits = q.limit[:]
	subject.Exact = true
	subject.Costs = append(subject.Costs[:0], limiter.UnitCost{Unit: rules.Requests, Cost: cost})
	q.Subjects = q.subject[:]
}

// isFull reports whether there is no room for the counter of a key under the
// limit that came with it.
func (q *check) isFull() bool {
	return len(q.Subjects) > 0 && !q.answer.Allowed && len(q.answer.Limits) == 1 && q.answer.Limits[0].Full
}

// decide decides the checks of the run together, in order, and writes their replies.
func (c *session) decide() {
	w := c.worker
	s := c.server
	if w.pending == 0 {
		return
	}

	run := w.checks[:w.pending]
	w.queries = w.queries[:0]
	w.answers = w.answers[:0]
	w.errs = w.errs[:0]
	for _, q := range run {
		if q.failure == "" {
			w.queries = append(w.queries, &q.Query)
			w.answers = append(w.answers, &q.answer)
			w.errs = append(w.errs, nil)
		}
	}

	switch len(w.queries) {
	case 0:
	case 1:
		// A loan means a round trip to another region, for which no other
		// check should wait.
		w.queries[0].AwaitsLoan = len(run) == 1 && !w.hasMore
		w.errs[0] = s.Decider.Check(w.queries[0], w.answers[0])
	default:
		s.Decider.CheckAll(w.queries, w.answers, w.errs)
	}

	i := 0
	took := time.Since(w.began)
	for _, q := range run {
		var err error
		if q.failure == "" {
			err = w.errs[i]
			if err != nil {
				q.failure = s.explain(err)
			} else {
				c.stripe.Observe(took)
				w.answers[i].CountLatency(took)
			}
			i++
		}

		if q.failure == "" && q.isFull() {
			q.failure = "ERR too many limits"
		}
		if q.failure != "" {
			w.out.fail(q.failure)
		} else {
			q.reply(s, &w.out, q)
		}

		c.trace(q.spec, q, err, q.failure != "")
		q.reset()
	}

	w.pending = 0
}

// explain returns the failure for an error of the decider. It logs internal errors.
func (s *Server) explain(err error) failure {
	e := api.AsError(err)
	if e.Code == api.Internal {
		s.Logger.Error("check not decided", "error", err)
	}
	return failureOf(e)
}
