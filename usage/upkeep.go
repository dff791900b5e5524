package usage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// start opens what is counted at first: the month of now, and what a killed process has left in shared memory.
func (m *Meter) start(now int64) {
	m.turning.Lock()
	defer m.turning.Unlock()
	month := MonthOf(now)
	if m.provide(month) == nil {
		m.ledgerOf(now) // in memory
	}
	if m.cfg.SharedMemory != "" {
		for _, old := range abandoned(m.dir, m.cfg.Self, month) {
			m.provide(old) // and turn lets it go
		}
	}
	m.drop()
}

// provide opens a month's file, which takes over what was counted without; nil: it can't be opened now. m.turning is held.
func (m *Meter) provide(month Month) *ledger {
	m.mu.Lock()
	l := m.revive(month)
	m.mu.Unlock()
	if l != nil {
		return l // never two of one file
	}
	l, err := m.openFile(month)
	if err != nil {
		if !m.failed {
			m.cfg.Logger.Error("usage of a month is counted in memory until it has a file", "month", month, "error", err)
		}
		m.failed = true
		return nil
	}
	m.mu.Lock()
	old := m.live[month]
	m.live[month] = l
	if old == nil {
		if c := m.current.Load(); c == nil {
			m.current.Store(l)
		}
	} else {
		m.current.CompareAndSwap(old, l)
		m.going = append(m.going, parting{ledger: old, into: l})
	}
	m.mu.Unlock()
	if old != nil {
		old.retire(true) // after it was published who follows: whoever finds it retired looks there
		m.move(old, l)
	}
	if m.failed {
		m.cfg.Logger.Info("usage of a month has its file", "month", month)
	}
	m.failed = false
	return l
}

func (m *Meter) openFile(month Month) (*ledger, error) {
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(m.dir, fileName(month, m.cfg.Self))
	h := header{source: m.cfg.Self, month: month, node: m.cfg.Name}
	l, asides, err := openLedger(path, m.cfg.SharedMemory, h, m.cfg.Rows, m.cfg.Logger)
	m.figures.setAside.Add(int64(asides))
	return l, err
}

// tend keeps shared memory, files and disk in step.
func (m *Meter) tend(ctx context.Context) {
	tick := time.NewTimer(copyInterval)
	defer tick.Stop()
	synced := time.Now()
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
			m.turning.Lock()
			m.fileAll()
			m.turning.Unlock()
			continue
		case <-tick.C:
		}
		began, pause := time.Now(), copyInterval
		m.figures.busy.Store(&began)
		var err error
		if began.Sub(synced) < syncInterval {
			err = m.copyOut()
			pause = min(max(pause, copyShare*time.Since(began)), syncInterval)
		} else {
			m.turn(m.cfg.Now())
			err, synced = m.Sync(), began
			failing = failing && err != nil
		}
		if err != nil && !failing {
			m.cfg.Logger.Error("usage is not on the disk: a power cut would forget it", "error", err)
			failing = true
		}
		m.figures.busy.Store(nil)
		tick.Reset(pause)
	}
}

// turn opens the month to come and what has no file yet, and lets those go that are over.
func (m *Meter) turn(now int64) {
	m.turning.Lock()
	defer m.turning.Unlock()
	m.part()
	m.fileAll()
	m.mu.Lock()
	next := MonthOf(now + int64(ahead))
	known := m.live[next] != nil || m.revive(next) != nil
	for month, l := range m.live {
		if l.file != nil && now >= l.end+int64(retireAfter) {
			delete(m.live, month)
			m.current.CompareAndSwap(l, nil)
			m.going = append(m.going, parting{ledger: l})
			l.retire(true) // after nobody finds it any more
		}
	}
	m.mu.Unlock()
	if !known && m.provide(next) != nil {
		m.drop()
	}
}

// fileAll gives the months that are counted in memory their files, if those can be made. m.turning is held.
func (m *Meter) fileAll() {
	m.mu.Lock()
	var list []Month
	for month, l := range m.live {
		if l.file == nil {
			list = append(list, month)
		}
	}
	m.mu.Unlock()
	for _, month := range list {
		if m.provide(month) != nil {
			m.drop()
		}
	}
}

// part moves what is counted in ledgers on their way out, and closes those that nobody can look at any more. m.turning is
// held.
func (m *Meter) part() {
	m.mu.Lock()
	var moving, ended []parting
	left := m.going[:0]
	for _, p := range m.going {
		if p.into != nil {
			moving = append(moving, p)
		}
		if p.rounds++; p.rounds < graceRounds {
			left = append(left, p)
		} else {
			ended = append(ended, p)
		}
	}
	m.going = left
	m.mu.Unlock()
	for _, p := range moving {
		m.move(p.ledger, p.into)
	}
	for _, p := range ended {
		if err := p.ledger.land(); err != nil { // it is still where it is counted, and tried again
			m.cfg.Logger.Error("a month of usage that is over is not on the disk", "month", p.ledger.month, "error", err)
			m.mu.Lock()
			m.going = append(m.going, p)
			m.mu.Unlock()
			continue
		}
		if err := p.ledger.close(); err != nil {
			m.cfg.Logger.Warn("a month of usage is not closed", "error", err)
		}
	}
}

// move brings over what is counted in a ledger.
func (m *Meter) move(from, into *ledger) {
	from.each(func(r *record, row *Row) {
		row.Cost, row.Checks = r.cost.Swap(0), r.checks.Swap(0)
		if (row.Cost != 0 || row.Checks != 0) && into.enter(r.hi, r.lo, row, true) == lost {
			m.figures.lost.Add(row.Checks)
		}
	})
}

// drop removes the oldest months beyond those kept. They are counted by the files there are: a clock that was wrong once
// does not make every month an old one.
func (m *Meter) drop() {
	list, err := entries(m.dir)
	if err != nil {
		return // there is no folder, which was logged
	}
	slices.SortFunc(list, func(a, b entry) int { return cmp.Compare(b.month, a.month) })
	kept, last := 0, Month(-1)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range list {
		if e.month != last {
			kept, last = kept+1, e.month
		}
		if e.source == m.cfg.Self && m.live[e.month] != nil {
			continue // it is being counted in
		}
		if kept > m.cfg.Months+1 || kept > m.cfg.Months && list[0].month <= MonthOf(m.cfg.Now()) {
			if err := os.Remove(e.path); err != nil {
				m.cfg.Logger.Warn("an old month of usage is not removed", "error", err)
			}
		}
	}
}

// counting lists the ledgers that may still be added to.
func (m *Meter) counting() (list []*ledger) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.live {
		list = append(list, l)
	}
	for _, p := range m.going {
		if p.into == nil {
			list = append(list, p.ledger)
		}
	}
	return list
}

// copyOut brings what is counted in shared memory to the files.
func (m *Meter) copyOut() error {
	m.turning.Lock()
	defer m.turning.Unlock()
	var errs []error
	for _, l := range m.counting() {
		errs = append(errs, l.copyOut())
	}
	if err := errors.Join(errs...); err != nil {
		m.figures.syncFailures.Add(1)
		return fmt.Errorf("copy usage: %w", err)
	}
	return nil
}

// Sync brings what is counted to the disk, so that a power cut does not forget it either.
func (m *Meter) Sync() error {
	m.turning.Lock()
	defer m.turning.Unlock()
	m.fileAll()
	errs := []error{syncDir(m.dir)}
	for _, l := range m.counting() {
		errs = append(errs, l.sync())
	}
	if err := errors.Join(errs...); err != nil {
		m.figures.syncFailures.Add(1)
		return fmt.Errorf("sync usage: %w", err)
	}
	m.figures.syncFailures.Store(0)
	return nil
}

// Close brings all to the disk, gives shared memory back and ends the goroutine. The rows stay where they are, so whoever
// still counts does no harm; what is counted then is lost.
func (m *Meter) Close() error {
	m.cancel()
	m.done.Wait()
	m.turning.Lock()
	defer m.turning.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	m.fileAll()
	m.mu.Lock()
	going := slices.Clone(m.going)
	m.mu.Unlock()
	for _, p := range going {
		if p.into != nil {
			m.move(p.ledger, p.into)
		}
	}
	errs := []error{syncDir(m.dir)}
	for _, l := range m.counting() {
		errs = append(errs, l.land(), l.closeFile())
	}
	return errors.Join(errs...)
}
