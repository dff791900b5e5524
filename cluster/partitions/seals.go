package partitions

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// A seal is an immutable report of a node's debts in a partition, under a number that is never reused. The owner debits it
// once, and notes each node's last number next to the counters of the partition. The note goes to standbys, to the next
// owner and to disk with the counters. So if a seal is sent again, to a later owner that continues from these counters, it
// is not debited twice.

// maxSeals bounds the seals of a partition.
const maxSeals = 16

// sealNumber is the number of a seal. A node's numbers in a partition rise, from one of its processes to the next, too.
type sealNumber struct {
	bootIndex uint64 // the entry that registered the process
	n         uint64
}

func (n sealNumber) notAfter(b sealNumber) bool {
	return n.bootIndex < b.bootIndex || n.bootIndex == b.bootIndex && n.n <= b.n
}

// seal is one report of debts in a partition.
type seal struct {
	sealNumber
	partition int
	entries   []sealedDebt
	included  bool // the counters here have all of its costs, so no debt's uncounted includes them
	reported  bool // it may have been debited under its number, so it must not change
}

// sealedDebt is a debt, or part of one, in a seal.
type sealedDebt struct {
	key counters.Key
	owedCost
}

// sealDebts puts the unsealed debts of p in a new seal, as many as fit in a message. If skipFallback is
// true, it leaves out fallback debts. It returns false if there were no debts to seal.
func (l *debtLedger) sealDebts(p int, skipFallback bool) bool {
	s := &seal{partition: p}
	for key, d := range l.byPartition[p] {
		if d.fallback && skipFallback || d.cost <= d.sealedCost || len(s.entries) >= debtsPerMessage {
			continue
		}
		e := sealedDebt{key: key, owedCost: d.owedCost}
		e.cost -= d.sealedCost
		s.entries = append(s.entries, e)
		d.sealedCost = d.cost
	}
	if len(s.entries) == 0 {
		return false
	}
	l.lastSealNumber++
	s.sealNumber = sealNumber{bootIndex: l.bootIndex, n: l.lastSealNumber}
	l.addSeal(s)
	return true
}

// dissolveUnreported dissolves the last seals of p, as long as they have not been reported: later seals report their debts.
func (l *debtLedger) dissolveUnreported(p int) {
	list := l.seals[p]
	for len(list) > 0 && !list[len(list)-1].reported {
		s := list[len(list)-1]
		for i := range s.entries {
			l.unseal(&s.entries[i], false)
		}
		list = list[:len(list)-1]
	}
	if len(list) == 0 {
		delete(l.seals, p)
	} else {
		l.seals[p] = list
	}
}

// sealAll seals all debts of p, in at most maxSeals seals.
func (l *debtLedger) sealAll(p int) {
	l.dissolveUnreported(p)
	for len(l.seals[p]) < maxSeals && l.sealDebts(p, false) {
	}
}

// sealForDisk seals the debts that are about to be written to disk. If this process reports one of them and is killed
// before the next write, the next process reports it again under the number on disk, so the owner debits it only once.
func (l *debtLedger) sealForDisk() {
	changes := l.changes
	for p := range l.byPartition {
		l.sealAll(p)
	}
	l.changes = changes
}

// addSeal adds a seal as the last one of its partition.
func (l *debtLedger) addSeal(s *seal) {
	l.seals[s.partition] = append(l.seals[s.partition], s)
	l.changes++
}

// restoreSeal adopts a seal of restored debts.
func (l *debtLedger) restoreSeal(s *seal, restored map[counters.Key]bool) {
	s.entries = slices.DeleteFunc(s.entries, func(e sealedDebt) bool {
		return !restored[e.key] || l.debtOf(e.key).cost-l.debtOf(e.key).sealedCost < e.cost
	})
	if len(s.entries) == 0 {
		return
	}
	for i := range s.entries {
		l.debtOf(s.entries[i].key).sealedCost += s.entries[i].cost
	}
	l.addSeal(s)
}

// acknowledge takes those debts of a seal off the ledger for which taken is true: the owner's counters include them. The
// remaining ones are reported under another number.
func (l *debtLedger) acknowledge(s *seal, taken func(i int) bool) {
	i := slices.IndexFunc(l.seals[s.partition], func(have *seal) bool { return have.sealNumber == s.sealNumber })
	if i < 0 {
		return // the partition's debts have expired, or this node has become its owner
	}
	l.changes++
	if l.seals[s.partition] = slices.Delete(l.seals[s.partition], i, i+1); len(l.seals[s.partition]) == 0 {
		delete(l.seals, s.partition)
	}
	for i := range s.entries {
		l.unseal(&s.entries[i], taken(i))
	}
}

// unseal takes an entry out of its seal. If drop is true, it also takes the cost off the debt, which is then no longer
// reported.
func (l *debtLedger) unseal(e *sealedDebt, drop bool) {
	d := l.debtOf(e.key)
	if d == nil || !d.sameWindow(e.taken) {
		return // it belonged to an earlier window, and the debt no longer includes it
	}
	cost := min(e.cost, d.sealedCost)
	if d.sealedCost -= cost; !drop {
		return
	}
	if d.reduce(cost); d.cost <= 0 {
		l.remove(e.key)
	}
}

// pruneSeals drops from seals the entries that have drained or left their window. It replaces a changed seal, because the
// old one may be in flight.
func (l *debtLedger) pruneSeals(now algorithms.Now) {
	for p, seals := range l.seals {
		var left []*seal
		for _, s := range seals {
			next := *s
			next.entries = slices.DeleteFunc(slices.Clone(s.entries), func(e sealedDebt) bool {
				over := e.expired(now)
				if over {
					l.unseal(&e, true)
				}
				return over
			})
			switch len(next.entries) {
			case len(s.entries):
				left = append(left, s)
			case 0:
			default:
				left = append(left, &next)
			}
		}
		if l.seals[p] = left; len(left) == 0 || len(l.byPartition[p]) == 0 {
			delete(l.seals, p)
		}
	}
}

// debitedElsewhere returns the parts of p's debts that another node has already debited from the counters here, and
// reduces uncounted by them. The debts stay: counters without them may yet replace those here.
func (l *debtLedger) debitedElsewhere(p int, now algorithms.Now) map[counters.Key]int64 {
	if len(l.seals[p]) == 0 {
		return nil
	}
	last, found := l.notedNumber(p, l.self, now)
	debited := map[counters.Key]int64{}
	for _, s := range l.seals[p] {
		if !found || !s.notAfter(last) {
			break
		}
		for i := range s.entries {
			d := l.debtOf(s.entries[i].key)
			if d == nil {
				continue
			}
			cost := min(s.entries[i].cost, d.sealedCost)
			debited[s.entries[i].key] += cost
			if !s.included {
				d.uncounted = max(0, d.uncounted-cost)
			}
		}
		s.included = true
	}
	return debited
}

// includeDebts debits all debts of p from the copy here, which is whole and about to be sent to the owner, and notes their last
// seal in it. When the debts are reported, an owner that continued from the copy debits none of them; any other owner
// debits them all.
func (l *debtLedger) includeDebts(p int, now algorithms.Now) {
	if len(l.byPartition[p]) == 0 {
		return
	}
	l.sealAll(p)
	seals, elsewhere := l.seals[p], l.debitedElsewhere(p, now)
	if len(seals) == 0 || l.noteSeal(l.self, seals[len(seals)-1], now) != nil {
		return // at worst, they are debited twice
	}
	l.debitMissing(p, now, elsewhere)
	for _, d := range l.byPartition[p] {
		d.uncounted, d.restored = 0, false
	}
	for _, s := range seals {
		s.included, s.reported = true, true
	}
	l.changes++
}

// debit debits a seal of node, unless it was debited before. It fails if it can't note the number. It returns the indexes
// of the debts that there is no room for.
func (l *debtLedger) debit(node ring.NodeID, s *seal, now algorithms.Now) (noRoom []int, err error) {
	if last, found := l.notedNumber(s.partition, node, now); found && s.notAfter(last) {
		return nil, nil
	}
	if err := l.noteSeal(node, s, now); err != nil {
		return nil, err
	}
	for i := range s.entries {
		e := &s.entries[i]
		if l.table.ForceCapped(now, e.key, &e.limit, e.taken, e.capped(e.cost)) != nil {
			noRoom = append(noRoom, i)
		}
	}
	return noRoom, nil
}

// noteKey returns the key of the note that holds node's last seal number in p.
func noteKey(p int, node ring.NodeID) counters.Key {
	h := xxh3.Hash128Seed(node[:], noteSeed)
	return counters.Key{Hi: uint64(p)<<(64-ring.PartitionBits) | h.Hi>>ring.PartitionBits, Lo: h.Lo}
}

const noteSeed = 0x6465627473 // hashes notes apart from subjects

// notedNumber returns the number of node's last seal that the counters of p include, and whether there is one.
func (l *debtLedger) notedNumber(p int, node ring.NodeID, now algorithms.Now) (last sealNumber, found bool) {
	n := counters.Note{Key: noteKey(p, node)}
	found = l.table.ReadNote(now, &n)
	return sealNumber{bootIndex: uint64(n.At), n: uint64(n.Count)}, found
}

// noteSlack is how long after its expiry a debt may still be reported.
const noteSlack = pruneInterval + debtsTimeout + 10*time.Second

// noteSeal records that the counters of a seal's partition include node's seals up to this one. The note lasts until the seal
// is no longer reported.
func (l *debtLedger) noteSeal(node ring.NodeID, s *seal, now algorithms.Now) error {
	until := int64(0)
	for i := range s.entries {
		until = max(until, (now.Steady+int64(s.entries[i].timeLeft(now)+noteSlack))/1e9)
	}
	return l.table.SetNote(now, &counters.Note{
		Key: noteKey(s.partition, node), Count: int64(s.n), At: int64(s.bootIndex),
	}, until)
}

// append encodes a seal as part of a message, or for the disk.
func (s *seal) append(b []byte, now algorithms.Now) []byte {
	b = binary.AppendUvarint(b, uint64(s.partition))
	b = binary.AppendUvarint(b, s.bootIndex)
	b = binary.AppendUvarint(b, s.n)
	b = binary.AppendUvarint(b, uint64(len(s.entries)))
	for i := range s.entries {
		b = s.entries[i].append(b, s.entries[i].key, now)
	}
	return b
}

// decodeSeal decodes a seal that seal.append encoded elapsed nanoseconds ago.
func decodeSeal(d *wire.Decoder, now algorithms.Now, elapsed int64) *seal {
	s := &seal{partition: decodePartition(d), sealNumber: sealNumber{bootIndex: d.Uvarint(), n: d.Uvarint()}}
	n := d.Count(debtsPerMessage, 1)
	if s.bootIndex > maxBootIndex || s.n > maxOwedCost {
		d.Failf("a seal is out of bounds")
	}
	for range n {
		var e sealedDebt
		e.key, e.owedCost = decodeOwedCost(d, now, elapsed)
		if ring.PartitionOf(e.key.Hi) != s.partition || e.cost < 1 {
			d.Failf("a seal is out of bounds")
		}
		if d.Failed() {
			return nil
		}
		s.entries = append(s.entries, e)
	}
	return s
}

// maxBootIndex is the largest bootIndex that a note can hold.
const maxBootIndex = 1 << 39
