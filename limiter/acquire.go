package limiter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// A slot is acquired, renewed and released. An acquire is a check that always
// asks the owners. Each owner stores its slots, and answers only once they
// would survive its death; see docs/design/slots.md.

const (
	// outliveTimeout bounds how long an owner waits until a slot would outlive it.
	outliveTimeout = 500 * time.Millisecond
	// rollbackTimeout bounds how long a refused acquire waits until its slots are
	// released. After that, they are released in the background.
	rollbackTimeout = 100 * time.Millisecond
	// defaultSlotTTL is the ttl of a slot to which no limit of slots applied.
	defaultSlotTTL = time.Minute
)

// Acquire decides q as Check does, and takes slots of its limits of slots:
// q.Slots of each, for q.SlotTTL or the limit's ttl, whichever is shorter. If q
// is allowed, any node can renew and release them by the returned ID
// ([Limiter.RenewSlot], [Limiter.ReleaseSlot]). If q's RequestID holds slots
// already, Acquire returns these, and takes nothing. After an error the caller
// holds nothing, but repeating q may return slots that were acquired by then.
// The error wraps one of Check's errors, ErrNoSlots, ErrSlotTTL,
// ErrTooManySlots, ErrRequestIDReused or ErrTryAgain.
func (l *Limiter) Acquire(q *Query, a *Answer) (Slot, error) {
	defer a.addTerms(func(t *terms) { t.takesSlots = true })()
	done, err := l.prepare(l.clock.Now(), q, a)
	if err != nil {
		return Slot{}, err
	}
	if err := a.validateSlots(q); err != nil {
		return Slot{}, err
	}

	if q.RequestID == "" || done || !hasSlots(a.scratch.ops) {
		return l.acquire(q, a, a.newAcquisition(q), done)
	}
	return l.acquireOnce(q, a)
}

// acquire decides q, for which a is prepared, and takes what hd says. done means
// that prepare has already decided it.
func (l *Limiter) acquire(q *Query, a *Answer, hd *acquisition, done bool) (slot Slot, err error) {
	// No lease has slots, and outlivesHere needs the subjects of a cluster
	// check.
	defer a.addTerms(func(t *terms) { t.bypassesLeases = true })()
	if !done {
		err = l.resolveAcquisition(q, a, hd, func() error { return l.resolve(q, a) })
	}
	if err != nil {
		return Slot{}, err
	}

	// The earlier attempt was counted, and is on the bill.
	if !hd.isRecalled {
		l.recordMetrics(q, a)
	}
	if !a.Allowed {
		return Slot{}, nil
	}

	sl := hd.slot(l, a)
	if sl.alone {
		l.tellSlot(sl)
	}
	return Slot{ID: sl.pack(l), Expires: sl.expires(), isRecalled: hd.isRecalled}, nil
}

// validateSlots returns an error if q, for which a is prepared, can't acquire slots.
func (a *Answer) validateSlots(q *Query) error {
	longest := time.Duration(0)
	hasSlots := false
	for i := range a.scratch.ops {
		op := &a.scratch.ops[i]
		if op.Limit.Kind == algorithms.Concurrency {
			longest = max(longest, op.Limit.Window)
			hasSlots = true
		}
	}

	named := q.ByKey || len(q.Subjects) > 0
	switch {
	case !hasSlots && named && len(a.scratch.ops) > 0 && !a.scratch.matchDecides:
		return ErrNoSlots
	case hasSlots && q.SlotTTL > longest:
		return fmt.Errorf("%w is %d; the limit's ttl is %d ms", ErrSlotTTL,
			q.SlotTTL.Milliseconds(), longest.Milliseconds())
	}

	return nil
}

// resolveAcquisition decides q, for which a is prepared, with resolve and with the
// loans that q awaits. hd says which slots q acquires; nil if it acquires none.
func (l *Limiter) resolveAcquisition(q *Query, a *Answer, hd *acquisition, resolve func() error) error {
	began := a.Now.Steady
	withLoan := func() error { return l.resolveWithLoan(began, q, a, resolve) }
	if hd == nil {
		return withLoan()
	}
	return l.hold(q, a, hd, withLoan)
}

// hold runs attempt, which decides q, and makes sure that the slots that q
// acquires would outlive their owners. If q is not admitted in the end, hold
// releases them. If a partition moves meanwhile, hold takes everything back and
// decides q again at the next owner, for as long as a check would wait for a
// pending partition.
func (l *Limiter) hold(q *Query, a *Answer, hd *acquisition, attempt func() error) error {
	began := time.Now()
	if a.scratch.deadline.IsZero() {
		defer a.addTerms(func(t *terms) { t.deadline = began.Add(checkTimeout - replySlack) })()
	}

	for pause := firstHoldPause; ; pause *= 4 {
		err := l.tryHold(q, a, hd, attempt)

		// An acquire that is decided at home is not tried again here: acquireHere
		// grants the slot of its own attempt, by its nonce. If the slots have moved, it
		// leaves the acquire to the next owner.
		if !errors.Is(err, errUnconfirmed) || hd.isAtHome || time.Since(began)+pause > pendingTimeout {
			return err
		}

		time.Sleep(pause)
		if done, err := l.prepare(l.clock.Now(), q, a); err != nil || done {
			return err
		}
		*hd = *a.newAcquisition(q) // a late release of this attempt's slots must not release the next one's
	}
}

// firstHoldPause is the pause before hold decides anew. The later ones are longer.
const firstHoldPause = time.Millisecond

// tryHold makes one attempt of hold.
func (l *Limiter) tryHold(q *Query, a *Answer, hd *acquisition, attempt func() error) error {
	defer a.addTerms(func(t *terms) { t.holding = hd })()
	err := attempt()
	switch {
	case err != nil:
	case a.Allowed && !l.outlivesHere(a):
		// The costs of the other limits go back here. The slots are released below.
		a.scratch.cluster.rollBack()
		err = errUnconfirmed
	case !a.Allowed && a.lacksSlotRoom():
		err = ErrTooManySlots
	}

	rest := hd.taken
	if hd.isRecalled && (err != nil || !a.Allowed) {
		// The caller of the earlier attempt may hold them.
		rest = nil
	}
	// Newer rules may have fewer limits than those by which the first round took
	// slots. Release the slots of the other limits.
	if err == nil && a.Allowed {
		isHeld := func(part slotPart) bool {
			return slices.ContainsFunc(a.scratch.ops, func(op counters.Op) bool { return op.Key == part.Key })
		}
		rest = slices.DeleteFunc(slices.Clone(rest), isHeld)
	}
	if len(rest) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
		defer cancel()
		l.releaseParts(ctx, slotRequest{verb: slotRelease, id: hd.id, nonce: hd.nonce}, rest)
	}
	return err
}

// lacksSlotRoom reports whether an owner refused a for lack of room for its slots.
func (a *Answer) lacksSlotRoom() bool {
	return slices.ContainsFunc(a.Limits, func(la LimitAnswer) bool {
		return la.Full && la.Limit.Kind == algorithms.Concurrency && !la.Rule.Shadow
	})
}

// outlivesHere reports whether the slots that this node has stored for a, as
// their owner, would outlive it.
func (l *Limiter) outlivesHere(a *Answer) bool {
	if l.membership == nil {
		return true
	}
	var stored []storedAt
	c := a.scratch.cluster
	for i := range c.subjects {
		s := &c.subjects[i]
		if s.undo == undoHere && hasSlots(c.ops(s)) {
			stored = append(stored, storedAt{ring.PartitionOf(s.subject), s.life.Lineage})
		}
	}
	return l.outlive(stored)
}
