package agreement

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// begun returns a state with the primary region eu, and with other regions.
func begun(t testing.TB, regions ...string) *State {
	t.Helper()
	s := do(t, New(), found, SetPrimary{Region: "eu", World: WorldID{5}})
	for _, name := range regions {
		s = do(t, s, ChangeRegion{Name: name, When: 1000})
	}
	return s
}

// global returns a write of one global limit, with some parts.
func global(limit int, parts string) WriteRules {
	return WriteRules{
		Change: document.Change{Body: fmt.Appendf(nil,
			"version: 1\nrules:\n  - {name: w, key: [tenant], scope: global%s, limits: [{limit: %d, per: 1m, algorithm: fixed-window}]}\n",
			parts, limit)},
		By: "test", When: time.UnixMilli(1_800_000_000_000),
	}
}

// moved returns a state in which versions 3 and 4 are in use; 3 is the
// candidate, and 2 is recorded.
func moved(t testing.TB) *State {
	t.Helper()
	const at = int64(1_800_000_000_000)
	return do(t, begun(t, "us"), global(100, ""), Mark{Version: 1}, Mark{1, at},
		global(60, ", regions: {eu: 1}"), Mark{Version: 2}, Mark{2, at + 1}, global(90, ""),
		Mark{Version: 3}, ChangeRegion{Name: "ap", By: "ap", When: at})
}

// held lists the held versions: r means recorded, c the candidate.
func held(s *State) string {
	var out []string
	for _, h := range s.Regions.Held {
		text := fmt.Sprint(h.Version)
		if h.RecordedAt > 0 {
			text += "r"
		}
		if h.Candidate {
			text += "c"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func limitIn(t testing.TB, s *State, region string, wall time.Time) int64 {
	t.Helper()
	set := s.SetFor(region)
	var m rules.Match
	set.Match([]rules.Attribute{{Name: "tenant", Value: "x"}}, nil, &m)
	set.ApplyShares(&m, wall.UnixNano())
	return m.Hits[0].Limits[0].Amount
}

func TestPrimary(t *testing.T) {
	s := do(t, founded(New()), SetPrimary{Region: "eu", World: WorldID{5}}, SetPrimary{Region: "eu", World: WorldID{6}})
	if r := s.Regions; r.World != (WorldID{5}) || r.PrimaryEpoch != 1 || r.Primary != "eu" ||
		!slices.Equal(r.Committed, []string{"eu"}) || r.Revision != 1 {
		t.Errorf("have %+v", r)
	}
	s = do(t, s, global(100, ""))
	if _, v := s.History.Current(); v.Number != 1 || held(s) != "1r" ||
		limitIn(t, s, "eu", time.Now()) != 100 || limitIn(t, s, "us", time.Now()) != 0 {
		t.Errorf("version %d, held %s", v.Number, held(s))
	}
	s = do(t, s, ChangeRegion{Name: "us", When: 1000}, SetPrimary{Region: "us", World: WorldID{7}})
	if r := s.Regions; r.World != (WorldID{5}) || r.PrimaryEpoch != 2 || r.Primary != "us" || held(s) != "1 2" {
		t.Errorf("have %+v", r)
	}
	// A region that the old primary had not committed, with rules in force: they get a new version.
	s = do(t, s, SetPrimary{Region: "ap", World: WorldID{7}, When: 5000})
	_, v := s.History.Current()
	if r := s.Regions; r.PrimaryEpoch != 3 || !slices.Equal(r.Committed, []string{"ap", "eu", "us"}) ||
		v.Number != 3 || v.What != "region ap joins" || v.When.UnixMilli() != 5000 {
		t.Errorf("have %+v, %+v", r, v)
	}
	// Rules from before the first primary keep their number.
	old := do(t, founded(New()), global(100, ""), SetPrimary{Region: "eu", World: WorldID{5}})
	if _, v := old.History.Current(); v.Number != 1 || limitIn(t, old, "eu", time.Now()) != 100 || held(old) != "1r" {
		t.Errorf("version %d, held %s", v.Number, held(old))
	}
}

func TestRegionsJoinAndLeave(t *testing.T) {
	s := do(t, begun(t), global(90, ""))
	next, r := s.Apply(s.Index+1, encoded(t, ChangeRegion{Name: "us", By: "us", When: 77_000}))
	doc, v := next.History.Current()
	if r.Err != nil || r.Version != 2 ||
		v != (rules.Version{Number: 2, When: time.UnixMilli(77_000).UTC(), By: "us",
			What: "region us joins", Applied: 2}) ||
		len(doc.Rules) != 1 {
		t.Errorf("have %+v, %+v", r, v)
	}
	if held(next) != "1 2" || limitIn(t, next, "eu", time.Now()) != 45 || limitIn(t, next, "us", time.Now()) != 0 {
		t.Errorf("held %s", held(next))
	}
	s = do(t, next, Mark{Version: 2}, Mark{2, 100_000})
	if held(s) != "1r 2r" || limitIn(t, s, "us", time.UnixMilli(200_000)) != 45 ||
		limitIn(t, s, "us", time.UnixMilli(110_000)) != 0 {
		t.Errorf("held %s: %d, %d", held(s), limitIn(t, s, "us", time.UnixMilli(200_000)),
			limitIn(t, s, "us", time.UnixMilli(110_000)))
	}
	s = do(t, s, ChangeRegion{Name: "us", Remove: true, When: 1})
	if _, v := s.History.Current(); v.What != "region us leaves" || held(s) != "1r 2r 3" ||
		limitIn(t, s, "eu", time.UnixMilli(200_000)) != 45 ||
		limitIn(t, s, "us", time.UnixMilli(200_000)) != 0 {
		t.Errorf("have %+v, held %s", v, held(s))
	}
	// An hour later the old versions no longer count.
	s = do(t, s, Mark{Version: 3}, Mark{3, 4_000_000})
	if held(s) != "2r 3r" || limitIn(t, s, "eu", time.UnixMilli(5_000_000)) != 90 {
		t.Errorf("held %s", held(s))
	}
	// A write's time is one node's clock, which drops nothing.
	early := global(80, "")
	early.When = time.UnixMilli(900_000_000)
	if s := do(t, s, early); held(s) != "2r 3r 4" {
		t.Errorf("held %s after a write by a clock that is ten days ahead", held(s))
	}
	many := begun(t)
	for i := range MaxRegions - 1 {
		many = do(t, many, ChangeRegion{Name: fmt.Sprintf("r%02d", i)})
	}
	rejects(t, many, encoded(t, ChangeRegion{Name: "one more"}), "the most allowed")
	if len(many.Regions.Committed) != MaxRegions || !slices.IsSorted(many.Regions.Committed) {
		t.Errorf("have %v", many.Regions.Committed)
	}
}

func TestWhatIsHeld(t *testing.T) {
	s := begun(t, "us")
	for _, tt := range []struct {
		entry Entry
		want  string
	}{
		{write(1, 1), "1r"}, // nothing to divide
		{write(2, 2), "2r"},
		{global(100, ""), "2 3"},
		{global(100, ""), "2 4"}, // divides as 3 does, and replaces it
		{Mark{Version: 4}, "2 4c"},
		{global(60, ""), "2 4c 5"},
		{write(3, 3), "2 4c 5 6"},
		{Mark{4, 1_800_000_000_000}, "2r 4r 5 6"},
		{Mark{Version: 6}, "2r 4r 5 6c"},
		{write(4, 4), "2r 4r 5 6c 7"},
		{Mark{6, 1_800_000_000_001}, "2r 4r 5r 6r 7"},
		{Mark{Version: 7}, "2r 4r 5r 6r 7c"},
		{Mark{7, 1_800_000_000_002}, "2r 4r 5r 7r"}, // 6 and 7 divide nothing
		{global(60, ""), "2r 4r 5r 7r 8"},
		{Mark{Version: 8}, "2r 4r 5r 7r 8c"},
		{Mark{8, 1_900_000_000_000}, "7r 8r"}, // all windows have ended
	} {
		s = do(t, s, tt.entry)
		if have := held(s); have != tt.want {
			t.Fatalf("after %+v: have %s, want %s", tt.entry, have, tt.want)
		}
		reread(t, s)
	}
}

func TestRejectedRegions(t *testing.T) {
	s := moved(t)
	if held(s) != "1r 2r 3c 4" {
		t.Fatalf("have %s", held(s))
	}
	alone := do(t, founded(New()), global(5, ""))
	long := strings.Repeat("x", MaxRegionName+1)
	for _, tt := range []struct {
		state *State
		entry Entry
		why   string
	}{
		{s, SetPrimary{World: WorldID{1}}, "name has 1 to 64"},
		{s, SetPrimary{Region: long, World: WorldID{1}}, "name has 1 to 64"},
		{s, SetPrimary{Region: "eu"}, "no ID"},
		{s, ChangeRegion{}, "name has 1 to 64"}, {s, ChangeRegion{Name: long}, "name has 1 to 64"},
		{alone, ChangeRegion{Name: "us"}, "no primary"}, {s, ChangeRegion{Name: "us"}, "is already committed"},
		{s, ChangeRegion{Name: "eu", Remove: true}, "is the primary"},
		{alone, Mark{Version: 1}, "no primary"}, {s, Mark{Version: 4}, "version 3 of the rules is the candidate"},
		{s, Mark{4, 5}, "not the candidate"}, {s, Mark{2, 5}, "not the candidate"},
		{s, Mark{3, -5}, "not a valid time"},
		{s, Mark{3, rules.MaxRecordedAt + 1}, "not a valid time"},
		{do(t, s, Mark{3, 5}), Mark{Version: 3}, "not in force"},
		{begun(t), Mark{Version: 1}, "no rules"}, {do(t, begun(t), write(1, 1)), Mark{Version: 1}, "already recorded"},
	} {
		rejects(t, tt.state, encoded(t, tt.entry), tt.why)
		if m, ok := tt.entry.(Mark); ok {
			if err := tt.state.Regions.MarkRejection(m); err == nil || !strings.Contains(err.Error(), tt.why) {
				t.Errorf("have %v, want %q", err, tt.why)
			}
		}
	}
	if err := s.Regions.MarkRejection(Mark{3, 5}); err != nil {
		t.Error(err)
	}
	next, r := s.Apply(s.Index+1, encoded(t, ChangeRegion{Name: "za", Remove: true}))
	if !errors.Is(r.Err, document.ErrNotFound) || next.Regions != s.Regions {
		t.Errorf("have %v", r.Err)
	}
}

// Versions that no region can drop yet are bounded: a write has to wait.
func TestHeldVersionsAreBounded(t *testing.T) {
	s := begun(t, "us")
	at := int64(1_800_000_000_000)
	for n := range int64(MaxHeld - 1) {
		s = do(t, s, global(int(100+n), ""), Mark{Version: n + 1}, Mark{n + 1, at})
	}
	s = do(t, s, global(500, ""), Mark{Version: MaxHeld})
	if len(s.Regions.Held) != MaxHeld {
		t.Fatalf("have %s", held(s))
	}
	next, r := s.Apply(s.Index+1, encoded(t, global(1000, "")))
	var wrong document.Errors
	if !errors.As(r.Err, &wrong) || next.History != s.History || next.Regions != s.Regions {
		t.Errorf("have %v", r.Err)
	}
	rejects(t, s, encoded(t, ChangeRegion{Name: "za"}), "too many versions")
	reread(t, s)
	if _, r := ahead(t, s, founded(New())); r.Err != nil {
		t.Error(r.Err)
	}
	s = do(t, s, Mark{MaxHeld, at + 1000*1000}, global(1000, ""))
	expect.Equal(t, held(s), "63r 64r 65", "held(s)")
	s = do(t, s, Mark{Version: 65}, global(1001, ""))
	expect.Equal(t, held(s), "63r 64r 65c 66", "held(s)")
	expect.Equal(t, held(do(t, s, Mark{65, at + 2000*1000})), "64r 65r 66", "held, when windows have ended")
	if testing.Short() {
		return
	}
	// Fewer large documents are held.
	big := global(1, "")
	big.Change.Body = append(big.Change.Body, strings.Repeat("# "+strings.Repeat("x", 1000)+"\n", 7000)...)
	s = begun(t, "us")
	for i := range 10 {
		big.Change.Body[0], big.Change.Body[len(big.Change.Body)-2] = 'v', byte('a'+i)
		big.Change.Body = bytes.Replace(big.Change.Body, fmt.Appendf(nil, "limit: %d,", i+1),
			fmt.Appendf(nil, "limit: %d,", i+2), 1)
		s, r = s.Apply(s.Index+1, encoded(t, big))
		if r.Err != nil {
			break
		}
	}
	if !errors.As(r.Err, &wrong) || len(s.Regions.Held) < 5 {
		t.Errorf("%d versions are held, and %v", len(s.Regions.Held), r.Err)
	}
}

// followed returns the entry that s offers to other regions.
func followed(t testing.TB, s *State) Adopt {
	t.Helper()
	b, err := s.AppendAdopt(nil)
	expect.NoError(t, err)
	e, err := ParseAdopt(b)
	expect.NoError(t, err)
	return e
}

// ahead applies the entry that from offers to the state to, and returns the outcome.
func ahead(t testing.TB, from *State, to *State) (*State, Result) {
	t.Helper()
	b, err := from.AppendAdopt([]byte("x"))
	expect.NoError(t, err)
	e, err := ParseAdopt(b[1:])
	expect.NoError(t, err)
	return to.Apply(to.Index+1, encoded(t, e))
}

func TestFollow(t *testing.T) {
	s := moved(t)
	other := do(t, New(), found, global(7, ""), global(8, "")) // its own earlier rules
	for _, to := range []*State{founded(New()), other} {
		next, r := ahead(t, s, to)
		if r.Err != nil || r.Version != 4 {
			t.Fatalf("have %+v", r)
		}
		have, want := *next.Regions, *s.Regions
		for _, r := range []*Regions{&have, &want} {
			r.Held, r.cache = slices.Clone(r.Held), nil
			for i := range r.Held {
				r.Held[i].Set = nil
			}
		}
		_, v := next.History.Current()
		if _, w := s.History.Current(); !reflect.DeepEqual(have, want) || v != w || len(next.History.Versions()) != 1 {
			t.Errorf("have %+v, %+v, want %+v, %+v", have, v, want, w)
		}
		for _, region := range []string{"ap", "eu", "us", "za"} {
			for _, after := range []int64{0, 61_000, 3600_000} {
				wall := time.UnixMilli(1_800_000_000_000 + after)
				expect.Equal(t, limitIn(t, next, region, wall), limitIn(t, s, region, wall), "%s", region)
			}
		}
		if again, r := ahead(t, s, next); !errors.Is(r.Err, ErrRejected) || again.Regions != next.Regions {
			t.Errorf("again: have %+v", r)
		}
		// Later versions are added.
		later := do(t, s, Mark{3, 1_800_000_000_000},
			WriteRules{Change: document.Change{Part: document.RulePart, Name: "w", Delete: true}})
		next, r = ahead(t, later, reread(t, next))
		if r.Err != nil || r.Version != 5 || held(next) != held(later) || len(next.History.Versions()) != 2 {
			t.Errorf("have %+v, held %s", r, held(next))
		}
		// An older state of the same world is rejected, but one of a new primary epoch is accepted.
		if _, r := ahead(t, s, next); !errors.Is(r.Err, ErrRejected) {
			t.Errorf("older: have %+v", r)
		}
		back, r := ahead(t, do(t, s, SetPrimary{Region: "us", World: WorldID{5}}), next)
		if _, v := back.History.Current(); r.Err != nil || v.Number != 4 ||
			len(back.History.Versions()) != 1 || back.Regions.PrimaryEpoch != 2 {
			t.Errorf("another primary: have %+v, version %d", r, v.Number)
		}
	}
	// Even before the first rules, there is a state to follow.
	next, r := ahead(t, begun(t, "us"), founded(New()))
	if r.Err != nil || next.Regions.Primary != "eu" || next.SetFor("us") != nil || len(next.Regions.Committed) != 2 {
		t.Errorf("have %+v, %+v", r, next.Regions)
	}
	// The same rules under another primary keep the same history.
	kept, r := ahead(t, do(t, s, SetPrimary{Region: "us", World: WorldID{5}}), s)
	if r.Err != nil || kept.History != s.History {
		t.Errorf("have %+v", r)
	}
}

// The adopted state is consistent, no matter what a message contains.
func TestContradictoryFollow(t *testing.T) {
	for name, harm := range map[string]func(*Adopt){
		"world":                  func(e *Adopt) { e.World = WorldID{} },
		"primary":                func(e *Adopt) { e.Primary = "" },
		"long primary":           func(e *Adopt) { e.Primary = strings.Repeat("x", 65) },
		"primary epoch":          func(e *Adopt) { e.PrimaryEpoch = 0 },
		"negative primary epoch": func(e *Adopt) { e.PrimaryEpoch = -1 },
		"names":                  func(e *Adopt) { e.Committed = []string{"us", "eu"} },
		"too many names":         func(e *Adopt) { e.Committed = make([]string, MaxRegions+1) },
		"held names":             func(e *Adopt) { e.Held[1].Regions = []string{"eu", "eu"} },
		"order":                  func(e *Adopt) { e.Held[1].Version = 1 },
		"no version":             func(e *Adopt) { e.Held = e.Held[:1]; e.Held[0].Version = 0 },
		"last version":           func(e *Adopt) { e.Held[3].Version = 1<<63 - 1 },
		"time":                   func(e *Adopt) { e.Held[0].RecordedAt = -1 },
		"late time":              func(e *Adopt) { e.Held[1].RecordedAt = rules.MaxRecordedAt + 1 },
		"earlier time":           func(e *Adopt) { e.Held[1].RecordedAt = 5 },
		"not recorded":           func(e *Adopt) { e.Held[0].RecordedAt = 0 },
		"candidates":             func(e *Adopt) { e.Held[3].Candidate = true },
		"recorded, asked":        func(e *Adopt) { e.Held[0].Candidate = true },
		"text":                   func(e *Adopt) { e.Held[3].Text = "rulez: []" },
		"text before":            func(e *Adopt) { e.Held[0].Text = "\xff" },
	} {
		e, err := moved(t).adoption()
		expect.NoError(t, err)
		e.Committed, e.Held = slices.Clone(e.Committed), slices.Clone(e.Held)
		harm(&e)
		if n := len(e.Held); n > 0 {
			e.InForce.Number = e.Held[n-1].Version
		}
		for _, s := range []*State{New(), moved(t)} {
			s := *s
			regions := *s.Regions
			s.Regions = &regions
			s.Regions.PrimaryEpoch--
			if s.Regions.PrimaryEpoch < 0 {
				s.Regions.PrimaryEpoch = 0
			}
			next, r := s.Apply(s.Index+1, encoded(t, e))
			if !errors.Is(r.Err, ErrRejected) || next.Regions != s.Regions || next.History != s.History {
				t.Errorf("%s: have %v", name, r.Err)
			}
		}
	}
	for name, b := range map[string][]byte{
		"nothing": nil, "cut": {200, 1, '{'}, "endless": {0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"no JSON": {1, '{', 0}, "no texts": {2, '{', '}'},
		"more behind": append(wire.Deflate([]byte{2, '{', '}'}, nil), 1), "not deflated": {2, '{', '}', 99},
		"too much": make([]byte, MaxAdopt+1),
	} {
		if _, err := ParseAdopt(b); !errors.Is(err, ErrEntry) {
			t.Errorf("%s: have %v", name, err)
		}
	}
}

// Large documents that resemble one another take little more space than one.
func TestFollowIsSmall(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("version: 1\nrules:\n  - {name: w, key: [tenant], scope: global, limits: [{limit: 5, per: 1m, algorithm: fixed-window}]}\nsubjects:\n  tenant:\n")
	for i := range 1000 {
		fmt.Fprintf(&b, "    tenant-%x: {limits: {w: [{limit: %d, per: 1m, algorithm: fixed-window}]}}\n", i*i, i+1)
	}
	s := do(t, begun(t, "us"), WriteRules{Change: document.Change{Body: b.Bytes()}, When: time.UnixMilli(1)})
	for i := range 6 {
		s = do(t, s,
			WriteRules{Change: document.Change{Part: document.RulePart, Name: "w",
				Body: fmt.Appendf(nil,
					"{key: [tenant], scope: global, limits: [{limit: %d, per: 1m, algorithm: fixed-window}]}",
					i+7)}})
	}
	out, err := s.AppendAdopt(nil)
	if err != nil || len(s.Regions.Held) != 7 || len(out) > b.Len()/2 {
		t.Fatalf("%d bytes for %d documents of %d (%v)", len(out), len(s.Regions.Held), b.Len(), err)
	}
	next, r := ahead(t, s, founded(New()))
	if r.Err != nil || limitIn(t, next, "us", time.Now()) != limitIn(t, s, "us", time.Now()) {
		t.Errorf("have %+v", r)
	}
	if n := len(snapshotOf(t, s)); n > 5*b.Len() {
		t.Errorf("a snapshot of %d bytes", n)
	}
}

func TestSetForIsKept(t *testing.T) {
	s := moved(t)
	eu := s.SetFor("eu")
	if bare := (&State{History: s.History, Regions: s.Regions}); bare.SetFor("eu") != nil {
		t.Error("there are rules in force before there is a key for subjects")
	}
	if s.SetFor("us") == eu || s.SetFor("eu") != eu || eu.Version != 4 ||
		eu.DividingVersions().Region != "eu" || len(eu.DividingVersions().Held) != 4 {
		t.Error("the set is compiled again")
	}
	if next := do(t, s, Empty{}, EndNode{Node: node(5)}); next.SetFor("eu") != eu {
		t.Error("the set is compiled again after an unrelated change")
	}
	if next := do(t, s, Mark{3, 5}); next.SetFor("eu") == eu {
		t.Error("the set is kept although the shares have changed")
	}
	for i := range 100 {
		s.SetFor(fmt.Sprint(i))
	}
	if n := len(s.Regions.cache.byRegion); n > MaxRegions+1 {
		t.Errorf("%d are kept", n)
	}
	if bare := (&State{SigningKey: s.SigningKey, History: s.History,
		Regions: &Regions{Held: s.Regions.Held, Committed: s.Regions.Committed}}); bare.SetFor("eu") == nil {
		t.Error("there is none")
	}
}
