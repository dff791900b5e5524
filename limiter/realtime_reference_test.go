package limiter

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// The judge of the runs in real time must never accuse a node that is right.
// So the same runs ask a reference: one lock, a clock that is read under it,
// and the plainest arithmetic there is.
func TestRealTimeJudgeAcceptsTheReference(t *testing.T) {
	seed := firstSeed()
	for i := range realtimeRuns() {
		m := drawMix(seed + uint64(i))
		if *realtimeSeeds == 0 {
			m.lasts = 100 * time.Millisecond
		}
		name := fmt.Sprintf("seed %d, %v", seed+uint64(i), m)
		t.Run(name, func(t *testing.T) { m.judge(t, newReference(t, &m, none)) })
	}
}

// What the judge is for: faults of the reference, made on purpose, for each
// algorithm that has them. A run may be too short for one on a busy machine,
// so each may take several.
func TestRealTimeJudgeFindsFaults(t *testing.T) {
	for kind := range algorithms.Kind(6) {
		for _, wrong := range []fault{forgets, allowsMore, readsEarly} {
			if wrong == readsEarly && !kind.Windowed() {
				continue // the others have no window that could be moved back
			}
			m := mix{
				kind: kind, window: 25 * time.Millisecond, limit: 20, burst: 20, cost: 1,
				nodes: 1, callers: 4, batch: 10, subjects: 1, lasts: 100 * time.Millisecond,
				rest: 35 * time.Millisecond,
			}
			if wrong == readsEarly {
				m.window = 10 * time.Millisecond
				m.rest = 0
			}
			t.Run(fmt.Sprintf("%v %v", m, wrong), func(t *testing.T) {
				for range 50 {
					b := m.bound()
					seen := m.run(newReference(t, &m, wrong))
					if worst := b.worst(seen[0]); worst.ratio() > 1 {
						t.Logf("found: %v", worst)
						return
					}
				}
				t.Error("got no violation in 50 runs, want one")
			})
		}
	}
}

// fault is what a reference does wrong.
type fault int

const (
	none       fault = iota
	forgets          // it begins anew five times in each window
	allowsMore       // one unit in twenty
	readsEarly       // a batch reads the clock once, before it waits for the lock
)

func (f fault) String() string {
	return [...]string{"none", "forgets", "allows more", "reads early"}[f]
}

// reference is the decider that is right, unless it has a fault.
type reference struct {
	mix   *mix
	clock *Clock
	wrong fault
	limit algorithms.Limit
	ttl   time.Duration

	mu     sync.Mutex // guards the fields below
	held   []meter    // by subject
	forgot int64      // when it last began anew
}

// meter is what was used of one subject's limit.
type meter struct {
	window   int64 // number of the window
	count    int64 // in the window
	previous int64 // in the window before it
	start    int64 // of a window that began with its first hit
	owed     int64 // of a bucket, times the window
	at       int64 // when a bucket was last drained
	hits     []refHit
}

type refHit struct{ at, cost int64 }

func newReference(t *testing.T, m *mix, wrong fault) *reference {
	t.Helper()
	passed := time.Duration(time.Now().UnixNano() % int64(m.window))
	clock := NewClockWithOffset(m.window - passed - m.untilTurn())
	t.Cleanup(func() { clock.Close() })

	b := m.bound()
	r := &reference{
		mix: m, clock: clock, wrong: wrong, limit: b.limit, ttl: b.ttl,
		held: make([]meter, m.subjects),
	}
	if wrong == allowsMore {
		r.limit.Amount += r.limit.Amount / 20
		r.limit.Burst += r.limit.Burst / 20
	}
	return r
}

func (r *reference) now(int) algorithms.Instant { return r.clock.Now() }

func (r *reference) asker(number, n int) asker {
	return &refAsker{
		reference: r, leases: make([]refLease, r.mix.subjects),
		isLate: r.wrong == readsEarly && number%2 == 1,
	}
}

// refAsker takes some units in advance where leases apply, as a node does that
// holds a grant.
type refAsker struct {
	*reference
	leases []refLease
	isLate bool // it waits for half a window after it has read the clock
}

// refLease is what may be spent without asking, until its end on the steady
// clock and, for windows, the end of the window on the wall clock.
type refLease struct {
	units, until int64
	window       int64
}

func (a *refAsker) ask(subjects []int, costs []int64, sums []int64) {
	read := a.clock.Now()
	if a.isLate {
		time.Sleep(a.limit.Window / 2)
	}

	for i, subject := range subjects {
		if a.spend(subject, costs[i]) || a.decide(read, subject, costs[i]) {
			sums[subject] += costs[i]
		}
	}
}

// spend takes a cost from a lease.
func (a *refAsker) spend(subject int, cost int64) bool {
	l := &a.leases[subject]
	if a.ttl == 0 || l.units < cost {
		return false
	}
	now := a.clock.Now()
	if now.Steady >= l.until || a.limit.Kind == algorithms.FixedWindow &&
		floorOf(now.Wall, int64(a.limit.Window)) != l.window {
		return false
	}
	l.units -= cost
	return true
}

// decide takes a cost from the subject's meter, and often a lease with it.
func (a *refAsker) decide(read algorithms.Instant, subject int, cost int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	if a.wrong == readsEarly {
		now = read
	}
	if fifth := int64(a.limit.Window / 5); a.wrong == forgets && now.Steady > a.forgot+fifth {
		a.forgot = now.Steady
		clear(a.held)
	}

	m := &a.held[subject]
	if !m.take(&a.limit, now, cost) {
		return false
	}
	if units := a.limit.Amount / 10; a.ttl > 0 && m.take(&a.limit, now, units) {
		a.leases[subject] = refLease{
			units: units, until: now.Steady + int64(a.ttl),
			window: floorOf(now.Wall, int64(a.limit.Window)),
		}
	}
	return true
}

// take takes a cost at a reading of the clock, if there is room for it.
func (m *meter) take(l *algorithms.Limit, now algorithms.Instant, cost int64) bool {
	window := int64(l.Window)
	switch l.Kind {
	case algorithms.FixedWindow, algorithms.SlidingWindow:
		return m.takeFromWindow(l, now.Wall, cost)

	case algorithms.FirstWindow:
		if m.count == 0 || now.Steady-m.start >= window {
			m.start = now.Steady
			m.count = 0
		}
		if m.count+cost > l.Amount {
			return false
		}
		m.count += cost
		return true

	case algorithms.SlidingLog:
		return m.takeFromLog(l, now.Steady, cost)
	}

	if m.owed > 0 {
		m.owed = max(0, m.owed-l.Amount*(now.Steady-m.at))
	}
	m.at = now.Steady
	if m.owed+cost*window > l.Burst*window {
		return false
	}
	m.owed += cost * window
	return true
}

// takeFromWindow is take for windows by the wall clock. If the clock goes
// back, the count moves to the earlier window: that is the fault of readsEarly.
func (m *meter) takeFromWindow(l *algorithms.Limit, wall, cost int64) bool {
	window := int64(l.Window)
	number := floorOf(wall, window)
	if number > m.window {
		m.previous = 0
		if number == m.window+1 {
			m.previous = m.count
		}
		m.count = 0
	}
	m.window = number

	room := l.Amount - m.count - cost
	if l.Kind == algorithms.SlidingWindow {
		inView := (number+1)*window - wall
		if room*window < m.previous*inView {
			return false
		}
	}
	if room < 0 {
		return false
	}
	m.count += cost
	return true
}

// takeFromLog is take for a log of all hits.
func (m *meter) takeFromLog(l *algorithms.Limit, steady, cost int64) bool {
	used := int64(0)
	kept := m.hits[:0]
	for _, h := range m.hits {
		if h.at > steady-int64(l.Window) {
			kept = append(kept, h)
			used += h.cost
		}
	}
	m.hits = kept
	if used+cost > l.Amount {
		return false
	}
	m.hits = append(m.hits, refHit{steady, cost})
	return true
}
