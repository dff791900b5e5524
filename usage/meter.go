package usage

import (
	"context"
	"errors"
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
	// copyInterval is how much is forgotten at most if a process is killed and its shared memory goes with it, as that of
	// a container. Copying takes one part in copyShare of the time at most.
	copyInterval = 200 * time.Millisecond
	copyShare    = 20
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
	Dir string // the data directory
	// SharedMemory is a folder of a file system in memory that outlives the process. Months are counted there, and copied
	// to Dir. Empty: they are counted in pages of files in Dir, and a disk that hangs holds checks up.
	SharedMemory string
	Self         ring.NodeID
	Name         string       // this node's
	Now          func() int64 // the wall clock, in nanoseconds since 1970
	Months       int          // kept; at least 1
	Rows         int          // bound on rows a month: a rule, a subject and a unit. At least 1
	Logger       *slog.Logger
}

// Validate says what is missing.
func (c *Config) Validate() error {
	if c.Dir == "" || c.Self.IsZero() || c.Now == nil || c.Months < 1 || c.Rows < 1 || c.Logger == nil {
		return errors.New("usage: Dir, Self, Now, Logger, Months or Rows is missing")
	}
	return nil
}

// Meter counts what this node admits. Counting waits for no disk, but for one in whose files' pages it is. All methods may be called concurrently, Add and Enter also after Close.
type Meter struct {
	cfg     Config
	dir     string
	current atomic.Pointer[ledger] // the latest month counted in
	figures tallies
	wake    chan struct{} // holds a token when a month wants its file
	cancel  context.CancelFunc
	done    sync.WaitGroup

	turning sync.Mutex // guards what follows, and opening and closing files; not taken by checks
	failed  bool       // the last file that was to be opened could not be
	closed  bool

	mu    sync.Mutex // guards what follows
	live  map[Month]*ledger
	going []parting
}

// parting is a ledger that nobody is to find any more.
type parting struct {
	ledger *ledger
	into   *ledger // which takes over what is still counted there; nil: it is over
	rounds int
}

type tallies struct {
	others, lost, setAside, syncFailures atomic.Int64

	busy atomic.Pointer[time.Time] // since when something is being brought to the disk
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
	m := &Meter{cfg: cfg, dir: filepath.Join(cfg.Dir, Folder), live: make(map[Month]*ledger), wake: make(chan struct{}, 1)}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		cfg.Logger.Error("usage is counted in memory only", "error", err)
	}
	removeHalves(m.dir)
	m.start(cfg.Now())
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
		switch l.enter(hi, lo, &row, false) {
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

// ledgerOf is the ledger of a time; nil: there is not even memory for it. It does not wait for the disk.
func (m *Meter) ledgerOf(wall int64) *ledger {
	if l := m.current.Load(); l != nil && l.holds(wall) {
		return l
	}
	month := MonthOf(wall)
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.live[month]
	if l == nil {
		if l = m.begin(month); l == nil {
			return nil
		}
	}
	if c := m.current.Load(); c == nil || c.month < month {
		m.current.Store(l)
	}
	return l
}

// revive is a month that was on its way out, and is counted again from now on; nil: none of it is. m.mu is held.
func (m *Meter) revive(month Month) *ledger {
	for i, p := range m.going {
		if p.into == nil && p.ledger.month == month {
			m.going = slices.Delete(m.going, i, i+1)
			p.ledger.retire(false)
			m.live[month] = p.ledger
			return p.ledger
		}
	}
	return nil
}

// begin counts a month again that was on its way out, or one that is not there in memory until it has a file, which is
// soon. m.mu is held.
func (m *Meter) begin(month Month) *ledger {
	if l := m.revive(month); l != nil {
		return l
	}
	l, err := memoryLedger(month, m.cfg.Rows)
	if err != nil {
		m.cfg.Logger.Error("usage of a month is not counted", "month", month, "error", err)
		return nil
	}
	m.live[month] = l
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return l
}

// onlyInMemory reports whether what is counted of a month is in no file.
func (m *Meter) onlyInMemory(month Month) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.live[month]
	return l != nil && l.file == nil
}

// readable is where a file's content is read: what this node counts is ahead of the disk.
func (m *Meter) readable(e entry) string {
	if e.source != m.cfg.Self {
		return e.path
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.live[e.month]
	for _, p := range m.going {
		if l == nil && p.into == nil && p.ledger.month == e.month {
			l = p.ledger
		}
	}
	if l == nil || l.mirror == nil {
		return e.path
	}
	return l.file.Name()
}

// Stats returns figures.
func (m *Meter) Stats() Stats {
	f := &m.figures
	s := Stats{
		MaxRows: int64(m.cfg.Rows), Others: f.others.Load(), Lost: f.lost.Load(), SetAside: f.setAside.Load(),
		SyncFailures: f.syncFailures.Load(),
	}
	m.mu.Lock()
	for _, l := range m.live {
		s.InMemory = s.InMemory || l.file == nil
	}
	m.mu.Unlock()
	if began := f.busy.Load(); began != nil && time.Since(*began) > syncInterval {
		s.SyncFailures = max(s.SyncFailures, 1) // the disk hangs
	}
	if l := m.current.Load(); l != nil {
		l.mu.Lock()
		s.Rows = int64(l.rows)
		l.mu.Unlock()
	}
	return s
}
