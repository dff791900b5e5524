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
	// maxDebts bounds the counters with debts. When there is no room for another, this node does not act as a standby.
	maxDebts = 1 << 16
	// maxFallbackDebts is the number of debts from which fallback adds no more: the rest is for acting as a standby.
	// Beyond it, checks are still decided, and their debts are dropped.
	maxFallbackDebts = maxDebts / 4 * 3
	// inlineDebts divides each of these bounds to give the bound for inline counters.
	inlineDebts = 2
	// maxOwedCost keeps sums from overflowing.
	maxOwedCost = 1 << 60
)

// owedCost is a cost that was admitted without the owner, and the limit that admitted it.
type owedCost struct {
	limit algorithms.Limit
	taken algorithms.TakeRecord // when the last part of it was taken
	cost  int64                 // the owner debits at most the limit's capacity: see capped
}

// capped returns cost, at most the limit's capacity: no subject must be locked out for longer than it takes to regain that.
func (o *owedCost) capped(cost int64) int64 { return min(cost, o.limit.Capacity()) }

// timeLeft returns the time until no part of the capped cost counts any more.
func (o *owedCost) timeLeft(now algorithms.Instant) time.Duration {
	if o.limit.Kind == algorithms.SlidingLog {
		return o.limit.Window - time.Duration(now.Steady-o.taken.Steady)
	}
	s := algorithms.State{Count: o.capped(o.cost), At: o.taken.Window}
	if o.limit.Kind.OnSteadyClock() {
		s = o.limit.Force(algorithms.State{}, o.taken, algorithms.Instant{Steady: o.taken.Steady}, s.Count)
	}
	if s = o.limit.Advance(s, now); s.Fresh() {
		return 0
	}
	return max(1, o.limit.Describe(s, now, 0, true).ResetAfter)
}

// isExpired reports whether the cost no longer counts: it has drained or left its window.
func (o *owedCost) isExpired(now algorithms.Instant) bool { return o.timeLeft(now) <= 0 }

// sameWindow reports whether the cost belongs to the window of taken, for the one kind of limit where that matters.
func (o *owedCost) sameWindow(taken algorithms.TakeRecord) bool {
	return o.limit.Kind != algorithms.FixedWindow || o.taken.Window == taken.Window
}

// append encodes o, owed for the counter of key.
func (o *owedCost) append(b []byte, key counters.Key, now algorithms.Instant) []byte {
	b = o.limit.Append(counters.AppendKey(b, key), 0)
	b = binary.AppendUvarint(b, uint64(max(0, now.Steady-o.taken.Steady)))
	b = binary.AppendVarint(b, o.taken.Window)
	return binary.AppendUvarint(b, uint64(o.cost))
}

// decodeOwedCost decodes what owedCost.append encoded elapsed nanoseconds ago.
func decodeOwedCost(d *wire.Decoder, now algorithms.Instant, elapsed int64) (key counters.Key, o owedCost) {
	key = counters.DecodeKey(d)
	o.limit.Decode(d, 0)
	age, window := int64(min(d.Uvarint(), 1<<61)), d.Varint()
	o.cost = int64(min(d.Uvarint(), maxOwedCost))
	o.taken = algorithms.TakeRecord{Steady: now.Steady - (age + elapsed), Window: window}
	return key, o
}

// debt is the cost that this node admitted from one counter without its owner, as a standby or in fallback.
type debt struct {
	owedCost
	// uncounted is the part of cost that the counter here lacks: there was no counter, or the owner has overwritten it
	// since, or the copy was dropped. Invariant: 0 <= uncounted <= cost.
	uncounted int64
	fallback  bool // all of it was admitted in fallback, so it is reported a while after the owner is back
	// batchedCost is the part of cost that is in batches. Invariant: 0 <= batchedCost <= cost.
	batchedCost int64
	// restored is set if an earlier process recorded the debt. A merge of the counters here with a copy may lose the part
	// they have, so the next owner debits all of it.
	restored bool
}

// toDebit returns the part of the debt that must still be debited from the counters here. elsewhere is the part that
// another owner has already debited.
func (d *debt) toDebit(elsewhere int64) int64 {
	if d.restored {
		return max(0, d.cost-elsewhere)
	}
	return d.uncounted
}

// reduce takes cost off the debt, down to its part in batches.
func (d *debt) reduce(cost int64) {
	d.cost = max(d.batchedCost, d.cost-cost)
	d.uncounted = min(d.uncounted, d.cost)
}

// debts holds the debts to report to owners, by partition and counter. It has no lock of its own. Invariant: total is
// the number of debts, at most maxDebts; inlineTotal of them are for inline counters.
type debts struct {
	self      ring.NodeID
	table     *counters.Table
	log       *slog.Logger
	bootIndex uint64 // the entry that registered this process

	byPartition     map[int]map[counters.Key]*debt
	batches         map[int][]*debtBatch // by partition with debts, in ascending order of their numbers
	lastBatchNumber uint64               // the last number assigned to a batch
	total           int
	inlineTotal     int
	changes         uint64 // rises with every change; debts are written to disk only if it has
}

func newDebts(config *Config) debts {
	return debts{
		self: config.Self, table: config.Table, log: config.Logger,
		byPartition: map[int]map[counters.Key]*debt{}, batches: map[int][]*debtBatch{},
	}
}

// hasRoom reports whether there is room for a debt of each of ops.
func (ds *debts) hasRoom(ops []counters.Op) bool {
	inline := 0
	for i := range ops {
		if ops[i].Key.IsInline() {
			inline++
		}
	}
	return ds.total+len(ops) <= maxDebts && (inline == 0 || ds.inlineTotal+inline <= maxDebts/inlineDebts)
}

// debtOf returns the debt of a counter, or nil if there is none.
func (ds *debts) debtOf(key counters.Key) *debt { return ds.byPartition[key.Partition()][key] }

// onlyFallback reports whether all debts of p were admitted in fallback.
func (ds *debts) onlyFallback(p int) bool {
	for _, d := range ds.byPartition[p] {
		if !d.fallback {
			return false
		}
	}
	return true
}

// findOrAdd returns the debt of a counter. If there is none, it adds an empty one.
func (ds *debts) findOrAdd(key counters.Key) *debt {
	p := key.Partition()
	if ds.byPartition[p] == nil {
		ds.byPartition[p] = map[counters.Key]*debt{}
	}
	if ds.byPartition[p][key] == nil {
		ds.byPartition[p][key] = &debt{}
		ds.addToTotals(key, 1)
	}
	return ds.byPartition[p][key]
}

// addToTotals adds n to the number of debts, and for an inline counter to the number of inline ones.
func (ds *debts) addToTotals(key counters.Key, n int) {
	ds.total += n
	if key.IsInline() {
		ds.inlineTotal += n
	}
}

// isFull reports whether key's counter can't have a new debt, given a bound on all debts.
func (ds *debts) isFull(key counters.Key, bound int) bool {
	return ds.total >= bound || key.IsInline() && ds.inlineTotal >= bound/inlineDebts
}

func (ds *debts) remove(key counters.Key) {
	p := key.Partition()
	if ds.debtOf(key) == nil {
		return
	}
	ds.changes++
	delete(ds.byPartition[p], key)
	if len(ds.byPartition[p]) == 0 {
		delete(ds.byPartition, p)
		delete(ds.batches, p)
	}
	ds.addToTotals(key, -1)
}

// noteOverwritten records that the counter here was overwritten.
func (ds *debts) noteOverwritten(key counters.Key) {
	if d := ds.debtOf(key); d != nil {
		d.uncounted = d.cost
		ds.changes++
	}
}

// noteDropped records that the copy of p was dropped.
func (ds *debts) noteDropped(p int) {
	for _, d := range ds.byPartition[p] {
		d.uncounted = d.cost
	}
	for _, batch := range ds.batches[p] {
		batch.included = false
	}
	ds.changes++
}

// addDebt records the cost of an admitted op as a debt; the counter here has all of it except uncounted. It returns false
// if there is no room, which happens only in fallback (alone).
func (ds *debts) addDebt(op *counters.Op, taken algorithms.TakeRecord, uncounted int64, alone bool) bool {
	known := ds.debtOf(op.Key) != nil
	if !known && alone && ds.isFull(op.Key, maxFallbackDebts) {
		return false
	}

	d := ds.findOrAdd(op.Key)
	d.fallback = alone && (d.fallback || !known)

	if d.limit = *op.Limit; !d.sameWindow(taken) {
		// they belong to an earlier window
		d.cost = 0
		d.uncounted = 0
		d.batchedCost = 0
	}

	d.taken = taken
	d.cost = min(d.cost+op.Cost, maxOwedCost)
	d.uncounted = min(d.uncounted+uncounted, d.cost)
	ds.changes++

	return true
}

// uncountedCost returns how much this node admitted in op's current window that the counter here lacks. It is 0 for buckets and
// sliding windows, which drain while the recorded debt does not.
func (ds *debts) uncountedCost(now algorithms.Instant, op *counters.Op) int64 {
	d := ds.debtOf(op.Key)
	if d == nil || op.Limit.Kind != algorithms.FixedWindow || !d.sameWindow(takeRecordNow(op.Limit, now)) {
		return 0
	}
	return d.uncounted
}

// forgive takes op's cost, admitted at the given time, off its debt.
func (ds *debts) forgive(at algorithms.Instant, op *counters.Op) {
	d := ds.debtOf(op.Key)
	if d == nil || !d.sameWindow(takeRecordNow(op.Limit, at)) {
		return
	}
	ds.changes++
	if d.reduce(op.Cost); d.cost == 0 {
		ds.remove(op.Key)
	}
}

// debitOwnDebts drops the debts of a partition whose token is here: this node owes them to itself now. It first debits
// the parts that the counters lack.
func (ds *debts) debitOwnDebts(p int, now algorithms.Instant) {
	ds.debitMissing(p, now, ds.debitedElsewhere(p, now))
	for key := range ds.byPartition[p] {
		ds.remove(key)
	}
}

// debitMissing debits the debts of p that the counters here lack. elsewhere holds the parts that another node has already
// debited from them.
func (ds *debts) debitMissing(p int, now algorithms.Instant, elsewhere map[counters.Key]int64) {
	for key, d := range ds.byPartition[p] {
		if cost := d.toDebit(elsewhere[key]); cost > 0 {
			if err := ds.table.ForceCapped(now, key, &d.limit, d.taken, d.capped(cost)); err != nil {
				ds.log.Warn("a debt could not be debited and is lost", "partition", p, "cost", cost, "error", err)
			}
		}
	}
}

// prune drops expired debts.
func (ds *debts) prune(now algorithms.Instant) {
	ds.pruneBatches(now)
	for _, list := range ds.byPartition {
		for key, d := range list {
			if d.isExpired(now) {
				ds.remove(key)
			}
		}
	}
}

// debtsFormat is the first byte of debts on disk. After it come the wall clock in nanoseconds, as a varint, and the number
// of debts, as a uvarint. Then each debt: fallback as a byte, uncounted as a uvarint, and the rest as in a message. Then
// the batches, as in a message.
const debtsFormat = 3 // earlier releases used 1 and 2, with other encodings of limits

func (ds *debts) append(b []byte, now algorithms.Instant) []byte {
	b = binary.AppendVarint(append(b, debtsFormat), now.Wall)
	b = binary.AppendUvarint(b, uint64(ds.total))
	for _, list := range ds.byPartition {
		for key, d := range list {
			b = binary.AppendUvarint(wire.AppendBool(b, d.fallback), uint64(d.uncounted))
			b = d.append(b, key, now)
		}
	}

	for _, batches := range ds.batches {
		for _, batch := range batches {
			b = batch.append(b, now)
		}
	}

	return b
}

// restore adopts the debts that append encoded in an earlier process; see Keeper.RestoreDebts.
func (ds *debts) restore(b []byte, now algorithms.Instant) (int, error) {
	if len(b) == 0 || b[0] != debtsFormat {
		return 0, errors.New("another version of rlnode wrote them")
	}

	d := wire.NewDecoder(b[1:])
	elapsed := min(max(0, now.Wall-max(0, d.Varint())), 1<<61)

	restored := map[counters.Key]bool{}
	for range decodeCount(d) {
		one := debt{fallback: d.Bool(), uncounted: int64(d.Uvarint()), restored: true}
		var key counters.Key
		if key, one.owedCost = decodeOwedCost(d, now, elapsed); one.cost < 1 || one.uncounted < 0 || one.uncounted > one.cost {
			d.Failf("a debt is out of bounds")
		}

		if d.Failed() {
			break
		}

		if !ds.isFull(key, maxDebts) && ds.debtOf(key) == nil && !one.isExpired(now) {
			*ds.findOrAdd(key) = one
			restored[key] = true
		}
	}

	for d.More() {
		if batch := decodeBatch(d, now, elapsed); batch != nil {
			batch.reported = true // perhaps by the earlier process
			ds.restoreBatch(batch, restored)
		}
	}

	ds.changes++
	return len(restored), d.Done("debts")
}
