package usage

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// Config configures a Meter.
type Config struct {
	Dir    string // the data directory
	Self   ring.NodeID
	Boot   uint64       // identifies this process; not zero
	Name   string       // this node's name
	Now    func() int64 // the wall clock, in Unix nanoseconds
	Months int          // how many months to keep; at least 1
	Rows   int          // bounds the rows of a month (one per rule, subject and unit); at least 1
	Logger *slog.Logger
}

// Validate reports the first invalid field.
func (config *Config) Validate() error {
	switch {
	case config.Dir == "":
		return errors.New("usage: Dir is empty")
	case config.Self.IsZero():
		return errors.New("usage: Self is zero")
	case config.Boot == 0:
		return errors.New("usage: Boot is zero")
	case config.Now == nil:
		return errors.New("usage: Now is nil")
	case config.Months < 1:
		return errors.New("usage: Months is below 1")
	case config.Rows < 1:
		return errors.New("usage: Rows is below 1")
	case config.Logger == nil:
		return errors.New("usage: Logger is nil")
	}

	return nil
}

// Meter counts what this node answers as allowed. Counting never waits for the
// disk. All methods may be called concurrently; Add and AddNamed even after
// Close.
type Meter struct {
	config  Config
	started int64 // when it began, by config.Now
	file    *persist.Buckets
	current atomic.Pointer[ledger] // the live ledger of the latest month
	figures figures
	wake    chan struct{} // holds an element when writeLoop should write again
	cancel  context.CancelFunc
	done    sync.WaitGroup
	mergeAt int // the constant mergeAt, unless a test sets it

	writing     sync.Mutex // guards the four fields below, and written and lastChange of ledgers; held during disk I/O
	loaded      bool       // ledgers includes what the file held at the start
	lastLost    int64      // file.Lost() at the last write or load
	lastDropped Month      // the newest month in the file when old ones were last dropped
	closed      bool

	loadedCopy atomic.Pointer[loadedCopy] // the open copy that was read last; nil if none was read recently

	mu      sync.Mutex // guards the fields below
	live    map[Month]*ledger
	ledgers []*ledger // all ledgers in memory: live ones, and those about to be closed
}

type figures struct {
	others, lost, failures atomic.Int64

	writeBegan atomic.Pointer[time.Time] // when the current write began; nil if there is none
}

// Stats describes a Meter.
type Stats struct {
	Rows         int64 // in the current month
	MaxRows      int64
	Others       int64 // checks counted without their subjects' names since the process started
	Lost         int64 // checks not counted since the process started
	SetAside     int64 // damaged files set aside since the process started
	SyncFailures int64 // failed writes since the last successful one
	InMemory     bool  // counts are in no file: a crash would lose them
}

// mergeAt is how many closed ledgers of a month a node keeps without merging any.
const mergeAt = 16

// Open returns a running Meter. It logs a failing disk but does not return an
// error for it, because the node can decide checks without it.
func Open(config Config) (*Meter, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}

	m := &Meter{
		config: config, started: config.Now(), mergeAt: mergeAt,
		live: make(map[Month]*ledger), wake: make(chan struct{}, 1),
	}

	var err error
	m.file, err = persist.OpenBuckets(config.Dir, fileName, config.Logger)
	if err == nil {
		m.writing.Lock()
		err = m.load()
		m.writing.Unlock()
	}
	if err != nil {
		m.figures.failures.Add(1)
		config.Logger.Error("can't read earlier usage; counting new usage in memory", "error", err)
	}

	var ctx context.Context
	ctx, m.cancel = context.WithCancel(context.Background())
	m.done.Go(func() { m.writeLoop(ctx) })
	return m, nil
}

// Add adds cost and checks to a subject's row, in the month of wall (Unix
// nanoseconds). It returns false if there is no such row; then the caller must
// call AddNamed. cost may be negative.
func (m *Meter) Add(wall int64, subject rules.Hash, unit string, cost, checks int64) bool {
	l := m.current.Load()
	if l == nil || !l.contains(wall) {
		l = m.ledgerOf(wall)
	}
	return l.addExisting(rowHashOf(subject, unit), cost, checks)
}

// AddNamed is Add for a subject that may not have a row yet. It keeps none of
// the strings. A nil key is unknown. If the subject has no row, and the key is
// unknown or there is no room for a row, AddNamed counts the subject among the
// others of rule and unit.
func (m *Meter) AddNamed(wall int64, subject rules.Hash, rule string, key []string, unit string, cost, checks int64) {
	h := rowHashOf(subject, unit)
	for {
		l := m.ledgerOf(wall)
		if key == nil && l.addExisting(h, cost, checks) {
			return
		}

		row := Row{Rule: rule, Key: key, Unit: unit, Other: key == nil, Cost: cost, Checks: checks}
		switch l.add(h, &row) {
		case outcomeClosed: // the ledger has just been closed: try the next one
			continue
		case outcomeOther:
			m.figures.others.Add(checks)
		case outcomeLost:
			m.figures.lost.Add(checks)
		}
		return
	}
}

// ledgerOf returns the live ledger for wall, creating it if needed.
func (m *Meter) ledgerOf(wall int64) *ledger {
	if l := m.current.Load(); l != nil && l.contains(wall) {
		return l
	}

	month := MonthOf(wall)
	m.mu.Lock()
	defer m.mu.Unlock()

	l := m.live[month]
	if l == nil {
		l = newLedger(ledgerID{Month: month, Source: m.config.Self, Number: rand.Uint64()},
			m.config.Name, m.config.Rows)
		m.live[month] = l
		m.ledgers = append(m.ledgers, l)

		// The writer may be asleep: it had no ledger to write.
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}

	// Corrections of the last month still arrive in this month. Their ledger must
	// not become the current one.
	if c := m.current.Load(); c == nil || c.id.Month < month {
		m.current.Store(l)
	}
	return l
}

// Stats returns the current metrics.
func (m *Meter) Stats() Stats {
	f := &m.figures
	stats := Stats{
		MaxRows: int64(m.config.Rows), Others: f.others.Load(), Lost: f.lost.Load(), SetAside: m.file.Lost(),
		SyncFailures: f.failures.Load(),
	}

	began := f.writeBegan.Load()
	if began != nil && time.Since(*began) > hangTimeout {
		stats.SyncFailures = max(stats.SyncFailures, 1) // the disk hangs
	}

	if l := m.current.Load(); l != nil {
		stats.Rows = l.rowCount.Load()
		stats.InMemory = m.file.HasNoFile() && stats.SyncFailures > 0
	}
	return stats
}

// Metrics reports the Meter's metrics.
func (m *Meter) Metrics(sink metrics.Sink) {
	st := m.Stats()
	sink.Gauge("usage_rows", "Rows of usage in this month, one per rule, subject and unit.", float64(st.Rows))
	sink.Gauge("usage_rows_max", "Bound on the rows of usage per month.", float64(st.MaxRows))
	sink.Count("usage_others_total",
		"Checks counted in usage without their subjects' names, because there was no room.",
		st.Others)
	sink.Count("usage_lost_total", "Checks that usage could not count. Anything but 0 makes bills too low.", st.Lost)
	sink.Count("usage_set_aside_total", "Damaged usage files set aside.", st.SetAside)
	sink.Gauge("usage_sync_failures",
		"Failed attempts to write usage to disk since the last successful one.",
		float64(st.SyncFailures))
	sink.Flag("usage_in_memory", "1 while usage is in no file, so that a crash would lose it.", st.InMemory)
}
