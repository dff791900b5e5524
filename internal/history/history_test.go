package history

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/latency"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// node is a node with a clock that the test sets, and files that survive it.
type node struct {
	*History
	config  Config
	wall    time.Time
	reading *Reading
	files   map[string][]byte
	full    bool // the disk is
	others  map[ring.NodeID]*node
}

func newNode(id byte) *node {
	n := &node{wall: time.Date(2026, 11, 28, 9, 58, 30, 0, time.UTC), reading: &Reading{}, files: map[string][]byte{}}
	n.config = Config{
		Self: ring.NodeID{id}, Now: func() int64 { return n.wall.UnixNano() },
		Read: func() *Reading { return n.copyReading() },
		File: func(name string) File { return memoryFile{n, name} }, HasRoom: func() bool { return !n.full },
		Events: &Events{}, Peers: n, Others: func() []ring.NodeID { return slices.Collect(maps.Keys(n.others)) },
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	n.History = Open(n.config)
	return n
}

func (n *node) copyReading() *Reading {
	r := *n.reading
	r.Rules = slices.Clone(r.Rules)
	r.Doors = slices.Clone(r.Doors)
	return &r
}

// check counts checks of a rule, of which some were refused, in a bucket of latencies.
func (n *node) check(rule string, checks, refused int64, bucket int) {
	row := Row{Counts: Counts{Checks: checks, Refused: refused}}
	row.Latency[bucket] = checks
	n.reading.Total.add(&row.Counts)
	addDoors(&n.reading.Doors, []Door{{Name: "data", Latency: row.Latency}})
	at := slices.IndexFunc(n.reading.Rules, func(r Rule) bool { return r.Name == rule })
	if at < 0 {
		at = len(n.reading.Rules)
		n.reading.Rules = append(n.reading.Rules, Rule{Name: rule})
	}
	n.reading.Rules[at].Add(&row)
}

// pass lets time pass, as Follow does.
func (n *node) pass(d time.Duration) {
	for range d / time.Second {
		n.wall = n.wall.Add(time.Second)
		if n.Tick() {
			n.save()
		}
	}
}

// restart begins a new process, after the old one has stopped or was killed.
func (n *node) restart(killed bool) {
	if !killed {
		n.end()
		n.save()
	}
	n.reading = &Reading{}
	n.History = Open(n.config)
}

type memoryFile struct {
	n    *node
	name string
}

func (f memoryFile) Read() ([]byte, error) { return f.n.files[f.name], nil }

func (f memoryFile) Write(content []byte) error {
	if f.n.full {
		return errors.New("full")
	}
	f.n.files[f.name] = slices.Clone(content)
	return nil
}

// Go answers as a node that is called does.
func (n *node) Go(to ring.NodeID, m peer.Method, body []byte, _ time.Duration, done func([]byte, error)) {
	if other := n.others[to]; other != nil && m == MethodEvents {
		done(wire.Encode(nil, other.eventsHere()), nil)
		return
	}
	var q Query
	err := wire.Decode(body, &q, "query")
	if other := n.others[to]; err == nil && other != nil {
		done(wire.Encode(nil, other.here(q)), nil)
		return
	}
	done(nil, errors.Join(err, errors.New("unreachable")))
}

// times writes the steps of a report as "15:04 checks".
func times(r *NodeReport, length time.Duration) (list []string) {
	for _, s := range r.Steps {
		list = append(list,
			fmt.Sprintf("%s %d", time.Unix(0, 0).UTC().Add(time.Duration(s.Number)*length).Format("15:04"), s.Checks))
	}
	return list
}

func (n *node) expect(t *testing.T, what string, q Query, want ...string) {
	t.Helper()
	length := time.Minute
	if q.ByHour {
		length = time.Hour
	}
	expect.EqualSlices(t, times(n.here(q), length), want, "%s", what)
}

// What was decided is kept by minute and by hour, over stops and kills; minutes
// that nobody counted are gaps.
func TestHistoryOverRestarts(t *testing.T) {
	n := newNode(1)
	n.check("login", 5, 1, 0)
	n.expect(t, "before the first minute is over", Query{})
	n.pass(time.Minute) // 9:59:30
	n.expect(t, "after a minute", Query{}, "09:58 5")
	n.check("login", 3, 0, 0)
	n.restart(false)
	n.check("login", 4, 0, 0)
	n.pass(time.Minute) // 10:00:30
	n.expect(t, "the minute of a stop has both processes", Query{}, "09:58 5", "09:59 7")

	n.check("login", 100, 0, 0) // lost
	n.restart(true)
	n.wall = n.wall.Add(3 * time.Minute) // 10:03:30
	n.History = Open(n.config)
	n.check("api", 8, 8, 3)
	n.pass(time.Minute)
	n.expect(t, "after a kill and a gap", Query{}, "09:58 5", "09:59 7", "10:03 8")
	n.expect(t, "of one rule", Query{Rule: "login"}, "09:58 5", "09:59 7", "10:03 0")
	n.expect(t, "of the other", Query{Rule: "api"}, "09:58 0", "09:59 0", "10:03 8")
	n.expect(t, "of an unknown one", Query{Rule: "?"}, "09:58 0", "09:59 0", "10:03 0")
	n.expect(t, "the last two steps", Query{Steps: 2}, "10:03 8")
	n.expect(t, "by hour", Query{ByHour: true}, "09:00 12", "10:00 8")
	n.expect(t, "by hour, of one rule", Query{ByHour: true, Rule: "login"}, "09:00 12", "10:00 0")

	for name := range n.files { // a kill while the hours were being written
		if name[0] == 'h' {
			delete(n.files, name)
		}
	}
	n.restart(true)
	n.expect(t, "by hour, from the minutes", Query{ByHour: true}, "09:00 12", "10:00 8")
	r := n.here(Query{})
	if len(r.Rules) != 2 || r.Rules[0].Name != "login" || r.Rules[0].Checks != 12 ||
		r.Rules[0].Refused != 1 || r.Rules[1].Refused != 8 || r.Rules[1].Latency[3] != 8 {
		t.Errorf("sums by rule: got %+v", r.Rules)
	}
	if len(r.Steps) != 3 || len(r.Steps[2].Doors) != 1 || r.Steps[2].Doors[0].Name != "data" ||
		r.Steps[2].Doors[0].Latency[3] != 8 {
		t.Errorf("latency by door: got %+v", r.Steps)
	}
}

// A day of minutes and 30 days of hours are kept, and no more.
func TestHistoryIsADayAndAMonth(t *testing.T) {
	n := newNode(1)
	pass := func(d time.Duration) {
		n.wall = n.wall.Add(d)
		n.Tick()
		n.reading.Total.Checks++
	}
	for range 32 * 24 {
		pass(59 * time.Minute) // a gap
		pass(time.Minute)
	}
	for range 26 * 60 {
		pass(time.Minute)
	}
	n.save()
	n.restart(true)
	minutes, hours := n.here(Query{}).Steps, n.here(Query{ByHour: true}).Steps
	now := n.wall.Unix() / 60
	if len(minutes) != Minutes || minutes[0].Number != now-Minutes || minutes[Minutes-1].Number != now-1 {
		t.Errorf("got %d minutes from %d, in minute %d", len(minutes), minutes[0].Number, now)
	}
	if len(hours) != Hours || hours[Hours-1].Number != (now-1)/60 || hours[0].Checks != 1 ||
		hours[Hours-2].Checks != 60 {
		t.Errorf("got %d hours, the first %+v", len(hours), hours[0])
	}
}

// A clock that is set or a process that is suspended leaves a gap, and nothing is counted twice.
func TestHistoryOverClockSteps(t *testing.T) {
	n := newNode(1)
	n.check("r", 1, 0, 0)
	n.pass(time.Minute)
	n.check("r", 2, 0, 0)
	n.wall = n.wall.Add(10 * time.Minute)
	n.pass(time.Second)
	n.check("r", 4, 0, 0)
	n.pass(time.Minute)
	n.expect(t, "suspended", Query{}, "09:58 1", "10:09 4")

	n.wall = n.wall.Add(-11 * time.Minute) // in the minute before the gap
	n.pass(time.Second)
	n.check("r", 8, 0, 0)
	n.pass(2 * time.Minute)
	n.wall = n.wall.Add(20 * time.Minute)
	n.expect(t, "set back", Query{}, "09:58 1", "09:59 8", "10:00 0") // as of that clock
	n.pass(time.Second)
	n.expect(t, "set forward", Query{}, "09:58 1", "09:59 8", "10:00 0", "10:09 4")
}

// At most 64 rules have counts of their own: those used most in the hour
// before. The others are added up, and what may be among them is a gap.
func TestHistoryOfManyRules(t *testing.T) {
	n := newNode(1)
	for i := range 100 {
		n.check(fmt.Sprintf("r%03d", i), int64(i+1), 0, 0)
	}
	n.pass(time.Minute)
	r := n.here(Query{})
	if len(r.Rules) != MaxRules || r.Rules[0].Name != "r099" ||
		r.Rules[MaxRules-1].Name != "r036" || r.Others.Checks != 36*37/2 {
		t.Errorf("got %d rules, %s to %s, others %d", len(r.Rules), r.Rules[0].Name,
			r.Rules[len(r.Rules)-1].Name, r.Others.Checks)
	}
	n.expect(t, "one that is kept", Query{Rule: "r036"}, "09:58 37")
	n.expect(t, "one among the others", Query{Rule: "r035"})

	n.check("r000", 1000, 0, 0) // the next hour's rules include it
	n.pass(3 * time.Minute)
	n.check("r000", 7, 0, 0)
	n.pass(time.Minute)
	n.expect(t, "the busiest of the hour before", Query{Rule: "r000", Steps: 1}, "10:02 7")
}

// All files together stay below 8 MiB, even with the largest numbers; rules
// lose their own counts before anything else does.
func TestHistoryIsBounded(t *testing.T) {
	n := newNode(1)
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		n.reading.Rules = append(n.reading.Rules, Rule{Name: fmt.Sprintf("%0128x", random.Uint64())})
	}
	for range 90 {
		for r := range n.reading.Rules {
			row := Row{Counts: Counts{Checks: random.Int64N(1 << 32),
				Refused: random.Int64N(1 << 32), ShadowRefused: random.Int64N(1 << 32)}}
			for i := range row.Latency {
				row.Latency[i] = random.Int64N(1 << 32)
			}
			n.reading.Rules[r].Add(&row)
			n.reading.Total.add(&row.Counts)
		}
		n.pass(time.Minute)
	}
	largest := 0
	for name, b := range n.files {
		largest = max(largest, len(b))
		if len(b) > maxPacked {
			t.Errorf("%s has %d bytes", name, len(b))
		}
	}
	if files := minuteSegments + hourSegments; (files+1)*(maxPacked+4096) > 8<<20 {
		t.Errorf("%d files of %d bytes are more than 8 MiB", files, maxPacked)
	}
	if largest < maxPacked/4 {
		t.Errorf("the largest file has %d bytes: too little was random", largest)
	}
	r := n.here(Query{})
	if len(r.Rules) == 0 || len(r.Steps) != 90 || r.Others.Checks == 0 {
		t.Errorf("got %d rules, %d steps, others %+v", len(r.Rules), len(r.Steps), r.Others.Counts)
	}
	var all, total int64
	for i := range r.Rules {
		all += r.Rules[i].Checks
	}
	for i := range r.Steps {
		total += r.Steps[i].Checks
	}
	all += r.Others.Checks
	if all != total {
		t.Errorf("rules and others have %d checks, the steps %d", all, total)
	}
}

// On a disk that is nearly full, the history is not written. It goes on in
// memory, and is written once there is room.
func TestHistoryOnAFullDisk(t *testing.T) {
	n := newNode(1)
	n.full = true
	n.check("r", 5, 0, 0)
	n.pass(time.Minute)
	expect.Equal(t, len(n.files), 0, "a full disk: wrote files")
	n.expect(t, "in memory", Query{}, "09:58 5")
	n.full = false
	n.pass(time.Minute)
	n.restart(true)
	n.expect(t, "after a restart", Query{}, "09:58 5", "09:59 0")
}

// A damaged file is a gap.
func TestHistoryWithDamagedFiles(t *testing.T) {
	n := newNode(1)
	n.check("r", 5, 0, 0)
	n.pass(2 * time.Minute)
	for name, b := range n.files {
		n.files[name] = b[:len(b)/2]
	}
	n.restart(true)
	n.check("r", 6, 0, 0)
	n.pass(time.Minute)
	n.expect(t, "after a restart", Query{}, "10:00 6")
}

// The histories of several nodes are added up by time. Nodes without data for a
// step don't count for it.
func TestHistoryOfSeveralNodes(t *testing.T) {
	a, b, c := newNode(1), newNode(2), newNode(3)
	a.others = map[ring.NodeID]*node{{2}: b, {3}: c, {4}: nil}
	b.wall = b.wall.Add(time.Minute)
	b.History = Open(b.config)
	a.check("login", 5, 2, 1)
	a.pass(2 * time.Minute)
	b.check("login", 3, 1, 4)
	b.check("api", 9, 0, 4)
	b.pass(time.Minute)
	nodes := a.Report(Query{})
	if len(nodes) != 3 || nodes[0].Node != a.config.Self {
		t.Fatalf("got %d nodes", len(nodes))
	}
	sum := Sum(nodes)
	if got, want := times(sum, time.Minute), []string{"09:58 5", "09:59 12"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if sum.Steps[0].Nodes != 1 || sum.Steps[1].Nodes != 2 {
		t.Errorf("got nodes %d and %d, want 1 and 2", sum.Steps[0].Nodes, sum.Steps[1].Nodes)
	}
	if len(sum.Rules) != 2 || sum.Rules[0].Name != "api" || sum.Rules[1].Checks != 8 || sum.Rules[1].Refused != 3 {
		t.Errorf("got rules %+v", sum.Rules)
	}
	var want latency.Counts
	want[1], want[4] = 5, 12
	if doors := SumDoors(sum.Steps); len(doors) != 1 || doors[0].Latency != want {
		t.Errorf("got doors %+v", doors)
	}
}

func FuzzSegment(f *testing.F) {
	g := &segment{first: 60, size: 60, names: []string{"r"}, steps: []step{{number: 61, rules: []Row{{}}}}}
	f.Add(wire.Encode(nil, g))
	f.Fuzz(func(t *testing.T, b []byte) {
		g := &segment{}
		if wire.Decode(b, g, "segment") != nil {
			return
		}
		g.sum()
		g.forgetHalf()
		g.pack()
	})
}

func FuzzReport(f *testing.F) {
	r := &NodeReport{Steps: []Step{{Number: 7}, {Number: 8}}, Rules: []Rule{{Name: "r"}}}
	f.Add(wire.Encode(nil, r))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &NodeReport{}
		if wire.Decode(b, r, "report") == nil {
			Sum([]*NodeReport{r, r})
		}
	})
}
