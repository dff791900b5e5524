package usage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/persist"
)

const (
	// maxTaking bounds the ledgers that are handed over to one node at once.
	maxTaking = 16
	// takeTime is how long one may take until its next page.
	takeTime = time.Minute
)

// part is the head of a MethodTake, before a page of a ledger.
type part struct {
	Ledger   ledgerID `json:"ledger"`
	Sequence uint64   `json:"sequence"`
	Node     string   `json:"node"` // that counted it
	Damaged  bool     `json:"damaged"`
	Page     int      `json:"page"`
	Last     bool     `json:"last"`
}

// taking is a copy on its way to this node.
type taking struct {
	pages int       // that are there
	last  time.Time // when the last one came
}

// HandOver gives all ledgers that this node has to another member, which keeps them under the names of the nodes that counted
// them. It may be called again, for what was counted since: what was handed over before is replaced, not added to. It returns nil
// when the other has all on its disk.
func (c *Cluster) HandOver(ctx context.Context) error {
	c.handing.Lock()
	defer c.handing.Unlock()
	c.sequence = max(c.sequence+1, uint64(c.meter.cfg.Now()))
	errs := []error{errors.New("hand usage over: there is no other member")}
	for _, m := range c.receivers() {
		err := c.handTo(ctx, m)
		if err == nil {
			c.to = m.ID
			return nil
		}
		errs = append(errs, fmt.Errorf("hand usage over to %s: %w", m.Name, err))
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs[min(1, len(errs)-1):]...)
}

// receivers are the other members, the one that took this node's ledgers before in front.
func (c *Cluster) receivers() (list []Member) {
	for _, m := range c.members() {
		switch m.ID {
		case c.meter.cfg.Self:
		case c.to:
			list = append([]Member{m}, list...)
		default:
			list = append(list, m)
		}
	}
	return list
}

// handTo gives a member every ledger that is here, but for those that it counted, or has and that do not change.
func (c *Cluster) handTo(ctx context.Context, to Member) error {
	m := c.meter
	var parts []part
	for _, l := range m.inMemory() {
		l.refresh()
		parts = append(parts, part{Ledger: l.id, Sequence: c.sequence, Node: l.node, Damaged: l.damaged})
	}
	counted := len(parts)
	err := m.file.View(func(tx persist.Tx) error {
		list, err := copies(tx)
		for _, one := range list {
			if head, whole := readHead(tx, one); whole && one.sequence != 0 {
				parts = append(parts, part{Ledger: one.ledgerID, Sequence: one.sequence, Node: head.Node, Damaged: head.Damaged})
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	for i := range parts {
		p := &parts[i]
		what := copyID{p.Ledger, p.Sequence}
		if c.handed[what] == to.ID || p.Ledger.Source == to.ID { // which has the newest itself
			continue
		}
		if p.Sequence == closed {
			p.Sequence = c.sequence // above those of copies that were made while it was counted on
		}
		if err := c.handLedger(ctx, to, p); err != nil {
			return err
		}
		if i >= counted {
			c.handed[what] = to.ID
		}
	}
	return nil
}

// handLedger sends a ledger page by page.
func (c *Cluster) handLedger(ctx context.Context, to Member, p *part) error {
	for page := (&pager{limit: pageSize}); ; page = page.next() {
		if err := c.meter.page(p.Ledger, page); err != nil {
			return err
		}
		p.Last = !page.more
		if err := c.sendPart(ctx, to, p, page.page); err != nil || p.Last {
			return err
		}
		p.Page++
	}
}

func (c *Cluster) sendPart(ctx context.Context, to Member, p *part, page []byte) error {
	head, err := json.Marshal(p)
	if err != nil {
		return err
	}
	body := append(wire.AppendText(nil, head), page...)
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	_, err = c.peers.Call(ctx, to.ID, MethodTake, body)
	return err
}

// take puts a page of a ledger where it belongs; after the last one this node has the ledger.
func (c *Cluster) take(body []byte) ([]byte, error) {
	d := wire.NewDecoder(body)
	var p part
	if err := json.Unmarshal(d.View(len(body)), &p); err != nil {
		return nil, errRow
	}
	page, m, id := d.Rest(), c.meter, copyID{p.Ledger, p.Sequence}
	if p.Ledger.Source == m.cfg.Self || p.Ledger.Source.IsZero() || p.Sequence <= closed ||
		p.Ledger.Month < firstYear*12 || p.Ledger.Month > lastYear*12+11 {
		return nil, errors.New("a ledger that can't be taken")
	}
	if err := eachRow(page, func(*Row) bool { return true }); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var had bool // this copy, or a newer one
	if err := m.file.View(func(tx persist.Tx) error {
		one, _, err := newest(tx, p.Ledger)
		had = err == nil && one.sequence >= p.Sequence
		return nil
	}); err != nil {
		return nil, err
	}
	if had {
		return []byte{}, nil
	}
	t, err := c.takingOf(id, p.Page)
	if err != nil {
		return nil, err
	}
	if err := m.file.Update(func(tx persist.Tx) error { return p.put(tx, page) }); err != nil {
		return nil, err
	}
	t.pages++
	if p.Last {
		delete(c.taking, id)
		m.cfg.Logger.Info("took over a month of usage", "month", p.Ledger.Month, "node", p.Node)
	}
	return []byte{}, nil
}

// takingOf is the copy that a page belongs to; the first page begins it anew.
func (c *Cluster) takingOf(id copyID, page int) (*taking, error) {
	t := c.taking[id]
	if page == 0 {
		if err := c.dropTaking(); err != nil {
			return nil, err
		}
		if t == nil && len(c.taking) >= maxTaking {
			return nil, errors.New("too many ledgers are handed over at once")
		}
		t = &taking{}
		c.taking[id] = t
	}
	if t == nil || t.pages != page {
		return nil, errors.New("a page is missing")
	}
	t.last = time.Now()
	return t, nil
}

// dropTaking gives up copies whose next page does not come.
func (c *Cluster) dropTaking() error {
	var halves []copyID
	for id, t := range c.taking {
		if time.Since(t.last) > takeTime {
			delete(c.taking, id)
			halves = append(halves, id)
		}
	}
	if len(halves) == 0 {
		return nil
	}
	return c.meter.file.Update(func(tx persist.Tx) error { return drop(tx, halves) })
}

// put writes a page. The first one replaces what an attempt that failed has left; the last one, all older copies.
func (p *part) put(tx persist.Tx, page []byte) error {
	c := copyID{p.Ledger, p.Sequence}
	if p.Page == 0 {
		if err := tx.Drop(c.bucket()); err != nil {
			return err
		}
	}
	if err := tx.Put(c.bucket(), pageKey(p.Page), page); err != nil || !p.Last {
		return err
	}
	list, err := copies(tx)
	if err != nil {
		return err
	}
	for _, old := range list {
		if old.ledgerID == p.Ledger && old.sequence < p.Sequence {
			if err := tx.Drop(old.bucket()); err != nil {
				return err
			}
		}
	}
	return putHead(tx, c, head{Node: p.Node, Damaged: p.Damaged, Pages: p.Page + 1})
}
