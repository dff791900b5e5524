package limiter

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

// wish asks for a lease of one of a question's subjects.
type wish struct {
	subject int // its place in the question
	holder  ring.NodeID
	localcache.Wish
}

// granted is a lease that comes with a reply.
type granted struct {
	subject int
	localcache.Grant
}

// maxHeld is how many grants of one subject a node may hold.
const maxHeld = 2

func (w *wish) append(b []byte) []byte {
	b = append(binary.AppendUvarint(b, uint64(w.subject)), w.holder[:]...)
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(w.Terms.Threshold))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(w.Terms.Idle))
	b = binary.AppendUvarint(b, uint64(w.Terms.TTL))
	b = binary.LittleEndian.AppendUint64(b, w.Process)
	b = binary.AppendUvarint(b, w.Seen)
	b = append(b, byte(len(w.Want)), byte(len(w.Held)))
	for _, n := range w.Want {
		b = binary.AppendUvarint(b, uint64(n))
	}
	for _, h := range w.Held {
		b = binary.AppendUvarint(b, h.ID)
		for _, n := range h.Left {
			b = binary.AppendUvarint(b, uint64(n))
		}
	}
	return b
}

// leastWish is the fewest bytes of a wish.
const leastWish = 1 + len(ring.NodeID{}) + 8 + 8 + 1 + 8 + 1 + 1 + 1 + 1

func decodeWishes(d *wire.Decoder) (list []wish) {
	for range d.Count(maxMessageOps, leastWish) {
		w := wish{subject: int(d.UpTo(maxMessageOps)), holder: ring.DecodeNodeID(d)}
		w.Terms.Threshold = math.Float64frombits(d.Uint64())
		w.Terms.Idle = math.Float64frombits(d.Uint64())
		w.Terms.TTL = time.Duration(d.UpTo(int64(localcache.MaxTTL)))
		w.Process, w.Seen = d.Uint64(), uint64(d.UpTo(math.MaxInt64))
		k, held := int(d.Byte()), int(d.Byte())
		// Said so that what is no number fails too.
		sane := w.Terms.Threshold >= 0 && w.Terms.Threshold <= 1 && w.Terms.Idle >= 0 && w.Terms.Idle <= 1
		if !sane || w.Terms.TTL < localcache.MinTTL || k < 1 || k > maxSubjectOps || held > maxHeld {
			d.Fail()
			return nil
		}
		w.Want = decodeAmounts(d, k)
		for range held {
			w.Held = append(w.Held, localcache.Held{ID: uint64(d.UpTo(math.MaxInt64)), Left: decodeAmounts(d, k)})
		}
		list = append(list, w)
	}
	return list
}

// amounts reads k numbers of units.
func decodeAmounts(d *wire.Decoder, k int) []int64 {
	out := make([]int64, k)
	for i := range out {
		out[i] = d.UpTo(math.MaxInt64)
	}
	return out
}

// fit checks that a question's wishes are about its subjects, each at most once and in their order.
func (q *question) fit(d *wire.Decoder) {
	next, subject, first := 0, 0, 0
	for first < len(q.ops) {
		n := subjectOps(q.ops[first:])
		if next < len(q.wishes) && q.wishes[next].subject == subject {
			if len(q.wishes[next].Want) != n {
				d.Fail()
			}
			next++
		}
		first, subject = first+n, subject+1
	}
	if next != len(q.wishes) {
		d.Fail()
	}
}

func (g *granted) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(g.subject))
	b = binary.AppendUvarint(b, g.ID)
	b = binary.AppendUvarint(b, uint64(g.EndsIn))
	b = append(b, byte(len(g.Amounts)))
	for i := range g.Amounts {
		b = binary.AppendUvarint(b, uint64(g.Amounts[i]))
		b = binary.AppendVarint(b, g.Windows[i])
	}
	return b
}

// grants reads the leases that came with a reply about so many subjects.
func decodeGrants(d *wire.Decoder, subjects int) (list []granted) {
	for range d.Count(subjects, 6) {
		g := granted{subject: int(d.UpTo(int64(subjects - 1)))}
		g.ID, g.EndsIn = uint64(d.UpTo(math.MaxInt64)), time.Duration(d.UpTo(int64(localcache.MaxTTL)))
		k := int(d.Byte())
		if k < 1 || k > maxSubjectOps || g.ID == 0 {
			d.Fail()
			return nil
		}
		for range k {
			g.Amounts = append(g.Amounts, d.UpTo(algorithms.MaxAmount))
			g.Windows = append(g.Windows, d.Varint())
		}
		list = append(list, g)
	}
	return list
}

// leftover is what is left of a lease of one subject, on its way back.
type leftover struct {
	source localcache.Source
	grant  uint64
	hops   int
	ops    []counters.Op // what is left, as cost
	window []int64       // by op
}

func appendLeftovers(b []byte, list []leftover) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for i := range list {
		o := &list[i]
		b = append(b, byte(o.hops))
		b = append(b, o.source.Owner[:]...)
		b = binary.LittleEndian.AppendUint64(b, o.source.Process)
		b = binary.LittleEndian.AppendUint64(b, o.source.Lineage)
		b = binary.AppendUvarint(b, o.grant)
		b = binary.LittleEndian.AppendUint64(b, o.ops[0].Key.Hi)
		b = append(b, byte(len(o.ops)))
		for j := range o.ops {
			b = binary.LittleEndian.AppendUint64(b, o.ops[j].Key.Lo)
			b = o.ops[j].Limit.Append(b, 0)
			b = binary.AppendUvarint(b, uint64(o.ops[j].Cost))
			b = binary.AppendVarint(b, o.window[j])
		}
	}
	return b
}

// maxLeftovers bounds those of one message.
const maxLeftovers = 1024

func readLeftovers(body []byte) ([]leftover, error) {
	const least = 1 + len(ring.NodeID{}) + 8 + 8 + 1 + 8 + 1
	d := wire.NewDecoder(body)
	n := d.Count(maxLeftovers, least)
	list := make([]leftover, 0, n)
	for range n {
		o := leftover{hops: int(d.Byte()), source: localcache.Source{Owner: ring.DecodeNodeID(d), Process: d.Uint64(), Lineage: d.Uint64()}}
		o.grant = uint64(d.UpTo(math.MaxInt64))
		hi, k := d.Uint64(), int(d.Byte())
		if k < 1 || k > maxSubjectOps || o.hops > maxHops {
			d.Fail()
			break
		}
		limits := make([]algorithms.Limit, k)
		for j := range k {
			key := counters.Key{Hi: hi, Lo: d.Uint64()}
			limits[j].Decode(d, 0)
			if slices.ContainsFunc(o.ops, func(op counters.Op) bool { return op.Key == key }) {
				d.Fail()
			}
			o.ops = append(o.ops, counters.Op{Key: key, Limit: &limits[j], Cost: d.UpTo(algorithms.MaxAmount)})
			o.window = append(o.window, d.Varint())
		}
		list = append(list, o)
	}
	return list, d.Done("what is left of leases")
}
