package agreement

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// The model of shares. Its regions follow late and at random, or not at all for
// a while. They restart, and they become the primary. Their nodes' clocks
// differ. Nodes apply entries late, and lose their authority for a time. Each
// node admits as much as it may. The model knows which version each node uses
// at each moment.

const (
	modelWindow = 10 * time.Second
	modelBegin  = int64(1_800_000_000_000) // Unix ms; a window begins then
)

// world is a running model.
type world struct {
	rand    *rand.Rand
	now     int64 // Unix ms
	bucket  bool
	regions []*region
	primary *region
	// forget breaks a rule: it removes something from the shares. nil: nothing is removed.
	forget func(*rules.DividingVersions)
	hasty  bool // a broken primary: it records versions that not all regions have honoured
	// Broken nodes. begun: the node remembers nothing from before its restart, and
	// treats what it then applies as new. careless: it ignores that it has no
	// authority.
	begun, careless bool
	// wrong draws clocks that are wrong by days, at the nodes that write and at
	// those that report for their regions. nil: there are none. credulous: the
	// primary drops versions by the clock of its leader alone, which is two days ahead.
	wrong     *rand.Rand
	credulous bool
	steps     []string

	limits map[int64]int64 // by window: the highest limit of the versions then in force; unlimited without rules
	// For buckets: the cost taken, and the limits that a region used, in order of time.
	spent   []spending
	inForce []bound
}

const unlimited = int64(1) << 40

type spending struct{ at, amount int64 }

type bound struct {
	at int64
	algorithms.Limit
}

// region is a region of the model; the first is the primary initially.
type region struct {
	name                string
	state               *State
	leader, owner       int64 // how far ahead their clocks are, ms
	nodes               [2]*asker
	honoured            int64 // as last reported, in a primary epoch
	primaryEpoch, clock int64
	latest, reported    int64           // the latest clock of all reports; when the last one came
	used                map[int64]int64 // by window
	bucket              algorithms.State
	gone, cut           bool
}

// asker is a node that decides by the rules it has applied, while it has authority.
type asker struct {
	clock        int64 // how far ahead it is, ms
	authority    bool
	set          *rules.Set
	primaryEpoch int64
	opened       rules.NotHonoured
}

// apply makes the nodes of a region that have authority use its rules, one of them perhaps later.
func (w *world) apply(r *region) {
	for _, n := range r.nodes {
		if n.authority && w.rand.IntN(3) > 0 {
			w.use(r, n)
		}
	}
}

// use makes a node apply the rules of its region.
func (w *world) use(r *region, n *asker) {
	set := r.state.SetFor(r.name)
	if set == nil {
		return
	}
	now := int64(0)
	if n.authority || w.careless {
		now = (w.now + n.clock) * int64(time.Millisecond)
	}
	n.set, n.primaryEpoch = n.opened.Stamp(set, now), r.state.Regions.PrimaryEpoch
}

// turmoil makes a node lose its authority, get it back once it has applied its
// region's state, or restart.
func (w *world) turmoil(r *region) string {
	n := r.nodes[w.rand.IntN(2)]
	switch {
	case !n.authority:
		w.use(r, n)
		n.authority = true
		return "a node of " + r.name + " has authority again"
	case w.rand.IntN(2) == 0:
		n.authority = false
		return "a node of " + r.name + " loses its authority"
	}
	for _, n := range r.nodes {
		n.opened, n.set = rules.NotHonoured{}, nil
		n.authority = w.begun
		w.use(r, n)
		n.authority = true
	}
	return r.name + " restarts"
}

// current reports whether a region has everything that the primary wrote,
// though perhaps not everything that it recorded.
func (w *world) current(r *region) bool {
	mine, primary := r.state, w.primary.state
	_, a := mine.History.Current()
	_, b := primary.History.Current()
	return !r.gone && a.Number == b.Number && mine.Regions.World == primary.Regions.World &&
		mine.Regions.PrimaryEpoch == primary.Regions.PrimaryEpoch &&
		slices.Contains(mine.Regions.Committed, r.name)
}

// report makes a region report the version that it honours.
func (w *world) report(r *region) {
	_, v := r.state.History.Current()
	least := v.Number
	for _, n := range r.nodes {
		if n.authority && (n.set == nil || n.primaryEpoch != r.state.Regions.PrimaryEpoch) {
			return
		}
		if n.authority {
			least = min(least, n.set.Version)
		}
	}
	r.honoured, r.primaryEpoch, r.clock = least, r.state.Regions.PrimaryEpoch, w.now+r.leader+w.misread()
	r.latest, r.reported = max(r.latest, r.clock), w.now
}

// misread returns by how much a node misreads the time, in ms: mostly not at all.
func (w *world) misread() int64 {
	if w.wrong == nil || w.wrong.IntN(10) > 0 {
		return 0
	}
	return w.wrong.Int64N(96*time.Hour.Milliseconds()) - 48*time.Hour.Milliseconds()
}

// clocks returns the earliest and the latest time that the primary's leader
// knows of the regions' clocks. A new leader knows only the last reports.
func (w *world) clocks(names []string) (earliest, latest int64) {
	forget := w.wrong != nil && w.wrong.IntN(4) == 0
	earliest = math.MaxInt64
	for _, r := range w.regions {
		if forget {
			r.latest = r.clock
		}
		if slices.Contains(names, r.name) {
			earliest = min(earliest, r.clock+w.now-r.reported)
			latest = max(latest, r.latest)
		}
	}
	return earliest, latest
}

func newWorld(seed uint64, bucket bool) *world {
	w := &world{rand: rand.New(rand.NewPCG(seed, 8)), now: modelBegin, bucket: bucket, limits: map[int64]int64{}}
	for _, name := range []string{"eu", "us", "ap"} {
		r := &region{name: name, state: founded(New()), used: map[int64]int64{}}
		r.nodes = [2]*asker{{authority: true}, {authority: true}}
		for _, clock := range []*int64{&r.leader, &r.owner, &r.nodes[0].clock, &r.nodes[1].clock} {
			*clock = w.rand.Int64N(900) - 450
		}
		w.regions = append(w.regions, r)
	}
	w.primary = w.regions[0]
	return w
}

func (w *world) do(r *region, e Entry) error {
	b, err := ThisBuild.Encode(e)
	if err != nil {
		panic(err)
	}
	next, result := r.state.Apply(r.state.Index+1, b)
	r.state = next
	w.apply(r)
	return result.Err
}

// document returns a limit of a random amount, divided at random; occasionally there is none.
func (w *world) document() string {
	if w.rand.IntN(12) == 0 {
		return "version: 1\n"
	}
	parts := []string{"", "", ", regions: {eu: 0.8, us: 0.2}",
		", regions: {eu: 0.1, us: 0.6, ap: 0.3}", ", regions: {ap: 1}"}[w.rand.IntN(5)]
	amount := []int{6, 60, 61, 100, 100}[w.rand.IntN(5)]
	kind := "algorithm: fixed-window"
	if w.bucket {
		kind = fmt.Sprintf("algorithm: token-bucket, burst: %d",
			[]int{amount, amount, amount * 2, amount/2 + 1}[w.rand.IntN(4)])
	}
	return fmt.Sprintf("version: 1\nrules:\n  - {name: r, key: [], scope: global%s, limits: [{limit: %d, per: %s, %s}]}\n", parts, amount, modelWindow, kind)
}

// step makes one random thing happen.
func (w *world) step() {
	primary := w.primary
	other := w.regions[w.rand.IntN(3)]
	for other == primary {
		other = w.regions[w.rand.IntN(3)]
	}
	what, before := "", w.now
	switch w.rand.IntN(15) {
	case 0, 1:
		text := w.document()
		err := w.do(primary,
			WriteRules{Change: document.Change{Body: []byte(text)}, When: time.UnixMilli(w.now + primary.leader + w.misread())})
		what = fmt.Sprintf("writes %s: %v", text, err)
	case 2:
		if !other.gone {
			what = fmt.Sprintf("%s joins: %v", other.name, w.do(primary, ChangeRegion{Name: other.name, When: w.now}))
		}
	case 3:
		if w.rand.IntN(6) == 0 && slices.Contains(primary.state.Regions.Committed, other.name) {
			// An operator declares that the region is gone; it comes back as a new one.
			err := w.do(primary, ChangeRegion{Name: other.name, Remove: true, When: w.now})
			what = fmt.Sprintf("%s leaves: %v", other.name, err)
			other.gone = err == nil
		}
	case 4, 5, 6:
		w.follow(other)
		what = other.name + " follows"
	case 7, 8:
		what = w.mark()
	case 9:
		w.now += w.rand.Int64N(300)
	case 10:
		w.now += w.rand.Int64N(4000)
	case 11:
		w.now += w.rand.Int64N(3 * modelWindow.Milliseconds())
	case 12:
		what = w.turmoil(w.regions[w.rand.IntN(3)])
	case 13:
		other.cut = !other.cut
		what = fmt.Sprintf("%s is cut off: %v", other.name, other.cut)
	case 14:
		if w.rand.IntN(3) == 0 && w.current(other) {
			// This region does not know what was recorded since. Perhaps no other region
			// followed it, or all others did.
			err := w.do(other, SetPrimary{Region: other.name, World: primary.state.Regions.World})
			what = fmt.Sprintf("%s is the primary: %v", other.name, err)
			w.primary = other
		}
	}
	if w.now-before >= 1000 {
		for _, r := range w.regions { // no node with authority is behind for longer
			for _, n := range r.nodes {
				if n.authority {
					w.use(r, n)
				}
			}
		}
	}
	if what != "" {
		w.steps = append(w.steps, fmt.Sprintf("%6d %s", w.now-modelBegin, what))
	}
	if w.rand.IntN(3) == 0 {
		for _, r := range w.regions {
			if w.rand.IntN(2) == 0 {
				w.apply(r)
			}
			if w.rand.IntN(2) == 0 && !r.cut {
				w.report(r)
			}
		}
	}
}

func (w *world) follow(r *region) {
	if r.gone || r == w.primary || r.cut || w.primary.cut {
		return
	}
	b, err := w.primary.state.AppendAdopt(nil)
	if err != nil {
		panic(err)
	}
	e, err := ParseAdopt(b)
	if err != nil {
		panic(err)
	}
	_ = w.do(r, e) // refused if there is nothing new
}

// mark proposes marks like the primary's leader.
func (w *world) mark() string {
	primary := w.primary
	regions := primary.state.Regions
	earliest, latest := w.clocks(regions.Committed)
	for _, h := range regions.Held {
		if !h.Candidate {
			continue
		}
		if w.wrong != nil && latest-earliest > MaxClockSpread.Milliseconds() {
			return "the clocks differ too much"
		}
		at := w.now + primary.leader + 1000 // a removed region has used something until now
		for _, r := range w.regions {
			waits := slices.Contains(regions.Committed, r.name)
			for _, held := range regions.Held {
				waits = waits || slices.Contains(held.Regions, r.name) && !r.gone
			}
			if waits && (r.honoured < h.Version || r.primaryEpoch != regions.PrimaryEpoch) && !w.hasty {
				return ""
			}
			if waits {
				at = max(at, r.latest+1000)
			}
		}
		return fmt.Sprintf("records %d at %d: %v", h.Version, at-modelBegin, w.do(primary, Mark{h.Version, max(1, at)}))
	}
	if last := regions.inForce(); last != nil && last.RecordedAt == 0 {
		return fmt.Sprintf("asks for %d: %v", last.Version, w.do(primary, Mark{Version: last.Version}))
	} else if w.wrong != nil && len(regions.Held) > 1 {
		if w.credulous {
			earliest = w.now + primary.leader + 48*time.Hour.Milliseconds()
		}
		return fmt.Sprintf("drops what has ended by %d: %v", earliest-modelBegin,
			w.do(primary, Mark{last.Version, max(1, earliest)}))
	}
	return ""
}

// limit returns the share and the whole limit that a node of r uses. Without a
// limit, the whole is unlimited. share is nil for a node that decides nothing.
func (w *world) limit(r *region, n *asker) (share *rules.Limit, whole algorithms.Limit) {
	set := n.set
	if set == nil || r.gone || !n.authority {
		return nil, algorithms.Limit{}
	}
	if w.forget != nil {
		x := *set.DividingVersions()
		x.Held = slices.Clone(x.Held)
		w.forget(&x)
		set = set.WithShares(&x)
	}
	var m rules.Match
	set.Match(nil, nil, &m)
	if len(m.Hits) == 0 {
		return nil, algorithms.Limit{Amount: unlimited, Burst: unlimited}
	}
	whole = m.Hits[0].Limits[0].Limit
	set.ApplyShares(&m, (w.now+n.clock)*int64(time.Millisecond))
	return m.Hits[0].Limits[0], whole
}

// spend makes every node take as much as it may.
func (w *world) spend() {
	for _, r := range w.regions {
		number := (w.now + r.owner) / modelWindow.Milliseconds()
		for _, n := range r.nodes {
			share, whole := w.limit(r, n)
			w.limits[number] = max(w.limits[number], whole.Amount)
			if share != nil {
				r.used[number] = max(r.used[number], share.Amount)
			}
		}
	}
}

// broken names a window in which the nodes used more than any version then in force allows.
func (w *world) broken() string {
	for number, limit := range w.limits {
		sum := int64(0)
		for _, r := range w.regions {
			sum += r.used[number]
		}
		if sum > limit {
			var by []string
			for _, r := range w.regions {
				by = append(by, fmt.Sprintf("%s %d", r.name, r.used[number]))
			}
			return fmt.Sprintf("window at %d: %d of %d: %s",
				number*modelWindow.Milliseconds()-modelBegin, sum, limit, strings.Join(by, ", "))
		}
	}
	return ""
}

// run runs the model once. It returns the broken promise, if any, and the steps that led to it.
func (w *world) run(steps int) (string, []string) {
	_ = w.do(w.regions[0], SetPrimary{Region: "eu", World: WorldID{1}})
	for range steps {
		w.step()
		if w.bucket {
			w.take()
			continue
		}
		w.spend()
		if broken := w.broken(); broken != "" {
			return broken, w.steps
		}
	}
	return w.burst(), w.steps
}

var lives = flag.Int("lives", 20, "how many random lives each model of shares has; make models has more")

// No window admits more than a version that was in force in it allows, no
// matter what is written, when regions follow, and how far the clocks differ.
func TestG8_SharesNeverAddUpToMore(t *testing.T) {
	for seed := range *lives {
		if broken, steps := newWorld(uint64(seed), false).run(150); broken != "" {
			t.Fatalf("seed %d: %s after\n%s", seed, broken, strings.Join(steps, "\n"))
		}
	}
}

// Clocks that are wrong by days, at nodes that write or that report for their
// regions, make no quota.
func TestG8_SharesUnderWrongClocks(t *testing.T) {
	for seed := range 2 * *lives {
		w := newWorld(uint64(seed/2), seed%2 == 0)
		w.wrong = rand.New(rand.NewPCG(uint64(seed), 9))
		if broken, steps := w.run(150); broken != "" {
			t.Fatalf("seed %d: %s after\n%s", seed, broken, strings.Join(steps, "\n"))
		}
	}
}

// The model notices when a rule is broken.
func TestModelOfSharesFindsErrors(t *testing.T) {
	// Cases that take many seeds begin with one that finds the error.
	first := map[string]int{
		"what is recorded holds at once":                 61,
		"bucket: what is recorded holds at once":         611,
		"what not all have honoured is recorded":         50,
		"the old division stays until the record":        34,
		"what a restarted process applies is new":        1341,
		"what a node without authority applies is new":   1341,
		"what another primary may have recorded is open": 1341,
		"one clock says what has ended":                  185,
	}
	for name, harm := range map[string]func(*world){
		"what is not recorded is forgotten": func(w *world) {
			w.forget = func(x *rules.DividingVersions) {
				last := len(x.Held) - 1
				x.Held = slices.DeleteFunc(x.Held,
					func(v rules.HeldVersion) bool { return v.RecordedAt == 0 && v.Set != x.Held[last].Set })
			}
		},
		"what is recorded holds at once": func(w *world) {
			w.forget = func(x *rules.DividingVersions) {
				for i := range x.Held {
					x.Held[i].RecordedAt = min(x.Held[i].RecordedAt, 1)
				}
			}
		},
		"only the version in force counts": func(w *world) {
			w.forget = func(x *rules.DividingVersions) { x.Held = x.Held[len(x.Held)-1:] }
		},
		"bucket: what is recorded holds at once": func(w *world) {
			w.forget = func(x *rules.DividingVersions) {
				for i := range x.Held {
					x.Held[i].RecordedAt = min(x.Held[i].RecordedAt, 1)
				}
			}
		},
		"what not all have honoured is recorded": func(w *world) { w.hasty = true },
		// A region that honoured a version and is cut off before it is recorded
		// believes that nothing has changed.
		"the old division stays until the record": func(w *world) {
			w.forget = func(x *rules.DividingVersions) {
				for i := range x.Held {
					x.Held[i].NotHonouredAt = math.MaxInt64
				}
			}
		},
		"one clock says what has ended": func(w *world) {
			w.wrong = rand.New(rand.NewPCG(1, 9))
			w.credulous = true
		},
		"what a restarted process applies is new":      func(w *world) { w.begun = true },
		"what a node without authority applies is new": func(w *world) { w.careless = true },
		"what another primary may have recorded is open": func(w *world) {
			w.forget = func(x *rules.DividingVersions) {
				for i := range x.Held {
					x.Held[i].Doubtful = false
				}
			}
		},
	} {
		found := false
		for seed := first[name]; seed < first[name]+2000; seed++ {
			w := newWorld(uint64(seed), strings.HasPrefix(name, "bucket"))
			harm(w)
			if broken, _ := w.run(150); broken != "" {
				found = true
				t.Logf("%s: seed %d: %s", name, seed, broken)
				break
			}
		}
		if !found {
			t.Errorf("%s: nothing is found", name)
		}
	}
}

// take makes every node empty its bucket.
func (w *world) take() {
	now := algorithms.Instant{Steady: w.now * int64(time.Millisecond), Wall: w.now * int64(time.Millisecond)}
	for _, r := range w.regions {
		for _, n := range r.nodes {
			share, whole := w.limit(r, n)
			w.inForce = append(w.inForce, bound{w.now, whole})
			if share == nil {
				continue
			}
			l := &share.Limit
			r.bucket = l.Advance(r.bucket, now)
			if all := l.Burst - l.Used(r.bucket, now); all > 0 {
				if next, ok := l.Take(r.bucket, now, all); ok {
					r.bucket = next
					w.spent = append(w.spent, spending{w.now, all})
				}
			}
		}
	}
}

// burst names a span in which more was taken than the highest limit in force in
// it admits: its burst, plus what drains at its rate in the meantime.
func (w *world) burst() string {
	for i, from := range w.spent {
		sum, amount, burst := int64(0), int64(0), int64(0)
		k, _ := slices.BinarySearchFunc(w.inForce, from.at,
			func(b bound, at int64) int { return cmp.Compare(b.at, at) })
		for _, to := range w.spent[i:] {
			sum += to.amount
			for ; k < len(w.inForce) && w.inForce[k].at <= to.at; k++ {
				amount, burst = max(amount, w.inForce[k].Amount), max(burst, w.inForce[k].Burst)
			}
			most := burst + amount*(to.at-from.at)/modelWindow.Milliseconds()
			if sum > most {
				return fmt.Sprintf("from %d to %d: %d of %d", from.at-modelBegin, to.at-modelBegin, sum, most)
			}
		}
	}
	return ""
}

// Over any span, the buckets of all regions together admit no more than one bucket.
func TestG8_SharesOfBucketsNeverAddUpToMore(t *testing.T) {
	for seed := range *lives {
		if broken, steps := newWorld(uint64(seed), true).run(150); broken != "" {
			t.Fatalf("seed %d: %s after\n%s", seed, broken, strings.Join(steps, "\n"))
		}
	}
}

// Once all regions have followed and the windows have ended, each region has its whole share.
func TestSharesSettle(t *testing.T) {
	for seed := range *lives / 2 {
		w := newWorld(uint64(seed), seed%2 == 0)
		w.run(100)
		for range 2 * MaxHeld {
			w.now += 200_000
			for _, r := range w.regions {
				r.cut = false
				w.follow(r)
				for _, n := range r.nodes {
					n.authority = true
					w.use(r, n)
				}
				w.report(r)
			}
			w.mark()
		}
		primary := w.primary.state
		if last := primary.Regions.inForce(); last != nil && last.RecordedAt == 0 {
			t.Fatalf("seed %d: held are %s", seed, held(primary))
		}
		w.now += 400_000
		for _, r := range w.regions {
			share, _ := w.limit(r, r.nodes[0])
			if share == nil {
				continue
			}
			set := primary.SetFor("eu")
			want := set.SharesOf(set.Rules[0], share)[r.name]
			expect.Equal(t, share.Capacity(), want, "seed %d: share of %s in %d", seed, r.name, share.WholeCapacity)
		}
	}
}
