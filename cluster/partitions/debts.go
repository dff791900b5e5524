package partitions

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// maxDebts bounds the number of counters with debts. When there is no room for
	// another, this node does not act as a standby.
	maxDebts = 1 << 16
	// maxFallbackDebts bounds the counters with debts that fallback may fill. The
	// rest is for acting as a standby. At the bound, checks are still decided, but
	// the costs of further counters are not reported.
	maxFallbackDebts = maxDebts / 4 * 3
	// inlineDivisor bounds the inline counters: they may take 1/inlineDivisor of
	// each bound above.
	inlineDivisor = 2
)

// debts holds the debts to report to owners, by partition and counter. A
// counter has at most one debt that has not been reported yet, as the last of
// its list. Keeper.mu guards it. Invariant: total is the number of counters
// with debts, at most maxDebts; inlineTotal of them are inline counters.
type debts struct {
	self      ring.NodeID
	table     *counters.Table
	log       *slog.Logger
	bootIndex uint64 // the entry that registered this process; zero if none has yet

	byPartition map[int]map[counters.Key][]*debt
	lastNumber  uint64 // the last number assigned to a debt
	total       int
	inlineTotal int
	changes     uint64 // rises with every change; debts are written to disk only if it has
}

func newDebts(config *Config) debts {
	return debts{
		self: config.Self, table: config.Table, log: config.Logger,
		byPartition: map[int]map[counters.Key][]*debt{},
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
	return ds.total+len(ops) <= maxDebts && (inline == 0 || ds.inlineTotal+inline <= maxDebts/inlineDivisor)
}

// ofCounter returns the debts of a counter.
func (ds *debts) ofCounter(key counters.Key) []*debt { return ds.byPartition[key.Partition()][key] }

// notFinal returns the debt of a counter that may still change, or nil if there
// is none.
func (ds *debts) notFinal(key counters.Key) *debt {
	list := ds.ofCounter(key)
	if len(list) == 0 || list[len(list)-1].number.isFinal() {
		return nil
	}
	return list[len(list)-1]
}

// inOrder returns the debts of p in the order of their numbers. They must be
// reported in this order.
func (ds *debts) inOrder(p int) (all []*debt) {
	for _, list := range ds.byPartition[p] {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b *debt) int { return a.number.compare(b.number) })
	return all
}

// add adds a debt as the last one of its counter.
func (ds *debts) add(d *debt) *debt {
	p := d.key.Partition()
	if ds.byPartition[p] == nil {
		ds.byPartition[p] = map[counters.Key][]*debt{}
	}
	if len(ds.byPartition[p][d.key]) == 0 {
		ds.addToTotals(d.key, 1)
	}
	ds.byPartition[p][d.key] = append(ds.byPartition[p][d.key], d)
	ds.changes++
	return d
}

// addToTotals adds n to the number of counters with debts, and for an inline
// counter to the number of inline ones.
func (ds *debts) addToTotals(key counters.Key, n int) {
	ds.total += n
	if key.IsInline() {
		ds.inlineTotal += n
	}
}

// hasRoomFor reports whether key's counter may have its first debt, given a bound
// on all counters with debts.
func (ds *debts) hasRoomFor(key counters.Key, bound int) bool {
	return ds.total < bound && (!key.IsInline() || ds.inlineTotal < bound/inlineDivisor)
}

// remove removes a debt. It returns false if the debt was removed before: it
// has expired, or this node has become the owner.
func (ds *debts) remove(d *debt) bool {
	p := d.key.Partition()
	list := ds.ofCounter(d.key)
	i := slices.Index(list, d)
	if i < 0 {
		return false
	}

	ds.changes++
	if len(list) > 1 {
		ds.byPartition[p][d.key] = slices.Delete(list, i, i+1)
		return true
	}

	ds.addToTotals(d.key, -1)
	delete(ds.byPartition[p], d.key)
	if len(ds.byPartition[p]) == 0 {
		delete(ds.byPartition, p)
	}
	return true
}

// markOverwritten records that the counter here was overwritten.
func (ds *debts) markOverwritten(key counters.Key) {
	for _, d := range ds.ofCounter(key) {
		d.lacking = d.cost
		ds.changes++
	}
}

// markDropped records that the copy of p was dropped.
func (ds *debts) markDropped(p int) {
	for _, list := range ds.byPartition[p] {
		for _, d := range list {
			d.lacking = d.cost
			d.isInCounters = false
		}
	}
	ds.changes++
}

// addDebt records the cost of an admitted op as a debt. lacking is the part of
// it that the counter here does not have. It returns false if there is no room, which
// happens only in fallback.
func (ds *debts) addDebt(op *counters.Op, taken algorithms.TakeRecord, lacking int64, fallback bool) bool {
	d := ds.notFinal(op.Key)
	if d == nil {
		// The bounds are on counters, so a counter that has a debt takes no further
		// room.
		if fallback && len(ds.ofCounter(op.Key)) == 0 && !ds.hasRoomFor(op.Key, maxFallbackDebts) {
			return false
		}
		d = ds.add(&debt{key: op.Key, number: ds.nextNumber(), fallback: fallback})
	}

	d.fallback = d.fallback && fallback
	d.limit = *op.Limit
	if !d.sameWindow(taken) {
		// What was owed in an earlier window no longer counts.
		d.cost = 0
		d.lacking = 0
	}

	d.taken = taken
	d.cost = min(d.cost+op.Cost, maxOwedCost)
	d.lacking = min(d.lacking+lacking, d.cost)
	ds.changes++

	return true
}

// lackingCost returns how much this node admitted in op's current window that
// the counter here lacks. It is 0 for limits other than fixed windows: their
// counters drain, but the recorded debt does not.
func (ds *debts) lackingCost(now algorithms.Instant, op *counters.Op) (cost int64) {
	if op.Limit.Kind != algorithms.FixedWindow {
		return 0
	}
	for _, d := range ds.ofCounter(op.Key) {
		if d.sameWindow(takeRecordNow(op.Limit, now)) {
			cost += d.lacking
		}
	}
	return cost
}

// forgive takes op's cost, admitted at the given time, off its debt, unless the
// debt has been reported meanwhile.
func (ds *debts) forgive(at algorithms.Instant, op *counters.Op) {
	d := ds.notFinal(op.Key)
	if d == nil || !d.sameWindow(takeRecordNow(op.Limit, at)) {
		return
	}

	ds.changes++
	d.cost = max(0, d.cost-op.Cost)
	d.lacking = min(d.lacking, d.cost)
	if d.cost == 0 {
		ds.remove(d)
	}
}

// prune drops expired debts.
func (ds *debts) prune(now algorithms.Instant) {
	for p := range ds.byPartition {
		// inOrder returns a copy, so debts may be removed meanwhile.
		for _, d := range ds.inOrder(p) {
			if d.isExpired(now) {
				ds.remove(d)
			}
		}
	}
}

// debtsFormat is the first byte of debts on disk. After it come the wall clock
// in nanoseconds, as a varint, and the debts. Each has fallback as a byte,
// lacking as a uvarint, and the rest as in a message. A debt that has not been
// reported is written with the number under which this process would report it.
// If this process reports it and is killed before the next write, the next
// process reports it again under that number, so the owner debits it only once.
const debtsFormat = 4 // earlier builds used 1 to 3

func (ds *debts) append(b []byte, now algorithms.Instant) []byte {
	b = binary.AppendVarint(append(b, debtsFormat), now.Wall)
	for _, lists := range ds.byPartition {
		for _, list := range lists {
			for _, d := range list {
				b = binary.AppendUvarint(wire.AppendBool(b, d.fallback), uint64(d.lacking))
				b = d.append(b, ds.bootIndex, now)
			}
		}
	}
	return b
}

// restore adopts the debts that append encoded in an earlier process; see Keeper.RestoreDebts.
func (ds *debts) restore(b []byte, now algorithms.Instant) (int, error) {
	if len(b) == 0 || b[0] != debtsFormat {
		return 0, errors.New("the file of debts was written by another version of rlnode")
	}

	dec := wire.NewDecoder(b[1:])
	written := max(0, dec.Varint())
	elapsed := min(max(0, now.Wall-written), 1<<61)

	restored := map[counters.Key]bool{}
	for dec.More() {
		fallback, lacking := dec.Bool(), int64(dec.Uvarint())
		d := decodeDebt(dec, now, elapsed)
		if lacking < 0 || lacking > d.cost {
			dec.Failf("a debt is out of bounds")
		}
		if dec.Failed() {
			break
		}

		d.fallback = fallback
		d.lacking = lacking
		d.restored = true
		if !d.number.isFinal() {
			d.number = ds.nextNumber() // the process that wrote it was never registered
		}

		if ds.canRestore(d, restored) && !d.isExpired(now) {
			ds.add(d)
			restored[d.key] = true
		}
	}

	ds.changes++
	return len(restored), dec.Done("debts")
}

// canRestore reports whether there is room for d, and d would not come after a
// debt of this process: only the last of a counter's list may still change, and
// numbers rise. restored holds the counters that have restored debts.
func (ds *debts) canRestore(d *debt, restored map[counters.Key]bool) bool {
	isFirst := len(ds.ofCounter(d.key)) == 0
	if isFirst {
		return ds.hasRoomFor(d.key, maxDebts)
	}
	return restored[d.key]
}

// nextNumber returns the number of a new debt.
func (ds *debts) nextNumber() debtNumber {
	ds.lastNumber++
	return debtNumber{n: ds.lastNumber}
}
