package usage

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rlnode/rlnode/persist"
)

// Each process counts in ledgers of its own, so a node that restarts again and
// again has ever more closed ones. If a month has many, the node merges some:
// their sum is one closed ledger, which names all that it replaces. Wherever a
// merged ledger is known, the ledgers that it names no longer count, whoever
// still has a copy of them.

const (
	// mergeWidth bounds how many ledgers are merged at once: a page of each is in
	// memory.
	mergeWidth = 64
	// mergeGrace is how long ledgers that were merged can still be read: a bill may
	// be reading them.
	mergeGrace = 10 * time.Minute
	// mergeEarly is the number of seconds after its start in which a node looks
	// for ledgers to merge each second. Afterwards it looks every ten seconds.
	mergeEarly = 5
	// mergeTimeout bounds one merge.
	mergeTimeout = time.Minute
)

// mergeInBackground merges ledgers if there are many of a month.
func (t *Totals) mergeInBackground() {
	if t.merging.Swap(true) {
		return
	}

	started := t.background.Go(func() {
		defer t.merging.Store(false)
		if t.hasHandedOver() {
			return // nothing could be written; to gather it would be in vain
		}
		for month, list := range t.meter.toMerge() {
			if err := t.merge(month, list); err != nil {
				t.meter.config.Logger.Debug("can't merge ledgers of usage", "month", month, "error", err)
			}
		}
	})
	if !started {
		t.merging.Store(false)
	}
}

// toMerge returns, by month, the closed ledgers of this node that should be
// merged. It prefers those that name the fewest others, so that a row is
// written again only as often as the number of ledgers doubles.
func (m *Meter) toMerge() map[Month][]holding {
	list, _ := m.holdings(allMonths) // what can't be read now is merged later
	byMonth := map[Month][]holding{}
	for _, h := range list {
		if h.Ledger.Source == m.config.Self && !h.Copy && !h.Damaged && !m.hasInMemory(h.Ledger) {
			byMonth[h.Ledger.Month] = append(byMonth[h.Ledger.Month], h)
		}
	}

	maps.DeleteFunc(byMonth, func(_ Month, list []holding) bool { return len(list) <= m.mergeAt })
	for month, list := range byMonth {
		slices.SortFunc(list, func(a, b holding) int { return cmp.Compare(len(a.Merged), len(b.Merged)) })

		// After the merge, at most mergeAt should be left. At least mergeAt are merged,
		// unless they name too many ledgers: each merge writes all their rows again.
		count := min(max(m.mergeAt, len(list)-m.mergeAt+1), mergeWidth)
		named := 0
		for i, h := range list[:count] {
			named += 1 + h.Merged.count()
			if named > maxMerged {
				count = i
				break
			}
		}

		byMonth[month] = list[:count]
		if count < 2 {
			delete(byMonth, month)
		}
	}
	return byMonth
}

// merge merges closed ledgers of this node. If a process was killed, a copy of
// its ledger may have got further than the ledger here. So all members are
// asked for theirs, and nothing is merged unless all answer.
func (t *Totals) merge(month Month, list []holding) error {
	ctx, cancel := context.WithTimeout(t.ctx, mergeTimeout)
	defer cancel()

	answers := t.inventories(ctx, month, t.everyone())
	for _, inv := range answers {
		if inv.unreachable {
			return fmt.Errorf("%s does not answer", inv.from.Name)
		}
	}

	bi := newBill(month, answers, t.meter.config.Now())
	bi.ledgers = slices.DeleteFunc(bi.ledgers, func(h holding) bool {
		return !slices.ContainsFunc(list, func(asked holding) bool { return asked.Ledger == h.Ledger })
	})
	if len(bi.ledgers) != len(list) {
		return fmt.Errorf("a ledger of %s that was to be merged is gone", month)
	}

	header := pageHeader{holding: holding{Ledger: list[0].Ledger, Node: t.meter.config.Name, Round: 1}}
	header.Ledger.Number = rand.Uint64()
	for _, h := range bi.ledgers {
		header.Digest += h.digest()
		header.Merged = header.Merged.with(h.Merged).with(binary.BigEndian.AppendUint64(nil, h.Ledger.Number))
	}

	// Other ledgers may be missing, but the bill now has only those to be merged,
	// and it has all of them.
	bi.missing = nil
	s := &Stream{ctx: ctx, totals: t, query: Query{Month: month}, bill: bi}
	err := t.writeMerged(&header, s)
	if err != nil {
		id := bucketID{header.Ledger, header.Round}
		err = errors.Join(err, t.meter.file.Update(func(tx persist.Tx) error { return tx.Drop(id.name()) }))
	}
	return err
}

// writeMerged writes the rows of a stream as a closed ledger. Its last page makes it count.
func (t *Totals) writeMerged(header *pageHeader, s *Stream) error {
	s.open()
	p := &pager{limit: pageBytes}
	for {
		row, ok := s.Next()
		if !ok {
			return t.writeLastMerged(header, s, p.page)
		}

		added := p.add(&row)
		if added {
			continue
		}

		// The page is full, so the row goes on the next one.
		if err := t.meter.putPage(header, p.page); err != nil {
			return err
		}
		header.Page++
		p = p.next()
		p.add(&row)
	}
}

// writeLastMerged writes the last page, unless rows could not be read, or the
// ledgers were handed over meanwhile.
func (t *Totals) writeLastMerged(header *pageHeader, s *Stream, page []byte) error {
	c := &t.copier

	// A hand-over holds this lock, too: the ledgers that it gives away must not be
	// replaced here meanwhile.
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case len(s.missing) > 0:
		return errors.New("a ledger can't be read")
	case c.hasHandedOver():
		return errors.New("the ledgers were handed over")
	}

	header.Last = true
	return t.meter.putPage(header, page)
}

// hasHandedOver reports whether this node's ledgers were handed over, so that
// nothing may replace them here.
func (t *Totals) hasHandedOver() bool {
	t.copier.mu.Lock()
	defer t.copier.mu.Unlock()
	return t.copier.hasHandedOver()
}

// hasHandedOver is Totals.hasHandedOver. The caller must hold mu.
func (c *copier) hasHandedOver() bool { return c.ended || c.handedOver != nil }
