package usage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/persist"
)

const (
	// writeInterval is how often writeLoop writes changes. It bounds how much a kill may lose.
	writeInterval = time.Second
	// hangTimeout is how long a write may take before the disk counts as failing.
	hangTimeout = 5 * time.Second
	// closeAfter is how long a past month must get no counts before its ledger is closed. It exceeds the hour during which a
	// reservation's cost may still be corrected.
	closeAfter = 2 * time.Hour
	// orderLife is how long an order of a ledger's rows is kept for readers of pages.
	orderLife = time.Minute
	// maxBlocks is the number of blocks, of a few kilobytes each, from which on a transaction is committed. A rewrite ignores
	// it.
	maxBlocks = 4096
)

// writeLoop writes changes once a second, and sleeps while there is nothing to do.
func (m *Meter) writeLoop(ctx context.Context) {
	timer := time.NewTimer(writeInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-timer.C:
		}
		began := time.Now()
		_ = m.Sync() // logs its error
		if m.hasWork() {
			timer.Reset(max(0, writeInterval-time.Since(began)))
		}
	}
}

// hasWork reports whether writeLoop has something to do.
func (m *Meter) hasWork() bool { return len(m.inMemory()) > 0 || m.figures.failures.Load() > 0 }

func (m *Meter) inMemory() []*ledger {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.ledgers)
}

// Sync writes what has changed. Once it returns nil, a crash loses nothing that was counted before the call.
func (m *Meter) Sync() error {
	m.writing.Lock()
	defer m.writing.Unlock()
	if m.closed {
		return persist.ErrClosed
	}
	return m.sync()
}

func (m *Meter) sync() error {
	began := time.Now()
	m.figures.writeBegan.Store(&began)
	defer m.figures.writeBegan.Store(nil)
	err := m.write()
	switch failed := m.figures.failures.Load(); {
	case err != nil && m.figures.failures.Add(1) == 1:
		m.config.Logger.Error("can't write usage: a crash would lose what was counted since the last write", "error", err)
	case err == nil && failed > 0:
		m.config.Logger.Info("usage is written again", "failures", failed)
		m.figures.failures.Store(0)
	}
	return err
}

// write updates the file. The caller holds m.writing.
func (m *Meter) write() error {
	if err := m.load(); err != nil {
		return err
	}
	lost := m.file.Lost()
	var errs []error
	now := m.config.Now()
	for _, l := range m.inMemory() {
		if lost != m.lastLost { // the file was replaced
			l.markAllDirty()
		}
		if err := m.writeLedger(l); err != nil {
			errs = append(errs, err)
			continue
		}
		if o := l.rowOrder.Load(); o != nil && time.Since(o.madeAt) > orderLife {
			l.rowOrder.CompareAndSwap(o, nil)
		}
		if time.Since(l.lastChange) > closeAfter && (l.id.Month != MonthOf(now) || !m.isLive(l)) {
			errs = append(errs, m.closeLedger(l))
		}
	}
	m.lastLost = lost
	if month := MonthOf(now); len(errs) == 0 && month != m.lastDropped {
		if err := m.dropOld(); err != nil {
			return err
		}
		m.lastDropped = month
	}
	return errors.Join(errs...)
}

func (m *Meter) isLive(l *ledger) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live[l.id.Month] == l
}

// load reads the open ledgers into memory, once, and removes closed ones that a killed process left half-written. The caller
// holds m.writing.
func (m *Meter) load() error {
	if m.loaded {
		return nil
	}
	var found []*ledger
	var incomplete []copyID
	err := m.file.View(func(tx persist.Tx) error {
		list, err := listCopies(tx)
		for _, c := range list {
			if !c.closed {
				l, err := loadOpenLedger(tx, c.ledgerID, m.config.Rows)
				if err != nil {
					return err
				}
				found = append(found, l)
			} else if _, whole := readHead(tx, c); !whole {
				incomplete = append(incomplete, c)
			}
		}
		return err
	})
	if err == nil && len(incomplete) > 0 {
		err = m.file.Update(func(tx persist.Tx) error { return dropCopies(tx, incomplete) })
	}
	if err != nil {
		return fmt.Errorf("read usage: %w", err)
	}
	m.loaded, m.lastLost = true, m.file.Lost()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range found {
		if l.damaged {
			m.config.Logger.Error("a month of usage is damaged; keeping its intact part", "month", l.id.Month)
		}
		m.ledgers = append(m.ledgers, l)
		if l.id.Source != m.config.Self {
			continue // the directory was another node's: keep its ledgers, which close after a while without counts
		}
		if m.live[l.id.Month] == nil {
			m.live[l.id.Month] = l
		}
		if c := m.current.Load(); c == nil || c.id.Month < l.id.Month {
			m.current.Store(m.live[l.id.Month])
		}
	}
	return nil
}

func dropCopies(tx persist.Tx, list []copyID) error {
	for _, c := range list {
		if err := tx.Drop(c.bucket()); err != nil {
			return err
		}
	}
	return nil
}

// writeLedger writes the blocks of l that have changed.
func (m *Meter) writeLedger(l *ledger) error {
	var blocks []block
	for shard := range shards {
		blocks = l.takeChanged(blocks, shard)
		// A rewrite needs a single transaction, because half of it would replace everything.
		if len(blocks) == 0 || shard < shards-1 && (l.mustRewrite || len(blocks) < maxBlocks) {
			continue
		}
		l.lastChange = time.Now()
		err := m.file.Update(func(tx persist.Tx) error { return l.putBlocks(tx, blocks) })
		l.recordWritten(blocks, err == nil)
		if err != nil {
			return fmt.Errorf("write usage: %w", err)
		}
		l.headPending, l.mustRewrite, blocks = false, false, blocks[:0]
	}
	return nil
}

// closeLedger replaces an open ledger in the file with a closed one, and drops it from memory. The caller holds m.writing.
func (m *Meter) closeLedger(l *ledger) error {
	m.mu.Lock()
	if m.live[l.id.Month] == l {
		delete(m.live, l.id.Month)
		m.current.CompareAndSwap(l, nil)
	}
	m.mu.Unlock()
	l.close() // no new call can find it
	if err := m.writeLedger(l); err != nil {
		return err
	}
	l.refreshOrder()
	h := pageHeader{source: source{Ledger: l.id, Node: l.node, Damaged: l.damaged}}
	for p := (&pager{limit: pageBytes}); !h.Last; p = p.next() {
		l.page(p)
		h.Last = !p.more
		err := m.file.Update(func(tx persist.Tx) error {
			if err := h.put(tx, p.page); err != nil || !h.Last {
				return err
			}
			return tx.Drop(copyID{ledgerID: l.id}.bucket())
		})
		if err != nil {
			return fmt.Errorf("close a ledger of usage: %w", err)
		}
		h.Page++
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ledgers = slices.DeleteFunc(m.ledgers, func(other *ledger) bool { return other == l })
	return nil
}

// dropOld removes closed ledgers of the oldest months beyond Config.Months. It counts the months that exist rather than back
// from the current month: a clock that was wrong once must not make every month an old one.
func (m *Meter) dropOld() error {
	var old []copyID
	err := m.file.View(func(tx persist.Tx) error {
		list, err := listCopies(tx)
		kept, last := 0, Month(-1)
		for _, c := range slices.Backward(list) { // latest month first
			if c.Month != last {
				kept, last = kept+1, c.Month
			}
			if kept > m.config.Months && c.closed {
				old = append(old, c)
			}
		}
		return err
	})
	if err == nil && len(old) > 0 {
		err = m.file.Update(func(tx persist.Tx) error { return dropCopies(tx, old) })
	}
	if err != nil {
		return fmt.Errorf("drop old months of usage: %w", err)
	}
	return nil
}

// Close ends the goroutine, writes what has changed and closes the file. Counts made afterwards are lost.
func (m *Meter) Close() error {
	m.cancel()
	m.done.Wait()
	m.writing.Lock()
	defer m.writing.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	return errors.Join(m.sync(), m.file.Close())
}
