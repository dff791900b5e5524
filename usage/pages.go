package usage

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/persist"
)

// pageBytes is the approximate size of a page, in bytes.
const pageBytes = 256 << 10

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
		if l.id != id {
			continue
		}
		if p.after == nil {
			l.refreshOrder()
		}
		l.page(p)
		return nil
	}

	result := errNoLedger // View does not call the function if there is no file
	err := m.file.View(func(tx persist.Tx) error {
		result = m.readPage(tx, id, p)
		return nil // a damaged page does not make the whole file damaged
	})
	if err != nil {
		return err
	}
	return result
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

	// Only a reader's first page loads newer rows: its further pages must continue
	// the same order.
	copied := m.loadedCopy.Load()
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

// loadedCopy is an open copy that was loaded into memory to be read.
type loadedCopy struct {
	*ledger
	round uint64
	at    time.Time
}

// readPageFrom reads a page from this node or another one.
func (t *Totals) readPageFrom(ctx context.Context, at Member, q *pageQuery) ([]byte, error) {
	if at.ID == t.meter.config.Self {
		return t.page(q)
	}

	query, _ := json.Marshal(q) // names and numbers
	reply, err := t.ask(ctx, at, MethodRows, query)
	if err != nil {
		return nil, fmt.Errorf("ask %s for usage: %w", at.Name, err)
	}
	return reply, nil
}

// pageHeader is the header of a MethodHandOver message. A page of a closed ledger follows it.
type pageHeader struct {
	holding
	Page int   `json:"page"`
	Last bool  `json:"last"`
	at   int64 // when it is written, in Unix nanoseconds
}

// sendLedgers sends ledgers page by page, from memory or from the file.
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
	for p := (&pager{limit: pageBytes}); ; p = p.next() {
		if err := t.meter.page(header.Ledger, p); err != nil {
			return err
		}

		header.Last = !p.more
		known, err := t.sendPage(ctx, to, header, p.page)
		if err != nil || known || header.Last {
			return err
		}
		header.Page++
	}
}

// sendPage sends a page. known means that the other node already has the ledger.
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
		return nil, errors.New("the page's number, round or merged list is out of range")
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
	err = m.file.Update(func(tx persist.Tx) error {
		// The ledger is looked up again: another node may have sent it since.
		_, head, whole := findWhole(tx, header.Ledger)
		if whole && head.Round >= header.Round {
			reply = alreadyHeld
			return nil
		}
		return header.put(tx, page)
	})
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// checkCopy returns an error unless this node may hold a copy of a ledger.
func (m *Meter) checkCopy(id ledgerID) error {
	if id.Source == m.config.Self || id.Source.IsZero() || id.Month < firstYear*12 || id.Month > lastYear*12+11 {
		return errors.New("a node can't hold a copy of its own or an undated ledger")
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

	made := head{
		Node: header.Node, Damaged: header.Damaged, Copy: header.Copy, Round: header.Round, Pages: header.Page + 1,
		Merged: header.Merged, Digest: header.Digest,
	}
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
			made.Copy = false // it replaces what the process itself wrote, and has at least as much
		}
	}

	if err := dropBuckets(tx, replaced); err != nil {
		return err
	}
	return putHead(tx, id, made)
}

// putPage writes a page of a closed ledger.
func (m *Meter) putPage(header *pageHeader, page []byte) error {
	header.at = m.config.Now()
	return m.file.Update(func(tx persist.Tx) error { return header.put(tx, page) })
}
