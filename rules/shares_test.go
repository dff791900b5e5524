package rules

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

func compiled(t testing.TB, version int64, text string) *Set {
	t.Helper()
	doc, err := document.Parse([]byte("version: 1\n" + text))
	expect.NoError(t, err)
	s, err := Compile(doc, version)
	expect.NoError(t, err)
	return s
}

// shareOf returns the share of the only hit, for one subject.
func shareOf(t testing.TB, s *Set, wall time.Time, attributes ...Attribute) []*Limit {
	t.Helper()
	var m Match
	s.Match(attributes, nil, &m)
	if len(m.Hits) != 1 {
		t.Fatalf("have %d hits", len(m.Hits))
	}
	s.ApplyShares(&m, wall.UnixNano())
	return m.Hits[0].Limits
}

const worldWide = `rules:
  - {name: w, key: [tenant], scope: global, tiered: true%s}
tiers:
  a: {limits: [{limit: %d, per: 1m, algorithm: fixed-window}, {limit: 60, per: 1m, algorithm: token-bucket, burst: 7}]}
  b: {limits: [{limit: 9000, per: 1m, algorithm: fixed-window}]}
default_tier: a
subjects:
  tenant:
    big: {tier: b}
    own: {limits: {w: [{limit: %d, per: 1m, algorithm: fixed-window}]}}
`

func TestShareOfOneView(t *testing.T) {
	s := compiled(t, 1, fmt.Sprintf(worldWide, ", regions: {eu: 0.5, us: 0.3, ap: 0.2}", 900, 10))
	names := []string{"ap", "eu", "us"}
	wall := time.Unix(1_800_000_000, 0)
	tenant := func(name string) Attribute { return Attribute{"tenant", name} }
	for _, tt := range []struct {
		region, tenant       string
		amount, burst, whole int64
	}{
		{"eu", "x", 450, 4, 900}, {"us", "x", 270, 2, 900}, {"ap", "x", 180, 1, 900}, {"zz", "x", 0, 0, 900},
		{"eu", "big", 4500, 0, 9000}, {"us", "own", 3, 0, 10},
	} {
		shared := s.WithShares(&DividingVersions{Region: tt.region, Held: []HeldVersion{{Set: s, Regions: names}}})
		limits := shareOf(t, shared, wall, tenant(tt.tenant))
		if l := limits[0]; l.Amount != tt.amount || l.WholeCapacity != tt.whole {
			t.Errorf("%s of %s: have %d of %d, want %+v", tt.region, tt.tenant, l.Amount, l.WholeCapacity, tt)
		}
		if len(limits) > 1 && (limits[1].Burst != tt.burst || limits[1].WholeCapacity != 7) {
			t.Errorf("%s of %s: have burst %d of %d, want %+v", tt.region, tt.tenant,
				limits[1].Burst, limits[1].WholeCapacity, tt)
		}
		if again := shareOf(t, shared, wall.Add(time.Hour), tenant(tt.tenant)); again[0] != limits[0] {
			t.Errorf("%s of %s: the share was built again", tt.region, tt.tenant)
		}
		if plain := shareOf(t, s, wall, tenant(tt.tenant)); plain[0].Amount != tt.whole ||
			plain[0].WholeCapacity != 0 || plain[0].ID != limits[0].ID {
			t.Errorf("%s of %s: without shares have %+v", tt.region, tt.tenant, plain[0])
		}
		rule := s.Rule("w")
		expect.Equal(t, shared.SharesOf(rule, limits[0])[tt.region], tt.amount, "%s of %s: usage", tt.region, tt.tenant)
	}
	shared := s.WithShares(&DividingVersions{Region: "eu", Held: []HeldVersion{{Set: s, Regions: names}}})
	limits := shareOf(t, shared, wall, tenant("x"))
	if have := shared.SharesOf(s.Rule("w"), limits[1]); !maps.Equal(have, map[string]int64{"eu": 4, "us": 2, "ap": 1}) {
		t.Errorf("the bucket's: have %v", have)
	}
	if s.SharesOf(s.Rule("w"), limits[0]) != nil || s.DividingVersions() != nil || shared.DividingVersions().Region != "eu" {
		t.Error("a set without shares has some")
	}
	alone := s.WithShares(&DividingVersions{Region: "eu", Held: []HeldVersion{{Set: s, Regions: []string{"eu"}}}})
	if l := shareOf(t, alone, wall, tenant("own"))[0]; l.Amount != 5 && l.Amount != 10 {
		t.Errorf("alone: have %d", l.Amount)
	}
}

// A single region gets its part, and a bucket without an amount has no burst.
func TestShareOfFew(t *testing.T) {
	wall := time.Unix(1_800_000_000, 0)
	s := compiled(t, 1,
		"rules:\n  - {name: w, key: [], scope: global, regions: {eu: 0.5, us: 0.5}, limits: [{limit: 10, per: 1m, algorithm: fixed-window}]}\n")
	alone := s.WithShares(&DividingVersions{Region: "eu", Held: []HeldVersion{{Set: s, Regions: []string{"eu"}}}})
	if l := shareOf(t, alone, wall)[0]; l.Amount != 5 || l.WholeCapacity != 10 {
		t.Errorf("alone, with parts: have %d of %d, want 5 of 10", l.Amount, l.WholeCapacity)
	}
	s = compiled(t, 1,
		"rules:\n  - {name: w, key: [], scope: global, limits: [{limit: 2, per: 1m, algorithm: token-bucket, burst: 9}]}\n")
	names := []string{"ap", "eu", "us"}
	us := s.WithShares(&DividingVersions{Region: "us", Held: []HeldVersion{{Set: s, Regions: names}}})
	if l := shareOf(t, us, wall)[0]; l.Amount != 0 || l.Burst != 0 || l.WholeCapacity != 9 {
		t.Errorf("have %+v", l.Limit)
	}
	if have := us.SharesOf(s.Rule("w"), s.Rules[0].ownLimits[0]); !maps.Equal(have,
		map[string]int64{"ap": 3, "eu": 3, "us": 0}) {
		t.Errorf("have %v", have)
	}
}

// Which amount counts when a limit, its parts or the regions change.
func TestShareOfViews(t *testing.T) {
	const window = 60
	begin := time.Unix(1_800_000_000, 0) // start of a window
	set := func(limit int, regions string) *Set {
		if limit == 0 {
			return compiled(t, 1, "rules: []\n")
		}
		return compiled(t, 1,
			fmt.Sprintf("rules:\n  - {name: w, key: [], scope: global, regions: %s, limits: [{limit: %d, per: 1m, algorithm: fixed-window}]}\n", regions, limit))
	}
	const even, most, none = "{eu: 0.5, us: 0.5}", "{eu: 0.9, us: 0.1}", "{zz: 1}"
	both := []string{"eu", "us"}
	at := func(seconds int64) int64 { return begin.UnixMilli() + 1000*seconds }
	for _, tt := range []struct {
		name  string
		held  []HeldVersion
		after int // seconds after begin
		want  [2]int64
	}{
		{"lowered, not recorded",
			[]HeldVersion{{Set: set(100, even), Regions: both, RecordedAt: at(-900)}, {Set: set(60, even), Regions: both}},
			5, [2]int64{30, 30}},
		{"raised, not recorded",
			[]HeldVersion{{Set: set(60, even), Regions: both, RecordedAt: at(-900)}, {Set: set(100, even), Regions: both}},
			5, [2]int64{30, 30}},
		{"raised, recorded in the window",
			[]HeldVersion{{Set: set(60, even), Regions: both, RecordedAt: at(-900)}, {Set: set(100, even), Regions: both, RecordedAt: at(3)}},
			5, [2]int64{50, 50}},
		{"parts, not recorded",
			[]HeldVersion{{Set: set(100, most), Regions: both, RecordedAt: at(-900)}, {Set: set(100, even), Regions: both}},
			5, [2]int64{50, 10}},
		{"parts, recorded in the window",
			[]HeldVersion{{Set: set(100, most), Regions: both, RecordedAt: at(-900)}, {Set: set(100, even), Regions: both, RecordedAt: at(3)}},
			5, [2]int64{90, 10}},
		{"parts, recorded before the window",
			[]HeldVersion{{Set: set(100, most), Regions: both, RecordedAt: at(-900)}, {Set: set(100, even), Regions: both, RecordedAt: at(-3)}},
			5, [2]int64{50, 50}},
		{"the window has just begun",
			[]HeldVersion{{Set: set(100, most), Regions: both, RecordedAt: at(-900)}, {Set: set(100, even), Regions: both, RecordedAt: at(-3)}},
			0, [2]int64{50, 10}},
		{"there and back in a window",
			[]HeldVersion{{Set: set(100, most), Regions: both, RecordedAt: at(-900)},
				{Set: set(100, even), Regions: both, RecordedAt: at(1)},
				{Set: set(100, most), Regions: both, RecordedAt: at(2)}},
			5, [2]int64{90, 10}},
		{"back, and more, but not for all",
			[]HeldVersion{{Set: set(100, most), Regions: both, RecordedAt: at(-900)},
				{Set: set(60, even), Regions: both, RecordedAt: at(1)},
				{Set: set(100, even), Regions: both, RecordedAt: at(2)}},
			5, [2]int64{54, 6}},
		{"parts, not honoured when the window began",
			[]HeldVersion{{Set: set(100, most), Regions: both, RecordedAt: at(-900)},
				{Set: set(100, even), Regions: both, NotHonouredAt: at(2) * 1e6}},
			5, [2]int64{90, 10}},
		{"parts, honoured when it began perhaps",
			[]HeldVersion{{Set: set(100, most), Regions: both, RecordedAt: at(-900)},
				{Set: set(100, even), Regions: both, NotHonouredAt: at(1) * 1e6}},
			5, [2]int64{50, 10}},
		{"parts and less, not honoured when it began",
			[]HeldVersion{{Set: set(100, most), Regions: both, RecordedAt: at(-900)},
				{Set: set(60, even), Regions: both, NotHonouredAt: at(2) * 1e6}},
			5, [2]int64{54, 6}},
		{"parts, the window is nearly over",
			[]HeldVersion{{Set: set(100, most), Regions: both, RecordedAt: at(-900)},
				{Set: set(100, even), Regions: both, NotHonouredAt: at(2) * 1e6}},
			59, [2]int64{50, 10}},
		{"parts, recorded after another primary perhaps did",
			[]HeldVersion{{Set: set(100, most), Regions: both, RecordedAt: at(-900)},
				{Set: set(100, even), Regions: both, RecordedAt: at(3), Doubtful: true}},
			5, [2]int64{50, 10}},
		{"the same, not honoured when the window began",
			[]HeldVersion{{Set: set(100, most), Regions: both, RecordedAt: at(-900)},
				{Set: set(100, even), Regions: both, RecordedAt: at(3), Doubtful: true, NotHonouredAt: at(2) * 1e6}},
			5, [2]int64{90, 10}},
		{"raised after that",
			[]HeldVersion{{Set: set(100, most), Regions: both, RecordedAt: at(-900)},
				{Set: set(100, even), Regions: both, RecordedAt: at(3), Doubtful: true},
				{Set: set(120, most), Regions: both, RecordedAt: at(4)}},
			5, [2]int64{50, 10}},
		{"of the first versions, none recorded",
			[]HeldVersion{{Set: set(100, none), Regions: both[:1]},
				{Set: set(100, none), Regions: both, NotHonouredAt: at(2) * 1e6}},
			5, [2]int64{100, 0}},
		{"three, the middle one honoured perhaps",
			[]HeldVersion{{Set: set(90, even), Regions: both, RecordedAt: at(-900)},
				{Set: set(90, most), Regions: both}, {Set: set(30, even), Regions: both}},
			5, [2]int64{15, 3}},
		{"the candidate",
			[]HeldVersion{{Set: set(100, even), Regions: both, RecordedAt: at(-900)},
				{Set: set(100, most), Regions: both}, {Set: set(100, even), Regions: both}},
			5, [2]int64{50, 10}},
		{"what was before is not known",
			[]HeldVersion{{Set: set(100, most), Regions: both, RecordedAt: at(1)}, {Set: set(200, most), Regions: both, RecordedAt: at(2)}},
			5, [2]int64{90, 10}},
		{"a new region, from what was nobody's",
			[]HeldVersion{{Set: set(100, even), Regions: both[:1], RecordedAt: at(-900)}, {Set: set(100, even), Regions: both, RecordedAt: at(2)}},
			5, [2]int64{50, 50}},
		{"a new region",
			[]HeldVersion{{Set: set(100, none), Regions: both[:1], RecordedAt: at(-900)}, {Set: set(100, none), Regions: both, RecordedAt: at(2)}},
			5, [2]int64{100, 0}},
		{"a new limit",
			[]HeldVersion{{Set: set(0, even), Regions: both, RecordedAt: at(-900)}, {Set: set(100, even), Regions: both}},
			5, [2]int64{50, 50}},
		{"a new limit, recorded",
			[]HeldVersion{{Set: set(0, even), Regions: both, RecordedAt: at(-900)}, {Set: set(100, most), Regions: both, RecordedAt: at(-70)}},
			5, [2]int64{90, 10}},
		{"other IDs",
			[]HeldVersion{{Set: compiled(t, 1,
				"rules:\n  - {name: w, key: [], scope: global, limits: [{limit: 4, per: 1h, algorithm: fixed-window}]}\n"), Regions: both, RecordedAt: at(-900)}, {Set: set(100,
				even), Regions: both}},
			5, [2]int64{50, 50}},
		{"of one region's scope",
			[]HeldVersion{{Set: compiled(t, 1,
				"rules:\n  - {name: w, key: [], limits: [{limit: 4, per: 1m, algorithm: fixed-window}]}\n"), Regions: both, RecordedAt: at(-900)}, {Set: set(100,
				even), Regions: both}},
			5, [2]int64{50, 50}},
		{"no longer committed",
			[]HeldVersion{{Set: set(100, even), Regions: both, RecordedAt: at(-900)}, {Set: set(100, even), Regions: both[:1]}},
			5, [2]int64{50, 0}},
	} {
		for i, region := range both {
			last := tt.held[len(tt.held)-1].Set
			s := last.WithShares(&DividingVersions{Region: region, Held: tt.held})
			wall := begin.Add(time.Duration(tt.after) * time.Second)
			expect.Equal(t, shareOf(t, s, wall)[0].Amount, tt.want[i], "%s: %s", tt.name, region)
			// Two windows after the last record, only the last version counts.
			if tt.held[len(tt.held)-1].RecordedAt > 0 {
				alone := last.WithShares(&DividingVersions{Region: region, Held: tt.held[len(tt.held)-1:]})
				later := wall.Add(2*window*time.Second + time.Second)
				if have, want := shareOf(t, s, later)[0].Amount, shareOf(t, alone, later)[0].Amount; have != want {
					t.Errorf("%s: %s has %d later, want %d", tt.name, region, have, want)
				}
			}
		}
	}
}

// The example of docs/design/regions.md: us is cut off while versions 2 and 3
// are written in eu, and comes back on the next day.
func TestSharesOfTwoDays(t *testing.T) {
	midnight := time.Unix(1_800_057_600, 0)
	at := func(days, hours, minutes int) time.Time {
		return midnight.Add(time.Duration(days)*24*time.Hour + time.Duration(hours)*time.Hour +
			time.Duration(minutes)*time.Minute)
	}
	version := func(number int64, limit int, regions string) *Set {
		return compiled(t, number, fmt.Sprintf("rules:\n  - {name: w, key: [], scope: global, regions: %s, "+
			"limits: [{limit: %d, per: 24h, algorithm: fixed-window}]}\n", regions, limit))
	}
	both := []string{"eu", "us"}
	sets := []*Set{
		version(1, 1000, "{eu: 0.7, us: 0.3}"),
		version(2, 1000, "{eu: 0.5, us: 0.5}"),
		version(3, 400, "{eu: 0.7, us: 0.3}"),
	}

	// held is what a region holds that has applied versions at these times, and
	// knows since when they are recorded.
	held := func(recordedAt time.Time, appliedAt ...time.Time) []HeldVersion {
		versions := []HeldVersion{{Set: sets[0], Regions: both, RecordedAt: at(-20, 0, 0).UnixMilli()}}
		for i, applied := range appliedAt {
			v := HeldVersion{Set: sets[i+1], Regions: both, NotHonouredAt: applied.UnixNano()}
			if !recordedAt.IsZero() {
				v.RecordedAt = recordedAt.UnixMilli()
			}
			versions = append(versions, v)
		}
		return versions
	}
	never, written2, written3, back := time.Time{}, at(0, 12, 0), at(0, 15, 0), at(1, 9, 0)
	recorded := back.Add(5 * time.Second)

	for _, tt := range []struct {
		at     time.Time
		eu, us []HeldVersion
		want   [2]int64
	}{
		{at(0, 11, 59), held(never), held(never), [2]int64{700, 300}},
		{at(0, 12, 1), held(never, written2), held(never), [2]int64{700, 300}},
		{at(0, 15, 1), held(never, written2, written3), held(never), [2]int64{280, 300}},
		{at(1, 0, 1), held(never, written2, written3), held(never), [2]int64{200, 300}},
		{back.Add(time.Second), held(never, written2, written3), held(never, back, back), [2]int64{200, 120}},
		{at(1, 9, 1), held(recorded, written2, written3), held(recorded, back, back), [2]int64{280, 120}},
		{at(2, 0, 1), held(recorded, written2, written3), held(recorded, back, back), [2]int64{280, 120}},
	} {
		for i, versions := range [][]HeldVersion{tt.eu, tt.us} {
			last := versions[len(versions)-1].Set
			s := last.WithShares(&DividingVersions{Region: both[i], Held: versions})
			have := shareOf(t, s, tt.at)[0].Amount
			expect.Equal(t, have, tt.want[i], "%s after %v", both[i], tt.at.Sub(midnight))
		}
	}
}

// A share that was looked up in one window admits nothing in the next, where
// another region may have more of the limit.
func TestShareHoldsInItsWindow(t *testing.T) {
	begin := time.Unix(1_800_000_000, 0) // start of a window
	set := func(parts string) *Set {
		return compiled(t, 1, "rules:\n  - {name: w, key: [], scope: global, regions: "+parts+
			", limits: [{limit: 100, per: 1m, algorithm: fixed-window}]}\n")
	}
	both, last := []string{"eu", "us"}, set("{eu: 0.5, us: 0.5}")
	s := last.WithShares(&DividingVersions{Region: "eu", Held: []HeldVersion{
		{Set: set("{eu: 0.9, us: 0.1}"), Regions: both, RecordedAt: begin.UnixMilli() - 900_000},
		{Set: last, Regions: both, RecordedAt: begin.UnixMilli() + 3_000},
	}})
	share := func(after time.Duration) *Limit { return shareOf(t, s, begin.Add(after))[0] }

	early := share(5 * time.Second)
	if again := share(58900 * time.Millisecond); again != early {
		t.Error("the share was computed again in its window")
	}
	next := share(61500 * time.Millisecond)
	if early.Amount != 90 || next.Amount != 50 {
		t.Fatalf("the shares are %d and then %d, want 90 and 50", early.Amount, next.Amount)
	}
	for _, tt := range []struct {
		limit *Limit
		after time.Duration
		want  bool
	}{
		{early, 59900 * time.Millisecond, true},
		{early, time.Minute, false},
		{early, 3 * time.Hour, false}, // the clock was set forward
		{next, time.Minute, true},
	} {
		now := algorithms.At(begin.Add(tt.after))
		_, allowed := tt.limit.Take(algorithms.State{}, now, 1)
		expect.Equal(t, allowed, tt.want, "the share of %d admits after %v", tt.limit.Amount, tt.after)
		if d := tt.limit.Peek(algorithms.State{}, now, 1); !d.Allowed &&
			(d.RetryAfter <= 0 || d.RetryAfter > time.Second) {
			t.Errorf("refused for %v, but the next check finds another share", d.RetryAfter)
		}
	}
}

// The largest-remainder method is not monotone: a smaller amount can give a
// region more. The region must not use the gain while others use the larger
// amount.
func TestSharesAreNotMonotone(t *testing.T) {
	set := func(n, limit int) *Set {
		return compiled(t, int64(n),
			fmt.Sprintf("rules:\n  - {name: w, key: [], scope: global, regions: {a: 0.15, b: 0.05, c: 0.8}, "+
				"limits: [{limit: %d, per: 1m, algorithm: fixed-window}]}\n", limit))
	}
	names, wall := []string{"a", "b", "c"}, time.Unix(1_800_000_005, 0)
	before := HeldVersion{Set: set(1, 10), Regions: names, RecordedAt: 1}
	for _, at := range []int64{0, wall.UnixMilli()} {
		after := HeldVersion{Set: set(2, 9), Regions: names, RecordedAt: at}
		// of 10 they get 2, 0 and 8; of 9 they get 1, 1 and 7
		for region, want := range map[string]int64{"a": 1, "b": 0, "c": 7} {
			s := after.Set.WithShares(&DividingVersions{Region: region, Held: []HeldVersion{before, after}})
			expect.Equal(t, shareOf(t, s, wall)[0].Amount, want, "recorded at %d: %s", at, region)
		}
	}
}

// A process knows that a version was not honoured if it had authority before it
// applied the version.
func TestNotHonoured(t *testing.T) {
	set := func(versions ...int64) *Set {
		x := &DividingVersions{Region: "eu"}
		for _, n := range versions {
			x.Held = append(x.Held,
				HeldVersion{Set: compiled(t, n, fmt.Sprintf(worldWide, "", 900, 10)), Regions: []string{"eu", "us"}})
		}
		return x.Held[len(x.Held)-1].Set.WithShares(x)
	}
	var o NotHonoured
	for i, tt := range []struct {
		versions []int64
		now      int64
		want     []int64
	}{
		{[]int64{4, 5}, 0, []int64{0, 0}},               // without authority: it has just started
		{[]int64{4, 5, 6}, 100, []int64{0, 0, 100}},     // with authority
		{[]int64{5, 6, 7, 8}, 0, []int64{0, 100, 0, 0}}, // without authority again
		{[]int64{5, 6, 7, 8}, 200, []int64{0, 100, 0, 0}},
		{[]int64{5, 9}, 300, []int64{0, 300}},
		{[]int64{5, 6}, 400, []int64{0, 0}}, // another primary's versions, seen before
		{[]int64{6, 10}, 500, []int64{0, 500}},
	} {
		for j, v := range o.Stamp(set(tt.versions...), tt.now).DividingVersions().Held {
			if v.NotHonouredAt != tt.want[j] {
				t.Errorf("%d: version %d: have %d, want %v", i, v.Set.Version, v.NotHonouredAt, tt.want)
			}
		}
	}
}

// A subject's share is the smaller of what both versions give it by its tier and its own limits.
func TestShareFollowsSubjects(t *testing.T) {
	before := compiled(t, 1, fmt.Sprintf(worldWide, "", 900, 10))
	after := compiled(t, 2, strings.Replace(fmt.Sprintf(worldWide, "", 600, 90), "big: {tier: b}", "big: {tier: a}", 1))
	names := []string{"eu", "us"}
	s := after.WithShares(&DividingVersions{Region: "eu",
		Held: []HeldVersion{{Set: before, Regions: names, RecordedAt: 1}, {Set: after, Regions: names}}})
	wall := time.Unix(1_800_000_000, 0)
	for tenant, want := range map[string]int64{"x": 300, "big": 300, "own": 5} {
		expect.Equal(t, shareOf(t, s, wall, Attribute{"tenant", tenant})[0].Amount, want, "%s", tenant)
	}
	back := before.WithShares(&DividingVersions{Region: "eu",
		Held: []HeldVersion{{Set: after, Regions: names, RecordedAt: 1}, {Set: before, Regions: names}}})
	for tenant, want := range map[string]int64{"x": 300, "big": 300, "own": 5} {
		expect.Equal(t, shareOf(t, back, wall, Attribute{"tenant", tenant})[0].Amount, want, "back, %s", tenant)
	}
}

func TestSharesAreLowered(t *testing.T) {
	s := compiled(t, 1, `rules:
  - name: w
    key: []
    scope: global
    regions: {eu: 0.98, us: 0.02, ap: 0}
    adaptive: {source: s, steps: [{above: 0.5, factor: 0.5}]}
    limits: [{limit: 100, per: 1m, algorithm: token-bucket}]
`)
	for region, want := range map[string]int64{"eu": 49, "us": 1, "ap": 0} {
		shared := s.WithShares(&DividingVersions{Region: region, Held: []HeldVersion{{Set: s, Regions: []string{"ap", "eu", "us"}}}})
		limits := shareOf(t, shared, time.Unix(1_800_000_000, 0))
		low := s.Rules[0].Lowered(limits, 0)
		if low[0].Amount != want || low[0].Burst != want || low[0].WholeCapacity != 50 {
			t.Errorf("%s: have %d, burst %d of %d, want %d of 50", region, low[0].Amount,
				low[0].Burst, low[0].WholeCapacity, want)
		}
		if again := s.Rules[0].Lowered(shareOf(t, shared, time.Unix(1_800_000_000, 0)), 0); again[0] != low[0] {
			t.Errorf("%s: the share was built again", region)
		}
	}
}

// A check allocates nothing, whether one version counts or several.
func TestShareAllocatesNothing(t *testing.T) {
	s := compiled(t, 2, fmt.Sprintf(worldWide, "", 900, 10))
	old := compiled(t, 1, fmt.Sprintf(worldWide, "", 600, 10))
	names := []string{"eu", "us"}
	wall := time.Now()
	for name, held := range map[string][]HeldVersion{
		"one":                    {{Set: s, Regions: names}},
		"two, recorded":          {{Set: old, Regions: names, RecordedAt: 1}, {Set: s, Regions: names, RecordedAt: 1}},
		"two, moving":            {{Set: old, Regions: names, RecordedAt: 1}, {Set: s, Regions: names}},
		"two, recorded just now": {{Set: old, Regions: names, RecordedAt: 1}, {Set: s, Regions: names, RecordedAt: wall.UnixMilli()}},
	} {
		shared := s.WithShares(&DividingVersions{Region: "eu", Held: held})
		var m Match
		attributes := []Attribute{{"tenant", "own"}}
		if n := testing.AllocsPerRun(100, func() {
			shared.Match(attributes, nil, &m)
			shared.ApplyShares(&m, wall.UnixNano())
		}); n != 0 {
			t.Errorf("%s: %g allocations", name, n)
		}
	}
}

// Cached shares keep no old version in memory, and are never used for another version.
func TestSharesAreNotMixedUp(t *testing.T) {
	s := compiled(t, 1,
		"rules:\n  - {name: w, key: [], scope: global, limits: [{limit: 100, per: 1m, algorithm: fixed-window}]}\n")
	wall := time.Unix(1_800_000_000, 0)
	two := s.WithShares(&DividingVersions{Region: "eu", Held: []HeldVersion{{Set: s, Regions: []string{"eu", "us"}, RecordedAt: 1}}})
	four := s.WithShares(&DividingVersions{Region: "eu", Held: []HeldVersion{{Set: s, Regions: []string{"ap", "eu", "us", "za"}, RecordedAt: 1}}})
	for range 3 {
		if a, b := shareOf(t, two, wall)[0].Amount, shareOf(t, four, wall)[0].Amount; a != 50 || b != 25 {
			t.Fatalf("have %d and %d, want 50 and 25", a, b)
		}
	}
}

func TestDividesAs(t *testing.T) {
	base := fmt.Sprintf(worldWide, "", 900, 10)
	s := compiled(t, 1, base)
	for change, alike := range map[string]bool{
		base:                       true,
		base + "    # a comment\n": true,
		strings.Replace(base, "rules:\n",
			"rules:\n  - {name: other, key: [tenant], limits: [{limit: 1, per: 1m}]}\n", 1): true,
		base +
			"    more: {limits: {w: [{limit: 4, per: 1m, algorithm: fixed-window}]}}\n": false,
		base + "  user: {x: {tier: a}}\n":                     true,
		strings.Replace(base, "900", "901", 1):                false,
		strings.Replace(base, "burst: 7", "burst: 8", 1):      false,
		strings.Replace(base, "tier: b", "tier: a", 1):        false,
		strings.Replace(base, "global", "region", 1):          false,
		fmt.Sprintf(worldWide, ", regions: {eu: 1}", 900, 10): false,
	} {
		if have := compiled(t, 2, change).DividesAs(s); have != alike {
			t.Errorf("have %t for\n%s", have, change)
		}
	}
	if s.MaxGlobalSpan() < time.Minute || compiled(t, 1, numbered(5)[len("version: 1\n"):]).MaxGlobalSpan() != 0 {
		t.Errorf("have %s", s.MaxGlobalSpan())
	}
}

// Checks by several versions divide the same limits concurrently.
func TestShareInParallel(t *testing.T) {
	s := compiled(t, 2, fmt.Sprintf(worldWide, "", 900, 10))
	old := compiled(t, 1, fmt.Sprintf(worldWide, "", 600, 10))
	names := []string{"eu", "us"}
	begin := time.Unix(1_800_000_000, 0)
	two := s.WithShares(&DividingVersions{Region: "eu",
		Held: []HeldVersion{{Set: old, Regions: names[:1], RecordedAt: begin.UnixMilli() + 1},
			{Set: s, Regions: names, RecordedAt: begin.UnixMilli() + 1}}})
	four := s.WithShares(&DividingVersions{Region: "eu", Held: []HeldVersion{{Set: s, Regions: []string{"ap", "eu", "us", "za"}, RecordedAt: 1}}})
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 300 {
				set, want := two, int64(450)
				if i%2 == 0 {
					set, want = four, 225
				}
				wall := begin.Add(time.Duration(2+60*(j%2)) * time.Second)
				if i%2 == 1 && j%2 == 0 {
					want = 600
				}
				if have := shareOf(t, set, wall, Attribute{"tenant", "x"})[0].Amount; have != want {
					t.Errorf("have %d, want %d", have, want)
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkShare measures the extra cost of a check of a global rule.
func BenchmarkShare(b *testing.B) {
	s := compiled(b, 9, fmt.Sprintf(worldWide, "", 900, 10))
	names := []string{"ap", "eu", "us"}
	wall := time.Now()
	for _, versions := range []int{1, 4, 16} {
		held := []HeldVersion{{Set: s, Regions: names}}
		for i := range versions - 1 {
			held = slices.Insert(held, 0,
				HeldVersion{Set: compiled(b, int64(i), fmt.Sprintf(worldWide, "", 900+i, 10)), Regions: names})
		}
		set := s.WithShares(&DividingVersions{Region: "eu", Held: held})
		b.Run(fmt.Sprintf("%d-versions", versions), func(b *testing.B) {
			var m Match
			attributes := []Attribute{{"tenant", "own"}}
			b.ReportAllocs()
			for b.Loop() {
				set.Match(attributes, nil, &m)
				set.ApplyShares(&m, wall.UnixNano())
			}
		})
	}
}

// Cached shares keep no old version in memory, however many versions there were.
func TestSharesKeepNoOldVersions(t *testing.T) {
	names := []string{"eu", "us"}
	wall := time.Unix(1_800_000_000, 0)
	version := func(n int) *Set { return compiled(t, int64(n), fmt.Sprintf(worldWide, "", 900+n, 10)) }
	before := version(0)
	var old []weak.Pointer[document.Document]
	for n := range 5 {
		old = append(old, weak.Make(before.Document))
		next := version(n + 1)
		moving := next.WithShares(&DividingVersions{Region: "eu",
			Held: []HeldVersion{{Set: before, Regions: names, RecordedAt: 1}, {Set: next, Regions: names}}})
		shareOf(t, moving, wall, Attribute{"tenant", "x"})
		shareOf(t,
			next.WithShares(&DividingVersions{Region: "eu", Held: []HeldVersion{{Set: next, Regions: names, RecordedAt: 1}}}),
			wall, Attribute{"tenant", "x"})
		before = next
	}
	runtime.GC()
	for n, doc := range old {
		if doc.Value() != nil {
			t.Errorf("version %d is kept", n)
		}
	}
	runtime.KeepAlive(before)
}
