package algorithms

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
)

// The encoding of a limit, for another node or for disk:
//
//	byte 0      algorithm (3 bits, all of whose values are taken) and flags
//	uvarint     Amount
//	uvarint     for a bucket: Burst
//	uvarint     with MaxDelay: MaxDelay
//	uvarint     for a fixed-window: ValidUntil
//	uvarint     Window
//	or          for a calendar: a byte for its unit, and the name of its zone
const (
	limitKindMask = 1<<3 - 1
	calendarFlag  = 1 << 4
	delayFlag     = 1 << 6

	// LimitFlags are the bits of the first byte that callers of Append may use.
	LimitFlags = 1<<3 | 1<<5 | 1<<7

	maxZoneName = 128 // bytes
)

// Append appends l and flags, which must be in LimitFlags.
func (l *Limit) Append(b []byte, flags byte) []byte {
	flags |= byte(l.Kind)
	if l.Calendar != nil {
		flags |= calendarFlag
	}
	if l.MaxDelay > 0 {
		flags |= delayFlag
	}

	b = binary.AppendUvarint(append(b, flags), uint64(l.Amount))
	if l.Kind.IsBucket() {
		b = binary.AppendUvarint(b, uint64(l.Burst))
	}
	if l.MaxDelay > 0 {
		b = binary.AppendUvarint(b, uint64(l.MaxDelay))
	}
	if l.Kind == FixedWindow {
		b = binary.AppendUvarint(b, uint64(l.ValidUntil))
	}

	if l.Calendar == nil {
		return binary.AppendUvarint(b, uint64(l.Window))
	}

	return wire.AppendText(append(b, byte(l.Calendar.unit)), l.Calendar.Zone())
}

// Decode reads what Append wrote into l, which must be zero, and returns the
// flags. Unless d fails, the flags are among those in allowed, and the
// algorithms can work with l. The bounds that only documents must keep are not
// checked.
func (l *Limit) Decode(d *wire.Decoder, allowed byte) (flags byte) {
	first := d.Byte()
	l.Kind = Kind(first & limitKindMask)
	l.Amount = d.UpTo(MaxAmount)

	if l.Kind.IsBucket() {
		l.Burst = d.UpTo(MaxAmount)
	}

	if first&delayFlag != 0 {
		l.MaxDelay = time.Duration(d.UpTo(int64(LongestDelay)))
		if l.MaxDelay == 0 ||
			l.Kind == FirstWindow || l.Kind == CellBucket {
			d.Fail()
		}
	}

	if l.Kind == FixedWindow {
		l.ValidUntil = d.UpTo(math.MaxInt64)
	}

	if first&calendarFlag == 0 {
		l.Window = time.Duration(d.UpTo(int64(MaxWindow)))
	} else {
		unit := CalendarUnit(d.Byte())
		z, err := findZone(d.View(maxZoneName))
		if err != nil || unit > Year || l.Kind != FixedWindow {
			d.Fail()
			return 0
		}
		l.Calendar = &z.calendars[unit]
		l.Window = unit.Nominal()
	}

	// Amount and Burst may both be 0: a limit may be 0, and so may a region's
	// share of one.
	isZero := l.Amount == 0 && l.Burst == 0
	if !l.Kind.Valid() || first&^(limitKindMask|calendarFlag|delayFlag|allowed) != 0 || l.Window < MinWindow ||
		!isZero && (l.Amount < 1 || l.Kind.IsBucket() && l.Burst < 1) {
		d.Fail()
	}

	return first & LimitFlags
}
