package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// RenewSlot makes a slot last for ttl from now on, or for as long as it was
// acquired for if ttl is zero, but no longer than its limit says. The error
// wraps ErrUnknownSlot if the slot is over, or ErrTryAgain if not all owners
// have confirmed the renewal.
func (l *Limiter) RenewSlot(id string, ttl time.Duration) (expires time.Duration, err error) {
	sl, err := l.parseSlot(id)
	if err != nil {
		return 0, err
	}

	l.prolong(sl, ttl)
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()

	// The owners may not know yet of a slot that was granted alone.
	mayRestore := sl.alone && l.clock.Now().Wall < sl.madeAt+int64(maxAloneSlot)

	_, errs := l.askSlots(ctx, slotRequest{verb: slotRenew, id: sl.id, nonce: sl.nonce, mayRestore: mayRestore}, sl.parts)
	var gone, later bool
	for i, err := range errs {
		switch {
		case err == nil || sl.parts[i].shadow: // a shadow limit refuses nothing, whatever it counts
		case errors.Is(err, ErrUnknownSlot):
			gone = true
		default:
			later = true
		}
	}

	switch {
	case gone: // the other parts are of no use to the holder
		l.release(ctx, sl)
		return 0, ErrUnknownSlot
	case later:
		return 0, ErrTryAgain
	}

	return sl.expires(), nil
}

// prolong makes sl last for ttl from now on, or for as long as it was acquired
// for if ttl is zero, but no longer than its limits allow now.
func (l *Limiter) prolong(sl *slot, ttl time.Duration) {
	sl.left = cmp.Or(ttl, defaultSlotTTL)
	for i := range sl.parts {
		part := &sl.parts[i]
		longest := l.longestTTL(part)
		part.holdFor = min(cmp.Or(ttl, part.holdFor), longest)
		if i == 0 || part.holdFor < sl.left {
			sl.left = part.holdFor
		}
	}
}

// maxAloneSlot is how long renewals may put back a slot that a cut-off node has
// granted, even above the limit. After that time, the owners know of it.
const maxAloneSlot = MaxSlotTTL

// longestTTL returns the longest ttl that the rules in force allow a slot: that
// of its limit or, if that limit is gone, the longest of its rule. If the rule
// is gone, too, or the limit came with the call, the ID has the longest ttl.
func (l *Limiter) longestTTL(part *slotPart) time.Duration {
	active := l.active.Load()
	if active == nil || part.Key.IsInline() {
		return part.TTL
	}

	if ttl, found := active.set.SlotTTL(part.source); found {
		return ttl
	}
	if ttl, found := active.slotTTL(part.Group); found {
		return ttl
	}
	return part.TTL
}

// ReleaseSlot releases a slot, and reports whether it was held. A second call
// releases nothing. The error wraps ErrUnknownSlot if id is not a slot's, or
// ErrTryAgain. This node then releases the slot as soon as its owners can be
// reached, unless it does not know the cluster's secret yet and can't read id.
func (l *Limiter) ReleaseSlot(id string) (held bool, err error) {
	sl, err := l.parseSlot(id)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	held, done := l.release(ctx, sl)
	if !done {
		return false, ErrTryAgain
	}
	return held, nil
}

// ReleaseUnanswered releases a slot whose caller did not get the answer. If a
// repetition of the request was answered with the same slot, the slot stays:
// the caller of the repetition holds it. A slot that can't be released now is
// released as soon as its owners can be reached.
func (l *Limiter) ReleaseUnanswered(s Slot) {
	sl, err := l.parseSlot(s.ID)
	if err != nil || s.isRepetition || len(sl.parts) == 0 { // without parts, no limit of slots applied
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	if sl.alone { // no repetition was answered with it
		l.release(ctx, sl)
		return
	}

	// Only the owner of the first slots knows whether a repetition was answered
	// with the slot. If one was, no part of the slot may be released.
	first := sl.first()
	req := slotRequest{verb: slotReleaseUnanswered, id: sl.id, nonce: sl.nonce}
	req.list = sl.parts[first : first+1]
	req.rest = slices.Delete(slices.Clone(sl.parts), first, first+1)
	if !req.try(ctx, l, 0) {
		l.enqueueSlotRequest(req)
	}
}

// first returns the index of the part whose owner has decided the acquire, if
// the acquire had a request id; see Answer.firstSlots.
func (sl *slot) first() int {
	first := slices.IndexFunc(sl.parts, func(part slotPart) bool { return !part.shadow })
	return max(0, first)
}

// SlotOf returns the slot of a reservation that was just made or repeated. The
// slot is held as long as its limit says, and settling the reservation releases
// it. found is false if the reservation has no slot, or if reservation is not a
// valid id.
func (l *Limiter) SlotOf(reservation string) (sl Slot, found bool) {
	key, known := l.reservations.signingKey("reservation")
	rv, err := parseReservation(reservation, key)
	if !known || err != nil || rv.slot == nil {
		return Slot{}, false
	}
	l.prolong(rv.slot, 0)
	return Slot{ID: rv.slot.pack(l), Expires: rv.slot.expires()}, true
}

// renewSlotOf renews the slot of a reservation that is repeated: the caller
// counts from the repetition. The error is as for RenewSlot.
func (l *Limiter) renewSlotOf(reservation string) error {
	sl, some := l.SlotOf(reservation)
	if !some {
		return nil
	}
	_, err := l.RenewSlot(sl.ID, 0)
	return err
}

// releaseByShortID releases the slot of u's subject that has the given short
// ID, whatever its nonce. Then the slot can't be renewed. The error wraps
// ErrUnknownSlot if the slot is not held, or ErrNoOwner.
func (l *Limiter) releaseByShortID(u *Usage, short string) error {
	id, err := strconv.ParseUint(short, 16, 64)
	if err != nil || len(short) != len(ShortSlotID(0)) {
		return fmt.Errorf("%w: its id has 16 hexadecimal digits", ErrUnknownSlot)
	}

	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()

	h := rules.Hit{Rule: u.Rule, Subject: u.Hash}

	held := false
	for i := range u.Limits {
		limit := u.Limits[i].Limit
		if limit.Kind != algorithms.Concurrency || limit.Unlimited {
			continue
		}

		part := slotPart{SlotPart: counters.SlotPart{Key: counterKey(&h, limit), Units: 1,
			TTL: limit.Limit.Window}, holdFor: limit.Limit.Window}
		result, err := l.askSlot(ctx, &slotRequest{verb: slotReleaseAny, id: id, list: []slotPart{part}})
		if err != nil {
			return fmt.Errorf("release a slot of %q: %w", u.Rule.Name, err)
		}

		held = held || result.units > 0
	}

	if !held {
		return ErrUnknownSlot
	}

	return nil
}
