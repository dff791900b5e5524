package usage

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/internal/tasks"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
)

// The messages between nodes. Each has a reply.
const (
	MethodInventory peer.Method = 128 + iota // lists what a node holds for a month
	MethodRows                               // reads a page of a ledger's rows
	MethodHandOver                           // hands over a page of a closed ledger
	MethodCopy                               // streams changes of open ledgers, and states what the sender has
	MethodNotes                              // exchanges notes
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
	ID    ring.NodeID
	Name  string
	Zone  string
	Alive bool // gossip says so
	// InRing means that the node may own partitions. A bill names a node that goes
	// without leaving a copy as missing only if it was in the ring: others may
	// never have answered a check.
	InRing bool
}

// Peers carries messages to other nodes. *peer.Peers implements it.
type Peers interface {
	Call(ctx context.Context, to ring.NodeID, m peer.Method, body []byte) ([]byte, error)
	// ProcessGone reports whether no process listens at the node's address any
	// more, as far as this node knows.
	ProcessGone(node ring.NodeID) bool
}

// Totals adds up what all nodes counted, keeps a copy of what this node counts
// on another node, and holds such copies for others. The caller must Close it;
// that leaves the Meter open.
type Totals struct {
	meter   *Meter
	peers   Peers
	members func() []Member // all members that have not left, even if they are down

	copier     copier
	heldCopies heldCopies
	notes      notebook
	review     review

	merging atomic.Bool // a goroutine merges ledgers
	ctx     context.Context
	cancel  context.CancelFunc
	loop    sync.WaitGroup // the goroutine that Start starts
	calls   tasks.Group    // of other nodes, being answered
	errands tasks.Group    // what run starts
	last    sync.Once
}

// NewTotals makes m's ledgers part of the cluster's usage. members returns all
// members that have not left, even if they are down.
func NewTotals(m *Meter, peers Peers, members func() []Member) *Totals {
	t := &Totals{meter: m, peers: peers, members: members}
	t.calls.Most = maxServing
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.copier.mu = make(lock, 1)
	t.copier.sent = map[ledgerID]uint64{}
	t.copier.givenUp = map[ring.NodeID]time.Time{}
	t.copier.completeAt.Store(time.Now().UnixNano())
	t.notes.nodes = map[ring.NodeID]seenNode{}
	t.notes.exports = map[Month]exported{}
	return t
}

// Start begins to keep copies: this node's ledgers on another node, and the
// ledgers of other nodes here.
func (t *Totals) Start() {
	t.loop.Go(t.run)
}

// Close ends the goroutine, sends the last changes to the node that holds the
// copy, refuses further calls and waits for those being answered. Nothing may
// be counted any more.
func (t *Totals) Close() error {
	// The loop ends, and no call or errand begins any more, before the last
	// changes are sent: their statement is the last one.
	answered := t.calls.Close()
	done := t.errands.Close()
	t.cancel()
	t.loop.Wait()
	t.last.Do(t.sendLast)
	<-answered
	<-done
	return nil
}

// holding is a ledger that a node holds.
type holding struct {
	Ledger  ledgerID `json:"ledger"`
	Node    string   `json:"node"` // name of the node that counted it
	Damaged bool     `json:"damaged"`
	Round   uint64   `json:"round"` // the round up to which it has everything
	Copy    bool     `json:"copy"`  // another node sent it; otherwise the process that counted it wrote it here
	// Merged and Digest are those of a merged ledger: which others it replaces, and
	// what identifies their counts.
	Merged ledgerNumbers `json:"merged,omitempty"`
	Digest uint64        `json:"digest,omitempty"`
	heldBy Member        // the node that holds it
}

// holdings returns the ledgers of a month, or of allMonths, both in memory and
// in the file, without those that merged ones replace.
func (m *Meter) holdings(month Month) (list []holding, err error) {
	for _, l := range m.inMemory() {
		if month == allMonths || l.id.Month == month {
			round := l.endRound()
			if round > 0 {
				list = append(list, holding{Ledger: l.id, Node: l.node, Damaged: l.damaged, Round: round})
			}
		}
	}

	inMemory := len(list)
	err = m.file.View(func(tx persist.Tx) error {
		found, err := listBuckets(tx)
		for _, id := range found {
			head, whole := readHead(tx, id)
			if !whole || head.Round == 0 || month != allMonths && id.Month != month {
				continue
			}

			h := holding{
				Ledger: id.ledgerID, Node: head.Node, Damaged: head.Damaged, Round: head.Round, Copy: head.Copy,
				Merged: head.Merged, Digest: head.Digest,
			}
			i := slices.IndexFunc(list, func(h holding) bool { return h.Ledger == id.ledgerID })
			switch {
			case i < 0 && (id.round > 0 || head.Copy):
				list = append(list, h)

			// A ledger in memory has at least what the file has of it.
			case i >= inMemory && list[i].Round < h.Round:
				list[i] = h
			}
		}

		return err
	})
	return withoutReplaced(list), err
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
		p.after.decodeNames(d)
		if d.Failed() {
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
			if p.after == nil {
				l.refreshOrder()
			}
			l.page(p)
			return nil
		}
	}

	err := errNoLedger // stays if there is no file
	if failed := m.file.View(func(tx persist.Tx) error {
		err = m.readPage(tx, id, p)
		return nil // a damaged page does not make the whole file damaged
	}); failed != nil {
		err = failed
	}

	return err
}

// readPage puts rows of a ledger in the file into p.
func (m *Meter) readPage(tx persist.Tx, id ledgerID, p *pager) error {
	bucket, head, ok := findWhole(tx, id)
	switch {
	case !ok:
		return errNoLedger
	case bucket.round > 0:
		return readClosedPage(tx, bucket, head.Pages, p)
	}

	copied := m.loadedCopy.Load()

	// Only a first page loads newer rows: all pages that a reader gets must be of
	// one order.
	if copied == nil || copied.id != id || p.after == nil && copied.round != head.Round {
		l, err := loadLedger(tx, id, head)
		if err != nil {
			return err
		}
		copied = &loadedCopy{ledger: l, round: head.Round, at: time.Now()}
		m.loadedCopy.Store(copied)
	}

	copied.page(p)
	return nil
}

// Handle registers handlers with p for the messages of other nodes.
func (t *Totals) Handle(p *peer.Peers) {
	for _, m := range []peer.Method{MethodInventory, MethodRows, MethodHandOver, MethodCopy, MethodNotes} {
		p.Handle(m, peer.Near, t.serve)
	}
}

// serve answers a message from another node. It does not block.
func (t *Totals) serve(call *peer.Call) {
	call.CopyBody()
	if !t.calls.Go(func() {
		body, err := t.answer(call.Method, call.Body)
		if err != nil {
			call.Fail(CodeFailed, err.Error())
			return
		}
		call.Reply(body)
	}) {
		call.Fail(CodeFailed, "too many calls about usage at once, or the node is stopping")
	}
}

// answer returns the reply to a message.
func (t *Totals) answer(m peer.Method, body []byte) ([]byte, error) {
	switch m {
	case MethodInventory:
		var month Month
		if err := json.Unmarshal(body, &month); err != nil {
			return nil, errMessage
		}
		return json.Marshal(t.inventoryHere(month))
	case MethodRows:
		var q pageQuery
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, errMessage
		}
		return t.page(&q)
	case MethodHandOver:
		return t.storePage(body)
	case MethodCopy:
		return t.storeCopy(body)
	case MethodNotes:
		return t.answerNotes(body)
	}

	return nil, errors.New("unknown method")
}

// ask makes a call to another node.
func (t *Totals) ask(ctx context.Context, to Member, m peer.Method, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return t.peers.Call(ctx, to.ID, m, body)
}

// Metrics reports metrics of copies and bills.
func (t *Totals) Metrics(sink metrics.Sink) {
	sources := map[ring.NodeID]bool{}
	for _, r := range t.heldCopies.list() {
		if len(r.Ledgers) > 0 {
			sources[r.Source] = true
		}
	}

	sink.Level("usage_copies", "Nodes for which this node keeps a copy of what they counted for bills.", len(sources))
	sink.Gauge("usage_copy_age_seconds",
		"Time since another node last had a copy of all that this node counted for bills.",
		t.copier.age().Seconds())
	sink.Gauge("usage_estimated",
		"Nodes that are gone and whose bills of this month or the last one come from a copy that may lack a little. One node reports it.",
		float64(t.copier.estimated.Load()))
	sink.Gauge("usage_incomplete",
		"Nodes that are gone and whose bills of this month or the last one lack what no other node has. One node reports it.",
		float64(t.copier.lost.Load()))
}

// isMember reports whether a node is one of the members.
func isMember(members []Member, id ring.NodeID) bool {
	return slices.ContainsFunc(members, func(member Member) bool { return member.ID == id })
}
