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
	// confirmSlotsTimeout bounds how long an owner waits until a slot would outlive it.
	confirmSlotsTimeout = 500 * time.Millisecond
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
	defer a.addOptions(func(o *options) { o.takesSlots = true })()
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

// acquire decides q, for which a is prepared, and takes what acq says. done means
// that prepare has already decided it.
func (l *Limiter) acquire(q *Query, a *Answer, acq *acquisition, done bool) (slot Slot, err error) {
	// No lease has slots, and confirmHere needs the subjects of a cluster
	// check.
	defer a.addOptions(func(o *options) { o.bypassesLeases = true })()
	if !done {
		err = l.resolveAcquisition(q, a, acq, func() error { return l.resolve(q, a) })
	}
	if err != nil {
		return Slot{}, err
	}

	// The earlier attempt was counted, and is on the bill.
	if !acq.isRepetition {
		l.recordMetrics(q, a)
	}
	if !a.Allowed {
		return Slot{}, nil
	}

	sl := acq.slot(l, a)
	if sl.alone {
		l.tellSlot(sl)
	}
	return Slot{ID: sl.pack(l), Expires: sl.expires(), isRepetition: acq.isRepetition}, nil
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
// loans that q awaits. acq says which slots q acquires; nil if it acquires none.
func (l *Limiter) resolveAcquisition(q *Query, a *Answer, acq *acquisition, resolve func() error) error {
	began := a.Now.Steady
	withLoan := func() error { return l.resolveWithLoan(began, q, a, resolve) }
	if acq == nil {
		return withLoan()
	}
	return l.acquireConfirmed(q, a, acq, withLoan)
}

// acquireConfirmed runs attempt, which decides q, and makes sure that the slots
// that q acquires would outlive their owners. If q is not admitted in the end, it
// releases them. If a partition moves meanwhile, it takes everything back and
// decides q again at the next owner, for as long as a check would wait for a
// pending partition.
func (l *Limiter) acquireConfirmed(q *Query, a *Answer, acq *acquisition, attempt func() error) error {
	began := time.Now()
	if a.scratch.deadline.IsZero() {
		defer a.addOptions(func(o *options) { o.deadline = began.Add(checkTimeout - replySlack) })()
	}

	for pause := firstAcquirePause; ; pause *= 4 {
		err := l.tryAcquire(q, a, acq, attempt)

		// An acquire that is decided at home is not tried again here: acquireHere
		// grants the slot of its own attempt, by its nonce. If the slots have moved, it
		// leaves the acquire to the next owner.
		if !errors.Is(err, errUnconfirmed) || acq.isAtHome || time.Since(began)+pause > pendingTimeout {
			return err
		}

		time.Sleep(pause)
		if done, err := l.prepare(l.clock.Now(), q, a); err != nil || done {
			return err
		}
		*acq = *a.newAcquisition(q) // a late release of this attempt's slots must not release the next one's
	}
}

// firstAcquirePause is the pause before acquireConfirmed decides anew. The later ones are longer.
const firstAcquirePause = time.Millisecond

// tryAcquire makes one attempt of acquireConfirmed.
func (l *Limiter) tryAcquire(q *Query, a *Answer, acq *acquisition, attempt func() error) error {
	defer a.addOptions(func(o *options) { o.acquiring = acq })()
	err := attempt()
	switch {
	case err != nil:
	case a.Allowed && !l.confirmHere(a):
		// The costs of the other limits go back here. The slots are released below.
		a.scratch.cluster.rollBack()
		err = errUnconfirmed
	case !a.Allowed && a.lacksSlotRoom():
		err = ErrTooManySlots
	}

	rest := acq.taken
	if acq.isRepetition && (err != nil || !a.Allowed) {
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
		l.releaseParts(ctx, slotRequest{verb: slotRelease, id: acq.id, nonce: acq.nonce}, rest)
	}
	return err
}

// lacksSlotRoom reports whether an owner refused a for lack of room for its slots.
func (a *Answer) lacksSlotRoom() bool {
	return slices.ContainsFunc(a.Limits, func(la LimitAnswer) bool {
		return la.NoRoom && la.Limit.Kind == algorithms.Concurrency && !la.Rule.Shadow
	})
}

// confirmHere reports whether the slots that this node has stored for a, as
// their owner, would outlive it.
func (l *Limiter) confirmHere(a *Answer) bool {
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
	return l.confirmSlots(stored)
}
