package resp

import (
	"sync"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules/document"
)

const (
	// maxRun bounds the checks that are decided together.
	maxRun = 256
	// checkMemory is roughly what a check of a run takes in bytes, and freeChecks
	// how many of them are not charged to the budget.
	checkMemory = 2 << 10
	freeChecks  = api.UnchargedBytes / checkMemory
)

// execution is what the commands that arrived together need while they are
// executed. It is reused.
type execution struct {
	out  writer
	args [][]byte // of the command being read

	// checks are the checks of the current run, which is not decided yet. Only the
	// first checksUsed of them are in use.
	checks     []*check
	spare      *sync.Pool // the server's, where further checks come from
	checksUsed int
	charged    int64     // bytes charged for checks
	hasMore    bool      // another command has arrived, or the beginning of one
	began      time.Time // when the input had arrived

	acquired []unsentSlot

	queries []*limiter.Query
	answers []*limiter.Answer
	errs    []error
}

// unsentSlot is a slot whose id has not been sent yet.
type unsentSlot struct {
	limiter.Slot
	end int // where its reply ends in execution.out
}

// check is a command that asks for a decision. It refers to the input.
type check struct {
	limiter.Query
	subject [1]limiter.Subject // what Subjects is a part of, if the command brings its limit
	limit   [1]document.InlineLimit
	values  [1]string // what Key is a part of, mostly
	answer  limiter.Answer
	spec    *spec // of the command

	// failure is the reply if the command can't be decided.
	failure failure
	// reply writes the decision.
	reply func(*Server, *writer, *check)
}

func (s *Server) getExecution() *execution {
	if ex, ok := s.executions.Get().(*execution); ok {
		return ex
	}
	return &execution{spare: &s.checks}
}

// putBack returns ex to the pool. Its checks have been reset already.
func (s *Server) putBack(ex *execution) {
	if ex.charged > 0 {
		s.Budget.Give(ex.charged)
		ex.charged = 0
	}

	// Only the checks that are free of charge stay. Otherwise each execution would
	// keep as many as its longest run had.
	for i := freeChecks; i < len(ex.checks); i++ {
		s.checks.Put(ex.checks[i])
		ex.checks[i] = nil
	}
	ex.checks = ex.checks[:min(len(ex.checks), freeChecks)]

	ex.out.b = api.Reuse(ex.out.b)
	if cap(ex.args) > maxStrangerArguments {
		ex.args = nil
	}
	// The words point into the input, whose buffer another connection gets.
	clear(ex.args[:cap(ex.args)])
	s.executions.Put(ex)
}

// fitOut makes the buffer of small replies small. An earlier pipeline may have
// left a large one behind, for which this caller would be charged.
func (ex *execution) fitOut() {
	if len(ex.out.b) <= api.UnchargedBytes && cap(ex.out.b) > api.UnchargedBytes {
		ex.out.b = append(make([]byte, 0, api.UnchargedBytes), ex.out.b...)
	}
}

// makeRoom reports whether the run may have another check. It charges the budget for long runs.
func (ex *execution) makeRoom(b *api.Budget) bool {
	taken := freeChecks + int(ex.charged/checkMemory)
	if ex.checksUsed < taken {
		return true
	}
	// The room doubles each time, so that a long run asks the budget only a few
	// times.
	if !b.Take(int64(taken) * checkMemory) {
		return false
	}
	ex.charged += int64(taken) * checkMemory
	return true
}

// next returns an empty check at the end of the run.
func (ex *execution) next() *check {
	if ex.checksUsed == len(ex.checks) {
		q, ok := ex.spare.Get().(*check)
		if !ok {
			q = &check{}
		}
		ex.checks = append(ex.checks, q)
	}
	ex.checksUsed++
	return ex.checks[ex.checksUsed-1]
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
func (q *check) setLimit(namespace string, key []byte, limit document.InlineLimit, cost int64) {
	q.values[0] = keyText(key)
	q.limit[0] = limit
	subject := &q.subject[0]
	subject.Namespace = namespace
	subject.Key = q.values[:]
	subject.Limits = q.limit[:]
	subject.Exact = true
	subject.Costs = append(subject.Costs[:0], limiter.UnitCost{Unit: document.Requests, Cost: cost})
	q.Subjects = q.subject[:]
}

// isFull reports whether there is no room for the counter of a key under the
// limit that came with it.
func (q *check) isFull() bool {
	return len(q.Subjects) > 0 && !q.answer.Allowed && len(q.answer.Limits) == 1 && q.answer.Limits[0].NoRoom
}

// decide decides the checks of the run together, in order, and writes their replies.
func (c *session) decide() {
	ex := c.execution
	s := c.server
	if ex.checksUsed == 0 {
		return
	}

	run := ex.checks[:ex.checksUsed]
	ex.queries = ex.queries[:0]
	ex.answers = ex.answers[:0]
	ex.errs = ex.errs[:0]
	for _, q := range run {
		if q.failure == "" {
			ex.queries = append(ex.queries, &q.Query)
			ex.answers = append(ex.answers, &q.answer)
			ex.errs = append(ex.errs, nil)
		}
	}

	switch len(ex.queries) {
	case 0:
	case 1:
		// A loan means a round trip to another region, for which no other
		// check should wait.
		ex.queries[0].AwaitsLoan = len(run) == 1 && !ex.hasMore
		ex.errs[0] = s.Decider.Check(ex.queries[0], ex.answers[0])
	default:
		s.Decider.CheckAll(ex.queries, ex.answers, ex.errs)
	}

	i := 0
	took := time.Since(ex.began)
	for _, q := range run {
		var err error
		if q.failure == "" {
			err = ex.errs[i]
			if err != nil {
				q.failure = s.explain(err)
			} else {
				c.stripe.Observe(took)
				ex.answers[i].CountLatency(took)
			}
			i++
		}

		if q.failure == "" && q.isFull() {
			q.failure = "ERR too many limits"
		}
		if q.failure != "" {
			ex.out.fail(q.failure)
		} else {
			q.reply(s, &ex.out, q)
		}

		c.trace(q.spec, q, err, q.failure != "")
		q.reset()
	}

	// They would keep checks alive that go back to the server's pool.
	clear(ex.queries)
	clear(ex.answers)
	clear(ex.errs)
	ex.checksUsed = 0
}

// explain returns the failure for an error of the decider. It logs internal errors.
func (s *Server) explain(err error) failure {
	e := api.AsError(err)
	if e.Code == api.Internal {
		s.Logger.Error("check not decided", "error", err)
	}
	return failureOf(e)
}
