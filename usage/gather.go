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

// inventoryHere lists what this node holds for a month, and sorts in all rows counted so far.
func (t *Totals) inventoryHere(month Month) (inv inventory) {
	m := t.meter
	inv.Damaged = m.file.SetAside()
	list, err := m.sources(allMonths)
	if err != nil {
		m.config.Logger.Error("can't read usage", "error", err)
		inv.Damaged = true
	}

	inv.Homes = []ring.NodeID{m.config.Self}
	for _, s := range list {
		if !s.Copy && !slices.Contains(inv.Homes, s.Ledger.Source) {
			inv.Homes = append(inv.Homes, s.Ledger.Source)
		}
		// Merged ones of other months show which statements a later one supersedes.
		if month == allMonths || s.Ledger.Month == month || len(s.Merged) > 0 {
			inv.Sources = append(inv.Sources, s)
		}
	}

	t.heldCopies.mu.Lock()
	_ = t.loadRecords() // if the file can't be read, it is damaged anyway
	t.heldCopies.mu.Unlock()
	inv.Records = t.heldCopies.list()
	n := &t.notes
	n.mu.Lock()
	n.load(m)
	n.mu.Unlock()
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

	inv.from, inv.unreachable = node, err != nil

	for i := range inv.Sources {
		inv.Sources[i].heldBy = node
	}

	return inv
}

// billHere is what this node itself counted in a month.
func (t *Totals) billHere(month Month) *bill {
	inv := t.inventoryOf(t.ctx, Member{ID: t.meter.config.Self, Name: t.meter.config.Name}, month)
	inv.Sources = slices.DeleteFunc(inv.Sources,
		func(s source) bool { return s.Ledger.Source != t.meter.config.Self || s.Copy })
	b := &bill{}
	b.addAnswer(&inv, month)
	b.complete()
	return b
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
	b := &bill{}
	for i := range answers {
		b.addAnswer(&answers[i], month)
	}
	b.dropReplaced()
	w := witnesses{bill: b, month: month, answers: answers, now: now}
	for _, h := range answers {
		for _, s := range h.Sources {
			if len(s.Merged) > 0 {
				w.merged = append(w.merged, s)
			}
		}
	}
	w.judgeProcesses()
	w.judgeSeen()
	b.complete()
	return b
}

// addAnswer adds what a node has answered to the bill.
func (b *bill) addAnswer(inv *inventory, month Month) {
	if inv.unreachable || inv.Damaged {
		b.missing = append(b.missing, inv.from.Name)
	}
	for _, s := range inv.Sources {
		if s.Ledger.Month == month {
			b.add(s)
		}
	}
	if e := inv.Notes.Exports[month]; e.At > b.exported.At || e.At == b.exported.At &&
		e.RevisedAt > b.exported.RevisedAt {
		b.exported = e
	}
}

// add adds a ledger to the bill, unless there is a better copy: one of a higher
// round, or else the one where it was counted.
func (b *bill) add(s source) {
	i := slices.IndexFunc(b.sources, func(have source) bool { return have.Ledger == s.Ledger })
	if i < 0 {
		b.sources = append(b.sources, s)
		return
	}
	have := &b.sources[i]
	better := s.Round > have.Round || s.Round == have.Round && have.Copy && !s.Copy

	// An intact ledger is better than a damaged one of any round: nobody knows
	// which rows that one lacks.
	damaged := cmp.Compare(boolInt(have.Damaged), boolInt(s.Damaged))
	if damaged > 0 || damaged == 0 && better {
		*have = s
	}
}

func boolInt(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// complete puts the lists of the bill in order, counts damaged copies among the
// missing ones, and computes the digest.
func (b *bill) complete() {
	for _, s := range b.sources {
		if s.Damaged {
			b.missing = append(b.missing, s.Node)
		}
	}

	slices.Sort(b.missing)
	b.missing = slices.Compact(b.missing)
	slices.Sort(b.lost)
	b.lost = slices.Compact(b.lost)
	b.estimated = slices.DeleteFunc(b.estimated, func(e Estimate) bool { return slices.Contains(b.missing, e.Node) })
	slices.SortFunc(b.estimated, func(x, y Estimate) int { return cmp.Compare(x.Node, y.Node) })
	slices.SortFunc(b.sources, func(x, y source) int {
		return cmp.Or(x.Ledger.Source.Compare(y.Ledger.Source), cmp.Compare(x.Ledger.Number, y.Ledger.Number))
	})

	for _, s := range b.sources {
		b.digest += s.digest()
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
			func(s source) bool { return !s.Copy && (s.Ledger == id || s.replaces(id)) })
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
		of := slices.DeleteFunc(slices.Clone(all), func(r processRecord) bool { return !isOf(r) })
		others := slices.DeleteFunc(slices.Clone(all), isOf)
		if !w.isUnreachable(source) && !w.isSuperseded(&of[0]) {
			w.judgeProcess(of)
		}
		all = others
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
func (w *witnesses) judgeProcess(of []processRecord) {
	// The latest statement in front: the first one of which the bill has
	// everything leaves the least to be missed.
	slices.SortFunc(of, func(a, b processRecord) int { return cmp.Compare(b.Number, a.Number) })
	copied := slices.ContainsFunc(of, func(r processRecord) bool { return len(w.copied(&r)) > 0 })
	if w.isHome(of[0].Source) && !copied {
		return
	}

	i := slices.IndexFunc(of, func(r processRecord) bool { return w.isWhole(&r) })
	if i < 0 {
		w.addLost(of[0].Name)
		return
	}
	if of[i].isExact() {
		return
	}
	if loss, first, last := of[i].maxLoss(w.now); w.month >= first && w.month <= last {
		w.addEstimate(of[0].Name, loss)
	}
}

func (b *bill) addLost(name string) {
	b.missing = append(b.missing, name)
	b.lost = append(b.lost, name)
}

func (b *bill) addEstimate(name string, loss time.Duration) {
	if i := slices.IndexFunc(b.estimated, func(e Estimate) bool { return e.Node == name }); i >= 0 {
		b.estimated[i].AtMostLost += loss
		return
	}
	b.estimated = append(b.estimated, Estimate{name, loss})
}

// judgeSeen finds nodes that were members in this month, are gone, and left no
// statement anywhere: nothing is known of them.
func (w *witnesses) judgeSeen() {
	seen := notebook{nodes: map[ring.NodeID]seenNode{}, exports: map[Month]exported{}}
	stated := map[ring.NodeID]bool{}
	for i := range w.answers {
		h := &w.answers[i]
		seen.merge(&h.Notes)
		stated[h.from.ID] = true
		for _, r := range h.Records {
			stated[r.Source] = true
		}
	}

	for id, s := range seen.nodes {
		gone := s.Gone
		if gone == 0 {
			gone = w.now
		}
		if MonthOf(s.First) <= w.month && w.month <= MonthOf(gone) && !stated[id] && !w.isHome(id) {
			w.addLost(s.Name)
		}
	}
}
