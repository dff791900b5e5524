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
	// maxOwed keeps sums from overflowing.
	maxOwed = 1 << 60
)

// owed is a cost that was admitted without the owner, and the limit that admitted it.
type owed struct {
	limit algorithms.Limit
	taken algorithms.Taken // when the last part of it was taken
	cost  int64            // the owner debits at most the limit's capacity: see capped
}

// capped returns cost, at most the limit's capacity: no subject must be locked out for longer than it takes to regain that.
func (o *owed) capped(cost int64) int64 { return min(cost, o.limit.Capacity()) }

// timeLeft returns the time until no part of the capped cost counts any more.
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

// append encodes o, owed for the counter of key.
func (o *owed) append(b []byte, key counters.Key, now algorithms.Now) []byte {
	b = o.limit.Append(counters.AppendKey(b, key), 0)
	b = binary.AppendUvarint(b, uint64(max(0, now.Steady-o.taken.Steady)))
	b = binary.AppendVarint(b, o.taken.Window)
	return binary.AppendUvarint(b, uint64(o.cost))
}

// decodeOwed decodes what owed.append encoded passed nanoseconds ago.
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

// debt is the cost that this node admitted from one counter without its owner, as a standby or in fallback.
type debt struct {
	owed
	// absent is the part of cost that the counter here lacks: there was no counter, or the owner has overwritten it since,
	// or the copy was dropped. Invariant: 0 <= absent <= cost.
	absent   int64
	fallback bool // all of it was admitted in fallback, so it is reported a while after the owner is back
	// sealed is the part of cost that is in seals. Invariant: 0 <= sealed <= cost.
	sealed int64
	// restored is set if an earlier process recorded the debt. A merge of the counters here with a copy may lose the part
	// they have, so the next owner debits all of it.
	restored bool
}

// missing returns the part of the debt that must still be debited from the counters here. elsewhere is the part that
// another owner has already debited.
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

// debtLedger holds the debts to report to owners, by partition and counter. It has no lock of its own. Invariant: n is the
// number of debts, at most maxDebts; inline of them are for inline counters.
type debtLedger struct {
	self      ring.NodeID
	table     *counters.Table
	log       *slog.Logger
	bootIndex uint64 // the entry that registered this process

	debts   map[int]map[counters.Key]*debt
	seals   map[int][]*seal // by partition with debts, in ascending order of their numbers
	numbers uint64          // the last number assigned to a seal
	n       int
	inline  int
	changes uint64 // rises with every change, so debts are written to disk only after changes
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

// getOrAdd returns the debt of a counter. If there is none, it adds an empty one.
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

// count adds n to the number of debts, and for an inline counter to the number of inline ones.
func (l *debtLedger) count(key counters.Key, n int) {
	l.n += n
	if key.Inline() {
		l.inline += n
	}
}

// full reports whether key's counter can't have a new debt, given a bound on all debts.
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

// owe records the cost of an admitted op, taken at from; the counter here has all of it except absent. It returns false if
// there is no room, which happens only in fallback (alone).
func (l *debtLedger) owe(op *counters.Op, from algorithms.Taken, absent int64, alone bool) bool {
	known := l.get(op.Key) != nil
	if !known && alone && l.full(op.Key, maxFallbackDebts) {
		return false
	}
	d := l.getOrAdd(op.Key)
	d.fallback = alone && (d.fallback || !known)
	if d.limit = *op.Limit; !d.sameWindow(from) {
		d.cost, d.absent, d.sealed = 0, 0, 0 // they belong to an earlier window
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

// debitOwn drops the debts of a partition whose token is here: this node owes them to itself now. It first debits the parts
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

// prune drops expired debts.
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

// debtsFormat is the first byte of debts on disk. After it come the wall clock in nanoseconds, as a varint, and the number
// of debts, as a uvarint. Then each debt: fallback as a byte, absent as a uvarint, and the rest as in a message. Then the
// seals, as in a message.
const debtsFormat = 3 // earlier releases used 1 and 2, with other encodings of limits

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
			s.reported = true // perhaps by the earlier process
			l.restoreSeal(s, restored)
		}
	}
	l.changes++
	return len(restored), d.Done("debts")
}
