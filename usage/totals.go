package usage

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/internal/tasks"
	"github.com/rlnode/rlnode/ring"
)

// Totals adds up what all nodes counted, keeps a copy of what this node counts
// on another node, and holds such copies for others. The caller must Close it;
// that leaves the Meter open.
type Totals struct {
	meter   *Meter
	peers   Peers
	members func() []Member // all members that have not left, even if they are down

	copier         copier
	processRecords processRecords
	notes          notebook
	review         review

	merging    atomic.Bool // a goroutine merges ledgers
	ctx        context.Context
	cancel     context.CancelFunc
	loop       sync.WaitGroup // the goroutine that Start starts
	calls      tasks.Group    // of other nodes, being answered
	background tasks.Group    // what run starts
	last       sync.Once      // runs sendLast
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
	done := t.background.Close()
	t.cancel()
	t.loop.Wait()

	t.last.Do(t.sendLast)
	<-answered
	<-done
	return nil
}

// run keeps copies and bills until Close. Once a second it sends changes,
// watches the nodes whose copies are here, and saves notes. The rest comes
// every ten seconds.
func (t *Totals) run() {
	ticker := time.NewTicker(copyInterval)
	defer ticker.Stop()

	for i := 0; ; i++ {
		select {
		case <-t.ctx.Done():
			return
		case <-ticker.C:
		}

		t.copyChanges()
		t.watch()
		t.saveNotes()

		// Merging begins early: a node that crashes again and again may not live for
		// long.
		if i < mergeEarly || i%notesEvery == 0 {
			t.mergeInBackground()
		}

		if i%notesEvery == 0 {
			if err := t.meter.dropReplaced(mergeGrace); err != nil {
				t.meter.config.Logger.Debug("can't drop ledgers of usage that were merged", "error", err)
			}
			t.shareNotes(i / notesEvery)
			t.secureOrphans()
			t.dropStale()
			t.reviewBills()
		}
	}
}

// Handle registers handlers with p for the messages of other nodes.
func (t *Totals) Handle(p *peer.Peers) {
	for _, m := range []peer.Method{MethodInventory, MethodRows, MethodHandOver, MethodCopy, MethodNotes} {
		p.Handle(m, peer.Near, t.serve)
	}
}

// serve answers a message from another node. It does not block.
func (t *Totals) serve(call *peer.Call) {
	call.CopyBody() // the body is read after serve has returned
	started := t.calls.Go(func() {
		body, err := t.answer(call.Method, call.Body)
		if err != nil {
			call.Fail(CodeFailed, err.Error())
			return
		}
		call.Reply(body)
	})
	if !started {
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

// Metrics reports metrics of copies and bills.
func (t *Totals) Metrics(sink metrics.Sink) {
	sources := map[ring.NodeID]bool{}
	for _, r := range t.processRecords.list() {
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
