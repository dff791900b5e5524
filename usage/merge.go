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
// again has ever more closed ones. Of a month in which there are many, it
// merges the smallest: their sum is one closed ledger, which names them all.
// Wherever a merged ledger is known, those that it names don't count any more,
// whoever still has a copy of them.

const (
	// mergeAt is how many closed ledgers of a month a node keeps without merging any.
	mergeAt = 16
	// mergeWidth is how many are merged at once: a page of each is in memory.
	mergeWidth = 64
	// maxMerged bounds how many ledgers a merged one names: it costs 8 bytes for each.
	maxMerged = 1 << 14
	// mergeGrace is how long ledgers that were merged can still be read: a bill may
	// be reading them.
	mergeGrace = 10 * time.Minute
	// mergeEarly is for how many seconds after its start a node looks for ledgers
	// to merge each second. Afterwards it looks every ten seconds.
	mergeEarly = 5
	// mergeTimeout bounds one merge.
	mergeTimeout = time.Minute
)

// numbers are the numbers of ledgers of a node and month, in ascending order, 8
// bytes each, big-endian.
type numbers []byte

func (n numbers) count() int { return len(n) / 8 }

func (n numbers) at(i int) uint64 { return binary.BigEndian.Uint64(n[8*i:]) }

// isValid reports whether another node may have sent them.
func (n numbers) isValid() bool {
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

func (n numbers) has(number uint64) bool {
	i := sort.Search(n.count(), func(i int) bool { return n.at(i) >= number })
	return i < n.count() && n.at(i) == number
}

// with returns the numbers of both.
func (n numbers) with(other numbers) numbers {
	var all []uint64
	for _, list := range []numbers{n, other} {
		for i := range list.count() {
			all = append(all, list.at(i))
		}
	}
	slices.Sort(all)
	var both numbers
	for _, number := range slices.Compact(all) {
		both = binary.BigEndian.AppendUint64(both, number)
	}
	return both
}

// overlaps reports whether some number is in both.
func (n numbers) overlaps(other numbers) bool {
	for i := range n.count() {
		if other.has(n.at(i)) {
			return true
		}
	}
	return false
}

// replaces reports whether the source has all counts of another ledger, so that it must
// not be counted beside it.
func (src *source) replaces(id ledgerID) bool {
	return src.Ledger.Month == id.Month && src.Ledger.Source == id.Source && src.Merged.has(id.Number)
}

// digest identifies what was counted: of a merged ledger, it is that of the
// ledgers that were merged, together.
func (src *source) digest() uint64 {
	if len(src.Merged) > 0 {
		return src.Digest
	}
	b := bytes.Clone(src.Ledger.Source[:])
	b = binary.BigEndian.AppendUint64(b, src.Ledger.Number)
	return xxh3.Hash(binary.BigEndian.AppendUint64(b, src.Round))
}

// covers reports whether list has a ledger up to a round, by itself or in a merged one.
func covers(list []source, id ledgerID, round uint64) bool {
	return slices.ContainsFunc(list,
		func(src source) bool { return src.Ledger == id && src.Round >= round || src.replaces(id) })
}

// withoutReplaced removes the ledgers that others in list replace.
func withoutReplaced(list []source) []source {
	var merged []source
	for _, src := range list {
		if len(src.Merged) > 0 {
			merged = append(merged, src)
		}
	}
	if len(merged) == 0 {
		return list
	}
	return slices.DeleteFunc(list, func(src source) bool {
		return slices.ContainsFunc(merged, func(m source) bool { return m.replaces(src.Ledger) })
	})
}

// dropReplaced leaves out what merged ledgers replace. Two of them that name
// the same ledger would count it twice: that happens only if a data directory
// was restored from a copy. The larger one stays, and the bill is incomplete.
func (bi *bill) dropReplaced() {
	bi.sources = withoutReplaced(bi.sources)
	bySize := slices.SortedFunc(slices.Values(bi.sources),
		func(x, y source) int { return cmp.Compare(len(y.Merged), len(x.Merged)) })

	var kept []source
	for _, src := range bySize {
		twice := slices.ContainsFunc(kept, func(k source) bool {
			return k.Ledger.Month == src.Ledger.Month && k.Ledger.Source == src.Ledger.Source &&
				k.Merged.overlaps(src.Merged)
		})
		if twice {
			bi.missing = append(bi.missing, src.Node)
			continue
		}
		kept = append(kept, src)
	}

	bi.sources = kept
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
func (m *Meter) toMerge() map[Month][]source {
	list, _ := m.sources(allMonths) // what can't be read now is merged later
	byMonth := map[Month][]source{}
	for _, src := range list {
		if src.Ledger.Source == m.config.Self && !src.Copy && !src.Damaged && !m.hasInMemory(src.Ledger) {
			byMonth[src.Ledger.Month] = append(byMonth[src.Ledger.Month], src)
		}
	}

	maps.DeleteFunc(byMonth, func(_ Month, list []source) bool { return len(list) <= m.mergeAt })
	for month, list := range byMonth {
		slices.SortFunc(list, func(a, b source) int { return cmp.Compare(len(a.Merged), len(b.Merged)) })

		// So many are merged that mergeAt are left, and never just two: each merge
		// writes all their rows again.
		count := min(max(m.mergeAt, len(list)-m.mergeAt+1), mergeWidth)
		named := 0
		for i, src := range list[:count] {
			named += 1 + src.Merged.count()
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
func (t *Totals) merge(month Month, list []source) error {
	ctx, cancel := context.WithTimeout(t.ctx, mergeTimeout)
	defer cancel()
	answers := t.inventories(ctx, month, t.everyone())
	for _, inv := range answers {
		if inv.unreachable {
			return fmt.Errorf("%s does not answer", inv.from.Name)
		}
	}

	bi := newBill(month, answers, t.meter.config.Now())
	bi.sources = slices.DeleteFunc(bi.sources, func(src source) bool {
		return !slices.ContainsFunc(list, func(asked source) bool { return asked.Ledger == src.Ledger })
	})
	if len(bi.sources) != len(list) {
		return fmt.Errorf("a ledger of %s that was to be merged is gone", month)
	}

	header := pageHeader{source: source{Ledger: list[0].Ledger, Node: t.meter.config.Name, Round: 1}}
	header.Ledger.Number = rand.Uint64()
	for _, src := range bi.sources {
		header.Digest += src.digest()
		header.Merged = header.Merged.with(src.Merged).with(binary.BigEndian.AppendUint64(nil, src.Ledger.Number))
	}

	// Other ledgers may be missing. The bill here is only of those to be merged,
	// and all of these are here.
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

	// A hand-over holds this lock, too: what it gives away must not be replaced
	// here meanwhile.
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
		var merged []source
		for _, id := range list {
			hd, whole := readHead(tx, id)
			if whole && len(hd.Merged) > 0 && time.Duration(now-hd.MergedAt).Abs() >= grace {
				merged = append(merged, source{Ledger: id.ledgerID, Merged: hd.Merged})
			}
		}

		for _, id := range list {
			if slices.ContainsFunc(merged, func(src source) bool { return src.replaces(id.ledgerID) }) {
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
