package limiter

import (
	"errors"
	"math"
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// status is how a question fared.
type status uint8

const (
	decided     status = iota
	notMine            // the one asked is not the owner; the reply may say who is
	noAuthority        // the owner has no authority now
	unreachable        // the one asked could not reach the owner, and could not act for it
	behind             // the asker's rules are older than those here
	full               // the table of counters has no room for a change
	otherBody          // a request with the same id had another body
	crowded            // there is no room for the answer to a request with an id
	unknown            // no such reservation can be settled any more
	undecided          // said by nobody: the answer ended before this check's turn
	statuses    = undecided
)

// statusErrors are the errors that travel as a status.
var statusErrors = [...]error{full: ErrFull, otherBody: ErrRequestBody, crowded: ErrRequests, unknown: ErrUnknownReservation}

// statusOf is how something fared that ended with err.
func statusOf(err error) status {
	if err == nil {
		return decided
	}
	for s, e := range statusErrors {
		if e != nil && errors.Is(err, e) {
			return status(s)
		}
	}
	return unreachable
}

// err is what s means to the one who asked.
func (s status) err() error {
	switch {
	case s == decided:
		return nil
	case int(s) < len(statusErrors) && statusErrors[s] != nil:
		return statusErrors[s]
	}
	return ErrNoOwner
}

// reply answers a question.
type reply struct {
	status   status
	revision int64
	version  int64       // of the rules at the one who answers
	hint     ring.NodeID // notMine, unreachable: the owner as far as is known; zero: not known

	// Of decided.
	standby  bool        // a standby acted
	decider  ring.NodeID // who decided
	process  uint64      // of the decider: readings of its clock mean nothing to another
	steady   int64       // when, on the decider's clock
	lineages []uint64    // by subject; 0: nothing can be given back
	// admitted is by check. After a refusal the rest is refused too and left out; where the last was admitted, those
	// left out have to ask anew.
	admitted []bool
	results  []result // of each check, by op
	grants   []granted
}

// result is what one limit said to one check.
type result struct {
	algorithms.Decision
	full   bool
	window int64 // that the cost was taken in
	used   int64 // of a change
}

func (r *reply) reset() {
	*r = reply{lineages: r.lineages[:0], admitted: r.admitted[:0], results: r.results[:0], grants: r.grants[:0]}
}

func (r *reply) append(b []byte) []byte {
	c := wire.Coder{Out: b}
	r.code(&c, 0, 0, 0)
	return c.Out
}

// read takes r from a message that answers a question of so many ops in so many subjects, for count checks.
func (r *reply) read(body []byte, ops, subjects, count int) error {
	c := wire.NewReader(body)
	r.reset()
	r.code(&c, ops, subjects, count)
	return c.In.Done("reply")
}

// code writes or reads r; the numbers are for reading.
func (r *reply) code(c *wire.Coder, ops, subjects, count int) {
	wire.Number(c, &r.status, int64(statuses-1))
	wire.Number(c, &r.revision, maxVersion)
	wire.Number(c, &r.version, maxVersion)
	if r.status != decided || c.Reads() && c.In.Failed() {
		c.Raw(r.hint[:])
		return
	}
	c.Bool(&r.standby)
	c.Raw(r.decider[:])
	wire.Fixed(c, &r.process)
	wire.Fixed(c, &r.steady)
	wire.List(c, &r.lineages, subjects, 8, func(v *uint64) { wire.Fixed(c, v) })
	wire.List(c, &r.admitted, count, 1, c.Bool)
	wire.List(c, &r.results, ops*len(r.admitted), leastResult, func(v *result) { v.code(c) })
	wire.List(c, &r.grants, subjects, leastGrant, func(g *granted) { g.code(c) })
	// Fewer than were asked for: after a refusal the rest is refused too; else it was not decided.
	n := len(r.admitted)
	c.Require(n > 0 && len(r.results) == n*ops && len(r.lineages) == subjects && !slices.Contains(r.admitted[:n-1], false))
}

const leastResult = 4 // bytes

func (r *result) code(c *wire.Coder) {
	more := r.RetryAfter != 0 || r.Delay != 0 || r.used != 0
	c.Flags(&r.Allowed, &r.full, &more)
	wire.Number(c, &r.Remaining, algorithms.MaxAmount)
	wire.Number(c, &r.ResetAfter, math.MaxInt64)
	wire.Varint(c, &r.window)
	if more {
		wire.Varint(c, &r.RetryAfter)
		wire.Number(c, &r.Delay, math.MaxInt64)
		wire.Number(c, &r.used, math.MaxInt64)
		c.Require(r.RetryAfter >= algorithms.Never)
	}
}
