package usage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
)

// The messages between nodes. Each has a reply.
const (
	MethodSources peer.Method = 128 + iota // lists the ledgers that a node holds for a month
	MethodRows                             // reads a page of a ledger's rows
	MethodTake                             // hands over a page of a ledger
)

// CodeFailed is the code of a failed call. Callers treat it like any other failure.
const CodeFailed peer.Code = 128

// Bounds on calls between nodes.
const (
	callTimeout = 5 * time.Second // timeout of a call to another node
	pageBytes   = 256 << 10       // approximate size of a page, in bytes
	// maxServing bounds the calls that this node answers at once. It refuses any more.
	maxServing = 8
)

// Member is a node of the cluster.
type Member struct {
	ID   ring.NodeID
	Name string
}

// Peers carries messages to other nodes. *peer.Peers implements it.
type Peers interface {
	Call(ctx context.Context, to ring.NodeID, m peer.Method, body []byte) ([]byte, error)
}

// Totals adds up what all nodes counted. The caller must Close it; that leaves the Meter open.
type Totals struct {
	meter   *Meter
	peers   Peers
	members func() []Member // all members that have not left, even if they are down

	callSlots chan struct{} // holds an element for each call being answered
	calls     sync.WaitGroup
	mu        sync.Mutex // guards closed; once it is set, calls takes no more goroutines
	closed    bool
}

// NewTotals makes m's ledgers part of the cluster's usage. members returns all members that have not left, even if they are
// down.
func NewTotals(m *Meter, peers Peers, members func() []Member) *Totals {
	return &Totals{meter: m, peers: peers, members: members, callSlots: make(chan struct{}, maxServing)}
}

// Close refuses further calls and waits for those being answered.
func (t *Totals) Close() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.calls.Wait()
	return nil
}

// inventory lists what a node holds for a month.
type inventory struct {
	Sources []source `json:"sources"`
	Damaged bool     `json:"damaged"` // the file can't be read, or a damaged one was set aside and still exists
}

// source is a ledger that a node holds.
type source struct {
	Ledger  ledgerID `json:"ledger"`
	Node    string   `json:"node"` // name of the node that counted it
	Damaged bool     `json:"damaged"`
	heldBy  Member   // the node that holds it
}

// inventoryHere lists what this node holds for a month, and sorts in all rows counted so far.
func (t *Totals) inventoryHere(month Month) (h inventory) {
	m := t.meter
	h.Damaged = m.file.SetAside()
	sources, err := m.sources(month)
	if err != nil {
		m.config.Logger.Error("can't read usage", "error", err)
		h.Damaged = true
	}
	h.Sources = sources
	return h
}

// sources returns the ledgers of a month, or of allMonths, both in memory and in the file.
func (m *Meter) sources(month Month) (list []source, err error) {
	for _, l := range m.inMemory() {
		if month == allMonths || l.id.Month == month {
			l.refreshOrder()
			list = append(list, source{Ledger: l.id, Node: l.node, Damaged: l.damaged})
		}
	}
	err = m.file.View(func(tx persist.Tx) error {
		found, err := listCopies(tx)
		for _, c := range found {
			h, whole := readHead(tx, c)
			known := slices.ContainsFunc(list, func(s source) bool { return s.Ledger == c.ledgerID }) // still in memory, while it is being closed
			if c.closed && whole && !known && (month == allMonths || c.Month == month) {
				list = append(list, source{Ledger: c.ledgerID, Node: h.Node, Damaged: h.Damaged})
			}
		}
		return err
	})
	return list, err
}

// pageQuery asks for a page of a ledger.
type pageQuery struct {
	Ledger ledgerID `json:"ledger"`
	Rule   string   `json:"rule"`
	After  []byte   `json:"after"` // packed names of the last row before the page; empty for the first page
}

// page reads a page on this node: one byte, which is 1 if more rows follow, and then the rows.
func (t *Totals) page(q *pageQuery) ([]byte, error) {
	p := pager{rule: q.Rule, limit: pageBytes, page: []byte{0}}
	if len(q.After) > 0 {
		p.after = &Row{}
		d := wire.NewDecoder(q.After)
		if p.after.decodeNames(d); d.Failed() {
			return nil, errRow
		}
	}
	if err := t.meter.page(q.Ledger, &p); err != nil {
		return nil, err
	}
	if p.more {
		p.page[0] = 1
	}
	return p.page, nil
}

// page puts rows of a ledger into p.
func (m *Meter) page(id ledgerID, p *pager) error {
	for _, l := range m.inMemory() {
		if l.id == id {
			l.page(p)
			return nil
		}
	}
	err := errNoLedger // stays if there is no file
	if failed := m.file.View(func(tx persist.Tx) error {
		err = readClosedPage(tx, id, p)
		return nil // a damaged page does not make the whole file damaged
	}); failed != nil {
		err = failed
	}
	return err
}

// Handle registers handlers with p for the messages of other nodes.
func (t *Totals) Handle(p *peer.Peers) {
	for _, m := range []peer.Method{MethodSources, MethodRows, MethodTake} {
		p.Handle(m, peer.Near, t.serve)
	}
}

// serve answers a message from another node. It does not block.
func (t *Totals) serve(call *peer.Call) {
	call.CopyBody()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		call.Fail(CodeFailed, "the node is stopping")
		return
	}
	select {
	case t.callSlots <- struct{}{}:
	default:
		call.Fail(CodeFailed, "too many calls about usage at once")
		return
	}
	t.calls.Go(func() {
		defer func() { <-t.callSlots }()
		body, err := t.answer(call.Method, call.Body)
		if err != nil {
			call.Fail(CodeFailed, err.Error())
			return
		}
		call.Reply(body)
	})
}

// answer returns the reply to a message.
func (t *Totals) answer(m peer.Method, body []byte) ([]byte, error) {
	switch m {
	case MethodSources:
		var month Month
		if err := json.Unmarshal(body, &month); err != nil {
			return nil, errRow
		}
		return json.Marshal(t.inventoryHere(month))
	case MethodRows:
		var q pageQuery
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, errRow
		}
		return t.page(&q)
	case MethodTake:
		return t.takePage(body)
	}
	return nil, errors.New("unknown method")
}

// inventoryOf asks a node what it holds for a month.
func (t *Totals) inventoryOf(ctx context.Context, m Member, month Month) (h inventory, err error) {
	if m.ID == t.meter.config.Self {
		h = t.inventoryHere(month)
	} else {
		body, _ := json.Marshal(month) // a number
		if body, err = t.ask(ctx, m, MethodSources, body); err == nil {
			err = json.Unmarshal(body, &h)
		}
	}
	for i := range h.Sources {
		h.Sources[i].heldBy = m
	}
	return h, err
}

// ask makes a call to another node.
func (t *Totals) ask(ctx context.Context, to Member, m peer.Method, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return t.peers.Call(ctx, to.ID, m, body)
}

// gather returns each ledger once, preferably at the node that counted it, and the names of the nodes whose counts may be
// missing.
func (t *Totals) gather(ctx context.Context, month Month, members []Member) (best []source, missing []string) {
	var mu sync.Mutex // guards best and missing
	var group sync.WaitGroup
	for _, m := range members {
		group.Go(func() {
			h, err := t.inventoryOf(ctx, m, month)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || h.Damaged {
				missing = append(missing, m.Name)
			}
			for _, s := range h.Sources {
				i := slices.IndexFunc(best, func(b source) bool { return b.Ledger == s.Ledger })
				switch {
				case i < 0:
					best = append(best, s)
				case s.Ledger.Source == m.ID:
					best[i] = s
				}
			}
		})
	}
	group.Wait()
	for i := range best {
		if best[i].Damaged {
			missing = append(missing, best[i].Node)
		}
	}
	slices.Sort(missing)
	slices.SortFunc(best, func(a, b source) int {
		return cmp.Or(a.Ledger.Source.Compare(b.Ledger.Source), cmp.Compare(a.Ledger.Number, b.Ledger.Number))
	})
	return best, slices.Compact(missing)
}
