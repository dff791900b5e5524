package limiter

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// clusterCheck is a check that a single Take on this node can't decide. The
// package comment describes its steps. The Answer keeps it, so that its next
// check can use the memory again.
type clusterCheck struct {
	limiter       *Limiter
	answer        *Answer
	active        *activeRules
	now           algorithms.Instant
	peek          bool
	peeksAreLooks bool // its peeks count as looks; see Query.PeeksAreLooks
	// anyVersion means that no owner turns the check away for old rules, because
	// the subjects came with their limits or were matched before the check.
	anyVersion      bool
	ignoreNewer     bool      // ask owners to decide even if they have newer rules
	askSeparately   bool      // the first round of questions was sent: from now on each subject has its own question
	deadline        time.Time // the check must be decided by then; see setDeadlines
	pendingDeadline time.Time // when to stop waiting for pending partitions

	subjects        []subject
	decided         int           // number of decided subjects
	weakest         DecidedBy     // the weakest way in which a subject was decided
	asks            []*pendingAsk // in flight
	newerVersion    int64         // the newest rules of an owner that turned the check away for its old ones; 0: none did
	refusedOrFailed bool          // a subject is refused, or the check has failed

	fallbackOps []counters.Op      // ops of the subjects that this node decided alone
	byCounter   []bool             // by index in fallbackOps: a fallback counter decides the op, not needsCounter
	shares      []algorithms.Limit // limits that fallbackOps refer to
	selected    []int              // indexes in subjects; reused
	gatheredOps []counters.Op      // ops of several subjects side by side; reused
}

// subject is one subject of a check. A check's subjects are in the order of its hits.
type subject struct {
	candidates
	firstOp, numOps int // index and number of its ops
	state           subjectState
	to              ring.NodeID             // stateAskOwner, stateAskStandby
	problem         partitions.OwnerProblem // why the owner can't decide
	ask             *pendingAsk             // stateAwaitReply
	mayHoldSlots    bool                    // the owner may have stored slots even before ask
	subjectDecision
}

// subjectDecision says how a subject was decided, and how to undo the decision.
type subjectDecision struct {
	decidedBy      DecidedBy
	admitted       bool // the subject was admitted, and so were all subjects decided together with it
	reportsUntaken bool // the subject's decisions already report the cost as not taken
	undo           undo

	decidedAt       algorithms.Instant // undoHere, undoFallback
	life            counters.Life      // undoHere, undoFallback: of the counters
	firstFallbackOp int                // undoFallback: index of its ops in clusterCheck.fallbackOps
	receipt         localcache.Receipt // undoLease
	answeredBy      *pendingAsk        // undoAsked
}

// undo says how to give back what a subject took.
type undo uint8

const (
	undoNothing undo = iota // nothing was taken, or a standby admitted it and keeps the debt
	undoHere
	undoFallback
	undoLease
	undoAsked
)

// reset prepares c for a new check; begin resets the other fields.
func (c *clusterCheck) reset(l *Limiter, q *Query, a *Answer) {
	c.limiter = l
	c.answer = a
	c.active = a.scratch.active
	c.now = a.Now

	c.peek = q.Peeks()
	c.peeksAreLooks = q.PeeksAreLooks
	c.anyVersion = len(q.Subjects) > 0

	c.ignoreNewer = false
	c.deadline = time.Time{}
	c.pendingDeadline = time.Time{}
}

// addSubject appends a subject, reusing the slices of the subject that was in
// this place in the previous check.
func (c *clusterCheck) addSubject() *subject {
	n := len(c.subjects)
	if n == cap(c.subjects) {
		c.subjects = slices.Grow(c.subjects, 1)
	}
	c.subjects = c.subjects[:n+1]
	s := &c.subjects[n]
	tried, unreached, redirected := s.tried[:0], s.unreached[:0], s.redirected[:0]
	*s = subject{}
	s.tried, s.unreached, s.redirected = tried, unreached, redirected
	return s
}

// selectSubjects puts the subjects in the given state into c.selected, and
// reports whether there are any.
func (c *clusterCheck) selectSubjects(state subjectState) bool {
	c.selected = c.selected[:0]
	for i := range c.subjects {
		if c.subjects[i].state == state {
			c.selected = append(c.selected, i)
		}
	}
	return len(c.selected) > 0
}

func (c *clusterCheck) ops(s *subject) []counters.Op {
	return c.answer.scratch.ops[s.firstOp : s.firstOp+s.numOps]
}

// markDecided records how s was decided. If admitted is false, s or a subject
// decided together with it was refused.
func (c *clusterCheck) markDecided(s *subject, by DecidedBy, admitted bool, undo undo) {
	s.state = stateDecided
	s.decidedBy = by
	s.admitted = admitted
	s.reportsUntaken = !admitted
	s.undo = undo
	c.decided++
	c.weakest = min(c.weakest, by)

	if by <= ByStandby { // decided without the owner
		limits := c.answer.Limits[s.firstOp : s.firstOp+s.numOps]
		for i := range limits {
			limits[i].byNodeShare = by == ByStandby || limits[i].Rule.OnPartition == rules.Share
		}
	}
}

// failWith ends the check undecided, with err: ErrTooManyReservations,
// ErrRequestIDReused, ErrTryAgain if no node may decide about slots for now, or
// errUnconfirmed. What the check took is rolled back, as after a refusal.
func (c *clusterCheck) failWith(err error) {
	c.answer.scratch.failure = err
	c.refusedOrFailed = true
}
