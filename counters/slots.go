package counters

import (
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

// A limit of slots has no counter. Each slot is a note, and what is held is the
// sum of the slots. So slots go wherever notes go, and no count can disagree
// with them.

// ErrOver means that a slot is certainly no longer held.
var ErrOver = errors.New("the slot has ended or was released")

// SlotAttempt is an attempt to acquire the slots of a check.
type SlotAttempt struct {
	ID uint64 // of its slots; one ID acquires a slot only once
	// Nonce identifies this attempt; see NewNonce. If a slot with this ID is held
	// already, the attempt takes it over.
	Nonce uint64
	// TTL is how long the slots last unless renewed, at most their limit's Window;
	// 0 stands for the Window.
	TTL time.Duration
	Who string // at most notes.MaxWho bytes
	// Group identifies the rule of a subject. Rules share the room for slots fairly.
	Group func(subject uint64) uint32
	// IDReused is set by TakeWithSlots, which then refuses: another request with
	// this ID, which asked for something else, has slots of a limit.
	IDReused bool
}

// NewNonce returns the nonce of another attempt to acquire slots. Its lower half
// says what the request asks for.
func NewNonce(contentHash uint64) uint64 {
	return uint64(rand.Uint32())<<32 | contentHash&math.MaxUint32
}

// hasSameContent reports whether two nonces are of requests that ask for the same.
func hasSameContent(nonce, other uint64) bool { return uint32(nonce) == uint32(other) }

// ttlOf returns how long a slot of l lasts.
func (attempt *SlotAttempt) ttlOf(l *algorithms.Limit) time.Duration {
	if attempt.TTL > 0 {
		return min(attempt.TTL, l.Window)
	}
	return l.Window
}

// slotsKeyOf returns the key of the slots of a limit.
func slotsKeyOf(k Key) notes.SlotsKey { return notes.SlotsKey{Subject: k.Subject, Counter: k.Counter} }

// SlotLeft returns how much longer the holder has the slots that op acquired,
// or that the holder already had. It is 0 if that is not known.
func (op *Op) SlotLeft() time.Duration { return time.Duration(op.returnedOrLeft) }

// SetSlotLeft sets what SlotLeft returns.
func (op *Op) SetSlotLeft(left time.Duration) { op.returnedOrLeft = int64(left) }

// slotState returns what is held of l, a limit of slots, as a State. Count is
// the units that are held. Part is the nanoseconds until cost fits, and At
// those until all slots have ended, provided that none is renewed. After slots
// were lost, the limit is full for one Window: by then, the lost ones have
// certainly ended.
func (t *Table) slotState(now algorithms.Instant, k Key, l *algorithms.Limit, cost int64) algorithms.State {
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	held, untilFits, untilAll := lp.HeldSlots(slotsKeyOf(k), now.Steady, l.Amount-cost)

	lostAt, lost := lp.LostAt(k.Subject)
	wait := lostAt + int64(l.Window) - now.Steady
	if lost && wait > 0 {
		return algorithms.State{Count: max(held, l.Amount), Part: wait, At: max(untilAll, wait)}
	}
	return algorithms.State{Count: held, Part: untilFits, At: untilAll}
}

// decideSlot is decideOp for slots. op.state is what was held before.
func (t *Table) decideSlot(op *Op) {
	op.location = location{index: -1}
	op.returnedOrLeft = 0
	op.state = t.slotState(op.At, op.Key, op.Limit, op.Cost)
	after, allowed := op.Limit.Take(op.state, op.At, op.Cost)
	op.Limit.DescribeInto(&op.Decision, after, op.At, op.Cost, allowed)

	// The state says when the whole cost fits. One slot may be free earlier.
	if !allowed && op.Cost > 1 {
		one := t.slotState(op.At, op.Key, op.Limit, 1)
		op.Decision.MoreAfter = time.Duration(one.Part)
	}
}

// adjustForHolder changes the decision of op for the holder that makes attempt.
// It allows slots that the holder already has. It refuses new slots if there is
// no room for their notes, or if another request with the same ID has slots.
func (t *Table) adjustForHolder(op *Op, attempt *SlotAttempt) {
	if op.Mode != CheckMode || op.Cost == 0 || attempt == nil {
		return
	}

	lp := t.notes.Lock(op.Key.Partition(), op.At.Steady)
	defer lp.Unlock()

	// If this repeats a request that has its slots, they are part of what is held
	// already, and must not count twice.
	info, _, found := lp.GetSlot(slotsKeyOf(op.Key), attempt.ID, op.At.Steady)
	if found && hasSameContent(info.Nonce, attempt.Nonce) {
		op.Decision = op.Limit.Describe(op.state, op.At, 0, true)
		return
	}

	// If another request has slots under this ID, they must stay as they are: it
	// may have asked for another number.
	n := attempt.note(op)
	if found || op.Took() && !lp.HasRoomForSlot(&n) {
		attempt.IDReused = attempt.IDReused || found && !op.Shadow
		op.NoRoom = true
		op.Decision.Allowed = false
		op.Decision.RetryAfter = time.Second
	}
}

// note returns the note of the slots that attempt acquires by op.
func (attempt *SlotAttempt) note(op *Op) notes.Note {
	ttl := attempt.ttlOf(op.Limit)
	info := notes.SlotInfo{ID: attempt.ID, Nonce: attempt.Nonce, Units: op.Cost, Acquired: op.At.Steady,
		End: op.At.Steady + int64(ttl), Who: attempt.Who}
	group := uint32(0)
	if attempt.Group != nil {
		group = attempt.Group(op.Key.Subject)
	}
	return slotsKeyOf(op.Key).Note(&info, group, op.Key.IsInline())
}

// commitSlot stores the slots that attempt acquires by op, which was admitted.
// If the same attempt already has them, they keep their end.
func (t *Table) commitSlot(op *Op, attempt *SlotAttempt) {
	if attempt == nil || !op.Took() {
		return
	}

	lp := t.notes.Lock(op.Key.Partition(), op.At.Steady)
	defer lp.Unlock()

	info, _, found := lp.GetSlot(slotsKeyOf(op.Key), attempt.ID, op.At.Steady)

	if found && info.Nonce == attempt.Nonce {
		op.SetSlotLeft(time.Duration(info.End - op.At.Steady))
		return
	}

	// The slot is new, or another attempt with the same ID acquired it. From now
	// on it is this attempt's, and lasts anew.
	n := attempt.note(op)
	lp.Put(&n)
	op.SetSlotLeft(attempt.ttlOf(op.Limit))
	op.Decision.ResetAfter = max(op.Decision.ResetAfter, op.SlotLeft())
}

// SlotPart is a slot of one limit, as its ID says.
type SlotPart struct {
	Key   Key
	Units int64
	TTL   time.Duration // the longest that its limit allows, or allowed when the slot was acquired
	Group uint32
}

// FindSlot returns a slot, and whether it is held. It fails with ErrShut.
func (t *Table) FindSlot(now algorithms.Instant, k Key, id uint64) (info notes.SlotInfo, held bool, err error) {
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	if t.gates.isShut(k.Partition()) {
		return notes.SlotInfo{}, false, ErrShut
	}

	info, _, held = lp.GetSlot(slotsKeyOf(k), id, now.Steady)
	return info, held, nil
}

// MarkSlotGranted records that the check of an attempt, which acquired a slot,
// was admitted as a whole. AdoptGrantedSlot finds only such slots. If the slot
// is gone or the gate is shut, MarkSlotGranted does nothing, and a repetition
// of the request is decided anew.
func (t *Table) MarkSlotGranted(now algorithms.Instant, k Key, id, nonce uint64) {
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	if t.gates.isShut(k.Partition()) {
		return
	}

	info, n, held := lp.GetSlot(slotsKeyOf(k), id, now.Steady)
	if held && info.Nonce == nonce && !info.Granted {
		info.Granted = true
		n = slotsKeyOf(k).Note(&info, n.Group, n.Inline)
		lp.Put(&n)
	}
}

// AdoptGrantedSlot finds the slot of an earlier attempt that was granted, and
// returns that attempt's nonce. The caller then answers the repeated request
// with the slot. So from now on, ReleaseSlot with unlessRepeated leaves the
// slot alone. AdoptGrantedSlot fails with ErrShut, or with ErrRequestIDReused
// if the earlier attempt, as its nonce says, asked for something else.
func (t *Table) AdoptGrantedSlot(now algorithms.Instant, k Key, id, nonce uint64) (earlier uint64, found bool, err error) {
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	if t.gates.isShut(k.Partition()) {
		return 0, false, ErrShut
	}

	info, n, held := lp.GetSlot(slotsKeyOf(k), id, now.Steady)
	switch {
	case !held:
		return 0, false, nil
	case !hasSameContent(info.Nonce, nonce):
		return 0, false, ErrRequestIDReused
	case !info.Granted:
		// The attempt ended before it was decided, or was refused and could not
		// release the slot yet. This attempt takes the slot over.
		return 0, false, nil
	case !info.Repeated:
		info.Repeated = true
		n = slotsKeyOf(k).Note(&info, n.Group, n.Inline)
		lp.Put(&n)
	}
	return info.Nonce, true, nil
}

// RenewSlot makes a slot end ttl from now. It puts a missing slot back if
// mayRestore is set, or if slots of its partition were lost so recently that
// this one need not have ended yet and no operator has freed it. RenewSlot fails with ErrShut, or with
// ErrOver if the slot is over or another attempt has it.
func (t *Table) RenewSlot(
	now algorithms.Instant, part *SlotPart, id, nonce uint64, ttl time.Duration, mayRestore bool,
) error {
	k := part.Key
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	if t.gates.isShut(k.Partition()) {
		return ErrShut
	}

	end := now.Steady + int64(ttl)
	before, n, held := lp.GetSlot(slotsKeyOf(k), id, now.Steady)
	lostAt, lost := lp.LostAt(k.Subject)
	mayBeLost := lost && now.Steady < lostAt+int64(part.TTL)

	// After a reset, the slot is not missing: an operator has freed it. What was
	// reset a ttl or more before the loss was over by then.
	wasFreed := mayBeLost && lp.IsKnownResetAfter(k.Subject, k.Counter, lostAt-int64(part.TTL))

	switch {
	case held && before.Nonce == nonce:
		lp.RenewSlot(&n, end)
	case held:
		return ErrOver
	case mayRestore || mayBeLost && !wasFreed:
		// The slot is stored even beyond the bound: its holder was granted it and uses
		// it, so it must count.
		info := notes.SlotInfo{ID: id, Nonce: nonce, Units: part.Units, Granted: true, Acquired: now.Steady, End: end}
		n = slotsKeyOf(k).Note(&info, part.Group, k.IsInline())
		lp.Put(&n)
	default:
		return ErrOver
	}
	return nil
}

// ReleaseSlot releases a slot. held reports whether the attempt with nonce held
// it. With unlessRepeated, a slot that a repeated request was answered with is
// not released, and stays is true. ReleaseSlot fails with ErrShut.
func (t *Table) ReleaseSlot(
	now algorithms.Instant, k Key, id, nonce uint64, unlessRepeated bool,
) (held, stays bool, err error) {
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	if t.gates.isShut(k.Partition()) {
		return false, false, ErrShut
	}

	before, n, held := lp.GetSlot(slotsKeyOf(k), id, now.Steady)
	switch {
	case !held || before.Nonce != nonce:
		return false, false, nil
	case unlessRepeated && before.Repeated:
		return false, true, nil
	}
	lp.Remove(n.Key)
	return true, false, nil
}

// releaseAllSlots releases all slots of a limit.
func (t *Table) releaseAllSlots(now algorithms.Instant, k Key) {
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	lp.ReleaseSlots(slotsKeyOf(k))
}

// Slots returns the slots of a limit that are held, those that end soonest
// first, but at most bound of them. all is how many there are. Slots ignores
// the gate.
func (t *Table) Slots(now algorithms.Instant, k Key, bound int) (list []notes.SlotInfo, all int) {
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	return lp.ListSlots(slotsKeyOf(k), now.Steady, bound)
}

// inlineSlotOps is InlineOps for limits of slots.
func (t *Table) inlineSlotOps(subject uint64, bound int) (ops []Op) {
	k := Key{Subject: subject}
	lp := t.notes.Lock(k.Partition(), 0)
	defer lp.Unlock()
	for _, counter := range lp.CountersWithSlots(subject) {
		k.Counter = counter
		if k.IsInline() && len(ops) < bound {
			limit := &algorithms.Limit{Kind: algorithms.Concurrency, Amount: 1, Window: algorithms.MinWindow}
			ops = append(ops, Op{Key: k, Limit: limit})
		}
	}
	return ops
}

// MarkSlotsLost records that slots of p may have been lost by now. No slot is
// granted in their place until the longest of them has ended.
func (t *Table) MarkSlotsLost(now algorithms.Instant, p int) {
	t.notes.MarkLost(p, now.Steady, (now.Steady+int64(algorithms.MaxSlotTTL))/1e9+1)
}

// HeldSlots returns by SlotAttempt.Group how many slots are held in the partitions whose gates are open.
func (t *Table) HeldSlots(now algorithms.Instant) map[uint32]int64 {
	held := map[uint32]int64{}
	for p := range len(t.lineages) {
		if t.IsOpen(p) {
			t.notes.AddHeldSlots(p, now.Steady, held)
		}
	}
	return held
}
