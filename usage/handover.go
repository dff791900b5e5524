package usage

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/persist"
)

// pageHeader is the header of a MethodHandOver message. A page of a closed ledger follows it.
type pageHeader struct {
	holding
	Page int   `json:"page"`
	Last bool  `json:"last"`
	at   int64 // when it is written, in Unix nanoseconds
}

// HandOver closes all ledgers of this node and sends them to another member,
// together with what it holds for nodes that are gone. Later counts begin new
// ledgers; call HandOver again to hand them over. With final set, nothing may
// be counted any more. It returns nil if another member has everything on disk,
// even if none can be reached any longer.
func (t *Totals) HandOver(ctx context.Context, final bool) error {
	t.meter.closeAll()
	errs := []error{errors.New("hand over usage: there is no other member")}
	for _, to := range t.candidates() {
		err := t.handOverTo(ctx, to, final)
		if err == nil {
			t.exchangeNotesWithAll(ctx)
			return nil
		}
		errs = append(errs, fmt.Errorf("hand over usage to %s: %w", to.Name, err))
		if ctx.Err() != nil {
			break
		}
	}

	// When all nodes stop together, a node that has handed over before may find
	// nobody. Nothing is lost if it has counted nothing since.
	if t.isHandedOver() {
		return nil
	}
	return errors.Join(errs[min(1, len(errs)-1):]...) // the first error stands only if there was nobody to try
}

// isHandedOver reports whether the last HandOver that succeeded gave away all
// that was counted here so far.
func (t *Totals) isHandedOver() bool {
	c := &t.copier
	c.mu.Lock()
	defer c.mu.Unlock()

	var open []holding
	for _, l := range t.meter.inMemory() {
		round := l.endRound()
		if round > 0 {
			open = append(open, holding{Ledger: l.id, Round: round})
		}
	}
	for _, h := range t.ownHoldings(open) {
		if round, ok := c.handedOver[h.Ledger]; !ok || round < h.Round {
			return false
		}
	}
	return c.handedOver != nil
}

// closeAll closes all ledgers. One that can't be written stays in memory and is
// handed over from there.
func (m *Meter) closeAll() {
	m.writing.Lock()
	defer m.writing.Unlock()
	for _, l := range m.inMemory() {
		if err := m.closeLedger(l); err != nil {
			m.config.Logger.Error("can't write usage to disk; handing it over from memory", "error", err)
		}
	}
}

// handOverTo gives another node everything that this one has counted, and what
// it holds for nodes that are gone. Each reply names the ledgers that the other
// node lacks. handOverTo sends these up to twice, and the third reply must name
// none.
func (t *Totals) handOverTo(ctx context.Context, to Member, final bool) error {
	t.copier.mu.Lock()
	defer t.copier.mu.Unlock()

	for range 2 {
		missing, err := t.sendChanges(ctx, to, false)
		if err != nil {
			return err
		}
		if err := t.sendLedgers(ctx, to, missing); err != nil {
			return err
		}
	}

	missing, err := t.sendChanges(ctx, to, final)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("it lacks %d ledgers", len(missing))
	}
	if err := t.sendEstates(ctx, to); err != nil {
		return err
	}

	t.copier.handedOver = maps.Clone(t.copier.last)
	t.copier.ended = t.copier.ended || final
	return nil
}

// exchangeNotesWithAll exchanges notes with all nodes that are alive.
func (t *Totals) exchangeNotesWithAll(ctx context.Context) {
	for _, node := range t.candidates() {
		if !node.Alive {
			continue
		}
		if err := t.exchangeNotes(ctx, node); err != nil {
			t.meter.config.Logger.Debug("can't exchange notes about usage", "node", node.Name, "error", err)
		}
	}
}

// sendLedgers sends ledgers page by page, also those in memory.
func (t *Totals) sendLedgers(ctx context.Context, to Member, list []holding) error {
	for _, h := range list {
		if err := t.sendLedger(ctx, to, &pageHeader{holding: h}); err != nil {
			return err
		}
	}
	return nil
}

// sendLedger sends a closed ledger page by page. It stops if the other node already has the ledger.
func (t *Totals) sendLedger(ctx context.Context, to Member, header *pageHeader) error {
	for page := (&pager{limit: pageBytes}); ; page = page.next() {
		if err := t.meter.page(header.Ledger, page); err != nil {
			return err
		}
		header.Last = !page.more
		known, err := t.sendPage(ctx, to, header, page.page)
		if err != nil || known || header.Last {
			return err
		}
		header.Page++
	}
}

func (t *Totals) sendPage(ctx context.Context, to Member, header *pageHeader, page []byte) (known bool, err error) {
	sent := *header
	if !sent.Last {
		sent.Merged = nil // once is enough
	}
	text, _ := json.Marshal(sent) // names and numbers
	reply, err := t.ask(ctx, to, MethodHandOver, append(wire.AppendText(nil, text), page...))
	return bytes.Equal(reply, alreadyHeld), err
}

// alreadyHeld is the reply to a page of a ledger that this node already has.
var alreadyHeld = []byte{1}

// storePage stores a page of a closed ledger that another node sends.
func (t *Totals) storePage(body []byte) ([]byte, error) {
	d := wire.NewDecoder(body)
	var header pageHeader
	if err := json.Unmarshal(d.View(len(body)), &header); err != nil {
		return nil, errMessage
	}

	page := d.Rest()
	m := t.meter
	if err := m.checkCopy(header.Ledger); err != nil {
		return nil, err
	}
	if header.Page < 0 || header.Page > m.maxNameBytes()/pageBytes*2 || header.Round == 0 || !header.Merged.isValid() {
		return nil, errors.New("invalid ledger")
	}
	if err := eachRow(page, func(*Row) bool { return true }); err != nil {
		return nil, err
	}

	held, err := m.holdings(header.Ledger.Month)
	if err != nil {
		return nil, err
	}
	if covers(held, header.Ledger, header.Round) {
		return alreadyHeld, nil
	}

	header.Copy = true
	header.at = m.config.Now()
	reply := []byte{}
	if err := m.file.Update(func(tx persist.Tx) error {
		// The ledger is looked up again: another node may have sent it since.
		if _, head, whole := findWhole(tx, header.Ledger); whole && head.Round >= header.Round {
			reply = alreadyHeld
			return nil
		}
		return header.put(tx, page)
	}); err != nil {
		return nil, err
	}

	return reply, nil
}

// checkCopy reports whether this node may hold a copy of a ledger.
func (m *Meter) checkCopy(id ledgerID) error {
	if id.Source == m.config.Self || id.Source.IsZero() || id.Month < firstYear*12 || id.Month > lastYear*12+11 {
		return errors.New("invalid ledger")
	}
	return nil
}

// maxNameBytes bounds the size of the names in a copy of a ledger, in bytes. A
// node refuses a copy that is larger than its own ledgers may be.
func (m *Meter) maxNameBytes() int { return (m.config.Rows + maxOthers) * rowBytes }

// put writes a page. The first page deletes what a failed attempt has left. The
// last one deletes all other copies of the ledger.
func (header *pageHeader) put(tx persist.Tx, page []byte) error {
	id := bucketID{header.Ledger, header.Round}
	if header.Page == 0 {
		if err := tx.Drop(id.name()); err != nil {
			return err
		}
	} else if before, err := tx.Get(id.name(), pageKey(header.Page-1)); err != nil || before == nil {
		return cmp.Or(err, errors.New("the previous page is missing"))
	}

	// Only the last page makes the pages a ledger.
	if err := tx.Put(id.name(), pageKey(header.Page), page); err != nil || !header.Last {
		return err
	}

	made := head{Node: header.Node, Damaged: header.Damaged, Copy: header.Copy, Round: header.Round, Pages: header.Page + 1,
		Merged: header.Merged, Digest: header.Digest}
	if len(made.Merged) > 0 {
		made.MergedAt = header.at
	}

	// All other copies of the ledger go.
	list, err := listBuckets(tx)
	if err != nil {
		return err
	}
	var replaced []bucketID
	for _, other := range list {
		if other.ledgerID != header.Ledger || other == id {
			continue
		}
		replaced = append(replaced, other)
		if before, whole := readHead(tx, other); whole && !before.Copy {
			made.Copy = false // it has at least what the process itself wrote
		}
	}
	if err := dropBuckets(tx, replaced); err != nil {
		return err
	}

	return putHead(tx, id, made)
}
