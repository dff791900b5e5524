package usage

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// inventory lists what a node holds for a month, and what it knows about others.
type inventory struct {
	Sources []source `json:"sources"`
	Damaged bool     `json:"damaged"` // the file can't be read, or a damaged one was set aside and still exists
	// Homes are the nodes whose data directory this is: the node itself, and what
	// it was before it took a new identity.
	Homes   []ring.NodeID   `json:"homes"`
	Records []processRecord `json:"records"`
	Notes   notes           `json:"notes"`

	from        Member
	unreachable bool
}

// Estimate says that a node's counts come from a copy that may lack the last of them.
type Estimate struct {
	Node       string
	AtMostLost time.Duration // what the node counted in this time may be missing
}

// bill is what is known about a month.
type bill struct {
	sources   []source // each ledger once, from the node that has most of it
	missing   []string // nodes whose counts are missing, in whole or in part
	lost      []string // those of them that nobody can ask any more
	estimated []Estimate
	digest    uint64   // of the ledgers and their rounds
	exported  exported // the last export
}

// inventoryHere lists what this node holds for a month. It ends the current
// rounds, so that everything counted so far is in them.
func (t *Totals) inventoryHere(month Month) (inv inventory) {
	m := t.meter
	inv.Damaged = m.file.SetAside()
	list, err := m.sources(allMonths)
	if err != nil {
		m.config.Logger.Error("can't read usage", "error", err)
		inv.Damaged = true
	}

	inv.Homes = []ring.NodeID{m.config.Self}
	for _, src := range list {
		if !src.Copy && !slices.Contains(inv.Homes, src.Ledger.Source) {
			inv.Homes = append(inv.Homes, src.Ledger.Source)
		}
		// Merged ones of other months show which statements a later one supersedes.
		if month == allMonths || src.Ledger.Month == month || len(src.Merged) > 0 {
			inv.Sources = append(inv.Sources, src)
		}
	}

	t.heldCopies.mu.Lock()
	_ = t.loadRecords() // if the file can't be read, it is damaged anyway
	t.heldCopies.mu.Unlock()
	inv.Records = t.heldCopies.list()
	nb := &t.notes
	nb.mu.Lock()
	nb.load(m)
	nb.mu.Unlock()
	inv.Notes = *t.currentNotes()
	inv.Notes.Records = nil

	return inv
}

// inventoryOf asks a node what it holds for a month.
func (t *Totals) inventoryOf(ctx context.Context, node Member, month Month) (inv inventory) {
	var err error
	if node.ID == t.meter.config.Self {
		inv = t.inventoryHere(month)
	} else {
		body, _ := json.Marshal(month) // a number
		if body, err = t.ask(ctx, node, MethodSources, body); err == nil {
			err = json.Unmarshal(body, &inv)
		}
	}

	inv.from = node
	inv.unreachable = err != nil

	for i := range inv.Sources {
		inv.Sources[i].heldBy = node
	}

	return inv
}

// billHere is what this node itself counted in a month.
func (t *Totals) billHere(month Month) *bill {
	inv := t.inventoryOf(t.ctx, Member{ID: t.meter.config.Self, Name: t.meter.config.Name}, month)
	inv.Sources = slices.DeleteFunc(inv.Sources,
		func(src source) bool { return src.Ledger.Source != t.meter.config.Self || src.Copy })
	bi := &bill{}
	bi.addAnswer(&inv, month)
	bi.complete()
	return bi
}

// gather makes a bill of what the members hold for a month.
func (t *Totals) gather(ctx context.Context, month Month, members []Member) *bill {
	return newBill(month, t.inventories(ctx, month, members), t.meter.config.Now())
}

// inventories asks the members what they hold for a month.
func (t *Totals) inventories(ctx context.Context, month Month, members []Member) []inventory {
	answers := make([]inventory, len(members))
	var group sync.WaitGroup
	for i, node := range members {
		group.Go(func() { answers[i] = t.inventoryOf(ctx, node, month) })
	}
	group.Wait()
	return answers
}

// newBill makes a bill from what the members have answered.
func newBill(month Month, answers []inventory, now int64) *bill {
	bi := &bill{}
	for i := range answers {
		bi.addAnswer(&answers[i], month)
	}
	bi.dropReplaced()
	w := witnesses{bill: bi, month: month, answers: answers, now: now}
	for _, inv := range answers {
		for _, src := range inv.Sources {
			if len(src.Merged) > 0 {
				w.merged = append(w.merged, src)
			}
		}
	}
	w.judgeProcesses()
	w.judgeSeen()
	bi.complete()
	return bi
}

// addAnswer adds what a node has answered to the bill.
func (bi *bill) addAnswer(inv *inventory, month Month) {
	if inv.unreachable || inv.Damaged {
		bi.missing = append(bi.missing, inv.from.Name)
	}
	for _, src := range inv.Sources {
		if src.Ledger.Month == month {
			bi.add(src)
		}
	}

	// The last export counts, as it was last revised.
	if e := inv.Notes.Exports[month]; e.At > bi.exported.At || e.At == bi.exported.At &&
		e.RevisedAt > bi.exported.RevisedAt {
		bi.exported = e
	}
}

// add adds a ledger to the bill, unless there is a better copy: one of a higher
// round, or else the one where it was counted.
func (bi *bill) add(src source) {
	i := slices.IndexFunc(bi.sources, func(have source) bool { return have.Ledger == src.Ledger })
	if i < 0 {
		bi.sources = append(bi.sources, src)
		return
	}
	have := &bi.sources[i]
	better := src.Round > have.Round || src.Round == have.Round && have.Copy && !src.Copy

	// An intact ledger is better than a damaged one of any round: nobody knows
	// which rows that one lacks.
	if have.Damaged != src.Damaged {
		better = have.Damaged
	}

	if better {
		*have = src
	}
}

// complete puts the lists of the bill in order, counts damaged copies among the
// missing ones, and computes the digest.
func (bi *bill) complete() {
	for _, src := range bi.sources {
		if src.Damaged {
			bi.missing = append(bi.missing, src.Node)
		}
	}

	slices.Sort(bi.missing)
	bi.missing = slices.Compact(bi.missing)
	slices.Sort(bi.lost)
	bi.lost = slices.Compact(bi.lost)
	bi.estimated = slices.DeleteFunc(bi.estimated, func(e Estimate) bool { return slices.Contains(bi.missing, e.Node) })
	slices.SortFunc(bi.estimated, func(x, y Estimate) int { return cmp.Compare(x.Node, y.Node) })
	slices.SortFunc(bi.sources, func(x, y source) int {
		return cmp.Or(x.Ledger.Source.Compare(y.Ledger.Source), cmp.Compare(x.Ledger.Number, y.Ledger.Number))
	})

	for _, src := range bi.sources {
		bi.digest += src.digest()
	}
}

// witnesses find out what is missing from a bill, from what the members
// remember of each other and of nodes that are gone.
type witnesses struct {
	*bill
	month   Month
	answers []inventory
	merged  []source // the merged ledgers of all months
	now     int64
}

// isHome reports whether the data directory of a node has answered, under whatever identity.
func (w *witnesses) isHome(id ring.NodeID) bool {
	return slices.ContainsFunc(w.answers,
		func(inv inventory) bool { return !inv.unreachable && slices.Contains(inv.Homes, id) })
}

// isUnreachable reports whether a node is a member that has not answered. It is missing already.
func (w *witnesses) isUnreachable(id ring.NodeID) bool {
	return slices.ContainsFunc(w.answers, func(inv inventory) bool { return inv.unreachable && inv.from.ID == id })
}

// isCounted reports whether the file to which a process wrote a ledger has
// answered. It lacks at most the last second, and counts in place of any copy.
func (w *witnesses) isCounted(id ledgerID) bool {
	return slices.ContainsFunc(w.answers, func(inv inventory) bool {
		return slices.ContainsFunc(inv.Sources,
			func(src source) bool { return !src.Copy && (src.Ledger == id || src.replaces(id)) })
	})
}

// copied returns the ledgers of the month in a statement that the bill has only
// from a copy, or not at all.
func (w *witnesses) copied(r *processRecord) (list []version) {
	for _, v := range r.Ledgers {
		if v.Month == w.month && !w.isCounted(ledgerID{v.Month, r.Source, v.Number}) {
			list = append(list, v)
		}
	}
	return list
}

// isWhole reports whether the bill has everything in a statement.
func (w *witnesses) isWhole(r *processRecord) bool {
	return !slices.ContainsFunc(w.copied(r), func(v version) bool {
		return !covers(w.sources, ledgerID{v.Month, r.Source, v.Number}, v.Round)
	})
}

// judgeProcesses finds the processes whose ledgers come from copies, and what
// may be missing of each.
func (w *witnesses) judgeProcesses() {
	var all []processRecord
	for _, inv := range w.answers {
		all = append(all, inv.Records...)
	}

	for len(all) > 0 {
		source, boot := all[0].Source, all[0].Boot
		isOf := func(r processRecord) bool { return r.Source == source && r.Boot == boot }
		ofProcess := slices.DeleteFunc(slices.Clone(all), func(r processRecord) bool { return !isOf(r) })
		rest := slices.DeleteFunc(slices.Clone(all), isOf)
		if !w.isUnreachable(source) && !w.isSuperseded(&ofProcess[0]) {
			w.judgeProcess(ofProcess)
		}
		all = rest
	}
}

// isSuperseded reports whether a later process of the node had the ledgers of this one.
func (w *witnesses) isSuperseded(r *processRecord) bool {
	return slices.ContainsFunc(w.answers, func(inv inventory) bool {
		return slices.ContainsFunc(inv.Records, func(other processRecord) bool { return other.supersedes(r, w.merged) })
	})
}

// judgeProcess judges one process by its statements, which different nodes may
// have kept. The last statement of which the bill has everything says how much
// may be missing after it.
func (w *witnesses) judgeProcess(records []processRecord) {
	// The latest statement in front: the first one of which the bill has
	// everything leaves the least to be missed.
	slices.SortFunc(records, func(a, b processRecord) int { return cmp.Compare(b.Number, a.Number) })
	copied := slices.ContainsFunc(records, func(r processRecord) bool { return len(w.copied(&r)) > 0 })
	if w.isHome(records[0].Source) && !copied {
		return
	}

	i := slices.IndexFunc(records, func(r processRecord) bool { return w.isWhole(&r) })
	if i < 0 {
		w.addLost(records[0].Name)
		return
	}
	if records[i].isExact() {
		return
	}
	loss, first, last := records[i].maxLoss(w.now)
	if w.month >= first && w.month <= last {
		w.addEstimate(records[0].Name, loss)
	}
}

func (bi *bill) addLost(name string) {
	bi.missing = append(bi.missing, name)
	bi.lost = append(bi.lost, name)
}

func (bi *bill) addEstimate(name string, loss time.Duration) {
	if i := slices.IndexFunc(bi.estimated, func(e Estimate) bool { return e.Node == name }); i >= 0 {
		bi.estimated[i].AtMostLost += loss
		return
	}
	bi.estimated = append(bi.estimated, Estimate{name, loss})
}

// judgeSeen finds nodes that were members in this month, are gone, and left no
// statement anywhere: nothing is known of them.
func (w *witnesses) judgeSeen() {
	seen := notebook{nodes: map[ring.NodeID]seenNode{}, exports: map[Month]exported{}}
	stated := map[ring.NodeID]bool{}
	for i := range w.answers {
		inv := &w.answers[i]
		seen.merge(&inv.Notes)
		stated[inv.from.ID] = true
		for _, r := range inv.Records {
			stated[r.Source] = true
		}
	}

	for id, sn := range seen.nodes {
		gone := sn.Gone
		if gone == 0 {
			gone = w.now
		}
		if MonthOf(sn.First) <= w.month && w.month <= MonthOf(gone) && !stated[id] && !w.isHome(id) {
			w.addLost(sn.Name)
		}
	}
}
