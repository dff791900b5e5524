package usage

import (
	"context"
	"slices"
	"time"
)

// Query selects the rows to read.
type Query struct {
	Month Month
	Rule  string // empty for all rules
	Here  bool   // only what this node counted itself
}

// Stream reads rows in order, each subject and unit once. It is not safe for concurrent use.
type Stream struct {
	ctx     context.Context
	totals  *Totals
	query   Query
	readers []*ledgerReader
	bill    *bill
	missing []string
	revised time.Time
}

// ledgerReader reads one ledger's rows.
type ledgerReader struct {
	holding holding
	page    []Row
	last    []byte // packed names of the last row of the page; nil before the first page
	more    bool
}

// Read begins to read a month. It leaves out nodes that can't be reached, and
// lists them in Missing. A month without usage has no rows. The error is that
// of ctx, which the Stream goes on using.
func (t *Totals) Read(ctx context.Context, q Query) (*Stream, error) {
	s := &Stream{ctx: ctx, totals: t, query: q}
	if q.Here {
		s.bill = t.billHere(q.Month)
	} else {
		s.bill = t.gather(ctx, q.Month, t.everyone())
		s.revised = t.revisedAt(q.Month, s.bill.exported, s.bill.digest, len(s.bill.missing) == 0)
	}
	s.missing = s.bill.missing
	s.open()
	return s, ctx.Err()
}

// open reads the first page of each ledger.
func (s *Stream) open() {
	for _, h := range s.bill.ledgers {
		reader := &ledgerReader{holding: h, more: true}
		s.readNextPage(reader)
		if len(reader.page) > 0 {
			s.readers = append(s.readers, reader)
		}
	}
}

// Missing returns the names of the nodes whose counts are missing, in whole or
// in part, from the rows read so far.
func (s *Stream) Missing() []string { return slices.Clone(s.missing) }

// Estimated returns the nodes that are gone and whose counts come from a copy
// that may lack the last of them.
func (s *Stream) Estimated() []Estimate { return slices.Clone(s.bill.estimated) }

// Revised returns when the month was found to differ from its last export; zero
// if it does not, or was never exported.
func (s *Stream) Revised() time.Time { return s.revised }

// Exported records that all rows were exported. If they are those of the whole
// month, later changes count as revisions of the export.
func (s *Stream) Exported() {
	if !s.query.Here && s.query.Rule == "" {
		s.totals.recordExport(s.query.Month, s.bill.digest)
	}
}

// Next returns the next row; ok is false at the end. The row stays valid after further calls.
func (s *Stream) Next() (row Row, ok bool) {
	least := -1
	for i, reader := range s.readers {
		if least < 0 || compareRows(&reader.page[0], &s.readers[least].page[0]) < 0 {
			least = i
		}
	}

	if least < 0 {
		return Row{}, false
	}

	row = s.readers[least].page[0].clone()
	row.Cost = 0
	row.Checks = 0

	unfinished := s.readers[:0]
	for _, reader := range s.readers {
		// A ledger may have a row more than once: see pager.add.
		for len(reader.page) > 0 && compareRows(&reader.page[0], &row) == 0 {
			row.Cost = addClamped(row.Cost, reader.page[0].Cost)
			row.Checks = addClamped(row.Checks, reader.page[0].Checks)
			reader.page = reader.page[1:]
			if len(reader.page) == 0 {
				s.readNextPage(reader)
			}
		}

		if len(reader.page) > 0 {
			unfinished = append(unfinished, reader)
		}
	}

	s.readers = unfinished
	return row, true
}

// readNextPage reads reader's next page. If it fails, the rest of the ledger is missing.
func (s *Stream) readNextPage(reader *ledgerReader) {
	if !reader.more {
		return
	}

	q := pageQuery{Ledger: reader.holding.Ledger, Rule: s.query.Rule, After: reader.last}
	body, err := s.totals.readPageFrom(s.ctx, reader.holding.heldBy, &q)
	if err == nil && len(body) == 0 {
		err = errRow
	}
	if err == nil {
		reader.more = body[0] == 1
		reader.page, err = readPage(body[1:])
	}

	if err != nil {
		s.totals.meter.config.Logger.Warn("can't read the rest of a ledger of usage",
			"node", reader.holding.heldBy.Name, "error", err)
		reader.page = nil
		reader.more = false
		s.missing = append(s.missing, reader.holding.Node)
		slices.Sort(s.missing)
		s.missing = slices.Compact(s.missing)
		return
	}

	if n := len(reader.page); n > 0 {
		reader.last = reader.page[n-1].appendNames(nil)
	} else {
		reader.more = false
	}
}

// readPage returns all rows of a page. They refer to the page's memory.
func readPage(page []byte) (rows []Row, err error) {
	err = eachRow(page, func(row *Row) bool {
		rows = append(rows, *row)
		rows[len(rows)-1].Key = slices.Clone(row.Key)
		return true
	})
	return rows, err
}
