package partitions

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// A batch is an immutable report of a node's debts in a partition, under a number that is never reused. The owner debits it
// once, and notes each node's last number next to the counters of the partition. The note goes to standbys, to the next
// owner and to disk with the counters. So if a batch is sent again, to a later owner that continues from these counters, it
// is not debited twice.

// maxBatches bounds the batches of a partition.
const maxBatches = 16

// batchNumber is the number of a batch. A node's numbers in a partition rise, from one of its processes to the next, too.
type batchNumber struct {
	bootIndex uint64 // the entry that registered the process
	n         uint64
}

func (n batchNumber) notAfter(other batchNumber) bool {
	return n.bootIndex < other.bootIndex || n.bootIndex == other.bootIndex && n.n <= other.n
}

// debtBatch is one report of debts in a partition.
type debtBatch struct {
	batchNumber
	partition int
	entries   []batchedDebt
	included  bool // the counters here have all of its costs, so no debt's uncounted includes them
	reported  bool // it may have been debited under its number, so it must not change
}

// batchedDebt is a debt, or part of one, in a batch.
type batchedDebt struct {
	key counters.Key
	owedCost
}

// batchDebts puts the debts of p that are in no batch in a new batch, as many as fit in a message. It returns false if there
// were no debts for a batch.
func (ds *debts) batchDebts(p int) bool {
	batch := &debtBatch{partition: p}
	for key, d := range ds.byPartition[p] {
		if d.cost <= d.batchedCost || len(batch.entries) >= debtsPerMessage {
			continue
		}
		e := batchedDebt{key: key, owedCost: d.owedCost}
		e.cost -= d.batchedCost
		batch.entries = append(batch.entries, e)
		d.batchedCost = d.cost
	}

	if len(batch.entries) == 0 {
		return false
	}

	ds.lastBatchNumber++
	batch.batchNumber = batchNumber{bootIndex: ds.bootIndex, n: ds.lastBatchNumber}
	ds.addBatch(batch)
	return true
}

// dissolveUnreported dissolves the last batches of p, as long as they have not been reported: later batches report their debts.
func (ds *debts) dissolveUnreported(p int) {
	list := ds.batches[p]
	for len(list) > 0 && !list[len(list)-1].reported {
		batch := list[len(list)-1]
		for i := range batch.entries {
			ds.takeOut(&batch.entries[i], false)
		}
		list = list[:len(list)-1]
	}

	if len(list) == 0 {
		delete(ds.batches, p)
	} else {
		ds.batches[p] = list
	}
}

// batchAll puts all debts of p in at most maxBatches batches.
func (ds *debts) batchAll(p int) {
	ds.dissolveUnreported(p)
	for len(ds.batches[p]) < maxBatches && ds.batchDebts(p) {
	}
}

// batchForDisk puts in batches the debts that are about to be written to disk. If this process reports one of them and is
// killed before the next write, the next process reports it again under the number on disk, so the owner debits it only
// once.
func (ds *debts) batchForDisk() {
	changes := ds.changes
	for p := range ds.byPartition {
		ds.batchAll(p)
	}
	ds.changes = changes
}

// addBatch adds a batch as the last one of its partition.
func (ds *debts) addBatch(batch *debtBatch) {
	ds.batches[batch.partition] = append(ds.batches[batch.partition], batch)
	ds.changes++
}

// restoreBatch adopts a batch of restored debts. An entry of the last window is no part of its counter's debt any more.
func (ds *debts) restoreBatch(batch *debtBatch, restored map[counters.Key]bool) {
	batch.entries = slices.DeleteFunc(batch.entries, func(e batchedDebt) bool {
		d := ds.debtOf(e.key)
		return !restored[e.key] || !d.sameWindow(e.taken) || d.cost-d.batchedCost < e.cost
	})
	if len(batch.entries) == 0 {
		return
	}
	for i := range batch.entries {
		ds.debtOf(batch.entries[i].key).batchedCost += batch.entries[i].cost
	}
	ds.addBatch(batch)
}

// acknowledge drops those debts of a batch for which taken is true: the owner's counters include them. The
// remaining ones are reported under another number.
func (ds *debts) acknowledge(batch *debtBatch, taken func(i int) bool) {
	i := slices.IndexFunc(ds.batches[batch.partition], func(have *debtBatch) bool { return have.batchNumber == batch.batchNumber })
	if i < 0 {
		return // the partition's debts have expired, or this node has become its owner
	}
	ds.changes++
	if ds.batches[batch.partition] = slices.Delete(ds.batches[batch.partition], i, i+1); len(ds.batches[batch.partition]) == 0 {
		delete(ds.batches, batch.partition)
	}
	for i := range batch.entries {
		ds.takeOut(&batch.entries[i], taken(i))
	}
}

// takeOut takes an entry out of its batch. If drop is true, it also takes the cost off the debt, which is then no longer
// reported.
func (ds *debts) takeOut(e *batchedDebt, drop bool) {
	d := ds.debtOf(e.key)
	if d == nil || !d.sameWindow(e.taken) {
		return // it belonged to an earlier window, and the debt no longer includes it
	}
	cost := min(e.cost, d.batchedCost)
	if d.batchedCost -= cost; !drop {
		return
	}
	if d.reduce(cost); d.cost <= 0 {
		ds.remove(e.key)
	}
}

// pruneBatches drops from batches the entries that have drained or left their window. It replaces a changed batch, because the
// old one may be in flight.
func (ds *debts) pruneBatches(now algorithms.Instant) {
	for p, batches := range ds.batches {
		var left []*debtBatch
		for _, batch := range batches {
			next := *batch // in the place of batch if any entry goes

			next.entries = slices.DeleteFunc(slices.Clone(batch.entries), func(e batchedDebt) bool {
				over := e.isExpired(now)
				if over {
					ds.takeOut(&e, true)
				}
				return over
			})

			switch len(next.entries) {
			case len(batch.entries):
				left = append(left, batch)
			case 0:
			default:
				left = append(left, &next)
			}
		}

		if ds.batches[p] = left; len(left) == 0 || len(ds.byPartition[p]) == 0 {
			delete(ds.batches, p)
		}
	}
}

// debitedElsewhere returns the parts of p's debts that another node has already debited from the counters here, and
// reduces uncounted by them. The debts stay: counters without them may yet replace those here.
func (ds *debts) debitedElsewhere(p int, now algorithms.Instant) map[counters.Key]int64 {
	if len(ds.batches[p]) == 0 {
		return nil
	}

	last, _, found := ds.recordedNumber(p, ds.self, now)
	debited := map[counters.Key]int64{}
	for _, batch := range ds.batches[p] {
		if !found || !batch.notAfter(last) {
			break
		}

		for i := range batch.entries {
			e := &batch.entries[i]
			d := ds.debtOf(e.key)
			if d == nil || !d.sameWindow(e.taken) {
				continue
			}

			cost := min(e.cost, d.batchedCost)
			debited[e.key] += cost

			if !batch.included {
				d.uncounted = max(0, d.uncounted-cost)
			}
		}

		batch.included = true
	}

	return debited
}

// includeDebts debits all debts of p from the copy here, which is complete and about to be sent to the owner, and notes
// their last batch in it. When the debts are reported, an owner that continued from the copy debits none of them; any other
// owner debits them all.
func (ds *debts) includeDebts(p int, now algorithms.Instant) {
	if len(ds.byPartition[p]) == 0 {
		return
	}

	ds.batchAll(p)
	batches, elsewhere := ds.batches[p], ds.debitedElsewhere(p, now)
	if len(batches) == 0 {
		return
	}

	ds.recordBatch(ds.self, batches[len(batches)-1], false, now)
	ds.debitMissing(p, now, elsewhere)

	for _, d := range ds.byPartition[p] {
		d.uncounted, d.restored = 0, false
	}

	for _, batch := range batches {
		batch.included, batch.reported = true, true
	}

	ds.changes++
}

// debit debits a batch of node, unless it was debited before. It returns the indexes of the debts that there is no room for.
func (ds *debts) debit(node ring.NodeID, batch *debtBatch, now algorithms.Instant) (noRoom []int) {
	last, lacksRoom, found := ds.recordedNumber(batch.partition, node, now)
	switch {
	case found && lacksRoom && batch.notAfter(last):
		// The answer may have been lost. The debts that had no room have no counters. If another one has none any more,
		// a second debit costs quota, but makes none.
		for i := range batch.entries {
			if used, _ := ds.table.Usage(now, batch.entries[i].key, &batch.entries[i].limit); used == 0 {
				noRoom = append(noRoom, i)
			}
		}
		return noRoom
	case found && batch.notAfter(last):
		return nil
	}

	lacksRoom = found && lacksRoom // an earlier batch may be reported again, too
	ds.recordBatch(node, batch, lacksRoom, now)

	for i := range batch.entries {
		e := &batch.entries[i]
		if ds.table.ForceCapped(now, e.key, &e.limit, e.taken, e.capped(e.cost)) != nil {
			noRoom = append(noRoom, i)
		}
	}

	if len(noRoom) > 0 && !lacksRoom {
		ds.recordBatch(node, batch, true, now)
	}

	return noRoom
}

// debtorKey returns the key of the note that holds node's last batch number in p.
func debtorKey(p int, node ring.NodeID) notes.Key {
	return notes.PartitionKey(notes.Debtor, p, xxh3.Hash(node[:]))
}

// lackedRoom is the body of such a note if some of the debts had no room.
const lackedRoom = "no room"

// recordedNumber returns the number of node's last batch that the counters of p include, whether some of its debts had no
// room, and whether there is one.
func (ds *debts) recordedNumber(p int, node ring.NodeID, now algorithms.Instant) (last batchNumber, lacksRoom, found bool) {
	h := ds.table.Notes().Lock(p, now.Steady)
	defer h.Unlock()
	n, found := h.Get(debtorKey(p, node))
	return batchNumber{bootIndex: n.Rank, n: n.Minor}, n.Body == lackedRoom, found
}

// noteSlack is how long after its expiry a debt may still be reported.
const noteSlack = pruneInterval + debtsTimeout + 10*time.Second

// recordBatch records that the counters of a batch's partition include node's batches up to this one, and whether some of its
// debts had no room. The note lasts until the batch is no longer reported.
func (ds *debts) recordBatch(node ring.NodeID, batch *debtBatch, lacksRoom bool, now algorithms.Instant) {
	h := ds.table.Notes().Lock(batch.partition, now.Steady)
	defer h.Unlock()

	n := notes.Note{Key: debtorKey(batch.partition, node), Rank: batch.bootIndex, Minor: batch.n, At: now.Steady}
	if lacksRoom {
		n.Body = lackedRoom
	}
	if before, found := h.Get(n.Key); found {
		n.Until = before.Until
	}

	for i := range batch.entries {
		n.Until = max(n.Until, (now.Steady+int64(batch.entries[i].timeLeft(now)+noteSlack))/1e9)
	}

	h.Put(&n)
}

// append encodes a batch as part of a message, or for the disk.
func (db *debtBatch) append(b []byte, now algorithms.Instant) []byte {
	b = binary.AppendUvarint(b, uint64(db.partition))
	b = binary.AppendUvarint(b, db.bootIndex)
	b = binary.AppendUvarint(b, db.n)
	b = binary.AppendUvarint(b, uint64(len(db.entries)))
	for i := range db.entries {
		b = db.entries[i].append(b, db.entries[i].key, now)
	}
	return b
}

// decodeBatch decodes a batch that batch.append encoded elapsed nanoseconds ago.
func decodeBatch(d *wire.Decoder, now algorithms.Instant, elapsed int64) *debtBatch {
	batch := &debtBatch{partition: decodePartition(d), batchNumber: batchNumber{bootIndex: d.Uvarint(), n: d.Uvarint()}}
	n := d.Count(debtsPerMessage, 1)
	if batch.bootIndex > maxOwedCost || batch.n > maxOwedCost {
		d.Failf("a batch is out of bounds")
	}

	for range n {
		var e batchedDebt
		e.key, e.owedCost = decodeOwedCost(d, now, elapsed)
		if ring.PartitionOf(e.key.Subject) != batch.partition || e.cost < 1 {
			d.Failf("a batch is out of bounds")
		}
		if d.Failed() {
			return nil
		}
		batch.entries = append(batch.entries, e)
	}

	return batch
}
