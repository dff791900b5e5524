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

// inventory lists what a node holds for a month, and what it knows about
// others. The messages have older words for Holdings and Identities.
type inventory struct {
	Holdings []holding `json:"sources"`
	Damaged  bool      `json:"damaged"` // the file can't be read, or a damaged one is set aside
	// Identities are the nodes whose data directory this is: the node itself, and
	// what it was before it took a new identity.
	Identities []ring.NodeID   `json:"homes"`
	Records    []processRecord `json:"records"`
	Notes      notes           `json:"notes"`

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
	ledgers   []holding // each ledger once, from the node that has most of it
	missing   []string  // nodes whose counts are missing, in whole or in part
	lost      []string  // those of the missing nodes that nobody can ask any more
	estimated []Estimate
	digest    uint64   // of the ledgers and their rounds
	exported  exported // the last export
}

// inventoryHere lists what this node holds for a month. It ends the current
// rounds of the ledgers, so that the listed rounds have everything counted so
// far.
func (t *Totals) inventoryHere(month Month) (inv inventory) {
	m := t.meter
	inv.Damaged = m.file.WasSetAside()
	list, err := m.holdings(allMonths)
	if err != nil {
		m.config.Logger.Error("can't read usage", "error", err)
		inv.Damaged = true
	}

	inv.Identities = []ring.NodeID{m.config.Self}
	for _, h := range list {
		if !h.Copy && !slices.Contains(inv.Identities, h.Ledger.Source) {
			inv.Identities = append(inv.Identities, h.Ledger.Source)
		}

		// The merged ledgers of other months show which statements are superseded.
		if month == allMonths || h.Ledger.Month == month || len(h.Merged) > 0 {
			inv.Holdings = append(inv.Holdings, h)
		}
	}

	t.processRecords.mu.Lock()
	_ = t.loadRecords() // if the file can't be read, it is damaged anyway
	t.processRecords.mu.Unlock()
	inv.Records = t.processRecords.list()

	t.notes.mu.Lock()
	t.notes.load(m)
	t.notes.mu.Unlock()
	inv.Notes = *t.currentNotes()
	inv.Notes.Records = nil // they are in inv.Records
	return inv
}

// inventoryOf asks a node what it holds for a month.
func (t *Totals) inventoryOf(ctx context.Context, node Member, month Month) (inv inventory) {
	var err error
	if node.ID == t.meter.config.Self {
		inv = t.inventoryHere(month)
	} else {
		query, _ := json.Marshal(month) // a number
		var reply []byte
		reply, err = t.ask(ctx, node, MethodInventory, query)
		if err == nil {
			err = json.Unmarshal(reply, &inv)
		}
	}

	inv.from = node
	inv.unreachable = err != nil
	for i := range inv.Holdings {
		inv.Holdings[i].heldBy = node
	}
	return inv
}

// billHere returns the bill of what this node itself counted in a month.
func (t *Totals) billHere(month Month) *bill {
	inv := t.inventoryOf(t.ctx, Member{ID: t.meter.config.Self, Name: t.meter.config.Name}, month)
	inv.Holdings = slices.DeleteFunc(inv.Holdings,
		func(h holding) bool { return h.Ledger.Source != t.meter.config.Self || h.Copy })

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
	bi.omitReplaced()

	a := audit{bill: bi, month: month, answers: answers, now: now}
	for _, inv := range answers {
		for _, h := range inv.Holdings {
			if len(h.Merged) > 0 {
				a.merged = append(a.merged, h)
			}
		}
	}
	a.checkProcesses()
	a.checkMembers()

	bi.complete()
	return bi
}

// addAnswer adds what a node has answered to the bill.
func (bi *bill) addAnswer(inv *inventory, month Month) {
	if inv.unreachable || inv.Damaged {
		bi.missing = append(bi.missing, inv.from.Name)
	}

	for _, h := range inv.Holdings {
		if h.Ledger.Month == month {
			bi.add(h)
		}
	}

	// The last export counts, as it was last revised.
	e := inv.Notes.Exports[month]
	if e.isAfter(bi.exported) {
		bi.exported = e
	}
}

// add adds a ledger to the bill, unless the bill has a better copy: an intact
// one, else one of a higher round, else the original.
func (bi *bill) add(h holding) {
	i := slices.IndexFunc(bi.ledgers, func(have holding) bool { return have.Ledger == h.Ledger })
	if i < 0 {
		bi.ledgers = append(bi.ledgers, h)
		return
	}

	have := &bi.ledgers[i]
	better := h.Round > have.Round || h.Round == have.Round && have.Copy && !h.Copy

	// An intact ledger is better than a damaged one of any round: nobody knows
	// which rows the damaged one lacks.
	if have.Damaged != h.Damaged {
		better = have.Damaged
	}
	if better {
		*have = h
	}
}

// omitReplaced leaves out the ledgers that merged ones replace. Two merged
// ledgers may name the same ledger, but only if a data directory was restored
// from a copy. Both would count it. So only the one that names more stays, and
// the bill is incomplete.
func (bi *bill) omitReplaced() {
	bi.ledgers = withoutReplaced(bi.ledgers)
	bySize := slices.SortedFunc(slices.Values(bi.ledgers),
		func(x, y holding) int { return cmp.Compare(len(y.Merged), len(x.Merged)) })

	var kept []holding
	for _, h := range bySize {
		twice := slices.ContainsFunc(kept, func(k holding) bool {
			return k.Ledger.Month == h.Ledger.Month && k.Ledger.Source == h.Ledger.Source &&
				k.Merged.overlaps(h.Merged)
		})
		if twice {
			bi.missing = append(bi.missing, h.Node)
			continue
		}
		kept = append(kept, h)
	}

	bi.ledgers = kept
}

// complete puts the lists of the bill in order, counts damaged copies among the
// missing ones, and computes the digest.
func (bi *bill) complete() {
	for _, h := range bi.ledgers {
		if h.Damaged {
			bi.missing = append(bi.missing, h.Node)
		}
	}

	slices.Sort(bi.missing)
	bi.missing = slices.Compact(bi.missing)
	slices.Sort(bi.lost)
	bi.lost = slices.Compact(bi.lost)

	bi.estimated = slices.DeleteFunc(bi.estimated, func(e Estimate) bool { return slices.Contains(bi.missing, e.Node) })
	slices.SortFunc(bi.estimated, func(x, y Estimate) int { return cmp.Compare(x.Node, y.Node) })

	slices.SortFunc(bi.ledgers, func(x, y holding) int {
		return cmp.Or(x.Ledger.Source.Compare(y.Ledger.Source), cmp.Compare(x.Ledger.Number, y.Ledger.Number))
	})
	for _, h := range bi.ledgers {
		bi.digest += h.digest()
	}
}

// audit finds out what is missing from a bill. It asks what the members
// remember of each other, and of nodes that are gone.
type audit struct {
	*bill
	month   Month
	answers []inventory
	merged  []holding // the merged ledgers of all months
	now     int64
}

// hasAnswered reports whether the data directory of a node has answered, under whatever identity.
func (a *audit) hasAnswered(id ring.NodeID) bool {
	return slices.ContainsFunc(a.answers,
		func(inv inventory) bool { return !inv.unreachable && slices.Contains(inv.Identities, id) })
}

// isUnreachable reports whether a node is a member that has not answered. The
// bill names such a node as missing already.
func (a *audit) isUnreachable(id ring.NodeID) bool {
	return slices.ContainsFunc(a.answers, func(inv inventory) bool { return inv.unreachable && inv.from.ID == id })
}

// isCounted reports whether a member holds a ledger as its process wrote it, by
// itself or in a merged one. Such a ledger lacks at most the last second.
func (a *audit) isCounted(id ledgerID) bool {
	return slices.ContainsFunc(a.answers, func(inv inventory) bool {
		return slices.ContainsFunc(inv.Holdings,
			func(h holding) bool { return !h.Copy && (h.Ledger == id || h.replaces(id)) })
	})
}

// ledgersOnlyCopied returns the ledgers of the month in a statement that the
// bill has only from a copy, or not at all.
func (a *audit) ledgersOnlyCopied(r *processRecord) (list []version) {
	for _, v := range r.Ledgers {
		if v.Month == a.month && !a.isCounted(ledgerID{v.Month, r.Source, v.Number}) {
			list = append(list, v)
		}
	}
	return list
}

// isWhole reports whether the bill has everything in a statement.
func (a *audit) isWhole(r *processRecord) bool {
	return !slices.ContainsFunc(a.ledgersOnlyCopied(r), func(v version) bool {
		return !covers(a.ledgers, ledgerID{v.Month, r.Source, v.Number}, v.Round)
	})
}

// checkProcesses finds the processes whose ledgers come from copies, and what
// may be missing of each.
func (a *audit) checkProcesses() {
	type process struct {
		source ring.NodeID
		boot   uint64
	}
	byProcess := map[process][]processRecord{}
	for _, inv := range a.answers {
		for _, r := range inv.Records {
			p := process{r.Source, r.Boot}
			byProcess[p] = append(byProcess[p], r)
		}
	}

	// Their order does not matter: complete puts what is found in order.
	for p, records := range byProcess {
		if !a.isUnreachable(p.source) && !a.isSuperseded(&records[0]) {
			a.checkProcess(records)
		}
	}
}

// isSuperseded reports whether a later process of the node had the ledgers of this one.
func (a *audit) isSuperseded(r *processRecord) bool {
	return slices.ContainsFunc(a.answers, func(inv inventory) bool {
		return slices.ContainsFunc(inv.Records, func(other processRecord) bool { return other.supersedes(r, a.merged) })
	})
}

// checkProcess checks one process by its statements, which different nodes may
// have kept. The bill lacks at most what the process counted after the last
// statement of which the bill has everything.
func (a *audit) checkProcess(records []processRecord) {
	slices.SortFunc(records, func(x, y processRecord) int { return cmp.Compare(y.Number, x.Number) })
	copied := slices.ContainsFunc(records, func(r processRecord) bool { return len(a.ledgersOnlyCopied(&r)) > 0 })
	if a.hasAnswered(records[0].Source) && !copied {
		return
	}

	i := slices.IndexFunc(records, func(r processRecord) bool { return a.isWhole(&r) })
	if i < 0 {
		a.addLost(records[0].Name)
		return
	}

	lastWhole := &records[i]
	if lastWhole.isExact() {
		return
	}
	loss, first, last := lastWhole.maxLoss(a.now)
	if a.month >= first && a.month <= last {
		a.addEstimate(records[0].Name, loss)
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

// checkMembers finds nodes that were members in this month, have not answered,
// and left no statement anywhere: nobody knows what they counted.
func (a *audit) checkMembers() {
	seen := notebook{nodes: map[ring.NodeID]seenNode{}, exports: map[Month]exported{}}
	stated := map[ring.NodeID]bool{}
	for i := range a.answers {
		inv := &a.answers[i]
		seen.merge(&inv.Notes)
		stated[inv.from.ID] = true
		for _, r := range inv.Records {
			stated[r.Source] = true
		}
	}

	for id, sn := range seen.nodes {
		gone := sn.Gone
		if gone == 0 {
			gone = a.now
		}

		wasMember := MonthOf(sn.First) <= a.month && a.month <= MonthOf(gone)
		if wasMember && !stated[id] && !a.hasAnswered(id) {
			a.addLost(sn.Name)
		}
	}
}
