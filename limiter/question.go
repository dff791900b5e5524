package limiter

import (
	"encoding/binary"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
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
func (q *question) read(body []byte) error {
	d := wire.NewDecoder(body)
	q.count = int(d.UpTo(maxAlike))
	q.patient = min(time.Duration(d.UpTo(1<<31))*time.Millisecond, checkTime)
	q.hops = int(d.Byte())
	q.wishes = decodeWishes(d)
	q.verb, q.flags, q.ticket = verb(d.Byte()), flags(d.Byte()), nil
	if q.flags&flagTicket != 0 {
		q.flags, q.ticket = q.flags&^flagTicket, decodeTicket(d)
		if q.verb != verbAdjust && q.verb != verbReset {
			d.Fail()
		}
	}
	q.revision, q.version = d.UpTo(1<<62), d.UpTo(1<<62)
	if q.count < 1 || q.verb >= verbs || q.flags&^allFlags != 0 || q.hops > maxHops {
		d.Fail()
	}
	q.readOps(d)
	q.fit(d)
	if q.verb == verbAdjust || q.verb == verbReset {
		if n := len(q.ops); n > 0 && q.ops[n-1].Key.Hi != q.ops[0].Key.Hi { // in order
			d.Fail()
		}
	}
	if len(q.ops)*q.count > maxResults && q.count > 1 {
		d.Fail()
	}
	return d.Done("question")
}

// leastOp is the fewest bytes that a limit and its cost take.
const leastOp = 8 + 1 + 1 + 1 + 1

func (q *question) readOps(d *wire.Decoder) {
	n := d.Count(maxMessageOps, leastOp)
	q.ops, q.limits = q.ops[:0], q.limits[:0]
	if n < 1 {
		d.Fail()
		return
	}
	if cap(q.limits) < n {
		q.ops, q.limits = make([]counters.Op, 0, n), make([]algorithms.Limit, 0, n)
	}
	for len(q.ops) < n && !d.Failed() {
		hi, k := d.Uint64(), int(d.Byte())
		if k < 1 || k > maxSubjectOps || k > n-len(q.ops) || len(q.ops) > 0 && hi <= q.ops[len(q.ops)-1].Key.Hi {
			d.Fail()
			return
		}
		for first := len(q.ops); len(q.ops) < first+k && !d.Failed(); {
			q.readOp(d, hi, first)
		}
	}
}

// readOp reads one limit of the subject whose ops begin at first.
func (q *question) readOp(d *wire.Decoder, hi uint64, first int) {
	key := counters.Key{Hi: hi, Lo: d.Uint64()}
	op := counters.Op{Key: key}
	q.limits = append(q.limits, algorithms.Limit{}) // has room: no op's limit moves
	decodeOp(d, &op, &q.limits[len(q.limits)-1])
	op.Cost = d.Varint()
	least := int64(0)
	if q.verb == verbAdjust {
		least = -algorithms.MaxAmount
	}
	if op.Cost < least || op.Cost > algorithms.MaxAmount || op.Block && op.Cost != 0 {
		d.Fail()
	}
	for i := first; i < len(q.ops); i++ {
		if q.ops[i].Key == key {
			d.Fail()
		}
	}
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
		b = appendOp(b, op)
		b = binary.AppendUvarint(b, uint64(op.Cost))
		b = binary.AppendVarint(b, g.window[i])
	}
	return b
}

func (g *gift) read(body []byte) error {
	const least = 8 + 8 + 8 + 3 + 1 + 1
	d := wire.NewDecoder(body)
	g.reset()
	g.process, g.steady = d.Uint64(), int64(d.Uint64())
	n := d.Count(maxMessageOps, least)
	if cap(g.limits) < n {
		g.limits = make([]algorithms.Limit, 0, n)
	}
	for range n {
		op := counters.Op{Key: counters.Key{Hi: d.Uint64(), Lo: d.Uint64()}}
		g.lineage = append(g.lineage, d.Uint64())
		g.limits = append(g.limits, algorithms.Limit{}) // has room: no op's limit moves
		decodeOp(d, &op, &g.limits[len(g.limits)-1])
		if op.Cost = d.UpTo(algorithms.MaxAmount); op.Block {
			d.Fail()
		}
		g.ops, g.window = append(g.ops, op), append(g.window, d.Varint())
	}
	return d.Done("what is given back")
}

// partitionOf is the partition of a subject.
func partitionOf(hi uint64) int { return ring.PartitionOf(hi) }
