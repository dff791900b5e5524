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

// A seal is what a node tells of its debts in a partition, in one piece that never changes, under a number that is never
// used again. The owner debits it once, and notes the number of the last one of each node beside the counters of the
// partition: the note goes to standbys, in hand-overs and to disk as they do. So a seal that is told again, to the next owner that goes on
// from these counters, is debited no second time.

// maxSeals bounds those of a partition.
const maxSeals = 16

// number is that of a seal. A node's numbers in a partition rise, also from one of its processes to the next.
type number struct {
	incarnation uint64 // the entry that named the process
	n           uint64
}

func (a number) upTo(b number) bool {
	return a.incarnation < b.incarnation || a.incarnation == b.incarnation && a.n <= b.n
}

type seal struct {
	number
	partition int
	entries   []sealed
	present   bool // the counters here have all of it, and that is not among what is absent
	told      bool // it may have been debited under its number, so it stays as it is
}

// sealed is a debt, or a part of one, in a seal.
type sealed struct {
	key counters.Key
	owed
}

// seal seals the debts of p that are in no seal, as many as a message may have; those of fallbacks only if they need not
// wait. It reports whether there were any.
func (l *debtLedger) seal(p int, waiting bool) bool {
	s := &seal{partition: p}
	for key, d := range l.debts[p] {
		if d.waits && waiting || d.cost <= d.sealed || len(s.entries) >= debtsPerMessage {
			continue
		}
		e := sealed{key: key, owed: d.owed}
		e.cost -= d.sealed
		s.entries = append(s.entries, e)
		d.sealed = d.cost
	}
	if len(s.entries) == 0 {
		return false
	}
	l.numbers++
	s.number = number{incarnation: l.incarnation, n: l.numbers}
	l.put(s)
	return true
}

// reopen takes back the last seals of p that nobody was told of: what is in them is told under other numbers.
func (l *debtLedger) reopen(p int) {
	list := l.seals[p]
	for len(list) > 0 && !list[len(list)-1].told {
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

// sealAll seals all debts of p, as far as there is room for seals.
func (l *debtLedger) sealAll(p int) {
	l.reopen(p)
	for len(l.seals[p]) < maxSeals && l.seal(p, false) {
	}
}

// sealToWrite seals what is written down. If this process tells it, and is killed before that is written, the next one tells it
// once more: under a number that is not above the one under which it was debited.
func (l *debtLedger) sealToWrite() {
	changes := l.changes
	for p := range l.debts {
		l.sealAll(p)
	}
	l.changes = changes
}

// put notes a seal, the last one of its partition.
func (l *debtLedger) put(s *seal) {
	l.seals[s.partition] = append(l.seals[s.partition], s)
	l.changes++
}

// restoreSeal takes up a seal of debts that were restored.
func (l *debtLedger) restoreSeal(s *seal, restored map[counters.Key]bool) {
	s.entries = slices.DeleteFunc(s.entries, func(e sealed) bool {
		return !restored[e.key] || l.get(e.key).cost-l.get(e.key).sealed < e.cost
	})
	if len(s.entries) == 0 {
		return
	}
	for i := range s.entries {
		l.get(s.entries[i].key).sealed += s.entries[i].cost
	}
	l.put(s)
}

// settled takes a seal's debts off, those of the places that are told: they are in the owner's counters. What is left is told
// under another number.
func (l *debtLedger) settled(s *seal, told func(i int) bool) {
	i := slices.IndexFunc(l.seals[s.partition], func(have *seal) bool { return have.number == s.number })
	if i < 0 {
		return // the debts of the partition were over, or have become history here
	}
	l.changes++
	if l.seals[s.partition] = slices.Delete(l.seals[s.partition], i, i+1); len(l.seals[s.partition]) == 0 {
		delete(l.seals, s.partition)
	}
	for i := range s.entries {
		l.unseal(&s.entries[i], told(i))
	}
}

// unseal takes what is in a seal out of it, and off the debt, if nobody has to be told.
func (l *debtLedger) unseal(e *sealed, gone bool) {
	d := l.get(e.key)
	if d == nil || !d.of(e.taken) {
		return // it was of a window that is over, and is not in the debt any more
	}
	cost := min(e.cost, d.sealed)
	if d.sealed -= cost; !gone {
		return
	}
	if d.reduce(cost); d.cost <= 0 {
		l.remove(e.key)
	}
}

// pruneSeals takes out of seals what would drain or leave its window before anyone could be told. Seals that are on their way
// stay as they are.
func (l *debtLedger) pruneSeals(now algorithms.Now) {
	for p, seals := range l.seals {
		var left []*seal
		for _, s := range seals {
			next := *s
			next.entries = slices.DeleteFunc(slices.Clone(s.entries), func(e sealed) bool {
				over := e.over(now)
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
		if l.seals[p] = left; len(left) == 0 || len(l.debts[p]) == 0 {
			delete(l.seals, p)
		}
	}
}

// there returns how much of the debts of p the counters here have in them since somebody else has debited it, and corrects
// what is noted as absent. The debts stay: the counters here may be replaced by others that have nothing of it.
func (l *debtLedger) there(p int, now algorithms.Now) map[counters.Key]int64 {
	if len(l.seals[p]) == 0 {
		return nil
	}
	last, some := l.told(p, l.self, now)
	there := map[counters.Key]int64{}
	for _, s := range l.seals[p] {
		if !some || !s.upTo(last) {
			break
		}
		for i := range s.entries {
			d := l.get(s.entries[i].key)
			if d == nil {
				continue
			}
			cost := min(s.entries[i].cost, d.sealed)
			there[s.entries[i].key] += cost
			if !s.present {
				d.absent = max(0, d.absent-cost)
			}
		}
		s.present = true
	}
	return there
}

// include makes the copy of p here, which is whole and will be given to its owner, have all that this node owes it, and
// say so: if the owner goes on from the copy, it debits none of it when it is told. If it does not, it debits all.
func (l *debtLedger) include(p int, now algorithms.Now) {
	if len(l.debts[p]) == 0 {
		return
	}
	l.sealAll(p)
	seals, there := l.seals[p], l.there(p, now)
	if len(seals) == 0 || l.note(l.self, seals[len(seals)-1], now) != nil {
		return // it is debited twice, at worst
	}
	l.debitMissing(p, now, there)
	for _, d := range l.debts[p] {
		d.absent, d.former = 0, false
	}
	for _, s := range seals {
		s.present, s.told = true, true
	}
	l.changes++
}

// debit debits a seal of node once. It fails where it can't note the number, and returns the places of debts for which there is no
// room. A seal that was debited before is not again.
func (l *debtLedger) debit(node ring.NodeID, s *seal, now algorithms.Now) (full []int, err error) {
	if last, some := l.told(s.partition, node, now); some && s.upTo(last) {
		return nil, nil
	}
	if err := l.note(node, s, now); err != nil {
		return nil, err
	}
	for i := range s.entries {
		e := &s.entries[i]
		if l.table.ObligeCopy(now, e.key, &e.limit, e.taken, e.due(e.cost)) != nil {
			full = append(full, i)
		}
	}
	return full, nil
}

// noteKey is where the last number of a node's seals in p is noted.
func noteKey(p int, node ring.NodeID) counters.Key {
	h := xxh3.Hash128Seed(node[:], noteSeed)
	return counters.Key{Hi: uint64(p)<<(64-partitionBits) | h.Hi>>partitionBits, Lo: h.Lo}
}

const (
	noteSeed = 0x6465627473 // so that they are no subjects' keys
	// partitionBits is how many bits of a key say in which partition it is.
	partitionBits = 12
)

var _ [1 << partitionBits]struct{} = [ring.Partitions]struct{}{}

// told is the number of node's last seal that the counters of p have in them.
func (l *debtLedger) told(p int, node ring.NodeID, now algorithms.Now) (last number, some bool) {
	n := counters.Note{Key: noteKey(p, node)}
	some = l.table.Noted(now, &n)
	return number{incarnation: uint64(n.At), n: uint64(n.Count)}, some
}

// noteSlack is for how much longer than a debt lasts it may still be told.
const noteSlack = debtsCheck + debtsTimeout + 10*time.Second

// note notes a seal as the last one of node that the counters of its partition have in them, until it is told no more.
func (l *debtLedger) note(node ring.NodeID, s *seal, now algorithms.Now) error {
	until := int64(0)
	for i := range s.entries {
		until = max(until, (now.Steady+int64(s.entries[i].lasts(now)+noteSlack))/1e9)
	}
	return l.table.SetNote(now, &counters.Note{
		Key: noteKey(s.partition, node), Count: int64(s.n), At: int64(s.incarnation),
	}, until)
}

// append writes a seal as a part of a message, or of what is written down.
func (s *seal) append(b []byte, now algorithms.Now) []byte {
	b = binary.AppendUvarint(b, uint64(s.partition))
	b = binary.AppendUvarint(b, s.incarnation)
	b = binary.AppendUvarint(b, s.n)
	b = binary.AppendUvarint(b, uint64(len(s.entries)))
	for i := range s.entries {
		b = s.entries[i].append(b, s.entries[i].key, now)
	}
	return b
}

// decodeSeal reads what seal.append wrote so many nanoseconds ago.
func decodeSeal(d *wire.Decoder, now algorithms.Now, passed int64) *seal {
	s := &seal{partition: decodePartition(d), number: number{incarnation: d.Uvarint(), n: d.Uvarint()}}
	n := d.Count(debtsPerMessage, 1)
	if s.incarnation > maxIncarnation || s.n > maxOwed {
		d.Failf("a seal is out of bounds")
	}
	for range n {
		var e sealed
		e.key, e.owed = decodeOwed(d, now, passed)
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

// maxIncarnation is what a note can hold.
const maxIncarnation = 1 << 39
