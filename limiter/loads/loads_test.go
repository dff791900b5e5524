package loads

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// clock is a node's clock, which the test sets.
type clock struct{ now time.Duration }

func newLoads(id byte, c *clock) *Loads {
	return New(Config{Self: [16]byte{id}, Now: func() time.Duration { return c.now }, Nodes: func() int { return 3 }})
}

func set(t testing.TB, text string) *rules.Set {
	t.Helper()
	doc, err := document.Parse([]byte("version: 1\nrules:\n" + text))
	expect.NoError(t, err)
	s, err := rules.Compile(doc, 1)
	expect.NoError(t, err)
	return s
}

const adaptiveRules = `
  - {name: plain, key: [], limits: [{limit: 10, per: 1m}]}
  - {name: two, key: [], limits: [{limit: 10, per: 1m}], adaptive: {source: api, steps: [{above: 0.6, factor: 0.75}, {above: 0.8, factor: 0.5}]}}
  - {name: low, key: [], limits: [{limit: 10, per: 1m}], adaptive: {source: api, steps: [{above: 0.04, factor: 0.5}]}}
  - {name: own, key: [], limits: [{limit: 10, per: 1m}], adaptive: {source: node-cpu, steps: [{above: 0, factor: 0.5}]}}
`

func tell(t *testing.T, l *Loads, source string, load float64, ttl time.Duration) {
	t.Helper()
	expect.NoError(t, l.Report(source, load, ttl))
}

// A step comes into force at once. It goes out of force when the load is
// clearly below it, has not been above it for some time, or is unknown.
func TestSteps(t *testing.T) {
	const gone = -1.0 // no longer reported
	for _, tt := range []struct {
		name string
		load []float64 // one per second
		want []int     // for rule "two"
	}{
		{"up and down", []float64{0.5, 0.6, 0.61, 0.81, 0.85, 0.7, 0.5}, []int{-1, -1, 0, 1, 1, 0, -1}},
		{"about a step", []float64{0.81, 0.79, 0.81, 0.76, 0.8, 0.751, 0.75}, []int{1, 1, 1, 1, 1, 1, 0}},
		{"just below for long",
			[]float64{0.81, 0.79, 0.79, 0.79, 0.79, 0.79, 0.79, 0.79, 0.79, 0.79, 0.79, 0.79},
			[]int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0}},
		{"from top to nothing", []float64{1000, 0}, []int{1, -1}},
		{"unknown", []float64{0.9, gone, gone, 0.62}, []int{1, 1, -1, 0}},
	} {
		c := &clock{now: time.Hour}
		l, s := newLoads(1, c), set(t, adaptiveRules)
		for i, load := range tt.load {
			if load != gone {
				tell(t, l, "api", load, 2*time.Second)
			}
			steps := l.Steps(s)
			expect.Equal(t, steps[1], tt.want[i], "%s, second %d, load %g: step", tt.name, i, load)
			if steps[0] != -1 || steps[3] != -1 {
				t.Errorf("%s: have %v: steps of rules that follow unknown sources", tt.name, steps)
			}
			c.now += time.Second
		}
	}
}

// The load measured by the node is a separate source.
func TestStepsOfTheProcessors(t *testing.T) {
	c := &clock{}
	l, s := newLoads(1, c), set(t, adaptiveRules)
	for _, tt := range []struct {
		load float64
		want int
	}{{0.3, 0}, {0.001, 0}, {0, -1}} {
		l.Measure(tt.load)
		expect.Equal(t, l.Steps(s)[3], tt.want, "load %g", tt.load)
	}
	if have := l.Sources(); len(have) != 1 || have[0].Name != NodeCPU {
		t.Errorf("have %v", have)
	}
	expect.Equal(t, len(l.FullState()), 1, "bytes about a source that must not spread")
	if steps := l.Steps(set(t, "\n  - {name: r, key: [], limits: [{limit: 1, per: 1m}]}\n")); steps != nil {
		t.Errorf("have %v of rules that are not adaptive", steps)
	}
}

// After a change of rules, a rule whose steps are unchanged keeps them in force.
func TestStepsOutliveOtherRules(t *testing.T) {
	c := &clock{}
	l, s := newLoads(1, c), set(t, adaptiveRules)
	tell(t, l, "api", 0.9, time.Minute)
	l.Steps(s)
	tell(t, l, "api", 0.78, time.Minute)
	expect.Equal(t, l.Steps(set(t, adaptiveRules))[1], 1, "the same again")
	expect.Equal(t, l.Steps(set(t, strings.ReplaceAll(adaptiveRules, "0.6,", "0.7,")))[1], 0, "other steps")
}

// exchange delivers all news from one to the other.
func exchange(t *testing.T, from, to *Loads) {
	t.Helper()
	for _, b := range from.Packets(2, 1400) {
		expect.NoError(t, to.Receive(b))
	}
}

func TestReportsTravel(t *testing.T) {
	c := &clock{now: 5 * time.Hour}
	other := &clock{now: time.Second} // the clocks have nothing in common
	a, b := newLoads(1, c), newLoads(2, other)
	tell(t, a, "api", 0.9, 10*time.Second)
	first := a.Packets(2, 1400)
	for range 3 {
		exchange(t, a, b)
	}
	have := b.Sources()
	if len(have) != 1 || have[0].Load != 0.9 || have[0].Left != 10*time.Second {
		t.Fatalf("have %v", have)
	}
	if rest := a.Packets(2, 1400); len(rest) > 0 {
		t.Errorf("the report is sent forever")
	}
	// A report spreads from node to node with its time left. A late copy does not
	// make it last longer.
	other.now += 4 * time.Second
	third := newLoads(3, other)
	exchange(t, b, third)
	if have := third.Sources(); len(have) != 1 || have[0].Left != 6*time.Second {
		t.Errorf("have %v, want 6 s left", have)
	}
	if err := b.Receive(first[0]); err != nil || b.Sources()[0].Left != 6*time.Second {
		t.Errorf("have %v, %v after a repetition", b.Sources(), err)
	}
	// A later report counts wherever it is made. An earlier one that arrives after it does not.
	tell(t, b, "api", 0.2, time.Second)
	exchange(t, b, a)
	expect.NoError(t, b.Receive(first[0]))
	for i, l := range []*Loads{a, b} {
		if load, known := l.Load("api"); load != 0.2 || !known {
			t.Errorf("node %d: have %g, %v", i, load, known)
		}
	}
	// Nor after the later one has expired.
	other.now, c.now = other.now+2*time.Second, c.now+2*time.Second
	expect.NoError(t, b.Receive(first[0]))
	if load, known := b.Load("api"); known {
		t.Errorf("an expired source came back with %g", load)
	}
	// A joining node learns what is in force, and nothing else.
	tell(t, a, "cache", 7, time.Minute)
	fresh := newLoads(4, other)
	expect.NoError(t, fresh.Receive(a.FullState()))
	if have := fresh.Sources(); len(have) != 1 || have[0].Name != "cache" || have[0].Load != 7 {
		t.Errorf("have %v", have)
	}
}

// Of two reports made at once, both nodes pick the same one.
func TestToldAtOnce(t *testing.T) {
	c := &clock{}
	a, b := newLoads(1, c), newLoads(2, c)
	tell(t, a, "api", 0.1, time.Minute)
	tell(t, b, "api", 0.9, time.Minute)
	fromA, fromB := a.FullState(), b.FullState()
	expect.NoError(t, errors.Join(a.Receive(fromB), b.Receive(fromA)))
	x, _ := a.Load("api")
	y, _ := b.Load("api")
	if x != y {
		t.Errorf("have %g and %g", x, y)
	}
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		source string
		load   float64
		ttl    time.Duration
		field  string
	}{
		{"api", 0, MinTTL, ""}, {"api", MaxLoad, MaxTTL, ""}, {strings.Repeat("a", MaxName), 1, DefaultTTL, ""},
		{"", 1, DefaultTTL, "source"}, {strings.Repeat("a", MaxName+1), 1, DefaultTTL, "source"},
		{"a\n", 1, DefaultTTL, "source"},
		{"\xff", 1, DefaultTTL, "source"}, {NodeCPU, 1, DefaultTTL, "source"},
		{"api", math.NaN(), DefaultTTL, "load"}, {"api", math.Inf(1), DefaultTTL, "load"},
		{"api", -0.01, DefaultTTL, "load"}, {"api", MaxLoad + 1, DefaultTTL, "load"},
		{"api", 1, MinTTL - 1, "ttl_ms"}, {"api", 1, MaxTTL + 1, "ttl_ms"}, {"api", 1, -1, "ttl_ms"},
	} {
		err := Check(tt.source, tt.load, tt.ttl)
		var report ReportError
		if (err == nil) != (tt.field == "") || err != nil &&
			(!errors.As(err, &report) || !strings.HasPrefix(err.Error(), tt.field)) {
			t.Errorf("%.20q %g %v: have %v, want %q", tt.source, tt.load, tt.ttl, err, tt.field)
		}
	}
}

// Sources are bounded; expired and unfollowed ones make room.
func TestManySources(t *testing.T) {
	c := &clock{}
	l := newLoads(1, c)
	l.Steps(set(t, adaptiveRules))
	for i := range MaxSources {
		tell(t, l, fmt.Sprint("s", i), 1, time.Minute)
	}
	if err := l.Report("more", 1, time.Minute); !errors.Is(err, ErrFull) {
		t.Errorf("have %v, want ErrFull", err)
	}
	tell(t, l, "api", 0.9, time.Hour) // rules follow it
	expect.Equal(t, l.Steps(set(t, adaptiveRules))[1], 1, "step")
	if n := len(l.Packets(2, 1000)); n == 0 || n > 1000/30 {
		t.Errorf("have %d packets in 1000 bytes", n)
	}
	c.now += 2 * time.Minute
	tell(t, l, "more", 1, time.Minute)
	expect.Equal(t, len(l.Sources()), 2, "sources")
	c.now += 2 * time.Hour
	l.Steps(set(t, adaptiveRules))
	expect.Equal(t, len(l.known), 0, "reports kept")
}

// No message makes the state exceed its bounds.
func FuzzHear(f *testing.F) {
	c := &clock{now: time.Minute}
	l := newLoads(1, c)
	_ = l.Report("api", 0.5, time.Second)
	f.Add(l.FullState())
	f.Add([]byte{messageFormat})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		l := newLoads(2, c)
		_ = l.Receive(b)
		for _, s := range l.Sources() {
			if err := Check(s.Name, s.Load, MaxTTL); err != nil || s.Left <= 0 || s.Left > MaxTTL {
				t.Errorf("have %+v: %v", s, err)
			}
		}
		again := newLoads(3, c)
		if err := again.Receive(l.FullState()); err != nil {
			t.Error(err)
		}
	})
}

func TestCPU(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		expect.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	cpu := &CPU{root: root}
	look := func(now time.Duration, want float64, wantOK bool) {
		t.Helper()
		if have, ok := cpu.Load(now); ok != wantOK || math.Abs(have-want) > 1e-6 {
			t.Errorf("at %v: have %g, %v, want %g, %v", now, have, ok, want, wantOK)
		}
	}
	look(0, 0, false) // nothing to measure
	write("proc/stat", "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1 1 1\n")
	look(time.Second, 0, false)
	write("proc/stat", "cpu  150 0 150 900 0 0 0 0 0 0\n")
	look(2*time.Second, 0.25, true) // half of a new load counts at once
	write("proc/stat", "cpu  200 0 200 1000 0 0 0 0 0 0\n")
	look(3*time.Second, 0.375, true)
	// A group limited to one and a half processors, inside one limited to two.
	write("proc/self/cgroup", "0::/a/b\n")
	write("sys/fs/cgroup/a/cpu.max", "150000 100000\n")
	write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
	write("sys/fs/cgroup/a/cpu.stat", "usage_usec 1000000\nuser_usec 1\n")
	look(4*time.Second, 0.375, false)
	write("sys/fs/cgroup/a/cpu.stat", "usage_usec 2500000\nuser_usec 1\n")
	look(5*time.Second, 0.6875, true)
	write("sys/fs/cgroup/a/cpu.stat", "no usage\n")
	look(6*time.Second, 0, false)
	write("proc/self/cgroup", "0::/../../..\n")
	write("proc/stat", "cpu x y\n")
	look(7*time.Second, 0, false)
}

// Steps has to be called repeatedly only while a rule is adaptive. Changed
// fires when one becomes so.
func TestFollowed(t *testing.T) {
	l := newLoads(1, &clock{})
	changed := func() bool {
		select {
		case <-l.Changed():
			return true
		default:
			return false
		}
	}
	plain, adaptive := set(t, "  - {name: plain, key: [], limits: [{limit: 10, per: 1m}]}"), set(t, adaptiveRules)
	for _, tt := range []struct {
		set               *rules.Set
		followed, changed bool
	}{{plain, false, false}, {adaptive, true, true}, {adaptive, true, false}, {plain, false,
		false}, {adaptive, true, true}} {
		l.Steps(tt.set)
		expect.Equal(t, l.Followed(), tt.followed, "followed")
		expect.Equal(t, changed(), tt.changed, "changed")
	}
}
