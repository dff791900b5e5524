package limiter

import (
	"fmt"
	"math"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// slot says which slots its holder has, of which limits: enough for any node to
// renew and release it. It travels in the ID, and a signature proves that this
// cluster made it.
type slot struct {
	id    uint64 // derived from the request's id, if it has one
	nonce uint64 // of the attempt that acquired it
	parts []slotPart

	// alone means that only the granter has counted the slot, because it was cut
	// off. granter and made are set only if alone is.
	alone   bool
	granter ring.NodeID
	made    int64 // Unix nanoseconds, by the wall clock of the granter

	left time.Duration // how long it is held; not in the ID
}

// slotPart is a slot of one limit.
type slotPart struct {
	counters.SlotPart
	holdFor time.Duration // how long the holder wants to have it
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
		wire.Fixed(c, &sl.made)
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

// parseSlot reads an ID. The error is ErrUnknownSlot, or ErrTryAgain as long as
// this node can't tell.
func (l *Limiter) parseSlot(id string) (*slot, error) {
	key, known := l.reservations.signingKey("slot")
	if !known {
		return nil, ErrTryAgain
	}

	sl := &slot{}
	if !unseal(id, sl, slotFormat, key) {
		return nil, ErrUnknownSlot
	}

	// The limit may have a longer ttl than when the slot was acquired, and the
	// slot may have been renewed for as long.
	for i := range sl.parts {
		part := &sl.parts[i]
		part.TTL = max(part.TTL, l.longestTTL(part))
	}
	return sl, nil
}

// ShortSlotID returns the ID of a slot as lists of holders show it.
func ShortSlotID(id uint64) string { return fmt.Sprintf("%016x", id) }
