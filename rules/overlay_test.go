package rules

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

const overlayRules = `version: 1
default_tier: free
tiers:
  free: {limits: [{limit: 1, per: 1h}]}
  pro: {limits: [{limit: 2, per: 1h}]}
rules:
  - {name: tenant, key: [tenant], tiered: true}
  - {name: pair, key: [tenant, ip], limits: [{limit: 3, per: 1h}]}
  - {name: wide, key: [ip], tiered: true, ipv6_prefix: 32}
  - {name: search, match: {endpoint: "/s*"}, key: [ip], limits: [{limit: 4, per: 1h}]}
`

// The values that random entries and checks choose from.
var (
	overlayConditions = map[string][]string{
		"ip": {"192.0.2.7", "192.0.2.8", "192.0.2.0/24", "2001:db8::1", "2001:db8::/32",
			"2001:db8::/64", "64:ff9b::/96", "0.0.0.0/0", "x*"},
		"tenant":   {"acme", "globex", "a*", "*x", "*"},
		"endpoint": {"/s", "/search", "/s*", "*h", "/login"},
		"only":     {"here", "*"},
	}
	overlayChecks = map[string][]string{
		"ip": {"192.0.2.7", "::ffff:192.0.2.8", "192.0.2.200", "2001:db8::1", "2001:db8::2",
			"2001:db8:1::1", "64:ff9b::cb00:7101", "203.0.113.1", "xyz"},
		"tenant":   {"acme", "globex", "box", "apex"},
		"endpoint": {"/s", "/search", "/login", "/x"},
		"only":     {"here", "there"},
	}
	overlaySubjects = map[string][]string{
		// no two of them in a group: there, any entry counts first
		"ip":     {"192.0.2.7", "2001:db8::1", "2001:db9::2", "xyz"},
		"tenant": {"acme", "globex", "box"},
	}
)

// pick returns a random element.
func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// sortedKeys are the keys of a table in a fixed order, so that seeds repeat.
func sortedKeys(m map[string][]string) (list []string) {
	for k := range m {
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}

func randomListed(r *rand.Rand) string {
	var parts []string
	for _, name := range sortedKeys(overlayConditions) {
		if r.IntN(3) > 0 {
			continue
		}
		values := []string{fmt.Sprintf("%q", pick(r, overlayConditions[name]))}
		if r.IntN(4) == 0 {
			values = append(values, fmt.Sprintf("%q", pick(r, overlayConditions[name])))
		}
		parts = append(parts, fmt.Sprintf("%s: [%s]", name, strings.Join(values, ", ")))
	}
	if len(parts) == 0 {
		return `{tenant: "acme"}`
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func randomSubject(r *rand.Rand, attribute string) string {
	var parts []string
	if r.IntN(3) > 0 {
		parts = append(parts, "tier: "+pick(r, []string{"free", "pro"}))
	}
	if rule := pick(r, []string{"pair", "wide", "search", "tenant"}); (rule != "search" ||
		attribute == "ip") && (rule != "wide" || attribute == "ip") && (rule != "tenant" ||
		attribute == "tenant") && r.IntN(2) == 0 {
		parts = append(parts, fmt.Sprintf("limits: {%s: [{limit: %d, per: 1h}]}", rule, 10+r.IntN(5)))
	}
	if len(parts) == 0 {
		parts = append(parts, "tier: pro")
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// beside is a random set of entries.
type beside struct{ state *entries.State }

func (b *beside) add(t *testing.T, set *Set, r *rand.Rand) {
	t.Helper()
	var f document.EntryForm
	var err error
	base := set
	switch r.IntN(3) {
	case 0:
		text := randomListed(r)
		f, err = base.Document.ReadListed(entries.Deny, []byte(text))
	case 1:
		text := randomListed(r)
		f, err = base.Document.ReadListed(entries.Allow, []byte(text))
	default:
		attribute := pick(r, sortedKeys(overlaySubjects))
		f, err = set.Document.ReadSubject(attribute, pick(r, overlaySubjects[attribute]), []byte(randomSubject(r, attribute)))
	}
	expect.NoError(t, err)
	if b.state, err = b.state.With(entries.Change{Entry: f.Entry}); err != nil {
		t.Fatal(err)
	}
}

func (b *beside) remove(t *testing.T, r *rand.Rand) {
	t.Helper()
	all := b.state.Sorted()
	if len(all) == 0 {
		return
	}
	var err error
	if b.state, err = b.state.With(entries.Change{Entry: pick(r, all), Remove: true}); err != nil {
		t.Fatal(err)
	}
}

// document returns the document with the entries in it. Entries of subjects go before what it has.
func (b *beside) document(t *testing.T, doc *document.Document) *document.Document {
	t.Helper()
	next := *doc
	next.Deny, next.Allow = slices.Clone(doc.Deny), slices.Clone(doc.Allow)
	groups := map[string]map[string]*document.SubjectSpec{}
	for _, g := range doc.Subjects {
		groups[g.Attribute] = map[string]*document.SubjectSpec{}
		for _, s := range g.Subjects {
			groups[g.Attribute][s.Value] = s
		}
	}
	for _, e := range b.state.Sorted() {
		switch e.Kind {
		case entries.Deny:
			next.Deny = append(next.Deny, &document.ListEntry{Match: document.ConditionsOf(e)})
		case entries.Allow:
			next.Allow = append(next.Allow, &document.ListEntry{Match: document.ConditionsOf(e)})
		case entries.Subject:
			spec, err := document.SubjectOf(e)
			expect.NoError(t, err)
			merged := &document.SubjectSpec{Value: e.Value}
			if groups[e.Attribute] == nil {
				groups[e.Attribute] = map[string]*document.SubjectSpec{}
			}
			if have := groups[e.Attribute][e.Value]; have != nil {
				*merged = *have
			}
			merged.Tier = cmp.Or(spec.Tier, merged.Tier)
			overridden := func(o document.Override) bool {
				return slices.ContainsFunc(spec.Overrides, func(by document.Override) bool { return by.Rule == o.Rule })
			}
			merged.Overrides = append(slices.DeleteFunc(slices.Clone(merged.Overrides), overridden), spec.Overrides...)
			groups[e.Attribute][e.Value] = merged
		}
	}
	next.Subjects = nil
	for attribute, byValue := range groups {
		g := &document.Group{Attribute: attribute}
		for _, s := range byValue {
			g.Subjects = append(g.Subjects, s)
		}
		slices.SortFunc(g.Subjects, func(a, b *document.SubjectSpec) int { return strings.Compare(a.Value, b.Value) })
		next.Subjects = append(next.Subjects, g)
	}
	return &next
}

// outcome describes a match.
func outcome(m *Match) string {
	var b strings.Builder
	fmt.Fprint(&b, m.List)
	for _, h := range m.Hits {
		fmt.Fprintf(&b, " %s:%d", h.Rule.Name, h.Limits[0].Amount)
	}
	return b.String()
}

func randomCheck(r *rand.Rand) (attrs []Attribute) {
	for _, name := range sortedKeys(overlayChecks) {
		if r.IntN(4) > 0 {
			attrs = append(attrs, Attribute{name, pick(r, overlayChecks[name])})
		}
	}
	return attrs
}

// TestEntriesAreAsInTheDocument compares sets with entries beside the document,
// compiled change by change and all at once, with the set of a document that
// has the same entries in it.
func TestEntriesAreAsInTheDocument(t *testing.T) {
	histories := 400
	if testing.Short() {
		histories = 60
	}
	for n := range histories {
		r := rand.New(rand.NewPCG(5, uint64(n)))
		base := mustCompile(t, overlayRules)
		b := &beside{state: entries.New()}
		for range r.IntN(4) {
			b.add(t, base, r) // these go into the document
		}
		doc, err := document.Parse(b.document(t, base.Document).JSON())
		expect.NoError(t, err)
		if base, err = Compile(doc, 1); err != nil {
			t.Fatal(err)
		}
		b.state = entries.New()
		step, m := base.WithEntries(b.state, nil), &Match{}
		for range 12 {
			if r.IntN(3) == 0 {
				b.remove(t, r)
			} else {
				b.add(t, base, r)
			}
			step = step.WithEntries(b.state, step)
			want, err := Compile(b.document(t, doc), 1)
			expect.NoError(t, err)
			whole := base.WithEntries(b.state, nil)
			for range 20 {
				attrs := randomCheck(r)
				var oracle Match
				want.Match(attrs, nil, &oracle)
				for _, set := range []*Set{step, whole} {
					if set.Match(attrs, nil, m); outcome(m) != outcome(&oracle) {
						t.Fatalf("history %d: %v: %s; want %s, as of\n%s", n, attrs, outcome(m),
							outcome(&oracle), want.Document.JSON())
					}
				}
			}
		}
		for b.state.Len() > 0 {
			b.remove(t, r)
			step = step.WithEntries(b.state, step)
		}
		if step.overlay != nil || step.hasLists != base.hasLists {
			t.Fatalf("history %d: without entries, the overlay is %v, lists %v; want none, %v", n,
				step.overlay, step.hasLists, base.hasLists)
		}
	}
}

// put returns s with an entry.
func put(t *testing.T, s *entries.State, f document.EntryForm, err error) *entries.State {
	t.Helper()
	expect.NoError(t, err)
	next, err := s.With(entries.Change{Entry: f.Entry})
	expect.NoError(t, err)
	return next
}

func TestEntriesEndByTheClock(t *testing.T) {
	base := mustCompile(t, overlayRules)
	deny, err := base.Document.ReadListed(entries.Deny,
		[]byte(`{ip: 192.0.2.7, until: "1970-01-01T00:00:10Z", note: why}`))
	s := put(t, entries.New(), deny, err)
	tier, err := base.Document.ReadSubject("tenant", "acme", []byte(`{tier: pro, until: "1970-01-01T00:00:10Z"}`))
	set := base.WithEntries(put(t, s, tier, err), nil)
	for now, want := range map[int64]string{1: "2 tenant:2 pair:3 wide:1",
		9999: "2 tenant:2 pair:3 wide:1", 10000: "0 tenant:1 pair:3 wide:1"} {
		m := &Match{Now: now}
		set.Match([]Attribute{{"ip", "192.0.2.7"}, {"tenant", "acme"}}, nil, m)
		expect.Equal(t, outcome(m), want, "at %d", now)
	}
	past := base.WithPastEntries(s)
	expect.Equal(t, past.overlay.listItems, 1, "past entries")
}

func TestBlocksByHand(t *testing.T) {
	base := mustCompile(t, overlayRules).Keyed([]byte("secret"))
	s := put(t, entries.New(),
		document.EntryForm{Entry: &entries.Entry{Kind: entries.Block, Rule: "pair",
			Key: []string{"acme", "192.0.2.7"}, Until: 5000}},
		nil)
	s = put(t, s, document.EntryForm{Entry: &entries.Entry{Kind: entries.Block, Rule: "gone", Key: []string{"x"}}}, nil)
	s = put(t, s, document.EntryForm{Entry: &entries.Entry{Kind: entries.Block, Rule: "tenant", Key: []string{"box"}}}, nil)
	set := base.WithEntries(s, nil)
	expect.Equal(t, set.Asleep(), 1, "asleep")
	m := &Match{Now: 4999}
	for _, tt := range []struct {
		tenant, ip string
		now        int64
		want       string
	}{
		{"acme", "::ffff:192.0.2.7", 4999, "0 5000 0"}, {"acme", "192.0.2.7", 5000, "0 0 0"},
		{"acme", "192.0.2.8", 1, "0 0 0"},
		{"box", "192.0.2.7", 1, fmt.Sprint(entries.Forever, 0, 0)},
	} {
		m.Now = tt.now
		set.Match([]Attribute{{"ip", tt.ip}, {"tenant", tt.tenant}}, nil, m)
		var got []string
		for i := range m.Hits {
			got = append(got, fmt.Sprint(set.BlockedUntil(m, &m.Hits[i])))
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%+v: blocked until %s; want %s", tt, got, tt.want)
		}
	}
}

// TestBlocksOfOneSubject: blocks that became those of one subject when the
// document changed hold together until the last of them ends, and one can end
// without the other. Nodes that compile only the change agree with those that
// have just started.
func TestBlocksOfOneSubject(t *testing.T) {
	base := mustCompile(t, `version: 1
rules: [{name: login, key: [ip], ipv6_prefix: 48, limits: [{limit: 5, per: 1h}]}]`)
	block := func(key string, until int64) document.EntryForm {
		return document.EntryForm{Entry: &entries.Entry{Kind: entries.Block, Rule: "login", Key: []string{key}, Until: until}}
	}
	const first, second = "2001:db8:0:1::", "2001:db8:0:2::"
	remove := func(s *entries.State, key string) *entries.State {
		next, err := s.With(entries.Change{Entry: block(key, 0).Entry, Remove: true})
		expect.NoError(t, err)
		return next
	}
	blockedUntil := func(set *Set, now int64) int64 {
		m := &Match{Now: now}
		set.Match(attrs("ip=2001:db8:0:3::1"), nil, m)
		return set.BlockedUntil(m, &m.Hits[0])
	}

	for _, keys := range [][2]string{{first, second}, {second, first}} {
		short := put(t, entries.New(), block(keys[0], 5000), nil)
		both := put(t, short, block(keys[1], 9000), nil)
		endless := put(t, both, block(keys[1], 0), nil)
		set := base.WithEntries(short, nil)

		for _, step := range []struct {
			state *entries.State
			now   int64
			want  int64
		}{
			{both, 1, 9000}, {both, 8999, 9000}, {both, 9000, 0},
			{remove(both, keys[1]), 1, 5000}, {both, 1, 9000}, {remove(both, keys[0]), 6000, 9000},
			{endless, 1, entries.Forever}, {remove(endless, keys[0]), 1, entries.Forever}, {remove(endless, keys[1]), 1, 5000},
			{entries.New(), 1, 0},
		} {
			set = base.WithEntries(step.state, set)
			got, fresh := blockedUntil(set, step.now), blockedUntil(base.WithEntries(step.state, nil), step.now)
			if got != step.want || fresh != step.want {
				t.Errorf("%d blocks at %d: blocked until %d, on a node that has just started %d; want %d",
					step.state.Len(), step.now, got, fresh, step.want)
			}
		}
	}
}

func TestEntriesSleep(t *testing.T) {
	base := mustCompile(t, overlayRules)
	f, err := base.Document.ReadSubject("tenant", "acme", []byte("{tier: pro, limits: {pair: [{limit: 9, per: 1h}]}}"))
	s := put(t, entries.New(), f, err)
	without := mustCompile(t, "version: 1\nrules: [{name: tenant, key: [tenant], limits: [{limit: 7, per: 1h}]}]")
	for _, tt := range []struct {
		set    *Set
		asleep int
		want   string
	}{{base, 0, "0 tenant:2 pair:9"}, {without, 1, "0 tenant:7"}} {
		set := tt.set.WithEntries(s, base.WithEntries(s, nil)) // entries compiled for another document don't count
		m := &Match{}
		set.Match([]Attribute{{"tenant", "acme"}, {"ip", "203.0.113.9"}}, nil, m)
		got := strings.TrimSuffix(outcome(m), " wide:1")
		if set.Asleep() != tt.asleep || set.IsAsleep(f.Entry) != (tt.asleep == 1) || got != tt.want {
			t.Errorf("%d asleep, %s; want %d, %s", set.Asleep(), got, tt.asleep, tt.want)
		}
	}
}

// A block that is stored for no subject of the document sleeps, however it got there.
func TestBlocksOfNoSubjectSleep(t *testing.T) {
	set := mustCompile(t, `version: 1
attributes: {user: {fold: [trim]}, ip: {}}
rules:
  - {name: one, key: [user], limits: [{limit: 7, per: 1h}]}
  - {name: either, key: [[user, ip]], limits: [{limit: 7, per: 1h}]}
  - {name: two, key: [user, ip], limits: [{limit: 7, per: 1h}]}`)
	s := entries.New()
	stored := []*entries.Entry{
		{Kind: entries.Block, Rule: "one", Key: []string{""}}, {Kind: entries.Block, Rule: "one", Key: []string{"  "}},
		{Kind: entries.Block, Rule: "one"}, {Kind: entries.Block, Rule: "two", Key: []string{"x", ""}},
		{Kind: entries.Block, Rule: "either", Key: []string{"user="}},
		{Kind: entries.Block, Rule: "either", Key: []string{""}},
	}
	for _, e := range stored {
		s = put(t, s, document.EntryForm{Entry: e}, nil)
	}
	with := set.WithEntries(s, nil)
	if with.Asleep() != len(stored) {
		t.Errorf("got %d asleep, want all %d", with.Asleep(), len(stored))
	}
	expect.Equal(t, with.WithEntries(entries.New(), with).Asleep(), 0, "asleep without entries")
}

func TestEntriesLeaveGlobalLimitsAlone(t *testing.T) {
	const text = `version: 1
tiers: {free: {limits: [{limit: 10, per: 1h, algorithm: fixed-window}]}, pro: {limits: [{limit: 20, per: 1h, algorithm: fixed-window}]}}
default_tier: free
rules:
  - {name: world, key: [tenant], scope: global, tiered: true}
  - {name: here, key: [tenant], tiered: true}
`
	set := mustCompile(t, text)
	for _, body := range []string{"tier: pro", "limits: {world: [{limit: 1, per: 1h, algorithm: fixed-window}]}"} {
		_, err := set.Document.ReadSubject("tenant", "acme", []byte(body))
		if err == nil || !strings.Contains(err.Error(), "write it in the document") {
			t.Errorf("%s: %v; want an error", body, err)
		}
	}
	s := put(t, entries.New(),
		document.EntryForm{Entry: &entries.Entry{Kind: entries.Subject, Attribute: "tenant", Value: "acme", Tier: "pro"}},
		nil)
	m := &Match{}
	set.WithEntries(s, nil).Match([]Attribute{{"tenant", "acme"}}, nil, m)
	if got, want := outcome(m), "0 world:10 here:20"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
}

// BenchmarkMatchBeside100000Entries measures a check's match with entries
// beside the document, in it, and without any.
func BenchmarkMatchBeside100000Entries(b *testing.B) {
	base := mustCompile(b, overlayRules)
	s := entries.New()
	for i := range entries.MaxEntries {
		e := &entries.Entry{Kind: entries.Deny,
			Match: []entries.Condition{{Attribute: "ip",
				Values: []string{fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}}}}
		if i%2 == 0 {
			e = &entries.Entry{Kind: entries.Subject, Attribute: "tenant", Value: fmt.Sprint("t", i), Tier: "pro"}
		}
		s, _ = s.With(entries.Change{Entry: e})
	}
	doc := *base.Document
	group := &document.Group{Attribute: "tenant"}
	for e := range s.All {
		if e.Kind == entries.Deny {
			doc.Deny = append(doc.Deny, &document.ListEntry{Match: document.ConditionsOf(e)})
		} else {
			group.Subjects = append(group.Subjects, &document.SubjectSpec{Value: e.Value, Tier: e.Tier})
		}
	}
	slices.SortFunc(group.Subjects, func(a, b *document.SubjectSpec) int { return strings.Compare(a.Value, b.Value) })
	doc.Subjects = []*document.Group{group}
	inside, err := Compile(&doc, 1)
	expect.NoError(b, err)
	beside := base.WithEntries(s, nil)
	for name, set := range map[string]*Set{"beside": beside, "inside": inside, "none": base} {
		b.Run(name, func(b *testing.B) {
			m := &Match{}
			attrs := []Attribute{{"ip", "203.0.113.9"}, {"tenant", "t77778"}, {"endpoint", "/x"}}
			b.ReportAllocs()
			for b.Loop() {
				set.Match(attrs, nil, m)
			}
		})
	}
	b.Run("from a snapshot", func(b *testing.B) {
		text, err := s.AppendBinary(nil)
		expect.NoError(b, err)
		b.ReportAllocs()
		for b.Loop() {
			_, err := entries.Parse(text)
			expect.NoError(b, err)
		}
	})
	b.Run("compile all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			base.WithEntries(s, nil)
		}
	})
	one := &entries.Entry{Kind: entries.Deny,
		Match: []entries.Condition{{Attribute: "ip", Values: []string{"192.0.2.1"}}}}
	s, _ = s.With(entries.Change{Entry: s.Sorted()[0], Remove: true})
	beside = beside.WithEntries(s, beside)
	b.Run("one more", func(b *testing.B) {
		for b.Loop() {
			next, err := s.With(entries.Change{Entry: one})
			expect.NoError(b, err)
			beside.WithEntries(next, beside)
		}
	})
}
