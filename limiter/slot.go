package limiter

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// MaxSlotTTL is the longest time for which a slot is held unless it is renewed.
	// The shortest is algorithms.MinWindow.
	MaxSlotTTL = algorithms.MaxSlotTTL
	// MaxWho bounds what a slot says of its holder, in bytes.
	MaxWho = notes.MaxWho
	// MaxSlots bounds the slots that one call acquires of each limit.
	MaxSlots = algorithms.MaxSlots

	// slotDrift makes a holder give its slot up before the owner does, by
	// 1/slotDrift of the slot's time: their clocks may run at different rates.
	slotDrift = 1024
)

// Errors of slots.
var (
	// ErrAcquire means that a check or a count names a limit of slots.
	ErrAcquire = errors.New("the rule limits how many slots are held at once: use POST /v1/acquire, or /v1/reserve (mode peek works here)")
	// ErrNoSlots means that an acquire names only limits of another kind.
	ErrNoSlots = errors.New(`the rule has no limit with "algorithm: concurrency"; use POST /v1/check`)
	// ErrSlotTTL means that the caller asks for a longer ttl than the limit allows.
	ErrSlotTTL = errors.New("ttl_ms is too long")
	// ErrUnknownSlot means that the ID is not a slot's, or that the slot is over:
	// the caller holds it no longer.
	ErrUnknownSlot = errors.New("the slot has ended or was released")
	// ErrTryAgain means that no node may decide about the slot for now. Holders
	// keep what they have.
	ErrTryAgain = errors.New("no node may decide about slots of this subject for the moment; try again")
	// ErrTooManySlots means that the subject's owner has no room for another slot,
	// or no more for one of this rule or subject.
	ErrTooManySlots = errors.New("too many slots of this rule or subject are held at its owner")

	// errUnconfirmed means that the slots were stored, but might not outlive their
	// owner. They are taken back.
	errUnconfirmed = fmt.Errorf("%w", ErrTryAgain)
)

// Slot is what Acquire returns.
type Slot struct {
	ID      string
	Expires time.Duration // how long the slot is held, counted from when the caller sent its request
	// isRepetition means that an earlier attempt of the request acquired the slot.
	isRepetition bool
}

// slot says how many slots its holder has of which limits: enough for any node
// to renew and release them. It travels in the ID, and a signature proves that
// this cluster made it.
type slot struct {
	id    uint64 // derived from the request's id, if it has one
	nonce uint64 // of the attempt that acquired it
	parts []slotPart

	// alone means that the granter granted the slot without asking its owners,
	// because it was cut off. granter and made are set only if alone is.
	alone   bool
	granter ring.NodeID
	madeAt  int64 // Unix nanoseconds, by the wall clock of the granter

	left time.Duration // how long the slot is held; not in the ID
}

// slotPart is a slot of one limit.
type slotPart struct {
	counters.SlotPart
	holdFor time.Duration // how long the holder wants to have the slot
	shadow  bool          // the limit is of a shadow rule, so nothing depends on it
	source  uint64        // rules.Limit.Source: only in the ID
}

// slotFormat is the first byte of an ID.
const slotFormat = 1

// Code implements wire.Message.
func (sl *slot) Code(c *wire.Coder) {
	wire.Fixed(c, &sl.id)
	wire.Fixed(c, &sl.nonce)
	c.Bool(&sl.alone)
	if sl.alone {
		wire.Fixed(c, &sl.madeAt)
		c.Raw(sl.granter[:])
	}
	wire.List(c, &sl.parts, MaxReserved, minSlotPart+8, func(part *slotPart) {
		part.code(c)
		wire.Fixed(c, &part.source)
	})
}

// minSlotPart is the minimum size of an encoded slotPart.
const minSlotPart = 8 + 8 + 1 + 1 + 1 + 1 + 1

func (part *slotPart) code(c *wire.Coder) {
	wire.Fixed(c, &part.Key.Subject)
	wire.Fixed(c, &part.Key.Counter)
	wire.Number(c, &part.Units, algorithms.MaxAmount)
	c.Millis(&part.TTL, MaxSlotTTL)
	c.Millis(&part.holdFor, MaxSlotTTL)
	wire.Number(c, &part.Group, math.MaxUint32)
	c.Bool(&part.shadow)
	c.Require(part.Units > 0 && part.TTL >= algorithms.MinWindow && part.holdFor > 0)
}

// expires returns how long the holder may count on the slot: less than its
// owners do, because their clocks may run at different rates.
func (sl *slot) expires() time.Duration { return sl.left - sl.left/slotDrift - time.Millisecond }

// pack returns the ID of the slot.
func (sl *slot) pack(l *Limiter) string {
	key, _ := l.reservations.signingKey("slot")
	return seal(sl, slotFormat, key)
}

// parseSlot reads the ID of a slot. The error is ErrUnknownSlot, or ErrTryAgain
// as long as this node does not know the cluster's secret.
func (l *Limiter) parseSlot(id string) (*slot, error) {
	key, known := l.reservations.signingKey("slot")
	if !known {
		return nil, ErrTryAgain
	}

	sl := &slot{}
	if !unseal(id, sl, slotFormat, key) {
		return nil, ErrUnknownSlot
	}

	// The limit may have a longer ttl now than when the slot was acquired, and the
	// slot may have been renewed for that long.
	for i := range sl.parts {
		part := &sl.parts[i]
		part.TTL = max(part.TTL, l.longestTTL(part))
	}
	return sl, nil
}

// ShortSlotID returns the ID of a slot as lists of holders show it.
func ShortSlotID(id uint64) string { return fmt.Sprintf("%016x", id) }
