package limiter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// Messages between limiters are packed by hand: whole numbers as varints, hashes and identities as they are. All
// lengths are looked at before anything is allocated for them.

// errMessage: a message from another node can't be read.
var errMessage = errors.New("message can't be read")

const (
	maxMessageOps = 1000 * 17 // of a question: those of all rules that a document may have, and their blocks
	maxSubjectOps = 3*16 + 1  // of one subject: the limits of a rule, what was lent and borrowed of them, and its block
	maxZoneBytes  = 128
	maxAlike      = 10_000 // checks that one question may stand for
	// maxResults bounds what a question may ask for: checks alike times limits.
	maxResults = 32_768
)

// packet reads a message; after the first mistake everything reads as zero.
type packet struct {
	rest []byte
	bad  bool
}

func (p *packet) fail() { p.rest, p.bad = nil, true }

func (p *packet) byte() byte {
	if len(p.rest) == 0 {
		p.fail()
		return 0
	}
	b := p.rest[0]
	p.rest = p.rest[1:]
	return b
}

func (p *packet) bytes(n int) []byte {
	if n < 0 || n > len(p.rest) {
		p.fail()
		return nil
	}
	b := p.rest[:n]
	p.rest = p.rest[n:]
	return b
}

// word reads eight bytes.
func (p *packet) word() uint64 {
	if b := p.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count reads a number of at most bound.
func (p *packet) count(bound int64) int64 {
	v, n := binary.Uvarint(p.rest)
	if n <= 0 || v > uint64(bound) {
		p.fail()
		return 0
	}
	p.rest = p.rest[n:]
	return int64(v)
}

// number reads a number that may be below zero.
func (p *packet) number() int64 {
	v, n := binary.Varint(p.rest)
	if n <= 0 {
		p.fail()
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

func (p *packet) node() (id ring.NodeID) {
	copy(id[:], p.bytes(len(id)))
	return id
}

// end is the error of a message that should be over.
func (p *packet) end(what string) error {
	if p.bad || len(p.rest) > 0 {
		return fmt.Errorf("read %s: %w", what, errMessage)
	}
	return nil
}

// Bits of the byte that a limit begins with; the lowest three are its kind.
const (
	limitShadow   = 1 << 3
	limitCalendar = 1 << 4
	limitBlock    = 1 << 5
	limitDelay    = 1 << 6
	limitKind     = 1<<3 - 1
	limitBits     = limitKind | limitShadow | limitCalendar | limitBlock | limitDelay
)

// appendOp packs the limit of an op and what it is to its check.
func appendOp(b []byte, op *counters.Op) []byte {
	at := len(b)
	b = appendLimit(b, op.Limit, op.Shadow)
	if op.Block {
		b[at] |= limitBlock
	}
	return b
}

// appendLimit packs a limit and whether it is one of a shadow rule.
func appendLimit(b []byte, l *algorithms.Limit, shadow bool) []byte {
	first := byte(l.Kind)
	if shadow {
		first |= limitShadow
	}
	if l.Calendar != nil {
		first |= limitCalendar
	}
	if l.MaxDelay > 0 {
		first |= limitDelay
	}
	b = binary.AppendUvarint(append(b, first), uint64(l.Amount))
	if l.Kind.Bucket() {
		b = binary.AppendUvarint(b, uint64(l.Burst))
	}
	if l.MaxDelay > 0 {
		b = binary.AppendUvarint(b, uint64(l.MaxDelay))
	}
	if l.Calendar == nil {
		return binary.AppendUvarint(b, uint64(l.Window))
	}
	zone := l.Calendar.Zone()
	b = binary.AppendUvarint(append(b, byte(l.Calendar.Unit())), uint64(len(zone)))
	return append(b, zone...)
}

// limit reads a limit, which is no block; what comes out is legal.
func (p *packet) limit(z *zones) (l algorithms.Limit, shadow bool) {
	if len(p.rest) > 0 && p.rest[0]&limitBlock != 0 {
		p.fail()
	}
	var op counters.Op
	l = p.op(z, &op)
	return l, op.Shadow
}

// op reads a limit and what it is to op's check; what comes out is legal.
func (p *packet) op(z *zones, op *counters.Op) (l algorithms.Limit) {
	first := p.byte()
	l.Kind = algorithms.Kind(first & limitKind)
	op.Shadow, op.Block = first&limitShadow != 0, first&limitBlock != 0
	if l.Kind > algorithms.SlidingLog || first&^limitBits != 0 {
		p.fail()
	}
	l.Amount = p.count(algorithms.MaxAmount)
	if l.Kind.Bucket() {
		l.Burst = p.count(algorithms.MaxAmount)
	}
	if first&limitDelay != 0 {
		if l.MaxDelay = time.Duration(p.count(int64(algorithms.MaxMaxDelay))); l.MaxDelay == 0 {
			p.fail()
		}
	}
	if first&limitCalendar == 0 {
		l.Window = time.Duration(p.count(int64(algorithms.MaxWindow)))
	} else {
		unit := algorithms.CalendarUnit(p.byte())
		zone := p.bytes(int(p.count(maxZoneBytes)))
		if unit > algorithms.Year || l.Kind != algorithms.FixedWindow || p.bad {
			p.fail()
			return algorithms.Limit{}
		}
		l.Window = unit.Nominal()
		if l.Calendar = z.calendar(unit, zone); l.Calendar == nil {
			p.fail()
		}
	}
	// A region's share of a limit may be nothing.
	nothing := l.Amount == 0 && l.Burst == 0 && (l.Kind == algorithms.FixedWindow || l.Kind == algorithms.TokenBucket)
	if !nothing && (l.Amount < 1 || l.Kind.Bucket() && l.Burst < 1) || l.Window < algorithms.MinWindow {
		p.fail()
	}
	if op.Block && (l.Kind != algorithms.TokenBucket || l.Amount != 1 || l.Burst != 1 || l.MaxDelay != 0) {
		p.fail()
	}
	return l
}
