package limiter

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter/top"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/entries"
)

// Limiter decides checks. All methods may be called concurrently.
type Limiter struct {
	table           *counters.Table
	clock           *Clock
	active          atomic.Pointer[activeRules]
	tops            [top.EventKinds]*top.List // by top.By
	nearLimits      *top.NearLimits
	fullSamplesLeft atomic.Int32  // how many further checks of this second are sampled without exception
	answersUsed     atomic.Uint32 // number of Answers that have been used; see stripes
	cluster         *clusterPart  // nil for a standalone node
	boot            uint64        // ClusterConfig.Boot; 0 for a standalone node
	startedAt       time.Time
	activityRound   cachedRound[[]NodeActivity]
	vitals          func() Vitals // nil: not known
	intervals       intervals
	unknownRules    atomic.Int64 // checks and other calls that named a rule that does not exist
	undeclared      atomic.Int64 // attributes of checks that the document does not declare
	meter           Meter        // counts admitted cost for billing; may be nil
	refusalLog      *refusalLog  // nil if nobody follows them
	waitingRoom     waitingRoom

	reservations reservations
	requests     requests
	// ratesChangedAt is the steady time at which the rates of this node's limits
	// may last have changed: by new rules, by another step, or because another node
	// decided by other rules.
	ratesChangedAt atomic.Int64

	wallClock func() int64 // the wall time in Unix ms; nil without a clock

	mu          sync.Mutex // serialises SetRules, SetEntries and UpdateSteps; guards the fields below
	loadSteps   func(*rules.Set) []int
	loadLeft    func(source string) time.Duration // see FollowLoads; may be nil
	notHonoured rules.NotHonoured
	entries     *entries.State
}

// Clock returns the limiter's clock.
func (l *Limiter) Clock() *Clock { return l.clock }

// Check decides q now and writes the outcome to a. After an error, a is
// invalid. The error wraps ErrUnknownRule, ErrKey, ErrInline, ErrNamespace,
// ErrAtMost, ErrAcquire, ErrLevelTooLow, ErrRulesChanged or ErrTryAgain.
//
// A q with a RequestID is decided once within a minute: a repetition gets the
// same answer. Such a q must count for a subject (counters.CountMode), and the
// error may also be one of Reserve's.
func (l *Limiter) Check(q *Query, a *Answer) error {
	if q.isOnceOrAtMost() {
		return l.checkOnceOrAtMost(q, a)
	}
	if err := l.match(0, q, a); err != nil {
		return err
	}
	return l.decide(l.clock.Now(), q, a)
}

// CheckAt decides q as of now. It ignores q.RequestID and q.AtMost.
func (l *Limiter) CheckAt(now algorithms.Instant, q *Query, a *Answer) error {
	if err := l.match(now.Wall, q, a); err != nil {
		return err
	}
	return l.decide(now, q, a)
}

// decide decides a matched check.
func (l *Limiter) decide(now algorithms.Instant, q *Query, a *Answer) error {
	if err := l.listOps(now, q, a); err != nil {
		return err
	}

	var err error
	switch {
	case a.scratch.matchDecides:
	case q.AwaitsLoan:
		err = l.decideWithLoan(now.Steady, q, a, func() error { return l.decidePrepared(q, a) })
	default:
		err = l.decidePrepared(q, a)
	}
	if err != nil {
		return err
	}

	l.account(q, a)
	return nil
}

// decidePrepared decides a prepared check, and waits for other nodes if need
// be. The caller accounts for the check.
func (l *Limiter) decidePrepared(q *Query, a *Answer) error {
	if q.Waits && !a.scratch.bypassLeases && a.mayDelay() {
		return l.decideInQueue(q, a)
	}
	if l.tryDecide(q, a) {
		return a.scratch.failure
	}
	return l.finish(q, a)
}

// decideInQueue is decidePrepared for a caller that waits for its turn. The check
// spends no lease: if the caller stops waiting, all of the cost can come back.
func (l *Limiter) decideInQueue(q *Query, a *Answer) error {
	restore := a.addOptions(func(o *options) { o.bypassLeases = true })
	defer restore()

	if l.cluster == nil { // in a cluster, takeHere reads the life of each subject
		a.readLives(l)
	}

	// The check bypasses leases now, so decidePrepared does not come back here.
	if err := l.decidePrepared(q, a); err != nil {
		return err
	}
	l.setQueuePlace(a)
	return nil
}

// tryDecide decides a prepared check if it needs no reply from another node, and
// reports whether it did. Otherwise it sends the questions, and finish waits
// for the replies.
func (l *Limiter) tryDecide(q *Query, a *Answer) (done bool) {
	sc := &a.scratch
	unauthorized := false

	// If this node owns all subjects of the check, it ends here. This path must not
	// allocate (TestOwnChecksDoNotAllocate).
	if l.mayDecideHere(a) {
		verdict, authorized := l.takeAsOwner(a.Now, sc.ops, q.Peeks(), sc.acquiring)
		if verdict != counters.Undecided {
			a.markDecidedHere(verdict)
			a.conclude(l)
			return true
		}
		unauthorized = !authorized
	}

	if sc.clusterCheck == nil {
		sc.clusterCheck = &clusterCheck{}
	}

	c := sc.clusterCheck
	c.reset(l, q, a)
	c.begin(unauthorized)

	// With questions in flight, finish waits for the replies, and concludes then.
	if len(c.asks) > 0 {
		return false
	}
	return c.tryConclude()
}

// mayDecideHere reports whether this node's table may decide all ops of a
// prepared check. takeAsOwner checks authority.
func (l *Limiter) mayDecideHere(a *Answer) bool {
	sc := &a.scratch
	return l.cluster == nil || !sc.hasLocal && !sc.bypassLeases && l.table.AllOpen(sc.ops)
}

// markDecidedHere records that this node decided the whole check as the owner.
func (a *Answer) markDecidedHere(v counters.Verdict) {
	a.Allowed = v == counters.Admitted
	a.DecidedBy = ByOwner
	a.scratch.opsAsListed = true

	// If the shards have seen a later time than a.Now, they decided as of that
	// time. All ops of a Take have the same steady time, so the first op tells how
	// much later it is. The op's At.Wall may follow another node's clock, so this
	// node's own wall time moves by the same amount instead.
	late := a.scratch.ops[0].At.Steady - a.Now.Steady
	if late > 0 {
		a.Now.Steady += late
		a.Now.Wall += late
	}
}

// finish completes a check that tryDecide left undecided. It waits for replies, and
// asks again, until the check is decided. The caller accounts for it.
func (l *Limiter) finish(q *Query, a *Answer) error {
	c := a.scratch.clusterCheck
	for {
		c.collectReplies()

		// An owner has newer rules. Take back what was taken, and decide the check
		// again by the newer rules.
		if c.newerVersion > 0 && !c.ignoreNewer {
			c.rollBack()
			l.catchUp(l.cluster.ctx, 0, c.newerVersion)

			// Do this only once: if this node has authority, its next questions ask
			// owners to decide even if their rules are newer; see newAsk.
			c.ignoreNewer = true

			c.now = l.clock.Now()
			done, err := l.prepare(c.now, q, a)
			if err != nil {
				return err
			}
			a.beginRematch(q)
			if done {
				break // by the newer rules, no counter is needed
			}

			c.active = a.scratch.active
			c.begin(false)
			continue
		}

		isDecided := c.tryConclude()
		if isDecided {
			break
		}

		c.advance()
	}

	return a.scratch.failure
}

// beginRematch adapts a, which prepare has just set up anew by newer rules,
// to what the first round has done.
func (a *Answer) beginRematch(q *Query) {
	// The first round's subjects are rolled back already. begin removes them, but
	// does not run if the newer rules need no counter. They must go then, too:
	// readers pair them with the hits by index.
	a.scratch.clusterCheck.subjects = a.scratch.clusterCheck.subjects[:0]

	// The place of the first round goes back with its cost, perhaps only after the
	// second round has made its place. The second place has an id of its own, so
	// that the late refund does not drop it.
	if a.scratch.place != nil {
		a.scratch.place = a.newPlaceRequest(q, a.scratch.place.ttl)
	}

	// If an earlier attempt has acquired the slots, it has also paid the other
	// costs. prepare has just listed these costs again.
	if a.scratch.acquiring != nil && a.scratch.acquiring.isRepetition {
		a.dropPaidCosts()
	}
}
