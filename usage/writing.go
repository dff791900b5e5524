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
	// closeAfter is how long a past month must get no counts before its ledger is
	// closed. It exceeds the hour during which a reservation's cost may still be
	// corrected.
	closeAfter = 2 * time.Hour
	// orderLife is how long an order of a ledger's rows is kept for readers of pages.
	orderLife = time.Minute
	// writeBytes is the size at which the blocks of a transaction are committed.
	writeBytes = 8 << 20
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

// Sync writes what has changed. Once it returns nil, a crash loses nothing that
// was counted before the call.
func (m *Meter) Sync() error {
	m.writing.Lock()
	defer m.writing.Unlock()
	if m.closed {
		return persist.ErrClosed
	}
	return m.sync()
}

// sync is Sync, also after Close. The caller must hold m.writing.
func (m *Meter) sync() error {
	began := time.Now()
	m.figures.writeBegan.Store(&began)
	defer m.figures.writeBegan.Store(nil)

	err := m.write()
	if err != nil {
		if m.figures.failures.Add(1) == 1 {
			m.config.Logger.Error("can't write usage: a crash would lose what was counted since the last write", "error", err)
		}
		return err
	}

	if failures := m.figures.failures.Swap(0); failures > 0 {
		m.config.Logger.Info("usage is written again", "failures", failures)
	}
	return nil
}

// write updates the file. The caller must hold m.writing.
func (m *Meter) write() error {
	if err := m.load(); err != nil {
		return err
	}

	// The count of losses is read before anything is written: if the file is
	// lost meanwhile, the next call writes everything.
	lost := m.file.Lost()

	var errs []error
	var newest Month // of the ledgers that are written
	now := m.config.Now()
	for _, l := range m.inMemory() {
		if lost != m.lastLost {
			l.written = 0 // the file was replaced: write everything
		}

		if err := m.writeLedger(l); err != nil {
			errs = append(errs, err)
			continue
		}
		if l.written > 0 {
			newest = max(newest, l.id.Month)
		}

		if o := l.rowOrder.Load(); o != nil && time.Since(o.madeAt) > orderLife {
			l.rowOrder.CompareAndSwap(o, nil)
		}

		over := time.Since(l.lastChange) > closeAfter && l.id.Month != MonthOf(now)
		if over || !m.isLive(l) { // not live: an earlier process counted it, or closing it has failed
			if err := m.closeLedger(l); err != nil {
				errs = append(errs, err)
			}
		}
	}

	if copied := m.loadedCopy.Load(); copied != nil && time.Since(copied.at) > orderLife {
		m.loadedCopy.CompareAndSwap(copied, nil)
	}
	m.lastLost = lost

	// Old months go once a newer one is in the file: dropOld keeps the newest of
	// those that are there.
	if len(errs) == 0 && newest > m.lastDropped {
		if err := m.dropOld(); err != nil {
			return err
		}
		m.lastDropped = newest
	}
	return errors.Join(errs...)
}

// writeLedger writes the blocks of l that have changed.
func (m *Meter) writeLedger(l *ledger) error {
	round := l.endRound()
	if round <= l.written {
		return nil
	}

	l.lastChange = time.Now()
	id := bucketID{ledgerID: l.id}
	err := l.eachChanged(l.written, writeBytes, func(group []block, last bool) error {
		return m.file.Update(func(tx persist.Tx) error {
			// The head comes with the last group. After a crash before that, the old head
			// is still true: the file has everything up to its round, and some later
			// values.
			if err := putBlocks(tx, id, group); err != nil || !last {
				return err
			}
			return putHead(tx, id, head{Node: l.node, Damaged: l.damaged, Round: round})
		})
	})
	if err != nil {
		return fmt.Errorf("write usage: %w", err)
	}

	l.written = round
	return nil
}

// closeLedger replaces an open ledger in the file with a closed one, and drops
// it from memory. The caller must hold m.writing.
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
	if l.written > 0 {
		if err := m.writePages(l, false); err != nil {
			return fmt.Errorf("close a ledger of usage: %w", err)
		}
	}

	// The ledger leaves memory only when its pages are in the file, so that a bill
	// always finds it in one of the two.
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ledgers = slices.DeleteFunc(m.ledgers, func(other *ledger) bool { return other == l })
	return nil
}

// writePages writes l, in which nothing more is counted, to the file as a
// closed ledger, in place of the open one.
func (m *Meter) writePages(l *ledger, isCopy bool) error {
	l.refreshOrder()
	header := pageHeader{holding: holding{
		Ledger: l.id, Node: l.node, Damaged: l.damaged, Round: l.endRound(), Copy: isCopy,
	}}
	for p := (&pager{limit: pageBytes}); !header.Last; p = p.next() {
		l.page(p)
		header.Last = !p.more
		if err := m.putPage(&header, p.page); err != nil {
			return err
		}
		header.Page++
	}
	return nil
}

// Close ends the goroutine, writes what has changed and closes the file. Counts
// made afterwards are lost.
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
