package usage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

const (
	// syncInterval is how much a power cut may forget, and how often files that could not be made are tried again.
	syncInterval = 5 * time.Second
	// ahead is how long before its beginning the next month's file is made, so that no check waits for it.
	ahead = time.Hour
	// retireAfter is how long after its end a month is kept open.
	retireAfter = 10 * time.Minute
	// graceRounds is how many rounds of syncInterval a ledger that nobody is to look at any more is kept: a goroutine may
	// have found it just before.
	graceRounds = 12
)

// Config says where a Meter counts.
type Config struct {
	Dir    string // the data directory
	Self   ring.NodeID
	Name   string       // this node's
	Now    func() int64 // the wall clock, in nanoseconds since 1970
	Months int          // kept; at least 1
	Rows   int          // bound on rows a month: a rule, a subject and a unit. At least 1
	Logger *slog.Logger
}

// Validate says what is missing.
func (c *Config) Validate() error {
	if c.Dir == "" || c.Self.IsZero() || c.Now == nil || c.Months < 1 || c.Rows < 1 || c.Logger == nil {
		return errors.New("usage: Dir, Self, Now, Logger, Months or Rows is missing")
	}
	return nil
}

// Meter counts what this node admits. All methods may be called concurrently, Add and Enter also after Close.
type Meter struct {
	cfg     Config
	dir     string
	current atomic.Pointer[ledger] // the latest month counted in
	figures figures
	cancel  context.CancelFunc
	done    sync.WaitGroup

	mu    sync.Mutex // guards what follows
	live  map[Month]*ledger
	going []parting
}

// parting is a ledger that nobody is to find any more.
type parting struct {
	ledger *ledger
	into   *ledger // which takes over what is still counted there; nil: it is the same file, read again when needed
	rounds int
}

type figures struct {
	others, lost, setAside, syncFailures, memory atomic.Int64
}

// Stats are figures of a Meter.
type Stats struct {
	Rows         int64 // of the current month
	MaxRows      int64
	Others       int64 // checks counted without their subjects' names, since the process began
	Lost         int64 // checks not counted, since the process began
	SetAside     int64 // damaged files set aside, since the process began
	SyncFailures int64 // since the last sync that succeeded
	InMemory     bool  // a month has no file: a crash would forget it
}

// Open begins to count. A disk that fails is logged, and no error: checks are decided all the same.
func Open(cfg Config) (*Meter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &Meter{cfg: cfg, dir: filepath.Join(cfg.Dir, Folder), live: make(map[Month]*ledger)}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		cfg.Logger.Error("usage is counted in memory only", "error", err)
	}
	removeHalves(m.dir)
	m.ledgerOf(cfg.Now())
	m.drop()
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.done.Go(func() { m.tend(ctx) })
	return m, nil
}

// Add adds cost and checks to a subject's row, in the month of wall, and reports whether there is one: else Enter makes
// it. cost may be below zero.
func (m *Meter) Add(wall int64, subject rules.Hash, unit string, cost, checks int64) bool {
	l := m.current.Load()
	if l == nil || !l.holds(wall) {
		if l = m.ledgerOf(wall); l == nil {
			return false
		}
	}
	r := l.find(place(subject, unit))
	if r == nil {
		return false
	}
	r.add(cost, checks)
	return true
}

// Enter is Add for a subject that may have no row yet. It keeps none of the strings. With a key that is nil, and not only
// empty, or without room, what has no row is counted among the others of rule and unit.
func (m *Meter) Enter(wall int64, subject rules.Hash, rule string, key []string, unit string, cost, checks int64) {
	row := Row{Rule: rule, Key: key, Unit: unit, Other: key == nil, Cost: cost, Checks: checks}
	hi, lo := place(subject, unit)
	for range 3 { // it may be retired meanwhile
		l := m.ledgerOf(wall)
		if l == nil {
			break
		}
		switch l.enter(hi, lo, &row) {
		case entered:
			return
		case other:
			m.figures.others.Add(checks)
			return
		case lost:
			m.figures.lost.Add(checks)
			return
		case again:
		}
	}
	m.figures.lost.Add(checks)
}

// ledgerOf is the ledger of a time, which is opened if need be; nil: there is not even memory for it.
func (m *Meter) ledgerOf(wall int64) *ledger {
	month := MonthOf(wall)
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.live[month]
	if l == nil {
		if l = m.open(month); l == nil {
			return nil
		}
	}
	if c := m.current.Load(); c == nil || c.month < month {
		m.current.Store(l)
	}
	return l
}

// open opens a month, in memory if there is no other way. m.mu is held.
func (m *Meter) open(month Month) *ledger {
	l, err := m.openFile(month)
	if err != nil {
		m.cfg.Logger.Error("usage of a month is counted in memory until it has a file", "month", month, "error", err)
		if l, err = memoryLedger(month, m.cfg.Rows); err != nil {
			m.cfg.Logger.Error("usage of a month is not counted", "month", month, "error", err)
			return nil
		}
	}
	m.live[month] = l
	return l
}

func (m *Meter) openFile(month Month) (*ledger, error) {
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(m.dir, fileName(month, m.cfg.Self))
	h := header{source: m.cfg.Self, month: month, node: m.cfg.Name}
	l, asides, err := openLedger(path, h, m.cfg.Rows, m.cfg.Logger)
	m.figures.setAside.Add(int64(asides))
	return l, err
}

// tend keeps files and disk in step.
func (m *Meter) tend(ctx context.Context) {
	tick := time.NewTicker(syncInterval)
	defer tick.Stop()
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		m.turn(m.cfg.Now())
		err := m.Sync()
		if err != nil && !failing {
			m.cfg.Logger.Error("usage is not on the disk: a power cut would forget it", "error", err)
		}
		failing = err != nil
	}
}

// turn opens the month to come, and lets those go that are over.
func (m *Meter) turn(now int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.part()
	if next := MonthOf(now + int64(ahead)); m.live[next] == nil {
		m.open(next)
		m.drop()
	}
	for month, l := range m.live {
		switch {
		case l.file == nil:
			m.replace(l)
		case now >= l.end+int64(retireAfter):
			l.retire()
			delete(m.live, month)
			m.current.CompareAndSwap(l, nil)
			m.going = append(m.going, parting{ledger: l})
		}
	}
}

// replace gives a month that is counted in memory its file, if that can be made now.
func (m *Meter) replace(l *ledger) {
	fresh, err := m.openFile(l.month)
	if err != nil {
		return
	}
	l.retire()
	m.live[l.month] = fresh
	m.current.CompareAndSwap(l, fresh)
	m.going = append(m.going, parting{ledger: l, into: fresh})
	m.cfg.Logger.Info("usage of a month has its file", "month", l.month)
	m.move(l, fresh)
}

// part moves what is counted in ledgers on their way out, and closes those that nobody can look at any more.
func (m *Meter) part() {
	left := m.going[:0]
	for _, p := range m.going {
		if p.into != nil {
			m.move(p.ledger, p.into)
		}
		if p.rounds++; p.rounds < graceRounds {
			left = append(left, p)
			continue
		}
		if err := p.ledger.close(); err != nil {
			m.cfg.Logger.Warn("a month of usage is not closed", "error", err)
		}
	}
	m.going = left
}

// move brings over what is counted in a ledger.
func (m *Meter) move(from, into *ledger) {
	from.each(func(r *record, row *Row) {
		row.Cost, row.Checks = r.cost.Swap(0), r.checks.Swap(0)
		if (row.Cost != 0 || row.Checks != 0) && into.enter(r.hi, r.lo, row) == lost {
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
	for _, e := range list {
		if e.month != last {
			kept, last = kept+1, e.month
		}
		if kept > m.cfg.Months+1 || kept > m.cfg.Months && list[0].month <= MonthOf(m.cfg.Now()) {
			if err := os.Remove(e.path); err != nil {
				m.cfg.Logger.Warn("an old month of usage is not removed", "error", err)
			}
		}
	}
}

// Sync brings what is counted to the disk, so that a power cut does not forget it either.
func (m *Meter) Sync() error {
	m.mu.Lock()
	var list []*ledger
	m.figures.memory.Store(0)
	for _, l := range m.live {
		if l.file == nil {
			m.figures.memory.Store(1)
		}
		list = append(list, l)
	}
	m.mu.Unlock()
	var errs []error
	for _, l := range list {
		errs = append(errs, l.sync())
	}
	errs = append(errs, syncDir(m.dir))
	if err := errors.Join(errs...); err != nil {
		m.figures.syncFailures.Add(1)
		return fmt.Errorf("sync usage: %w", err)
	}
	m.figures.syncFailures.Store(0)
	return nil
}

// Close syncs and ends the goroutine. The memory stays: a check that is still answered is counted in the files.
func (m *Meter) Close() error {
	m.cancel()
	m.done.Wait()
	m.mu.Lock()
	for _, p := range m.going {
		if p.into != nil {
			m.move(p.ledger, p.into)
		}
	}
	m.mu.Unlock()
	return m.Sync()
}

// onlyInMemory reports whether what is counted of a month is in no file.
func (m *Meter) onlyInMemory(month Month) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.live[month]
	return l != nil && l.file == nil
}

// Stats returns figures.
func (m *Meter) Stats() Stats {
	f := &m.figures
	s := Stats{
		MaxRows: int64(m.cfg.Rows), Others: f.others.Load(), Lost: f.lost.Load(), SetAside: f.setAside.Load(),
		SyncFailures: f.syncFailures.Load(), InMemory: f.memory.Load() > 0,
	}
	if l := m.current.Load(); l != nil {
		l.mu.Lock()
		s.Rows = int64(l.rows)
		l.mu.Unlock()
	}
	return s
}
