package loads

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rlnode/rlnode/rules"
)

// NodeCPU is the source that each node measures itself: how busy the processors are that it may use, 0…1.
const NodeCPU = "node-cpu"

// Bounds of what is told of a source.
const (
	MaxName = 128  // bytes of a source's name
	MaxLoad = 1000 // as in rules
	// MaxSources is how many sources are known at once: there is room for one of each rule. Beyond it, one that no rule follows
	// makes room for one that some rule does.
	MaxSources = 1024

	MinTTL     = 100 * time.Millisecond
	MaxTTL     = time.Hour
	DefaultTTL = 10 * time.Second

	// remember is for how long the number of a report is kept after it has expired: a late copy of it is not taken for new.
	remember = 5 * time.Minute
)

// ErrFull is an error of Tell: so many sources are known that there is no room for another one.
var ErrFull = errors.New("too many sources of load")

// ReportError says what is wrong with a report: which field, and its bounds.
type ReportError string

// Error returns what is wrong.
func (e ReportError) Error() string { return string(e) }

// Config says whose loads they are.
type Config struct {
	Self  [16]byte             // this node's ID
	Now   func() time.Duration // a monotonic clock
	Nodes func() int           // alive in the region; nil: one. It must not block
}

// Loads are the reports that this node knows. All methods may be called concurrently, and none blocks.
type Loads struct {
	config  Config
	changed chan struct{} // capacity 1

	mu     sync.Mutex // guards what follows
	known  map[string]*report
	cpu    float64 // of NodeCPU
	cpuSet bool
	held   map[string]*held // by rule
}

// report is the last that was told of a source.
type report struct {
	number uint64 // order among the source's reports
	node   [16]byte
	load   float64
	until  time.Duration // it is valid until then
	sends  int           // packets that are still to carry it
}

// Source is what is known of a source.
type Source struct {
	Name string
	Load float64
	Left time.Duration // until it is unknown; 0 for NodeCPU, which is measured again and again
}

// New returns loads without any source.
func New(c Config) *Loads {
	return &Loads{config: c, changed: make(chan struct{}, 1), known: make(map[string]*report), held: make(map[string]*held)}
}

// Changed has a value when Steps may have changed since the last one was received.
func (l *Loads) Changed() <-chan struct{} { return l.changed }

func (l *Loads) signal() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// Check says what is wrong with a report, nil if nothing is. The error is a ReportError.
func Check(source string, load float64, ttl time.Duration) error {
	wrong := func(format string, args ...any) error { return ReportError(fmt.Sprintf(format, args...)) }
	switch {
	case source == "" || len(source) > MaxName || !utf8.ValidString(source) || strings.ContainsFunc(source, unicode.IsControl):
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

// Tell takes a report that is valid for ttl from now on. The error wraps a ReportError or ErrFull.
func (l *Loads) Tell(source string, load float64, ttl time.Duration) error {
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
		return fmt.Errorf("%w: %d are known", ErrFull, MaxSources)
	}
	return nil
}

// put makes r the last report of source. It reports false when there is no room. The caller holds l.mu.
func (l *Loads) put(now time.Duration, source string, r report) bool {
	if l.known[source] == nil && len(l.known) >= MaxSources && !l.evict(now, source) {
		return false
	}
	r.sends = l.sends()
	l.known[strings.Clone(source)] = &r
	l.signal()
	return true
}

// evict drops the report that expires first, of those that have expired, and if source is followed by a rule also of those
// that are not. It reports false when there is none. The caller holds l.mu.
func (l *Loads) evict(now time.Duration, source string) bool {
	followed := make(map[string]bool, len(l.held))
	for _, h := range l.held {
		followed[h.source] = true
	}
	first := ""
	for name, r := range l.known {
		if (r.until <= now || followed[source] && !followed[name]) && (first == "" || r.until < l.known[first].until) {
			first = name
		}
	}
	delete(l.known, first)
	return first != ""
}

// sends is how many packets carry a report so that, as good as surely, every node gets it.
func (l *Loads) sends() int {
	nodes := 1
	if l.config.Nodes != nil {
		nodes = max(1, l.config.Nodes())
	}
	return 4 * int(math.Ceil(math.Log10(float64(nodes)+1)))
}

// Measure takes this node's own load, 0…1.
func (l *Loads) Measure(cpu float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cpu, l.cpuSet = min(1, max(0, cpu)), true
	l.signal()
}

// load is what is known of a source now. The caller holds l.mu.
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

// Sources lists what is known, by name.
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

// Load is what is known of one source.
func (l *Loads) Load(source string) (load float64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.load(l.config.Now(), source)
}

// Steps returns which step of each rule of set is in force now, by Rule.Index; -1: none. Between two calls at most Tick may
// pass, and Changed should be followed. nil: no rule is adaptive.
func (l *Loads) Steps(set *rules.Set) []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.config.Now()
	for name, r := range l.known {
		if now-r.until > remember {
			delete(l.known, name)
		}
	}
	var steps []int
	for i, r := range set.Rules {
		if r.Adaptive == nil {
			continue
		}
		if steps == nil {
			steps = slices.Repeat([]int{-1}, len(set.Rules))
		}
		h := l.held[r.Name]
		if h == nil || !h.follows(r.Adaptive) {
			h = newHeld(r.Adaptive)
			l.held[r.Name] = h
		}
		load, known := l.load(now, r.Adaptive.Source)
		steps[i] = h.step(now, load, known)
	}
	for name := range l.held {
		if r := set.Rule(name); r == nil || r.Adaptive == nil {
			delete(l.held, name)
		}
	}
	return steps
}
