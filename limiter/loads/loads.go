package loads

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/rules"
)

// NodeCPU is the source that each node measures itself: the load of the
// processors that it may use, 0…1.
const NodeCPU = "node-cpu"

// Bounds of a report.
const (
	MaxName = 128  // bytes of a source's name
	MaxLoad = 1000 // as in rules
	// MaxSources bounds the sources that a node keeps: one for each rule of a
	// document. When the bound is reached, a new source replaces an expired one. A
	// source that some rule follows may also replace one that no rule follows.
	MaxSources = 1024

	MinTTL     = 100 * time.Millisecond
	MaxTTL     = time.Hour
	DefaultTTL = 10 * time.Second

	// numberRetention is how long a report's number is kept after the report
	// expires, so that a late copy does not pass as a new report.
	numberRetention = 5 * time.Minute
)

// ErrFull means that there is no room for another source.
var ErrFull = errors.New("too many sources of load")

// ReportError says which field of a report is wrong, and its bounds.
type ReportError string

func (e ReportError) Error() string { return string(e) }

// Config describes the node that keeps the loads.
type Config struct {
	Self  [16]byte             // this node's ID
	Now   func() time.Duration // a monotonic clock
	Nodes func() int           // nodes alive in the region; nil: one. It must not block
}

// Loads holds the reports that this node knows. Its methods are safe for
// concurrent use, and none blocks.
type Loads struct {
	config  Config
	changed chan struct{} // capacity 1

	mu     sync.Mutex // guards the rest
	known  map[string]*report
	cpu    float64 // the load of NodeCPU
	cpuSet bool
	steps  map[string]*ruleSteps // by rule
}

// report is the latest report about a source.
type report struct {
	number uint64 // orders the source's reports
	node   [16]byte
	load   float64
	until  time.Duration // when it expires
	sends  int           // packets that must still carry it
}

// Source is the current state of a source.
type Source struct {
	Name string
	Load float64
	Left time.Duration // until it is unknown; 0 for NodeCPU, which is measured continually
}

// New returns Loads without any source.
func New(c Config) *Loads {
	return &Loads{config: c, changed: make(chan struct{}, 1), known: make(map[string]*report),
		steps: make(map[string]*ruleSteps)}
}

// Changed returns a channel that has a value if the result of Steps may have
// changed since the last value was received.
func (l *Loads) Changed() <-chan struct{} { return l.changed }

// Check returns a ReportError if a report is invalid.
func Check(source string, load float64, ttl time.Duration) error {
	wrong := func(format string, args ...any) error { return ReportError(fmt.Sprintf(format, args...)) }
	switch {
	case source == "" || len(source) > MaxName || !utf8.ValidString(source) ||
		strings.ContainsFunc(source, unicode.IsControl):
		return wrong("source must have 1 to %d bytes of text without control characters", MaxName)
	case source == NodeCPU:
		return wrong("source must not be %s, which each node measures itself", NodeCPU)
	case math.IsNaN(load) || load < 0 || load > MaxLoad:
		return wrong("load must be a number from 0 to %d", MaxLoad)
	case ttl < MinTTL || ttl > MaxTTL:
		return wrong("ttl_ms must be a whole number from %d to %d", MinTTL.Milliseconds(), MaxTTL.Milliseconds())
	}
	return nil
}

// Report accepts a report that is valid for ttl from now on. The error wraps a
// ReportError or ErrFull.
func (l *Loads) Report(source string, load float64, ttl time.Duration) error {
	if err := Check(source, load, ttl); err != nil {
		return err
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	now := l.config.Now()
	r := report{number: 1, node: l.config.Self, load: load, until: now + ttl}
	if old := l.known[source]; old != nil {
		r.number = min(old.number+1, maxNumber)
	}

	if !l.put(now, source, r) {
		return fmt.Errorf("%w: the bound is %d", ErrFull, MaxSources)
	}

	return nil
}

// put makes r the latest report about source. It reports false if there is no
// room. The caller must hold l.mu.
func (l *Loads) put(now time.Duration, source string, r report) bool {
	if l.known[source] == nil && len(l.known) >= MaxSources && !l.evict(now, source) {
		return false
	}
	r.sends = l.sends()
	l.known[strings.Clone(source)] = &r
	wake.Signal(l.changed)
	return true
}

// evict drops one report, and reports whether it could. It may drop expired
// reports and, if some rule follows source, those that no rule follows. It
// drops the one of them that expires first. The caller must hold l.mu.
func (l *Loads) evict(now time.Duration, source string) bool {
	followed := make(map[string]bool, len(l.steps))
	for _, h := range l.steps {
		followed[h.source] = true
	}
	first := ""
	for name, r := range l.known {
		if (r.until <= now || followed[source] && !followed[name]) && (first == "" || r.until < l.known[first].until) {
			first = name
		}
	}
	if first == "" {
		return false
	}
	delete(l.known, first)
	return true
}

// sends returns how many packets almost surely carry a report to every node.
func (l *Loads) sends() int {
	nodes := 1
	if l.config.Nodes != nil {
		nodes = max(1, l.config.Nodes())
	}
	return 4 * int(math.Ceil(math.Log10(float64(nodes)+1)))
}

// Measure sets the load of NodeCPU, bounded to 0…1.
func (l *Loads) Measure(cpu float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cpu = min(1, max(0, cpu))
	l.cpuSet = true
	wake.Signal(l.changed)
}

// load is Load at now. The caller must hold l.mu.
func (l *Loads) load(now time.Duration, source string) (load float64, known bool) {
	if source == NodeCPU {
		return l.cpu, l.cpuSet
	}
	r := l.known[source]
	if r == nil || r.until <= now {
		return 0, false
	}
	return r.load, true
}

// Sources lists the known sources, sorted by name.
func (l *Loads) Sources() []Source {
	l.mu.Lock()
	defer l.mu.Unlock()

	now := l.config.Now()
	out := make([]Source, 0, len(l.known)+1)
	if l.cpuSet {
		out = append(out, Source{Name: NodeCPU, Load: l.cpu})
	}

	for name, r := range l.known {
		if r.until > now {
			out = append(out, Source{Name: name, Load: r.load, Left: r.until - now})
		}
	}

	slices.SortFunc(out, func(a, b Source) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Load returns the current load of one source, and whether it is known.
func (l *Loads) Load(source string) (load float64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.load(l.config.Now(), source)
}

// Left returns how much longer the load of a source is known if nobody reports
// another; 0 if the load is unknown, or measured all the time.
func (l *Loads) Left(source string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.known[source]; r != nil && source != NodeCPU {
		return max(0, r.until-l.config.Now())
	}
	return 0
}

// Steps returns which step of each rule of set is in force, by Rule.Index; −1
// if none is. It returns nil if no rule is adaptive. Call it when Changed has a
// value, and at least every TickInterval while Followed returns true.
func (l *Loads) Steps(set *rules.Set) []int {
	l.mu.Lock()
	defer l.mu.Unlock()

	now := l.config.Now()
	maps.DeleteFunc(l.known, func(_ string, r *report) bool { return now-r.until > numberRetention })

	var steps []int
	for i, r := range set.Rules {
		if r.Adaptive == nil {
			continue
		}

		if steps == nil {
			steps = slices.Repeat([]int{-1}, len(set.Rules))
		}

		h := l.steps[r.Name]
		if h == nil || !h.follows(r.Adaptive) {
			// Followed becomes true, and Changed must say so.
			if len(l.steps) == 0 {
				wake.Signal(l.changed)
			}
			h = newRuleSteps(r.Adaptive)
			l.steps[r.Name] = h
		}

		load, known := l.load(now, r.Adaptive.Source)
		steps[i] = h.step(now, load, known)
	}

	maps.DeleteFunc(l.steps, func(name string, _ *ruleSteps) bool {
		r := set.Rule(name)
		return r == nil || r.Adaptive == nil
	})
	return steps
}

// Followed reports whether the set given to the last call of Steps has an
// adaptive rule. Changed gets a value when that becomes true.
func (l *Loads) Followed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.steps) > 0
}
