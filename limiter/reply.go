package limiter

import (
	"errors"
	"math"
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// status is the outcome of a question.
type status uint8

const (
	statusDecided             status = iota
	statusNotOwner                   // this node is not the owner; the reply may say which node is
	statusNoAuthority                // the owner currently has no authority
	statusUnreachable                // this node could neither reach the owner nor act for it
	statusAskerBehind                // the asker's rules are too old
	statusNoRoom                     // the table of counters has no room for the change
	statusRequestIDReused            // an earlier request with the same id had other content
	statusTooManyRequestIDs          // no room to keep the answer to a request with an id
	statusTooManyReservations        // no room for another reservation
	statusUnknownReservation         // the id is not of a reservation that can still be settled
	statusUnknownSlot                // the slot is over
	statusTryAgain                   // the slot may not outlive this node
	statusTooManySlots               // no room for another slot
	statusUndecided                  // never sent: the owner stopped before this check
	numStatuses               = statusUndecided
)

// statusErrors are the errors that are sent as a status.
var statusErrors = [...]error{
	statusNoRoom:              ErrNoRoom,
	statusRequestIDReused:     ErrRequestIDReused,
	statusTooManyRequestIDs:   ErrTooManyRequestIDs,
	statusTooManyReservations: ErrTooManyReservations,
	statusUnknownReservation:  ErrUnknownReservation,
	statusUnknownSlot:         ErrUnknownSlot,
	statusTryAgain:            ErrTryAgain,
	statusTooManySlots:        ErrTooManySlots,
}

// statusOf returns the status for err: unreachable if err has none of its own.
func statusOf(err error) status {
	if err == nil {
		return statusDecided
	}
	for s, e := range statusErrors {
		if e != nil && errors.Is(err, e) {
			return status(s)
		}
	}
	return statusUnreachable
}

// err returns the asker's error for s; nil for decided.
func (s status) err() error {
	switch {
	case s == statusDecided:
		return nil
	case int(s) < len(statusErrors) && statusErrors[s] != nil:
		return statusErrors[s]
	}
	return ErrNoOwner
}

// replyHead says how a question was answered.
type replyHead struct {
	status   status
	revision int64
	version  int64       // of the replying node's rules
	hint     ring.NodeID // with statusNotOwner, statusUnreachable or statusNoAuthority: the owner; zero if unknown

	// The fields below are set only with decided.
	standby     bool // a standby decided
	unconfirmed bool // the check was admitted, but its slots may not outlive the owner: the asker rolls it back
	decider     ring.NodeID
	boot        uint64 // of the decider's process: only it can interpret steady
	steady      int64  // time of the decision, on the decider's steady clock
}

// reply answers a question. Only its head is set unless the status is decided.
type reply struct {
	replyHead
	lives []counters.Life // of the counters, by subject; zero if their cost can't be given back
	// admitted has an element per check, up to the first refusal. The checks after
	// a refusal are refused as well. If there are fewer elements than checks and
	// the last one is true, the remaining checks must ask again.
	admitted []bool
	results  []result // by check, and by op within each
	grants   []leaseGrant
}

// result is the decision of one limit on one check.
type result struct {
	algorithms.Decision
	noRoom bool
	mark   algorithms.TakeMark // when the cost was taken
}

func (r *reply) reset() {
	r.replyHead = replyHead{}
	r.clearDecisions()
}

// clearDecisions empties the lists, and keeps the head.
func (r *reply) clearDecisions() {
	r.lives = r.lives[:0]
	r.admitted = r.admitted[:0]
	r.results = r.results[:0]
	r.grants = r.grants[:0]
}

// setDecider records that l has decided the question, at now.
func (r *reply) setDecider(l *Limiter, now algorithms.Instant, standby bool) {
	r.standby = standby
	r.decider = l.cluster.Self
	r.boot = l.boot
	r.steady = now.Steady
}

func (r *reply) append(b []byte) []byte {
	c := wire.Coder{Out: b}
	r.code(&c, 0, 0, 0)
	return c.Out
}

// read reads r from the reply to a question about count checks, with the given
// numbers of ops and subjects.
func (r *reply) read(body []byte, ops, subjects, count int) error {
	c := wire.NewReader(body)
	r.reset()
	r.code(&c, ops, subjects, count)
	return c.In.Done("reply")
}

// code writes or reads r. ops, subjects and count are used only for reading.
func (r *reply) code(c *wire.Coder, ops, subjects, count int) {
	wire.Number(c, &r.status, int64(numStatuses-1))
	wire.Number(c, &r.revision, maxVersion)
	wire.Number(c, &r.version, maxVersion)

	if r.status != statusDecided || c.Reads() && c.In.Failed() {
		c.Raw(r.hint[:])
		return
	}

	c.Flags(&r.standby, &r.unconfirmed)
	c.Raw(r.decider[:])
	wire.Fixed(c, &r.boot)
	wire.Fixed(c, &r.steady)
	wire.List(c, &r.lives, subjects, 9, func(v *counters.Life) { codeLife(c, v) })
	wire.List(c, &r.admitted, count, 1, c.Bool)
	wire.List(c, &r.results, ops*len(r.admitted), minResultBytes, func(v *result) { v.code(c) })
	wire.List(c, &r.grants, subjects, minGrantBytes, func(g *leaseGrant) { g.code(c) })

	// The answer may cover fewer checks than were asked about; see admitted.
	n := len(r.admitted)
	c.Require(n > 0 && len(r.results) == n*ops && len(r.lives) == subjects && !slices.Contains(r.admitted[:n-1], false))
}

const minResultBytes = 5 // the minimum size of an encoded result

func (res *result) code(c *wire.Coder) {
	more := res.RetryAfter != 0 || res.Delay != 0 || res.Used != 0
	hasLoans := res.NetBorrowed != 0
	c.Flags(&res.Allowed, &res.noRoom, &more, &res.Reduced, &hasLoans)
	wire.Number(c, &res.Remaining, algorithms.MaxAmount)
	wire.Number(c, &res.ResetAfter, math.MaxInt64)
	wire.Number(c, &res.MoreAfter, math.MaxInt64)
	wire.Varint(c, &res.mark)

	if more {
		wire.Varint(c, &res.RetryAfter)
		wire.Number(c, &res.Delay, math.MaxInt64)
		wire.Number(c, &res.Used, math.MaxInt64)
		c.Require(res.RetryAfter >= algorithms.Never)
	}

	if hasLoans {
		wire.Varint(c, &res.NetBorrowed)
		c.Require(res.NetBorrowed >= -math.MaxInt64/2 && res.NetBorrowed <= math.MaxInt64/2)
	}
}
