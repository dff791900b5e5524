package usage

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/persist"
)

// pageHeader is the header of a MethodTake message. A page of a ledger follows it.
type pageHeader struct {
	source
	Page int  `json:"page"`
	Last bool `json:"last"`
}

// HandOver sends all ledgers that this node holds to another member, which keeps them under the names of the nodes that counted
// them. It closes the ledgers first. Later counts begin new ledgers; call HandOver again to hand them over. It returns nil once
// the other member has everything on disk.
func (t *Totals) HandOver(ctx context.Context) error {
	sources, err := t.meter.closeAll()
	if err != nil {
		return fmt.Errorf("hand over usage: %w", err)
	}
	errs := []error{errors.New("hand over usage: there is no other member")}
	for _, to := range t.members() {
		if to.ID == t.meter.config.Self {
			continue
		}
		err := t.handOverTo(ctx, to, sources)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("hand over usage to %s: %w", to.Name, err))
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs[min(1, len(errs)-1):]...)
}

// closeAll closes all ledgers and returns them. A ledger that can't be written stays in memory and is handed over from there.
func (m *Meter) closeAll() ([]source, error) {
	m.writing.Lock()
	defer m.writing.Unlock()
	for _, l := range m.inMemory() {
		if err := m.closeLedger(l); err != nil {
			m.config.Logger.Error("can't write usage to disk; handing it over from memory", "error", err)
		}
	}
	return m.sources(allMonths)
}

// handOverTo sends ledgers to a member, except those that the member counted itself and so already has.
func (t *Totals) handOverTo(ctx context.Context, to Member, sources []source) error {
	for _, s := range sources {
		if s.Ledger.Source == to.ID {
			continue
		}
		if err := t.handOverLedger(ctx, to, &pageHeader{source: s}); err != nil {
			return err
		}
	}
	return nil
}

// handOverLedger sends a ledger page by page. It stops if the other node already has the ledger.
func (t *Totals) handOverLedger(ctx context.Context, to Member, p *pageHeader) error {
	for page := (&pager{limit: pageBytes}); ; page = page.next() {
		if err := t.meter.page(p.Ledger, page); err != nil {
			return err
		}
		p.Last = !page.more
		had, err := t.sendPage(ctx, to, p, page.page)
		if err != nil || had || p.Last {
			return err
		}
		p.Page++
	}
}

func (t *Totals) sendPage(ctx context.Context, to Member, p *pageHeader, page []byte) (had bool, err error) {
	head, _ := json.Marshal(p) // names and numbers
	reply, err := t.ask(ctx, to, MethodTake, append(wire.AppendText(nil, head), page...))
	return bytes.Equal(reply, alreadyHeld), err
}

// alreadyHeld is the reply to a page of a ledger that this node already has.
var alreadyHeld = []byte{1}

// takePage stores a page of a ledger that another node hands over.
func (t *Totals) takePage(body []byte) ([]byte, error) {
	d := wire.NewDecoder(body)
	var p pageHeader
	if err := json.Unmarshal(d.View(len(body)), &p); err != nil {
		return nil, errRow
	}
	page, m := d.Rest(), t.meter
	if p.Ledger.Source == m.config.Self || p.Ledger.Source.IsZero() || p.Page < 0 ||
		p.Ledger.Month < firstYear*12 || p.Ledger.Month > lastYear*12+11 {
		return nil, errors.New("invalid ledger")
	}
	if err := eachRow(page, func(*Row) bool { return true }); err != nil {
		return nil, err
	}
	reply := []byte{}
	if err := m.file.Update(func(tx persist.Tx) error {
		if _, had := readHead(tx, copyID{p.Ledger, true}); had {
			reply = alreadyHeld
			return nil
		}
		return p.put(tx, page)
	}); err != nil {
		return nil, err
	}
	if p.Last && len(reply) == 0 {
		m.config.Logger.Info("took over a ledger of usage", "month", p.Ledger.Month, "node", p.Node)
	}
	return reply, nil
}

// put writes a page. The first page replaces the remains of any failed attempt.
func (p *pageHeader) put(tx persist.Tx, page []byte) error {
	c := copyID{p.Ledger, true}
	if p.Page == 0 {
		if err := tx.Drop(c.bucket()); err != nil {
			return err
		}
	} else if before, err := tx.Get(c.bucket(), pageKey(p.Page-1)); err != nil || before == nil {
		return cmp.Or(err, errors.New("the previous page is missing"))
	}
	if err := tx.Put(c.bucket(), pageKey(p.Page), page); err != nil || !p.Last {
		return err
	}
	return putHead(tx, c, head{Node: p.Node, Damaged: p.Damaged, Pages: p.Page + 1})
}
