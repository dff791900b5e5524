package usage

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/persist"
)

// holding is a ledger that a node holds.
type holding struct {
	Ledger  ledgerID `json:"ledger"`
	Node    string   `json:"node"` // name of the node that counted it
	Damaged bool     `json:"damaged"`
	Round   uint64   `json:"round"` // the round up to which it has everything
	Copy    bool     `json:"copy"`  // another node sent it; otherwise the process that counted it wrote it here
	// Merged and Digest are of a merged ledger: the ledgers that it replaces, and
	// what identifies their counts.
	Merged ledgerNumbers `json:"merged,omitempty"`
	Digest uint64        `json:"digest,omitempty"`
	heldBy Member        // the node that holds it
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

// holdings returns the ledgers of a month, or of allMonths, both in memory and
// in the file, without those that merged ones replace.
func (m *Meter) holdings(month Month) (list []holding, err error) {
	for _, l := range m.inMemory() {
		if month != allMonths && l.id.Month != month {
			continue
		}
		round := l.endRound()
		if round > 0 {
			list = append(list, holding{Ledger: l.id, Node: l.node, Damaged: l.damaged, Round: round})
		}
	}

	inMemory := len(list)
	err = m.file.View(func(tx persist.Tx) error {
		found, err := listBuckets(tx)
		for _, id := range found {
			head, whole := readHead(tx, id)
			if !whole || head.Round == 0 || month != allMonths && id.Month != month {
				continue
			}

			h := holding{
				Ledger: id.ledgerID, Node: head.Node, Damaged: head.Damaged, Round: head.Round, Copy: head.Copy,
				Merged: head.Merged, Digest: head.Digest,
			}
			i := slices.IndexFunc(list, func(h holding) bool { return h.Ledger == id.ledgerID })
			switch {
			case i < 0 && (id.round > 0 || head.Copy):
				list = append(list, h)
			case i >= inMemory && list[i].Round < h.Round: // one in memory has at least what the file has of it
				list[i] = h
			}
		}
		return err
	})
	return withoutReplaced(list), err
}

// hasOwn reports whether this node has counted anything. If the file can't be
// read, it says yes.
func (m *Meter) hasOwn() bool {
	list, err := m.holdings(allMonths)
	return err != nil || slices.ContainsFunc(list, func(h holding) bool { return !h.Copy })
}

func (m *Meter) inMemory() []*ledger {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.ledgers)
}

func (m *Meter) isLive(l *ledger) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live[l.id.Month] == l
}

func (m *Meter) hasInMemory(id ledgerID) bool {
	return slices.ContainsFunc(m.inMemory(), func(l *ledger) bool { return l.id == id })
}
