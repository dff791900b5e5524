package partitions

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// maxDebts bounds the counters for which this node owes an unreachable owner debts. If there is no room for one more,
	// this node does not act.
	maxDebts = 1 << 16
	// maxFallbackDebts bounds the debts up to which those of a fallback may still be added: the rest is for acting.
	// Beyond it, the check is decided all the same, and its debt is dropped.
	maxFallbackDebts = maxDebts / 4 * 3
	// inlineDebts is the part of each of these bounds, as a divisor, that is open to inline counters.
	inlineDebts = 2
	// maxOwed keeps sums from overflowing.
	maxOwed = 1 << 60
)

// owed is a cost that was admitted without the owner, and the limit it was admitted under.
type owed struct {
	limit algorithms.Limit
	taken algorithms.Taken // when the last part of it was taken
	cost  int64            // debited up to the capacity at most: see due
}

// capped caps a part of the cost at the limit's capacity: no subject must be locked out for longer than it takes to
// regain that.
func (o *owed) capped(cost int64) int64 { return min(cost, o.limit.Capacity()) }

// timeLeft returns how long it takes until nothing of the due cost counts any more.
func (o *owed) timeLeft(now algorithms.Now) time.Duration {
	if o.limit.Kind == algorithms.SlidingLog {
		return o.limit.Window - time.Duration(now.Steady-o.taken.Steady)
	}
	s := algorithms.State{Count: o.capped(o.cost), At: o.taken.Window}
	if o.limit.Kind.OnSteadyClock() {
		s.At = o.taken.Steady
	}
	if s = o.limit.Advance(s, now); s.Fresh() {
		return 0
	}
	return max(1, o.limit.Describe(s, now, 0, true).ResetAfter)
}

// expired reports whether the cost no longer counts: it has drained or left its window.
func (o *owed) expired(now algorithms.Now) bool { return o.timeLeft(now) <= 0 }

// sameWindow reports whether the cost belongs to the window of taken, for the one kind of limit where that matters.
func (o *owed) sameWindow(taken algorithms.Taken) bool {
	return o.limit.Kind != algorithms.FixedWindow || o.taken.Window == taken.Window
}

// append encodes the debt of a counter.
func (o *owed) append(b []byte, key counters.Key, now algorithms.Now) []byte {
	b = o.limit.Append(counters.AppendKey(b, key), 0)
	b = binary.AppendUvarint(b, uint64(max(0, now.Steady-o.taken.Steady)))
	b = binary.AppendVarint(b, o.taken.Window)
	return binary.AppendUvarint(b, uint64(o.cost))
}

// decodeOwed decodes a debt that owed.append encoded passed nanoseconds ago.
func decodeOwed(d *wire.Decoder, now algorithms.Now, passed int64) (key counters.Key, o owed) {
	key = counters.DecodeKey(d)
	o.limit.Decode(d, 0)
	age, window := int64(min(d.Uvarint(), 1<<61)), d.Varint()
	o.cost = int64(min(d.Uvarint(), maxOwed))
	o.taken = algorithms.Taken{
		Steady: now.Steady - (age + passed), Window: window, Amount: o.limit.Amount, Burst: o.limit.Burst,
	}
	return key, o
}

// debt is the cost that this node admitted from one counter without its owner, while acting for it or in fallback.
type debt struct {
	owed
	// absent is how much of cost is missing in the counter here: there was no counter, or the owner has overwritten it
	// since, or the copy was dropped. Invariant: 0 <= absent <= cost.
	absent   int64
	fallback bool // none of it comes from acting: report it a while after the owner is back
	// sealed is how much of cost is in seals. Invariant: 0 <= sealed <= cost.
	sealed int64
	// restored: an earlier process recorded it. Merging the counters here with a copy may lose their part of it, so the
	// next owner debits all of it.
	restored bool
}

// missing returns how much of the debt must still be debited from the counters here; elsewhere is how much of it another
// owner has already debited.
func (d *debt) missing(elsewhere int64) int64 {
	if d.restored {
		return max(0, d.cost-elsewhere)
	}
	return d.absent
}

// reduce takes cost off the debt, down to its sealed part.
func (d *debt) reduce(cost int64) {
	d.cost = max(d.sealed, d.cost-cost)
	d.absent = min(d.absent, d.cost)
}

// debtLedger holds the debts that owners must be told of, by partition and counter. It has no lock of its own. Invariant:
// n is the number of debts, at most maxDebts; inline of them are of inline counters.
type debtLedger struct {
	self      ring.NodeID
	table     *counters.Table
	log       *slog.Logger
	bootIndex uint64 // the entry that registered this process

	debts   map[int]map[counters.Key]*debt
	seals   map[int][]*seal // by partition that has debts, in ascending order of their numbers
	numbers uint64          // the last one given
	n       int
	inline  int
	changes uint64 // rises with every change, so debts are written to disk only when there is something new
}

func newDebtLedger(cfg *Config) debtLedger {
	return debtLedger{
		self: cfg.Self, table: cfg.Table, log: cfg.Logger,
		debts: map[int]map[counters.Key]*debt{}, seals: map[int][]*seal{},
	}
}

// hasRoom reports whether there is room for a debt of each of ops.
func (l *debtLedger) hasRoom(ops []counters.Op) bool {
	inline := 0
	for i := range ops {
		if ops[i].Key.Inline() {
			inline++
		}
	}
	return l.n+len(ops) <= maxDebts && (inline == 0 || l.inline+inline <= maxDebts/inlineDebts)
}

// get returns the debt of a counter, or nil if there is none.
func (l *debtLedger) get(key counters.Key) *debt { return l.debts[key.Partition()][key] }

// getOrAdd returns the debt of a counter, and adds an empty one if there was none.
func (l *debtLedger) getOrAdd(key counters.Key) *debt {
	p := key.Partition()
	if l.debts[p] == nil {
		l.debts[p] = map[counters.Key]*debt{}
	}
	if l.debts[p][key] == nil {
		l.debts[p][key] = &debt{}
		l.count(key, 1)
	}
	return l.debts[p][key]
}

// count adds n to the number of debts, of the counter's sort.
func (l *debtLedger) count(key counters.Key, n int) {
	l.n += n
	if key.Inline() {
		l.inline += n
	}
}

// full reports whether there may be no more debts of a counter's sort, within a bound on all debts.
func (l *debtLedger) full(key counters.Key, bound int) bool {
	return l.n >= bound || key.Inline() && l.inline >= bound/inlineDebts
}

func (l *debtLedger) remove(key counters.Key) {
	p := key.Partition()
	if l.get(key) == nil {
		return
	}
	l.changes++
	delete(l.debts[p], key)
	if len(l.debts[p]) == 0 {
		delete(l.debts, p)
		delete(l.seals, p)
	}
	l.count(key, -1)
}

// noteOverwritten records that the counter here was overwritten.
func (l *debtLedger) noteOverwritten(key counters.Key) {
	if d := l.get(key); d != nil {
		d.absent = d.cost
		l.changes++
	}
}

// noteDropped records that the copy of p was dropped.
func (l *debtLedger) noteDropped(p int) {
	for _, d := range l.debts[p] {
		d.absent = d.cost
	}
	for _, s := range l.seals[p] {
		s.included = false
	}
	l.changes++
}

// owe records the cost of an admitted op; the counter here has all of it but absent. It returns false if there is no
// room, which happens only to costs admitted alone, in fallback.
func (l *debtLedger) owe(op *counters.Op, from algorithms.Taken, absent int64, alone bool) bool {
	known := l.get(op.Key) != nil
	if !known && alone && l.full(op.Key, maxFallbackDebts) {
		return false
	}
	d := l.getOrAdd(op.Key)
	d.fallback = alone && (d.fallback || !known)
	if d.limit = *op.Limit; !d.sameWindow(from) {
		d.cost, d.absent, d.sealed = 0, 0, 0 // they belong to a window that is over
	}
	d.taken = from
	d.cost = min(d.cost+op.Cost, maxOwed)
	d.absent = min(d.absent+absent, d.cost)
	l.changes++
	return true
}

// absent returns how much this node admitted in op's current window that the counter here lacks. It is 0 for buckets and
// sliding windows, which drain while the recorded debt does not.
func (l *debtLedger) absent(now algorithms.Now, op *counters.Op) int64 {
	d := l.get(op.Key)
	if d == nil || op.Limit.Kind != algorithms.FixedWindow || !d.sameWindow(takenNow(op.Limit, now)) {
		return 0
	}
	return d.absent
}

// forgive takes op's cost, admitted at the given time, off its debt.
func (l *debtLedger) forgive(at algorithms.Now, op *counters.Op) {
	d := l.get(op.Key)
	if d == nil || !d.sameWindow(takenNow(op.Limit, at)) {
		return
	}
	l.changes++
	if d.reduce(op.Cost); d.cost == 0 {
		l.remove(op.Key)
	}
}

// debitOwn drops the debts of a partition whose token is here: this node is their creditor now. It first debits the parts
// that the counters lack.
func (l *debtLedger) debitOwn(p int, now algorithms.Now) {
	l.debitMissing(p, now, l.debitedElsewhere(p, now))
	for key := range l.debts[p] {
		l.remove(key)
	}
}

// debitMissing debits the debts of p that the counters here lack. elsewhere holds the parts that another node has already
// debited from them.
func (l *debtLedger) debitMissing(p int, now algorithms.Now, elsewhere map[counters.Key]int64) {
	for key, d := range l.debts[p] {
		if cost := d.missing(elsewhere[key]); cost > 0 {
			if err := l.table.ForceCapped(now, key, &d.limit, d.taken, d.capped(cost)); err != nil {
				l.log.Warn("debt lost", "partition", p, "error", err)
			}
		}
	}
}

// prune forgets debts that are over.
func (l *debtLedger) prune(now algorithms.Now) {
	l.pruneSeals(now)
	for _, list := range l.debts {
		for key, d := range list {
			if d.expired(now) {
				l.remove(key)
			}
		}
	}
}

// debtsFormat is the first byte of debts on disk. The wall clock in nanoseconds as a varint and the number of debts as a
// uvarint follow. Then each debt: 1 if it is of the fallback alone, absent as a uvarint, and the rest as in a message.
// Then the seals, as in a message.
const debtsFormat = 3 // 1 and 2 belong to versions that encoded limits differently

func (l *debtLedger) append(b []byte, now algorithms.Now) []byte {
	b = binary.AppendVarint(append(b, debtsFormat), now.Wall)
	b = binary.AppendUvarint(b, uint64(l.n))
	for _, list := range l.debts {
		for key, d := range list {
			b = binary.AppendUvarint(wire.AppendBool(b, d.fallback), uint64(d.absent))
			b = d.append(b, key, now)
		}
	}
	for _, seals := range l.seals {
		for _, s := range seals {
			b = s.append(b, now)
		}
	}
	return b
}

// restore adopts the debts that append encoded in an earlier process; see Keeper.RestoreDebts.
func (l *debtLedger) restore(b []byte, now algorithms.Now) (int, error) {
	if len(b) == 0 || b[0] != debtsFormat {
		return 0, errors.New("another version of rlnode wrote them")
	}
	d := wire.NewDecoder(b[1:])
	passed := min(max(0, now.Wall-max(0, d.Varint())), 1<<61)
	restored := map[counters.Key]bool{}
	for range decodeCount(d) {
		one := debt{fallback: d.Bool(), absent: int64(d.Uvarint()), restored: true}
		var key counters.Key
		if key, one.owed = decodeOwed(d, now, passed); one.cost < 1 || one.absent < 0 || one.absent > one.cost {
			d.Failf("a debt is out of bounds")
		}
		if d.Failed() {
			break
		}
		if !l.full(key, maxDebts) && l.get(key) == nil && !one.expired(now) {
			*l.getOrAdd(key) = one
			restored[key] = true
		}
	}
	for d.More() {
		if s := decodeSeal(d, now, passed); s != nil {
			s.reported = true // perhaps by the process before
			l.restoreSeal(s, restored)
		}
	}
	l.changes++
	return len(restored), d.Done("debts")
}
