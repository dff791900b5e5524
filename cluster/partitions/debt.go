package partitions

import (
	"cmp"
	"encoding/binary"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
)

const (
	// maxOwedCost bounds an owed cost, so that sums don't overflow.
	maxOwedCost = 1 << 60
	// maxDebtNumber bounds both parts of a debt's number in a message.
	maxDebtNumber = 1 << 60
)

// owedCost is a cost that was admitted without the owner, and the limit that admitted it.
type owedCost struct {
	limit algorithms.Limit
	taken algorithms.TakeRecord // when the last part of it was taken
	cost  int64                 // the owner debits at most the limit's capacity: see capped
}

// capped returns cost, at most the limit's capacity. Otherwise a debt could
// lock a subject out for longer than the limit takes to regain its capacity.
func (o *owedCost) capped(cost int64) int64 { return min(cost, o.limit.Capacity()) }

// timeLeft returns the time until no part of the capped cost counts.
func (o *owedCost) timeLeft(now algorithms.Instant) time.Duration {
	if o.limit.Kind == algorithms.SlidingLog {
		return o.limit.Window - time.Duration(now.Steady-o.taken.Steady)
	}

	s := algorithms.State{Count: o.capped(o.cost), At: o.taken.Window}
	if o.limit.Kind.OnSteadyClock() {
		s = o.limit.Force(algorithms.State{}, o.taken, algorithms.Instant{Steady: o.taken.Steady}, s.Count)
	}

	s = o.limit.Advance(s, now)
	if s.Fresh() {
		return 0
	}

	// A state that is not fresh still counts, even if the time left is rounded to
	// zero.
	return max(1, o.limit.Describe(s, now, 0, true).ResetAfter)
}

// isExpired reports whether the cost no longer counts: it has drained or left its window.
func (o *owedCost) isExpired(now algorithms.Instant) bool { return o.timeLeft(now) <= 0 }

// sameWindow reports whether the cost belongs to the window of taken. For all
// limits but fixed windows, it returns true.
func (o *owedCost) sameWindow(taken algorithms.TakeRecord) bool {
	return o.limit.Kind != algorithms.FixedWindow || o.taken.Window == taken.Window
}

// append encodes o.
func (o *owedCost) append(b []byte, now algorithms.Instant) []byte {
	b = o.limit.Append(b, 0)
	b = binary.AppendUvarint(b, uint64(max(0, now.Steady-o.taken.Steady)))
	b = binary.AppendVarint(b, o.taken.Window)
	return binary.AppendUvarint(b, uint64(o.cost))
}

// decodeOwedCost decodes a cost that owedCost.append encoded elapsed
// nanoseconds ago.
func decodeOwedCost(dec *wire.Decoder, now algorithms.Instant, elapsed int64) (o owedCost) {
	o.limit.Decode(dec, 0)
	age, window := int64(min(dec.Uvarint(), 1<<61)), dec.Varint()
	o.cost = int64(min(dec.Uvarint(), maxOwedCost))
	o.taken = algorithms.TakeRecord{Steady: now.Steady - (age + elapsed), Window: window}
	return o
}

// debt is the cost that this node admitted from one counter without its owner,
// as a standby or in fallback. Once reported, a debt never changes. Costs
// admitted from then on are another debt.
type debt struct {
	key    counters.Key
	number debtNumber
	owedCost
	// lacking is the part of cost that the counter here lacks: there was no
	// counter, or the owner has overwritten it since, or the copy was dropped.
	// Invariant: 0 <= lacking <= cost.
	lacking  int64
	fallback bool // all of it was admitted in fallback: it is reported only a while after the owner is back
	// restored is set if an earlier process recorded the debt, or part of it. A
	// merge of the counters here with a copy may lose the part that they have. So
	// when this node debits the debt itself, it debits all of cost.
	restored bool
	// isInCounters is set if this node debited the debt from its own copy, and
	// noted the number itself. If the counter in the copy is overwritten later, the
	// note does not prove that the counter has the debt.
	isInCounters bool
}

// append encodes the fields of d that other nodes and the next process need. If
// d has not been reported yet, bootIndex takes the place of d's own.
func (d *debt) append(b []byte, bootIndex uint64, now algorithms.Instant) []byte {
	b = counters.AppendKey(b, d.key)
	b = binary.AppendUvarint(b, cmp.Or(d.number.bootIndex, bootIndex))
	b = binary.AppendUvarint(b, d.number.n)
	return d.owedCost.append(b, now)
}

// decodeDebt decodes a debt that debt.append encoded elapsed nanoseconds ago.
func decodeDebt(dec *wire.Decoder, now algorithms.Instant, elapsed int64) *debt {
	d := &debt{key: counters.DecodeKey(dec), number: debtNumber{bootIndex: dec.Uvarint(), n: dec.Uvarint()}}
	d.owedCost = decodeOwedCost(dec, now, elapsed)
	if d.cost < 1 || d.number.bootIndex > maxDebtNumber || d.number.n > maxDebtNumber {
		dec.Failf("a debt is out of bounds")
	}
	return d
}

// debtNumber is the number of a debt. A node's numbers in a partition rise,
// also from one of its processes to the next.
type debtNumber struct {
	bootIndex uint64 // the entry that registered the process that first reported the debt; zero until a report
	n         uint64
}

// isFinal reports whether a debt may have been debited under its number.
// Such a debt must not change.
func (n debtNumber) isFinal() bool { return n.bootIndex != 0 }

// compare orders numbers. The debts that have not been reported come last: a
// bootIndex of zero wraps to the highest.
func (n debtNumber) compare(other debtNumber) int {
	return cmp.Or(cmp.Compare(n.bootIndex-1, other.bootIndex-1), cmp.Compare(n.n, other.n))
}

// takeRecordNow returns the TakeRecord of a Take at now.
func takeRecordNow(l *algorithms.Limit, now algorithms.Instant) algorithms.TakeRecord {
	return l.TakeRecord(l.Advance(algorithms.State{}, now), now)
}
