package limiter

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules/document"
)

// Bounds of reservations.
const (
	// MaxReserved bounds the limits of a reservation.
	MaxReserved = 256
	// MaxReservationTime is the longest time for which a reservation stays open.
	MaxReservationTime = time.Hour
	// DefaultReservationTime is how long a reservation stays open by default.
	DefaultReservationTime = time.Minute
	// settlementMemory is how long a settlement is kept after the reservation's
	// end.
	settlementMemory = time.Minute

	reservationFormat = 6  // the first byte of an id
	nonceBytes        = 12 // random bytes that make each id unique
	maxUnitBytes      = 1024
	// maxNameBytes bounds the total size of the subjects' names in an id, in bytes.
	// The id leaves out further names. A settlement does not correct the bills of
	// those subjects.
	maxNameBytes = 16 << 10
	maxKeyValues = 32
)

// Errors of reservations.
var (
	// ErrUnknownReservation means that no reservation with the id can be settled.
	ErrUnknownReservation = errors.New("unknown reservation")
	// ErrTooManyLimits means that the check has too many limits for a reservation
	// or a request id.
	ErrTooManyLimits = errors.New("too many limits for a reservation or a request_id")
)

// reservation says what a check took, from which counters, and when: enough for
// any node to settle it. The reservation travels in its id, and a signature
// proves that this cluster made it.
type reservation struct {
	nonce    [nonceBytes]byte // begins with the ID of the place
	hasPlace bool             // the home's owner made a place for it
	inline   bool             // of the place
	group    uint32           // of the place
	madeAt   int64            // Unix nanoseconds, by the wall clock
	until    int64            // Unix nanoseconds, by the wall clock: when it expires
	onExpiry *OnExpiry
	units    []string
	subjects []reservedSubject // the first is the home, where the settlement is recorded
	slot     *slot             // the slot that was acquired with it; nil if there is none
}

// reservedSubject says what was taken from one subject.
type reservedSubject struct {
	takenCosts
	units []int // by op: index into reservation.units

	// billedOnly has the costs that were billed but that no counter counts: those
	// in units without limit, or with a limit of 0.
	billedOnly []reservedCost

	// hashLo, rule and key are for billing. If rule is empty, a settlement does not
	// correct the subject's bill.
	hashLo uint64 // of the subject's hash
	rule   string
	key    []string
}

// reservedCost is a cost in a unit, as an index into reservation.units.
type reservedCost struct {
	unit int
	cost int64
}

// cost returns what the subject's i-th op has reserved.
func (reserved *reservedSubject) cost(i int) reservedCost {
	return reservedCost{reserved.units[i], reserved.ops[i].Cost}
}

func (rv *reservation) home() *reservedSubject { return &rv.subjects[0] }

// Code implements wire.Message.
func (rv *reservation) Code(c *wire.Coder) {
	c.Raw(rv.nonce[:])
	c.Flags(&rv.hasPlace, &rv.inline)
	wire.Number(c, &rv.group, math.MaxUint32)
	wire.Fixed(c, &rv.madeAt)

	// The id has until as the time after made.
	life := rv.until - rv.madeAt
	wire.Number(c, &life, int64(MaxReservationTime))
	if c.Reads() {
		rv.until = rv.madeAt + life
	}

	codeOnExpiry(c, &rv.onExpiry)
	c.Texts(&rv.units, MaxReserved, maxUnitBytes)
	wire.List(c, &rv.subjects, MaxReserved, 4*8+3+1+1+1, func(reserved *reservedSubject) {
		reserved.code(c)
		wire.List(c, &reserved.units, maxSubjectOps, 1, func(n *int) { wire.Number(c, n, int64(len(rv.units)-1)) })
		wire.List(c, &reserved.billedOnly, MaxReserved, 2, func(cost *reservedCost) {
			wire.Number(c, &cost.unit, int64(len(rv.units)-1))
			wire.Number(c, &cost.cost, algorithms.MaxAmount)
		})

		c.Text(&reserved.rule, maxRuleBytes)
		if reserved.rule != "" {
			wire.Fixed(c, &reserved.hashLo)
			c.Texts(&reserved.key, maxKeyValues, document.MaxShownBytes)
			if reserved.key == nil {
				reserved.key = []string{} // the rule may have no key attributes; nil would mean an unknown key
			}
		}

		c.Require(len(reserved.units) == len(reserved.ops))
	})
	wire.Optional(c, &rv.slot, func(sl *slot) { sl.Code(c) })
	c.Require(len(rv.subjects) > 0)
}

// id packs and signs the reservation.
func (rv *reservation) id(key []byte) string { return seal(rv, reservationFormat, key) }

// parseReservation reads an id signed with key, or returns
// ErrUnknownReservation.
func parseReservation(id string, key []byte) (*reservation, error) {
	rv := &reservation{}
	if !unseal(id, rv, reservationFormat, key) {
		return nil, ErrUnknownReservation
	}
	return rv, nil
}

// placeID returns the ID of the reservation's place.
func (rv *reservation) placeID() uint64 { return binary.LittleEndian.Uint64(rv.nonce[:]) }

// takenCosts says what a subject was charged, where and when, to give it back.
type takenCosts struct {
	subject uint64
	boot    uint64 // of the node that decided
	// life is the life of the counters when the cost was taken. If its Lineage is
	// zero, the cost can't be given back. If it is localLineage, only the process
	// that took the cost can give it back.
	life   counters.Life
	steady int64         // the time of the decision, on that node's steady clock
	ops    []counters.Op // ops that took their cost
	// marks say, by op, when the cost was taken; a log's is relative to steady.
	marks []algorithms.TakeMark
}

func (t *takenCosts) code(c *wire.Coder) {
	wire.Fixed(c, &t.subject)
	wire.Fixed(c, &t.boot)
	codeLife(c, &t.life)
	wire.Fixed(c, &t.steady)
	wire.List(c, &t.ops, maxSubjectOps, minOpBytes-1, func(op *counters.Op) {
		op.Key.Subject = t.subject
		wire.Fixed(c, &op.Key.Counter)
		if c.Reads() {
			op.Limit = &algorithms.Limit{}
		}
		codeLimit(c, op)
		wire.Number(c, &op.Cost, algorithms.MaxAmount)
		c.Require(!op.Block)
	})
	wire.List(c, &t.marks, maxSubjectOps, 1, func(mark *algorithms.TakeMark) { wire.Varint(c, mark) })
	c.Require(len(t.marks) == len(t.ops))
}
