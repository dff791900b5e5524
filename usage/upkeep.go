package usage

import (
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/persist"
)

// load reads the ledgers that earlier processes left open into memory, once, so
// that write closes them. It removes what a killed process left half-written.
// The caller must hold m.writing.
func (m *Meter) load() error {
	if m.loaded {
		return nil
	}

	var found []*ledger
	var partial []bucketID
	err := m.file.View(func(tx persist.Tx) error {
		list, err := listBuckets(tx)
		for _, id := range list {
			head, whole := m.readHeadOrGuess(tx, id)
			switch {
			case !whole:
				partial = append(partial, id)
			case id.round == 0 && !head.Copy:
				l, err := loadLedger(tx, id.ledgerID, head)
				if err != nil {
					return err
				}
				found = append(found, l)
			}
		}
		return err
	})

	if err == nil && len(partial) > 0 {
		err = m.file.Update(func(tx persist.Tx) error { return dropBuckets(tx, partial) })
	}
	if err == nil {
		err = m.dropReplaced(0) // no bill is being read at the start
	}
	if err != nil {
		return fmt.Errorf("read usage: %w", err)
	}

	m.loaded = true
	m.lastLost = m.file.Lost()

	for _, l := range found {
		if l.damaged {
			m.config.Logger.Error("a month of usage is damaged; keeping its intact part", "month", l.id.Month)
		}
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	m.ledgers = append(m.ledgers, found...)
	return nil
}

// readHeadOrGuess is readHead, but if the head of an open ledger of this node
// is damaged, it makes one up: the ledger's intact rows should count.
func (m *Meter) readHeadOrGuess(tx persist.Tx, id bucketID) (hd head, whole bool) {
	if _, err := tx.Get(id.name(), headKey); err != nil && id.round == 0 && id.Source == m.config.Self {
		return head{Node: m.config.Name, Damaged: true, Round: 1}, true
	}
	hd, whole = readHead(tx, id)
	return hd, whole && (hd.Round > 0 || hd.Copy) // another node may still be sending a copy
}

// dropOld removes the oldest months beyond Config.Months, except ledgers in
// memory. It counts the months in the file, not back from the current month: a
// clock that was wrong once must not make every month old.
func (m *Meter) dropOld() error {
	var old []bucketID
	err := m.file.View(func(tx persist.Tx) error {
		list, err := listBuckets(tx)
		kept, last := 0, Month(-1)
		for _, id := range slices.Backward(list) { // latest month first
			if id.Month != last {
				kept++
				last = id.Month
			}
			if kept > m.config.Months && !m.hasInMemory(id.ledgerID) {
				old = append(old, id)
			}
		}
		return err
	})

	if err == nil && len(old) > 0 {
		err = m.file.Update(func(tx persist.Tx) error { return dropBuckets(tx, old) })
	}
	if err != nil {
		return fmt.Errorf("drop old months of usage: %w", err)
	}
	return nil
}

// dropReplaced drops the ledgers, and copies of ledgers, that merged ones have
// replaced for at least grace.
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
