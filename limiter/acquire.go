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
// asks the owners. Each owner stores its slots, and answers only once the slots
// would outlive it; see docs/design/slots.md.

const (
	// confirmSlotsTimeout bounds how long an owner waits until a slot would outlive it.
	confirmSlotsTimeout = 500 * time.Millisecond
	// rollbackTimeout bounds how long a refused acquire waits until its slots are
	// released. After that, they are released in the background.
	rollbackTimeout = 100 * time.Millisecond
	// defaultSlotTTL is the ttl of a slot if no limit of slots applied.
	defaultSlotTTL = time.Minute
)

// Acquire decides q as Check does, and also takes q.Slots slots of each limit of
// slots. They last for q.SlotTTL or for the limit's ttl, whichever is shorter.
// If q is allowed, any node can renew and release the slots by the returned ID
// ([Limiter.RenewSlot], [Limiter.ReleaseSlot]); a refused q gets a zero Slot. If
// an earlier call with q's RequestID holds slots, Acquire returns these slots
// and takes nothing. After an error the caller holds nothing, but a repetition
// of q may return slots that this call acquired. The error wraps one of Check's
// errors, ErrNoSlots, ErrSlotTTL, ErrTooManySlots, ErrRequestIDReused or
// ErrTryAgain.
func (l *Limiter) Acquire(q *Query, a *Answer) (Slot, error) {
	restore := a.addOptions(func(o *options) { o.takesSlots = true })
	defer restore()
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

// acquire decides q, for which a is prepared, and takes the slots of acq. done
// means that prepare has already decided q.
func (l *Limiter) acquire(q *Query, a *Answer, acq *acquisition, done bool) (slot Slot, err error) {
	// A lease has no slots. In a cluster, a check that bypasses leases is always a
	// cluster check, whose subjects confirmHere reads.
	restore := a.addOptions(func(o *options) { o.bypassLeases = true })
	defer restore()

	if !done {
		err = l.decideAcquisition(q, a, acq, func() error { return l.decidePrepared(q, a) })
	}
	if err != nil {
		return Slot{}, err
	}

	// The earlier attempt is in the metrics, and on the bill, already.
	if !acq.isRepetition {
		l.account(q, a)
	}
	if !a.Allowed {
		return Slot{}, nil
	}

	sl := acq.slot(l, a)
	if sl.alone {
		l.reportSlot(sl)
	}
	return Slot{ID: sl.pack(l), Expires: sl.expires(), isRepetition: acq.isRepetition}, nil
}

// validateSlots returns an error if q, for which a is prepared, can't acquire slots.
func (a *Answer) validateSlots(q *Query) error {
	longest := time.Duration(0)
	acquires := false
	for i := range a.scratch.ops {
		op := &a.scratch.ops[i]
		if op.Limit.Kind == algorithms.Concurrency {
			longest = max(longest, op.Limit.Window)
			acquires = true
		}
	}

	named := q.ByKey || len(q.Subjects) > 0
	switch {
	case !acquires && named && len(a.scratch.ops) > 0 && !a.scratch.matchDecides:
		return ErrNoSlots
	case acquires && q.SlotTTL > longest:
		return fmt.Errorf("%w: %d; the limit's ttl is %d ms", ErrSlotTTL,
			q.SlotTTL.Milliseconds(), longest.Milliseconds())
	}

	return nil
}

// decideAcquisition decides q, for which a is prepared, with decide and with the
// loans that q awaits. acq says which slots q acquires; nil if it acquires none.
func (l *Limiter) decideAcquisition(q *Query, a *Answer, acq *acquisition, decide func() error) error {
	began := a.Now.Steady
	withLoan := func() error { return l.decideWithLoan(began, q, a, decide) }
	if acq == nil {
		return withLoan()
	}
	return l.acquireConfirmed(q, a, acq, withLoan)
}

// acquireConfirmed runs attempt, which decides q, and makes sure that the slots
// that q acquires would outlive their owners. If q is not admitted in the end,
// acquireConfirmed releases the slots. If an owner could not confirm its slots,
// as when their partition moves, acquireConfirmed takes everything back and
// decides q again, for as long as a check would wait for a pending partition.
func (l *Limiter) acquireConfirmed(q *Query, a *Answer, acq *acquisition, attempt func() error) error {
	began := time.Now()
	if a.scratch.deadline.IsZero() {
		restore := a.addOptions(func(o *options) { o.deadline = began.Add(checkTimeout - replySlack) })
		defer restore()
	}

	for pause := firstAcquirePause; ; pause *= 4 {
		err := l.tryAcquire(q, a, acq, attempt)

		// acquireHere marks the slot as granted by acq's id and nonce, so they must not
		// change: no second attempt here. If the slots have moved, acquireHere leaves
		// the acquire to the next owner.
		if !errors.Is(err, errUnconfirmed) || acq.isAtHome || time.Since(began)+pause > pendingTimeout ||
			time.Until(a.scratch.deadline) < pause {
			return err
		}

		time.Sleep(pause)
		if done, err := l.prepare(l.clock.Now(), q, a); err != nil || done {
			return err
		}
		*acq = *a.newAcquisition(q) // a late release of this attempt's slots must not release the next one's
	}
}

// firstAcquirePause is acquireConfirmed's first pause. Each later one is four times as long.
const firstAcquirePause = time.Millisecond

// tryAcquire makes one attempt of acquireConfirmed.
func (l *Limiter) tryAcquire(q *Query, a *Answer, acq *acquisition, attempt func() error) error {
	restore := a.addOptions(func(o *options) { o.acquiring = acq })
	defer restore()

	err := attempt()
	switch {
	case err != nil:
	case a.Allowed && !l.confirmHere(a):
		// The costs of the other limits go back here. The slots are released below.
		a.scratch.clusterCheck.rollBack()
		err = errUnconfirmed
	case !a.Allowed && acq.isIDReused:
		err = ErrRequestIDReused
	case !a.Allowed && a.lacksSlotRoom():
		err = ErrTooManySlots
	}

	rest := acq.maybeStored
	if acq.isRepetition && (err != nil || !a.Allowed) {
		// The caller of the earlier attempt may hold them.
		rest = nil
	}

	// An admitted check keeps its slots. But if newer rules came while it was
	// decided, the first round may have taken slots of limits that the newer rules
	// lack. Release those.
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
// their owner, would outlive this node.
func (l *Limiter) confirmHere(a *Answer) bool {
	if l.cluster == nil {
		return true
	}
	var stored []storedAt
	c := a.scratch.clusterCheck
	for i := range c.subjects {
		s := &c.subjects[i]
		if s.undo == undoHere && hasSlots(c.ops(s)) {
			stored = append(stored, storedAt{ring.PartitionOf(s.keySubject), s.life.Lineage})
		}
	}
	return l.confirmSlots(stored)
}
