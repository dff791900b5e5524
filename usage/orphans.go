package usage

import (
	"context"
	"slices"
	"time"

	"github.com/rlnode/rlnode/persist"
)

// An orphaned ledger was counted by a node that is gone: it is a copy, or lies in
// a data directory that now has another identity. Only the nodes that hold it
// look after it. So each of them makes sure that another node has it, too.

// orphanedLedgers lists the ledgers here that were counted by nodes that are
// gone.
func (t *Totals) orphanedLedgers() []holding {
	members := t.members()
	list, _ := t.meter.holdings(allMonths) // ledgers that can't be read now are looked at later
	return slices.DeleteFunc(list, func(h holding) bool {
		return h.Ledger.Source == t.meter.config.Self || isMember(members, h.Ledger.Source)
	})
}

// secureOrphans gives another node the orphaned ledgers that only this node has.
func (t *Totals) secureOrphans() {
	list := t.orphanedLedgers()
	if len(list) == 0 {
		return
	}
	t.closeOrphans(list)

	alive := slices.DeleteFunc(t.candidates(), func(node Member) bool { return !node.Alive })
	if len(alive) == 0 || t.copier.sending.Load() {
		return
	}

	ctx, cancel := context.WithTimeout(t.ctx, callTimeout)
	defer cancel()
	for _, node := range alive {
		inv := t.inventoryOf(ctx, node, allMonths)
		list = slices.DeleteFunc(list, func(h holding) bool {
			return covers(inv.Holdings, h.Ledger, h.Round)
		})
		if len(list) == 0 {
			return
		}
	}
	t.sendInBackground(alive[0], list)
}

// sendOrphans gives all orphaned ledgers to another node.
func (t *Totals) sendOrphans(ctx context.Context, to Member) error {
	list := slices.DeleteFunc(t.orphanedLedgers(), func(h holding) bool { return h.Ledger.Source == to.ID })
	return t.sendLedgers(ctx, to, list)
}

// closeOrphans closes open copies whose processes have ended, because an open
// copy must be loaded into memory to be read. If such a process lives after
// all, it sends its ledger anew.
func (t *Totals) closeOrphans(list []holding) {
	m := t.meter
	records := t.processRecords.list()
	for _, h := range list {
		hasEnded := slices.ContainsFunc(records,
			func(r processRecord) bool { return r.Source == h.Ledger.Source && r.EndIsFinal })
		if !h.Copy || !hasEnded {
			continue
		}

		var l *ledger
		err := m.file.View(func(tx persist.Tx) (err error) {
			if id, head, ok := findWhole(tx, h.Ledger); ok && id.round == 0 {
				l, err = loadLedger(tx, h.Ledger, head)
			}
			return err
		})
		if err == nil && l != nil {
			err = m.writePages(l, true)
		}
		if err != nil {
			m.config.Logger.Debug("can't close a copy of a ledger of usage", "node", h.Node, "error", err)
		}
	}
}

// staleAfter is how long a node that is no longer the holder keeps copies that
// the new holder has, too.
const staleAfter = 10 * time.Minute

// dropStale drops copies of a member that has chosen another holder, once the
// new holder has all of them.
func (t *Totals) dropStale() {
	members := t.members()
	for _, r := range t.processRecords.list() {
		isAlive := slices.ContainsFunc(members, func(node Member) bool { return node.ID == r.Source && node.Alive })
		if !isAlive || time.Since(r.heard) < staleAfter {
			continue
		}

		list, err := t.meter.holdings(allMonths)
		if err != nil {
			return
		}
		list = slices.DeleteFunc(list, func(h holding) bool { return h.Ledger.Source != r.Source || !h.Copy })

		if t.isHeldElsewhere(members, &r, list) {
			t.dropCopies(&r, list)
		}
	}
}

// isHeldElsewhere reports whether another node than the process's own has the
// copies that are here, and a later statement of the process.
func (t *Totals) isHeldElsewhere(members []Member, r *processRecord, list []holding) bool {
	ctx, cancel := context.WithTimeout(t.ctx, callTimeout)
	defer cancel()
	return slices.ContainsFunc(members, func(node Member) bool {
		return node.Alive && node.ID != r.Source && node.ID != t.meter.config.Self && t.hasAll(ctx, node, r, list)
	})
}

// hasAll reports whether another node holds the copies that are here, or newer
// ones, and a later statement of the process.
func (t *Totals) hasAll(ctx context.Context, node Member, r *processRecord, list []holding) bool {
	inv := t.inventoryOf(ctx, node, allMonths)
	later := slices.ContainsFunc(inv.Records, func(theirs processRecord) bool {
		return theirs.Source == r.Source &&
			(theirs.Boot == r.Boot && theirs.Number > r.Number || theirs.supersedes(r, inv.Holdings))
	})
	lacks := func(h holding) bool { return !covers(inv.Holdings, h.Ledger, h.Round) }
	return later && !slices.ContainsFunc(list, lacks)
}

// dropCopies drops copies and the record of the process that sent them.
func (t *Totals) dropCopies(r *processRecord, list []holding) {
	h := &t.processRecords
	h.mu.Lock()
	defer h.mu.Unlock()

	records := slices.DeleteFunc(slices.Clone(h.records), func(ours *processRecord) bool {
		return ours.Source == r.Source && ours.Boot == r.Boot && ours.Number == r.Number
	})
	if len(records) == len(h.records) {
		return // the process has sent a newer statement since
	}

	// One transaction drops both: a record without the copies would say that they
	// are here.
	err := t.meter.file.Update(func(tx persist.Tx) error {
		all, err := listBuckets(tx)
		if err != nil {
			return err
		}

		dropped := slices.DeleteFunc(all, func(id bucketID) bool {
			return !slices.ContainsFunc(list, func(h holding) bool { return h.Ledger == id.ledgerID })
		})
		if err := dropBuckets(tx, dropped); err != nil {
			return err
		}
		return putRecords(tx, records)
	})
	if err == nil {
		h.records = records
	}
}

// reviewEvery is how often the bills of this month and the last one are looked at.
const reviewEvery = time.Minute

// review is what reviewBills last found. It is used by run only.
type review struct {
	at    time.Time
	found map[inexactBill]string // what the log said
}

// inexactBill is a node's part of a month's bill that is estimated or lost.
type inexactBill struct {
	month Month
	node  string
}

// reviewBills looks for nodes that are gone and whose counts are incomplete or
// estimated, and logs what has changed. Of the nodes that are alive, only the
// one with the lowest ID does so: one warning is enough.
func (t *Totals) reviewBills() {
	if time.Since(t.review.at) < reviewEvery {
		return
	}
	t.review.at = time.Now()

	found := map[inexactBill]string{}
	estimated, lost := map[string]bool{}, map[string]bool{}
	members := t.members()
	if t.isFirst(members) {
		ctx, cancel := context.WithTimeout(t.ctx, callTimeout)
		defer cancel()

		current := MonthOf(t.meter.config.Now())
		for _, month := range []Month{current - 1, current} {
			bi := t.gather(ctx, month, members)
			t.recordProblems(found, month, bi)
			for _, e := range bi.estimated {
				estimated[e.Node] = true
			}
			for _, name := range bi.lost {
				lost[name] = true
			}
		}

		t.logExact(found, current)
	}

	t.review.found = found
	t.copier.estimated.Store(int64(len(estimated)))
	t.copier.lost.Store(int64(len(lost)))
}

// isFirst reports whether this node has the lowest ID of those that are alive.
func (t *Totals) isFirst(members []Member) bool {
	return !slices.ContainsFunc(members, func(node Member) bool {
		return node.Alive && node.ID.Compare(t.meter.config.Self) < 0
	})
}

// recordProblems records the nodes whose counts in a bill are estimated or lost. It
// logs those that are new.
func (t *Totals) recordProblems(found map[inexactBill]string, month Month, bi *bill) {
	log := t.meter.config.Logger
	for _, e := range bi.estimated {
		if t.recordProblem(found, month, e.Node, "estimated") {
			log.Warn("bills are estimated: a node is gone, and the copy of its counts may lack the last ones",
				"node", e.Node, "month", month, "at_most_lost", e.AtMostLost.Round(time.Millisecond))
		}
	}

	for _, name := range bi.lost {
		if t.recordProblem(found, month, name, "incomplete") {
			log.Warn("bills are incomplete: a node is gone, and no other has a copy of all that it counted", "node", name, "month", month)
		}
	}
}

// logExact logs which bills are no longer inexact. Bills of months before the
// last one are not reviewed any more, so nothing is known of them.
func (t *Totals) logExact(found map[inexactBill]string, current Month) {
	for p := range t.review.found {
		_, remains := found[p]
		if !remains && p.month >= current-1 {
			t.meter.config.Logger.Info("bills are exact again", "of", p.month.String()+" "+p.node)
		}
	}
}

// recordProblem records what is wrong with a node's bill of a month, and reports
// whether the problem is new.
func (t *Totals) recordProblem(found map[inexactBill]string, month Month, node, what string) bool {
	p := inexactBill{month, node}
	found[p] = what
	return t.review.found[p] != what
}
