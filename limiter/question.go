package limiter

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/peer"
	"github.com/rlnode/rlnode/ring"
)

// The messages between limiters.
const (
	MethodAsk      peer.Method = 80 + iota // a question, with a reply
	MethodGive                             // one way: what was taken is given back
	MethodTop                              // the subjects refused most, with a reply
	MethodLeftover                         // one way: what is left of leases
	MethodForget                           // one way: what is leased and known of a subject holds no more
	MethodSettle                           // what a reservation really used, with a reply
	MethodRefund                           // one way: what a reservation did not use
	MethodActivity                         // what was decided so far, with a reply
	MethodBorrow                           // one way, to the owner: a share is nearly used
	MethodLendHere                         // MethodLend, passed on to the owner, with a reply
	MethodLend                             // from another region: a loan, with a reply
	MethodShare                            // from another region: what is used here of its shares, with a reply
	MethodReserve                          // a reservation with an id, to the owner of its first subject, with a reply
	MethodKeep                             // the answer to such a one, decided elsewhere; replied to with an earlier one
)

// verb is what a question asks for.
type verb uint8

const (
	verbCheck  verb = iota
	verbUsage       // what is used
	verbAdjust      // costs, which may be below zero, are debited
	verbReset       // the counters become fresh
	verbs
)

// flags of a question.
type flags uint8

const (
	flagPeek    flags = 1 << iota // nothing is taken
	flagStandby                   // the owner can't be reached: the standby is to reach it, or to act
	flagLast                      // decide though the rules here are older than yours
	flagTicket                    // there is a ticket; of verbAdjust and verbReset
	allFlags    = flagPeek | flagStandby | flagLast | flagTicket
)

// maxHops is how often a question may be passed on.
const maxHops = 2

// question asks one node to decide subjects together, all or nothing.
type question struct {
	count    int           // it stands for so many checks alike, one after another; at least 1
	patient  time.Duration // so long the asker waits from now on
	hops     int           // times it was passed on
	verb     verb
	flags    flags
	ticket   *ticket // nil: without one
	revision int64
	version  int64 // of the rules that the asker goes by
	// ops are in order of Key.Hi: those with the same one are a subject. Costs of verbAdjust may be below zero.
	ops    []counters.Op
	limits []algorithms.Limit // what ops of a question that was read refer to
	wishes []wish             // in order of their subjects
}

// A question is a head, which differs from message to message, and a body, by which questions alike are known.

func (q *question) appendHead(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(q.count))
	b = binary.AppendUvarint(b, uint64(max(0, q.patient.Milliseconds())))
	b = binary.AppendUvarint(append(b, byte(q.hops)), uint64(len(q.wishes)))
	for i := range q.wishes {
		b = q.wishes[i].append(b)
	}
	return b
}

func (q *question) appendBody(b []byte) []byte {
	if q.ticket == nil {
		b = append(b, byte(q.verb), byte(q.flags))
	} else {
		b = append(b, byte(q.verb), byte(q.flags|flagTicket))
		b = q.ticket.append(b)
	}
	b = binary.AppendUvarint(b, uint64(q.revision))
	b = binary.AppendUvarint(b, uint64(q.version))
	b = binary.AppendUvarint(b, uint64(len(q.ops)))
	for first := 0; first < len(q.ops); {
		n := subjectOps(q.ops[first:])
		b = binary.LittleEndian.AppendUint64(b, q.ops[first].Key.Hi)
		b = append(b, byte(n))
		for i := range q.ops[first : first+n] {
			op := &q.ops[first+i]
			b = binary.LittleEndian.AppendUint64(b, op.Key.Lo)
			b = appendOp(b, op)
			b = binary.AppendVarint(b, op.Cost)
		}
		first += n
	}
	return b
}

// subjectOps is how many of ops are about the first one's subject.
func subjectOps(ops []counters.Op) int {
	n := 1
	for n < len(ops) && ops[n].Key.Hi == ops[0].Key.Hi {
		n++
	}
	return n
}

// read takes q from a message.
func (q *question) read(body []byte, z *zones) error {
	p := packet{rest: body}
	q.count = int(p.count(maxAlike))
	q.patient = min(time.Duration(p.count(1<<31))*time.Millisecond, checkTime)
	q.hops = int(p.byte())
	q.wishes = p.wishes()
	q.verb, q.flags, q.ticket = verb(p.byte()), flags(p.byte()), nil
	if q.flags&flagTicket != 0 {
		q.flags, q.ticket = q.flags&^flagTicket, p.ticket()
		if q.verb != verbAdjust && q.verb != verbReset {
			p.fail()
		}
	}
	q.revision, q.version = p.count(1<<62), p.count(1<<62)
	if q.count < 1 || q.verb >= verbs || q.flags&^allFlags != 0 || q.hops > maxHops {
		p.fail()
	}
	q.readOps(&p, z)
	q.fit(&p)
	if q.verb == verbAdjust || q.verb == verbReset {
		if n := len(q.ops); n > 0 && q.ops[n-1].Key.Hi != q.ops[0].Key.Hi { // in order
			p.fail()
		}
	}
	if len(q.ops)*q.count > maxResults && q.count > 1 {
		p.fail()
	}
	return p.end("question")
}

// leastOp is the fewest bytes that a limit and its cost take.
const leastOp = 8 + 1 + 1 + 1 + 1

func (q *question) readOps(p *packet, z *zones) {
	n := int(p.count(maxMessageOps))
	q.ops, q.limits = q.ops[:0], q.limits[:0]
	if n < 1 || n*leastOp > len(p.rest) {
		p.fail()
		return
	}
	if cap(q.limits) < n {
		q.ops, q.limits = make([]counters.Op, 0, n), make([]algorithms.Limit, 0, n)
	}
	for len(q.ops) < n && !p.bad {
		hi, k := p.word(), int(p.byte())
		if k < 1 || k > maxSubjectOps || k > n-len(q.ops) || len(q.ops) > 0 && hi <= q.ops[len(q.ops)-1].Key.Hi {
			p.fail()
			return
		}
		for first := len(q.ops); len(q.ops) < first+k && !p.bad; {
			q.readOp(p, z, hi, first)
		}
	}
}

// readOp reads one limit of the subject whose ops begin at first.
func (q *question) readOp(p *packet, z *zones, hi uint64, first int) {
	key := counters.Key{Hi: hi, Lo: p.word()}
	op := counters.Op{Key: key}
	limit := p.op(z, &op)
	op.Cost = p.number()
	least := int64(0)
	if q.verb == verbAdjust {
		least = -algorithms.MaxAmount
	}
	if op.Cost < least || op.Cost > algorithms.MaxAmount || op.Block && op.Cost != 0 {
		p.fail()
	}
	for i := first; i < len(q.ops); i++ {
		if q.ops[i].Key == key {
			p.fail()
		}
	}
	if p.bad {
		return
	}
	q.limits = append(q.limits, limit) // has room: no op's limit moves
	op.Limit = &q.limits[len(q.limits)-1]
	q.ops = append(q.ops, op)
}

// gift is what is given back: ops as they were taken at one node, by one process, at one moment.
type gift struct {
	process uint64
	steady  int64
	ops     []counters.Op // that took their cost
	lineage []uint64      // by op
	window  []int64       // by op
	limits  []algorithms.Limit
}

func (g *gift) reset() {
	g.ops, g.lineage, g.window, g.limits = g.ops[:0], g.lineage[:0], g.window[:0], g.limits[:0]
}

func (g *gift) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, g.process)
	b = binary.LittleEndian.AppendUint64(b, uint64(g.steady))
	b = binary.AppendUvarint(b, uint64(len(g.ops)))
	for i := range g.ops {
		op := &g.ops[i]
		b = binary.LittleEndian.AppendUint64(b, op.Key.Hi)
		b = binary.LittleEndian.AppendUint64(b, op.Key.Lo)
		b = binary.LittleEndian.AppendUint64(b, g.lineage[i])
		b = appendLimit(b, op.Limit, op.Shadow)
		b = binary.AppendUvarint(b, uint64(op.Cost))
		b = binary.AppendVarint(b, g.window[i])
	}
	return b
}

func (g *gift) read(body []byte, z *zones) error {
	const least = 8 + 8 + 8 + 3 + 1 + 1
	p := packet{rest: body}
	g.reset()
	g.process, g.steady = p.word(), int64(p.word())
	n := int(p.count(maxMessageOps))
	if n*least > len(p.rest) {
		return fmt.Errorf("read what is given back: %w", errMessage)
	}
	if cap(g.limits) < n {
		g.limits = make([]algorithms.Limit, 0, n)
	}
	for range n {
		key := counters.Key{Hi: p.word(), Lo: p.word()}
		lineage := p.word()
		limit, shadow := p.limit(z)
		cost, window := p.count(algorithms.MaxAmount), p.number()
		if p.bad {
			break
		}
		g.limits = append(g.limits, limit)
		g.ops = append(g.ops, counters.Op{Key: key, Limit: &g.limits[len(g.limits)-1], Cost: cost, Shadow: shadow})
		g.lineage, g.window = append(g.lineage, lineage), append(g.window, window)
	}
	return p.end("what is given back")
}

// partitionOf is the partition of a subject.
func partitionOf(hi uint64) int { return ring.PartitionOf(hi) }
