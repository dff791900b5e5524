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
// partition: the note goes to standbys, in hand-overs and to disk as they do. So a seal that is told again, to whoever goes on
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
	key   counters.Key
	limit algorithms.Limit
	taken algorithms.Taken
	cost  int64
}

// due is what is debited of it; see debt.due.
func (e *sealed) due() int64 { return min(e.cost, e.limit.Capacity()) }

// seal seals the debts of p that are in no seal, as many as a message may have; those of fallbacks only if they need not
// wait. It is called under mu.
func (k *Keeper) seal(v *view, p int, waiting bool) {
	s := &seal{partition: p}
	for key, d := range k.debts.of[p] {
		if d.waits && waiting || d.cost <= d.sealed || len(s.entries) >= debtsPerMessage {
			continue
		}
		s.entries = append(s.entries, sealed{key: key, limit: d.limit, taken: d.taken, cost: d.cost - d.sealed})
		d.sealed = d.cost
	}
	if len(s.entries) == 0 {
		return
	}
	k.debts.numbers++
	s.number = number{incarnation: v.Boots[k.cfg.Self].Index, n: k.debts.numbers}
	k.debts.put(s)
}

// reopen takes back the last seals of p that nobody was told of: what is in them is told under other numbers.
func (d *debts) reopen(p int) {
	list := d.seals[p]
	for len(list) > 0 && !list[len(list)-1].told {
		s := list[len(list)-1]
		for i := range s.entries {
			d.unseal(&s.entries[i], false)
		}
		list = list[:len(list)-1]
	}
	if len(list) == 0 {
		delete(d.seals, p)
	} else {
		d.seals[p] = list
	}
}

// sealAll seals all debts of p, as far as there is room for seals. It is called under mu.
func (k *Keeper) sealAll(v *view, p int) {
	k.debts.reopen(p)
	for len(k.debts.seals[p]) < maxSeals {
		before := len(k.debts.seals[p])
		if k.seal(v, p, false); len(k.debts.seals[p]) == before {
			return
		}
	}
}

// sealToWrite seals what is written down. If this process tells it, and is killed before that is written, the next one tells it
// once more: under a number that is not above the one under which it was debited. It is called under mu.
func (k *Keeper) sealToWrite() {
	v, changes := k.view.Load(), k.debts.changes
	if v == nil || !v.member {
		return // numbers could be those of the process before
	}
	for p := range k.debts.of {
		k.sealAll(v, p)
	}
	k.debts.changes = changes
}

// put notes a seal, the last one of its partition.
func (d *debts) put(s *seal) {
	if d.seals == nil {
		d.seals = map[int][]*seal{}
	}
	d.seals[s.partition] = append(d.seals[s.partition], s)
	d.changes++
}

// settled takes a seal's debts off, those of the places that are told: they are in the owner's counters. What is left is told
// under another number.
func (d *debts) settled(s *seal, told func(i int) bool) {
	i := slices.IndexFunc(d.seals[s.partition], func(have *seal) bool { return have.number == s.number })
	if i < 0 {
		return // the debts of the partition were over, or have become history here
	}
	d.changes++
	if d.seals[s.partition] = slices.Delete(d.seals[s.partition], i, i+1); len(d.seals[s.partition]) == 0 {
		delete(d.seals, s.partition)
	}
	for i := range s.entries {
		d.unseal(&s.entries[i], told(i))
	}
}

// unseal takes what is in a seal out of it, and off the debt, if nobody has to be told.
func (d *debts) unseal(e *sealed, gone bool) {
	one := d.get(e.key)
	if one == nil || e.limit.Kind == algorithms.FixedWindow && one.taken.Window != e.taken.Window {
		return // it was of a window that is over, and is not in the debt any more
	}
	cost := min(e.cost, one.sealed)
	if one.sealed -= cost; !gone {
		return
	}
	one.cost -= cost
	if one.absent = min(one.absent, one.cost); one.cost <= 0 {
		d.remove(e.key)
	}
}

// prune takes out of seals what would drain or leave its window before anyone could be told. Seals that are on their way stay
// as they are.
func (d *debts) prune(now algorithms.Now) {
	for p, seals := range d.seals {
		var left []*seal
		for _, s := range seals {
			over := func(e sealed) bool { return lasts(&e.limit, e.taken, e.due(), now) <= 0 }
			if !slices.ContainsFunc(s.entries, over) {
				left = append(left, s)
				continue
			}
			next := &seal{number: s.number, partition: p, present: s.present, told: s.told}
			for _, e := range s.entries {
				if over(e) {
					d.unseal(&e, true)
				} else {
					next.entries = append(next.entries, e)
				}
			}
			if len(next.entries) > 0 {
				left = append(left, next)
			}
		}
		if d.seals[p] = left; len(left) == 0 || len(d.of[p]) == 0 {
			delete(d.seals, p)
		}
	}
}

// there returns how much of the debts of p the counters here have in them since somebody else has debited it, and corrects
// what is noted as absent. The debts stay: the counters here may be replaced by others that have nothing of it. It is called
// under mu.
func (k *Keeper) there(p int, now algorithms.Now) map[counters.Key]int64 {
	if len(k.debts.seals[p]) == 0 {
		return nil
	}
	last, some := k.told(p, k.cfg.Self, now)
	there := map[counters.Key]int64{}
	for _, s := range k.debts.seals[p] {
		if !some || !s.upTo(last) {
			break
		}
		for i := range s.entries {
			one := k.debts.get(s.entries[i].key)
			if one == nil {
				continue
			}
			cost := min(s.entries[i].cost, one.sealed)
			there[s.entries[i].key] += cost
			if !s.present {
				one.absent = max(0, one.absent-cost)
			}
		}
		s.present = true
	}
	return there
}

// includeDebts makes the copy of p here, which is whole and will be given to its owner, have all that this node owes it, and
// say so: if the owner goes on from the copy, it debits none of it when it is told. If it does not, it debits all. It is called
// under mu.
func (k *Keeper) includeDebts(p int) {
	if len(k.debts.of[p]) == 0 {
		return
	}
	now := k.cfg.Now()
	k.sealAll(k.view.Load(), p)
	seals, there := k.debts.seals[p], k.there(p, now)
	if len(seals) == 0 || k.note(k.cfg.Self, seals[len(seals)-1], now) != nil {
		return // it is debited twice, at worst
	}
	for key, d := range k.debts.of[p] {
		if cost := d.missing(there[key]); cost > 0 {
			if err := k.cfg.Table.ObligeCopy(now, key, &d.limit, d.taken, d.due(cost)); err != nil {
				k.cfg.Logger.Warn("a debt is lost", "partition", p, "error", err)
			}
		}
		d.absent, d.former = 0, false
	}
	for _, s := range seals {
		s.present, s.told = true, true
	}
	k.debts.changes++
}

// debit debits a seal of node once. It reports false where this node is not the owner, or can't note the number, and returns
// the places of debts for which there is no room. A seal that was debited before is not again. With joins, an owner
// that still looks for its counters debits it as well.
func (k *Keeper) debit(node ring.NodeID, s *seal, now algorithms.Now, joins bool) (full []int, ok bool) {
	p := s.partition
	k.debiting.Lock()
	defer k.debiting.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if ph := k.parts[p].phase; ph != held && !(joins && ph == recovering) {
		return nil, false
	}
	if last, some := k.told(p, node, now); some && s.upTo(last) {
		return nil, true
	}
	if k.note(node, s, now) != nil {
		return nil, false
	}
	for i := range s.entries {
		e := &s.entries[i]
		if k.cfg.Table.ObligeCopy(now, e.key, &e.limit, e.taken, e.due()) != nil {
			full = append(full, i)
		}
	}
	return full, true
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
func (k *Keeper) told(p int, node ring.NodeID, now algorithms.Now) (last number, some bool) {
	n := counters.Note{Key: noteKey(p, node)}
	some = k.cfg.Table.Noted(now, &n)
	return number{incarnation: uint64(n.At), n: uint64(n.Count)}, some
}

// noteSlack is for how much longer than a debt lasts it may still be told.
const noteSlack = debtsCheck + debtsTimeout + 10*time.Second

// note notes a seal as the last one of node that the counters of its partition have in them, until it is told no more.
func (k *Keeper) note(node ring.NodeID, s *seal, now algorithms.Now) error {
	until := int64(0)
	for i := range s.entries {
		e := &s.entries[i]
		until = max(until, (now.Steady+int64(lasts(&e.limit, e.taken, e.due(), now)+noteSlack))/1e9)
	}
	return k.cfg.Table.SetNote(now, &counters.Note{
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
		e := &s.entries[i]
		b = appendDebt(b, e.key, &e.limit, e.taken, e.cost, now)
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
		e := decodeDebt(d, now, passed)
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
