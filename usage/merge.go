package usage

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/persist"
)

// Each process counts in ledgers of its own, so a node that restarts again and
// again has ever more closed ones. If a month has many, the node merges those
// that name the fewest others: their sum is one closed ledger, which names them
// all. Wherever a merged ledger is known, the ledgers that it names no longer
// count, whoever still has a copy of them.

const (
	// mergeAt is how many closed ledgers of a month a node keeps without merging any.
	mergeAt = 16
	// mergeWidth bounds how many are merged at once: a page of each is in memory.
	mergeWidth = 64
	// maxMerged bounds how many ledgers a merged one names: each takes 8 bytes.
	maxMerged = 1 << 14
	// mergeGrace is how long ledgers that were merged can still be read: a bill may
	// be reading them.
	mergeGrace = 10 * time.Minute
	// mergeEarly is the number of seconds after its start in which a node looks
	// for ledgers to merge each second. Afterwards it looks every ten seconds.
	mergeEarly = 5
	// mergeTimeout bounds one merge.
	mergeTimeout = time.Minute
)

// ledgerNumbers are the numbers of ledgers of a node and month, in ascending
// order, 8 bytes each, big-endian.
type ledgerNumbers []byte

func (n ledgerNumbers) count() int { return len(n) / 8 }

func (n ledgerNumbers) at(i int) uint64 { return binary.BigEndian.Uint64(n[8*i:]) }

// isValid reports whether the numbers are ascending and not too many.
func (n ledgerNumbers) isValid() bool {
	if len(n)%8 != 0 || n.count() > maxMerged {
		return false
	}
	for i := 1; i < n.count(); i++ {
		if n.at(i-1) >= n.at(i) {
			return false
		}
	}
	return true
}

func (n ledgerNumbers) has(number uint64) bool {
	i := sort.Search(n.count(), func(i int) bool { return n.at(i) >= number })
	return i < n.count() && n.at(i) == number
}

// with returns the numbers of both.
func (n ledgerNumbers) with(other ledgerNumbers) ledgerNumbers {
	var all []uint64
	for _, list := range []ledgerNumbers{n, other} {
		for i := range list.count() {
			all = append(all, list.at(i))
		}
	}
	slices.Sort(all)
	var both ledgerNumbers
	for _, number := range slices.Compact(all) {
		both = binary.BigEndian.AppendUint64(both, number)
	}
	return both
}

// overlaps reports whether some number is in both.
func (n ledgerNumbers) overlaps(other ledgerNumbers) bool {
	for i := range n.count() {
		if other.has(n.at(i)) {
			return true
		}
	}
	return false
}

// replaces reports whether h has all counts of another ledger, which then must
// not be counted beside h.
func (h *holding) replaces(id ledgerID) bool {
	return h.Ledger.Month == id.Month && h.Ledger.Source == id.Source && h.Merged.has(id.Number)
}

// digest identifies what was counted. A merged ledger has the sum of the
// digests of the ledgers that were merged.
func (h *holding) digest() uint64 {
	if len(h.Merged) > 0 {
		return h.Digest
	}
	b := bytes.Clone(h.Ledger.Source[:])
	b = binary.BigEndian.AppendUint64(b, h.Ledger.Number)
	return xxh3.Hash(binary.BigEndian.AppendUint64(b, h.Round))
}

// covers reports whether list has a ledger up to a round, by itself or in a merged one.
func covers(list []holding, id ledgerID, round uint64) bool {
	return slices.ContainsFunc(list,
		func(h holding) bool { return h.Ledger == id && h.Round >= round || h.replaces(id) })
}

// withoutReplaced removes the ledgers that others in list replace.
func withoutReplaced(list []holding) []holding {
	var merged []holding
	for _, h := range list {
		if len(h.Merged) > 0 {
			merged = append(merged, h)
		}
	}
	if len(merged) == 0 {
		return list
	}
	return slices.DeleteFunc(list, func(h holding) bool {
		return slices.ContainsFunc(merged, func(m holding) bool { return m.replaces(h.Ledger) })
	})
}

// dropReplaced leaves out the ledgers that merged ones replace. Two merged
// ledgers that name the same ledger would count it twice, which happens only if
// a data directory was restored from a copy. The one that names more stays, and
// the bill is incomplete.
func (bi *bill) dropReplaced() {
	bi.ledgers = withoutReplaced(bi.ledgers)
	bySize := slices.SortedFunc(slices.Values(bi.ledgers),
		func(x, y holding) int { return cmp.Compare(len(y.Merged), len(x.Merged)) })

	var kept []holding
	for _, h := range bySize {
		twice := slices.ContainsFunc(kept, func(k holding) bool {
			return k.Ledger.Month == h.Ledger.Month && k.Ledger.Source == h.Ledger.Source &&
				k.Merged.overlaps(h.Merged)
		})
		if twice {
			bi.missing = append(bi.missing, h.Node)
			continue
		}
		kept = append(kept, h)
	}

	bi.ledgers = kept
}

// mergeInBackground merges ledgers if there are many of a month.
func (t *Totals) mergeInBackground() {
	if t.merging.Swap(true) {
		return
	}

	if !t.errands.Go(func() {
		defer t.merging.Store(false)
		for month, list := range t.meter.toMerge() {
			if err := t.merge(month, list); err != nil {
				t.meter.config.Logger.Debug("can't merge ledgers of usage", "month", month, "error", err)
			}
		}
	}) {
		t.merging.Store(false)
	}
}

// toMerge returns, by month, the closed ledgers of this node that should be
// merged. Those that name the fewest come first, so that a row is written again
// only as often as the number of ledgers doubles.
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

		// Enough are merged that at most mergeAt are left, if mergeWidth allows, and
		// never just a few: each merge writes all their rows again.
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

// merge merges closed ledgers of this node. A copy may have got further than
// the ledger here, if its process was killed. So all members are asked for
// theirs, and nothing is merged while one of them does not answer.
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
		if ok && p.add(&row) {
			continue
		}
		if !ok {
			return t.writeLastMerged(header, s, p.page)
		}
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
	case c.ended || c.handedOver != nil:
		return errors.New("the ledgers were handed over")
	}
	header.Last = true
	return t.meter.putPage(header, page)
}

// putPage writes a page of a closed ledger.
func (m *Meter) putPage(header *pageHeader, page []byte) error {
	header.at = m.config.Now()
	return m.file.Update(func(tx persist.Tx) error { return header.put(tx, page) })
}

// dropReplaced drops the ledgers, and copies of ledgers, that merged ones have
// replaced for a while.
func (m *Meter) dropReplaced(grace time.Duration) error {
	var replaced []bucketID
	now := m.config.Now()
	err := m.file.View(func(tx persist.Tx) error {
		list, err := listBuckets(tx)
		var merged []holding
		for _, id := range list {
			hd, whole := readHead(tx, id)
			if whole && len(hd.Merged) > 0 && time.Duration(now-hd.MergedAt).Abs() >= grace {
				merged = append(merged, holding{Ledger: id.ledgerID, Merged: hd.Merged})
			}
		}

		for _, id := range list {
			if slices.ContainsFunc(merged, func(h holding) bool { return h.replaces(id.ledgerID) }) {
				replaced = append(replaced, id)
			}
		}

		return err
	})
	if err == nil && len(replaced) > 0 {
		err = m.file.Update(func(tx persist.Tx) error { return dropBuckets(tx, replaced) })
	}

	return err
}
