package partitions

import (
	"time"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/ring"
)

// The debtor numbers each debt, and reports the debts of a partition in the
// order of their numbers. The owner debits each once, and notes each debtor's
// last number next to the counters of the partition. The note goes to standbys,
// to the next owner and to disk with the counters. So if a debt is reported
// again, to a later owner that continues from these counters, it is not debited
// twice.
//
// For example, a node reports debts 1, 2 and 3 of three counters. The owner
// debits 1 and notes 1. It has no room for 2, and notes 2 and that room was
// lacking. It debits 3 and notes 3. Its answer is lost, it fails, and a standby
// continues from its copy, which has the note. The debtor reports all three
// again. The note covers them. The counters of 1 and 3 are in use, so these were
// debited. That of 2 is not, so the answer is that there is no room. The debtor
// gives that debt the number 4, which no note covers.

// makeFinal gives d, which is about to be reported, its number for good.
func (ds *debts) makeFinal(d *debt) {
	if !d.number.isFinal() {
		d.number.bootIndex = ds.bootIndex
		ds.changes++
	}
}

// renumber gives d another number. The owner noted d's number although it had no
// room for d, so under that number d counts as debited.
func (ds *debts) renumber(d *debt) {
	if !ds.remove(d) {
		return
	}

	later := ds.notFinal(d.key)
	switch {
	case later == nil:
		d.number = ds.nextNumber()
		d.isInCounters = false // the note in the copy does not cover the new number
		ds.add(d)
	case later.sameWindow(d.taken):
		// A counter has at most one debt that has not been reported, so d joins it.
		later.cost = min(later.cost+d.cost, maxOwedCost)
		later.lacking = min(later.lacking+d.lacking, later.cost)
		later.restored = later.restored || d.restored
		later.fallback = later.fallback && d.fallback
	default:
		// The window of d is over, so d no longer counts.
	}
}

// costToDebit returns the part of d that must still be debited from the
// counters here. noted is the note of this node's debts beside them.
func (d *debt) costToDebit(noted debtorNote) int64 {
	switch {
	case !d.isInCounters && noted.covers(d):
		return 0 // another node has debited it from these counters
	case d.restored:
		return d.cost
	}
	return d.lacking
}

// dropOwn drops the debts of a partition whose token is here: this node
// owes them to itself now. It first debits the parts that the counters lack,
// and notes the numbers: the next process may find the debts on disk.
func (ds *debts) dropOwn(p int, now algorithms.Instant) {
	list := ds.inOrder(p)
	if len(list) == 0 {
		return
	}

	noted := ds.noteOf(p, ds.self, now)
	for _, d := range list {
		ds.debitOwn(d, noted, now)
		ds.remove(d)
	}
}

// debitOwn debits the part of d that the counters here lack, and notes d's
// number with them. noted is the note as it was before this batch: each call
// raises the note, which then covers later debts of the batch, too.
func (ds *debts) debitOwn(d *debt, noted debtorNote, now algorithms.Instant) {
	ds.makeFinal(d)
	if !noted.covers(d) {
		ds.putNote(ds.self, d, noted.lacksRoom, now)
	}
	ds.debitMissing(d, noted, now)
}

// debitMissing debits the part of d that the counters here lack.
func (ds *debts) debitMissing(d *debt, noted debtorNote, now algorithms.Instant) {
	cost := d.costToDebit(noted)
	if cost == 0 {
		return
	}
	err := ds.table.ForceCapped(now, d.key, &d.limit, d.taken, d.capped(cost))
	if err != nil {
		ds.log.Warn("a debt could not be debited and is lost", "partition", d.key.Partition(),
			"cost", cost, "error", err)
	}
}

// maxDebtsOfOne bounds the debts of one counter. Sending a copy makes the
// last debt final, so the next cost begins a new one. After maxDebtsOfOne, the
// last one stays as it is, and out of the copy.
const maxDebtsOfOne = 16

// debitIntoCopy debits all of this node's debts of p from the counters here,
// which are complete and may be sent to another node. It notes the last number
// beside them. When the debts are reported, an owner that continued from these
// counters debits none of them; any other owner debits them all.
func (ds *debts) debitIntoCopy(p int, now algorithms.Instant) {
	noted := ds.noteOf(p, ds.self, now)
	for _, d := range ds.inOrder(p) {
		if d.isInCounters {
			continue
		}

		// The loop ends here and does not skip the debt: the note of a later number
		// would cover the debt, which would then never be debited.
		if len(ds.ofCounter(d.key)) >= maxDebtsOfOne && !d.number.isFinal() {
			break // those without a final number are last
		}

		ds.debitOwn(d, noted, now)
		d.lacking = 0
		d.restored = false
		d.isInCounters = true
		ds.changes++
	}
}

// debitOnce debits a debt of node, unless it was debited before. It returns false
// if there is no room for it.
func (ds *debts) debitOnce(node ring.NodeID, d *debt, now algorithms.Instant) bool {
	noted := ds.noteOf(d.key.Partition(), node, now)
	if noted.covers(d) {
		if !noted.lacksRoom {
			return true
		}

		// The note also covers debts that found no room. If the counter is in use,
		// count d as debited: only the answer was lost. Otherwise refuse it; d gets a
		// new number. At worst it is debited twice, which only costs quota.
		used, _ := ds.table.Usage(now, d.key, &d.limit)
		return used > 0
	}

	// The note keeps lacksRoom, because an earlier debt that had no room may be
	// reported again.
	ds.putNote(node, d, noted.lacksRoom, now)
	err := ds.table.ForceCapped(now, d.key, &d.limit, d.taken, d.capped(d.cost))
	if err != nil && !noted.lacksRoom {
		ds.putNote(node, d, true, now)
	}
	return err == nil
}

// debtorKey returns the key of the note that holds node's last number in p.
func debtorKey(p int, node ring.NodeID) notes.Key {
	return notes.PartitionKey(notes.Debtor, p, xxh3.Hash(node[:]))
}

// lackedRoom is the body of a debtor's note if some of the debts had no room.
const lackedRoom = "no room"

// debtorNote says which of a node's debts the counters of a partition include.
type debtorNote struct {
	found     bool
	last      debtNumber
	lacksRoom bool // some of the debts had no room
}

// covers reports whether d was debited from the counters, or found no room.
func (note debtorNote) covers(d *debt) bool { return note.found && d.number.compare(note.last) <= 0 }

// noteOf returns the note of node's debts in p.
func (ds *debts) noteOf(p int, node ring.NodeID, now algorithms.Instant) debtorNote {
	lp := ds.table.Notes().Lock(p, now.Steady)
	defer lp.Unlock()
	n, found := lp.Get(debtorKey(p, node))
	bootIndex, number := n.DebtNumber()
	return debtorNote{found: found, last: debtNumber{bootIndex: bootIndex, n: number}, lacksRoom: n.Body == lackedRoom}
}

const (
	// pruneInterval is the time between two searches for expired debts.
	pruneInterval = 10 * time.Second
	// debtsTimeout bounds how long an owner may take to acknowledge debts.
	debtsTimeout = 2 * time.Second
	// noteSlack is how long after its expiry a debt may still be reported.
	noteSlack = pruneInterval + debtsTimeout + 10*time.Second
)

// putNote notes that the counters of d's partition include node's debts up to
// d, and whether some of them had no room. The note lasts until no more of
// these debts can be reported.
func (ds *debts) putNote(node ring.NodeID, d *debt, lacksRoom bool, now algorithms.Instant) {
	p := d.key.Partition()
	lp := ds.table.Notes().Lock(p, now.Steady)
	defer lp.Unlock()

	n := notes.Note{Key: debtorKey(p, node), Rank: d.number.bootIndex, Minor: d.number.n, At: now.Steady}
	if lacksRoom {
		n.Body = lackedRoom
	}

	n.UntilSecond = (now.Steady + int64(d.timeLeft(now)+noteSlack)) / 1e9
	if before, found := lp.Get(n.Key); found {
		n.UntilSecond = max(n.UntilSecond, before.UntilSecond)
	}
	lp.Put(&n)
}
