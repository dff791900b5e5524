package usage

import (
	"encoding/binary"
	"slices"
	"sort"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
)

// makeOrder sorts the current rows, and keeps the order for further pages.
func (l *ledger) makeOrder() *rowOrder {
	o := &rowOrder{madeAt: time.Now()}
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()

		// The lists are shared, not copied: names and hashes never change, and
		// later rows are appended behind them.
		o.names[i] = sh.names
		o.rows[i] = sh.rows
		sh.mu.Unlock()

		for number := range o.rows[i] {
			o.refs = append(o.refs, uint32(i)<<24|uint32(number))
		}
	}

	var a, b Row
	slices.SortFunc(o.refs, func(x, y uint32) int {
		o.readNames(x, &a)
		o.readNames(y, &b)
		return compareRows(&a, &b)
	})
	l.rowOrder.Store(o)
	return o
}

// refreshOrder makes a new order if rows were created since the last one.
func (l *ledger) refreshOrder() {
	o := l.rowOrder.Load()
	if o == nil || int64(len(o.refs)) < l.rowCount.Load()+l.otherCount.Load() {
		l.makeOrder()
	}
}

// readNames reads a row's names. They refer to the ledger's memory.
func (o *rowOrder) readNames(ref uint32, row *Row) {
	shard, number := ref>>24, ref&maxShardRows
	offset := o.rows[shard][number].nameOffset

	// Decoding can't fail: the names were packed here.
	row.decodeNames(wire.NewDecoder(o.names[shard][offset:]))
}

// page puts the ledger's rows into p.
func (l *ledger) page(p *pager) {
	o := l.rowOrder.Load()
	if o == nil {
		o = l.makeOrder()
	}

	var row Row
	first := sort.Search(len(o.refs), func(i int) bool {
		o.readNames(o.refs[i], &row)
		return p.wants(&row)
	})

	for _, ref := range o.refs[first:] {
		o.readNames(ref, &row)
		l.readCounts(ref, &row)
		if !p.add(&row) {
			return
		}
	}
}

// readCounts reads a row's counts.
func (l *ledger) readCounts(ref uint32, row *Row) {
	sh := &l.shards[ref>>24]
	sh.mu.Lock()
	rec := &sh.rows[ref&maxShardRows]
	row.Cost = rec.cost
	row.Checks = rec.checks
	sh.mu.Unlock()
}

// pager packs a page of about limit bytes from rows that arrive in order. It
// packs the rows of one rule, or of all rules if rule is empty, that come
// behind the row after, or all if after is nil.
type pager struct {
	rule  string
	after *Row
	limit int

	page []byte
	last Row // last row on the page; refers to its memory
	more bool
}

// wants reports whether a row is the first one to pack or comes after it.
func (p *pager) wants(row *Row) bool {
	return row.Rule >= p.rule && (p.after == nil || compareRows(row, p.after) > 0)
}

// add packs a row if it belongs on the page, and reports whether it wants another one.
//
// Rows with the same names stay on one page, because the next page begins after
// them. Such rows exist if the hashing of subjects changed within a month.
func (p *pager) add(row *Row) bool {
	switch {
	case !p.wants(row):
		return true
	case p.rule != "" && row.Rule != p.rule:
		return false
	case len(p.page) >= p.limit && compareRows(row, &p.last) != 0:
		p.more = true
		return false
	}

	at := len(p.page)
	p.page = row.appendNames(p.page)
	p.last.decodeNames(wire.NewDecoder(p.page[at:]))
	p.page = binary.AppendVarint(p.page, row.Cost)
	p.page = binary.AppendVarint(p.page, row.Checks)
	return true
}

// next returns a pager for the page after this one.
func (p *pager) next() *pager {
	last := p.last.clone()
	return &pager{rule: p.rule, after: &last, limit: p.limit}
}

// eachRow visits the packed rows of a page until visit returns false. The rows
// refer to the page's memory.
func eachRow(page []byte, visit func(row *Row) bool) error {
	var row Row
	for d := wire.NewDecoder(page); d.More(); {
		row.decode(d)
		if d.Failed() {
			return errRow
		}
		if !visit(&row) {
			return nil
		}
	}
	return nil
}
