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
	// maxDebts bounds the counters for which an owner that can't be reached has debts here. Where there is no room
	// for one more, this node doesn't act.
	maxDebts = 1 << 16
	// maxAlone is how many there may be for those of a fallback still to be added: the rest is for acting. Beyond it the
	// check is decided all the same, and its debt dropped.
	maxAlone = maxDebts / 4 * 3
	// maxOwed keeps sums from overflowing.
	maxOwed = 1 << 60
)

// owed is a cost that was admitted without the owner, and under what.
type owed struct {
	limit algorithms.Limit
	taken algorithms.Taken // of the last of it
	cost  int64            // at most as much of it as the capacity is ever debited: see due
}

// due is what is debited of a part of the cost. Nobody is to be locked out for longer than it takes to get the capacity back.
func (o *owed) due(cost int64) int64 { return min(cost, o.limit.Capacity()) }

// lasts is how long it takes until nothing is left of what is due.
func (o *owed) lasts(now algorithms.Now) time.Duration {
	if o.limit.Kind == algorithms.SlidingLog {
		return o.limit.Window - time.Duration(now.Steady-o.taken.Steady)
	}
	s := algorithms.State{Count: o.due(o.cost), At: o.taken.Window}
	if o.limit.Kind.Bucket() {
		s.At = o.taken.Steady
	}
	if s = o.limit.Advance(s, now); s.Fresh() {
		return 0
	}
	return max(1, o.limit.Describe(s, now, 0, true).ResetAfter)
}

// over reports whether it would drain or leave its window before anyone could be told.
func (o *owed) over(now algorithms.Now) bool { return o.lasts(now) <= 0 }

// of reports whether the cost is of the window of taken, where that matters.
func (o *owed) of(taken algorithms.Taken) bool {
	return o.limit.Kind != algorithms.FixedWindow || o.taken.Window == taken.Window
}

// append writes what is owed of a counter.
func (o *owed) append(b []byte, key counters.Key, now algorithms.Now) []byte {
	b = o.limit.Append(counters.AppendKey(b, key), 0)
	b = binary.AppendUvarint(b, uint64(max(0, now.Steady-o.taken.Steady)))
	b = binary.AppendVarint(b, o.taken.Window)
	return binary.AppendUvarint(b, uint64(o.cost))
}

// decodeOwed reads what owed.append wrote so many nanoseconds ago.
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

// debt is what was admitted from one counter without its owner: while acting for it, and in fallback.
type debt struct {
	owed
	// absent is how much of cost the counter here does not have in it: because there was none, or because the owner has
	// pushed it since, or the copy was dropped. Invariant: 0 <= absent <= cost.
	absent int64
	waits  bool // nothing of it comes from acting: it is told a while after the owner is back
	// sealed is how much of cost is in seals. Invariant: 0 <= sealed <= cost.
	sealed int64
	// former: an earlier process noted it. Joining the counters here with a copy may lose what they have of it, so the next
	// owner debits all of it.
	former bool
}

// missing is how much of the debt must still be debited in the counters here; there is how much of it an owner has debited.
func (d *debt) missing(there int64) int64 {
	if d.former {
		return max(0, d.cost-there)
	}
	return d.absent
}

// reduce takes cost off the debt, but nothing that is sealed.
func (d *debt) reduce(cost int64) {
	d.cost = max(d.sealed, d.cost-cost)
	d.absent = min(d.absent, d.cost)
}

// debtLedger has what owners are to be told, by partition and counter. It has no lock of its own.
// Invariant: n is how many debts there are, at most maxDebts.
type debtLedger struct {
	self        ring.NodeID
	table       *counters.Table
	log         *slog.Logger
	incarnation uint64 // the entry that named this process

	debts   map[int]map[counters.Key]*debt
	seals   map[int][]*seal // by partition that has debts, in the order of their numbers
	numbers uint64          // given so far
	n       int
	changes uint64 // so that they are written down only when there is something new
}

func newDebtLedger(cfg *Config) debtLedger {
	return debtLedger{
		self: cfg.Self, table: cfg.Table, log: cfg.Logger,
		debts: map[int]map[counters.Key]*debt{}, seals: map[int][]*seal{},
	}
}

// get returns the debt of a counter; nil: there is none.
func (l *debtLedger) get(key counters.Key) *debt { return l.debts[key.Partition()][key] }

// at returns the debt of a counter, an empty one if there was none.
func (l *debtLedger) at(key counters.Key) *debt {
	p := key.Partition()
	if l.debts[p] == nil {
		l.debts[p] = map[counters.Key]*debt{}
	}
	if l.debts[p][key] == nil {
		l.debts[p][key] = &debt{}
		l.n++
	}
	return l.debts[p][key]
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
	l.n--
}

// replaceOne takes note that the counter here was replaced.
func (l *debtLedger) replaceOne(key counters.Key) {
	if d := l.get(key); d != nil {
		d.absent = d.cost
		l.changes++
	}
}

// replace takes note that the copy of p was dropped.
func (l *debtLedger) replace(p int) {
	for _, d := range l.debts[p] {
		d.absent = d.cost
	}
	for _, s := range l.seals[p] {
		s.present = false
	}
	l.changes++
}

// owe notes what was admitted; the counter here has all of it but absent. It returns false if there is no room, which
// happens only to what was admitted alone, in fallback.
func (l *debtLedger) owe(op *counters.Op, from algorithms.Taken, absent int64, alone bool) bool {
	known := l.get(op.Key) != nil
	if !known && alone && l.n >= maxAlone {
		return false
	}
	d := l.at(op.Key)
	d.waits = alone && (d.waits || !known)
	if d.limit = *op.Limit; !d.of(from) {
		d.cost, d.absent, d.sealed = 0, 0, 0 // of a window that is over
	}
	d.taken = from
	d.cost = min(d.cost+op.Cost, maxOwed)
	d.absent = min(d.absent+absent, d.cost)
	l.changes++
	return true
}

// absent is how much this node admitted in op's current window that the counter here lacks. Buckets and sliding windows
// drain, while the debt as noted does not: for them it is 0.
func (l *debtLedger) absent(now algorithms.Now, op *counters.Op) int64 {
	d := l.get(op.Key)
	if d == nil || op.Limit.Kind != algorithms.FixedWindow || !d.of(takenNow(op.Limit, now)) {
		return 0
	}
	return d.absent
}

// forgive takes back what was noted of op at a time.
func (l *debtLedger) forgive(at algorithms.Now, op *counters.Op) {
	d := l.get(op.Key)
	if d == nil || !d.of(takenNow(op.Limit, at)) {
		return
	}
	l.changes++
	if d.reduce(op.Cost); d.cost == 0 {
		l.remove(op.Key)
	}
}

// keep drops the debts of a partition whose token is here: this node is their creditor now. What its counters lack is
// debited first.
func (l *debtLedger) keep(p int, now algorithms.Now) {
	l.debitMissing(p, now, l.there(p, now))
	for key := range l.debts[p] {
		l.remove(key)
	}
}

// debitMissing debits what the counters here don't have of the debts of p; there is what somebody else has debited in them.
func (l *debtLedger) debitMissing(p int, now algorithms.Now, there map[counters.Key]int64) {
	for key, d := range l.debts[p] {
		if cost := d.missing(there[key]); cost > 0 {
			if err := l.table.ObligeCopy(now, key, &d.limit, d.taken, d.due(cost)); err != nil {
				l.log.Warn("a debt is lost", "partition", p, "error", err)
			}
		}
	}
}

// prune forgets debts that are over.
func (l *debtLedger) prune(now algorithms.Now) {
	l.pruneSeals(now)
	for _, list := range l.debts {
		for key, d := range list {
			if d.over(now) {
				l.remove(key)
			}
		}
	}
}

// Debts written down are a byte for the format, the wall clock in nanoseconds as a varint, and how many they are as a uvarint;
// then each debt: 1 if it waits, absent as a uvarint, and the rest as in a message; then the seals, as in a message.
const debtsFormat = 3 // 1 and 2: of versions that wrote limits otherwise

func (l *debtLedger) append(b []byte, now algorithms.Now) []byte {
	b = binary.AppendVarint(append(b, debtsFormat), now.Wall)
	b = binary.AppendUvarint(b, uint64(l.n))
	for _, list := range l.debts {
		for key, d := range list {
			b = binary.AppendUvarint(wire.AppendBool(b, d.waits), uint64(d.absent))
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

// restore takes up what append wrote in an earlier process; see Keeper.RestoreDebts.
func (l *debtLedger) restore(b []byte, now algorithms.Now) (int, error) {
	if len(b) == 0 || b[0] != debtsFormat {
		return 0, errors.New("another version of rlnode has written them")
	}
	d := wire.NewDecoder(b[1:])
	passed := min(max(0, now.Wall-max(0, d.Varint())), 1<<61)
	restored := map[counters.Key]bool{}
	for range decodeCount(d) {
		one := debt{waits: d.Bool(), absent: int64(d.Uvarint()), former: true}
		var key counters.Key
		if key, one.owed = decodeOwed(d, now, passed); one.cost < 1 || one.absent < 0 || one.absent > one.cost {
			d.Failf("a debt is out of bounds")
		}
		if d.Failed() {
			break
		}
		if l.n < maxDebts && l.get(key) == nil && !one.over(now) {
			*l.at(key) = one
			restored[key] = true
		}
	}
	for d.More() {
		if s := decodeSeal(d, now, passed); s != nil {
			s.told = true // by the process before, perhaps
			l.restoreSeal(s, restored)
		}
	}
	l.changes++
	return len(restored), d.Done("debts")
}
