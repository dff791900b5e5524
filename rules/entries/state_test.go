package entries

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// model is the naive form of a State: all entries by ID, with the version.
type model struct {
	byID    map[string]*Entry
	version int64
}

func (m *model) sorted() []string {
	var list []string
	for _, id := range slices.Sorted(maps.Keys(m.byID)) {
		e := m.byID[id]
		list = append(list, fmt.Sprint(id, e.Until, e.Note, e.By, e.Scoped))
	}
	return list
}

// check compares s with the model.
func (m *model) check(t *testing.T, s *State) {
	t.Helper()
	if s.Version() != m.version {
		t.Fatalf("version %d; want %d", s.Version(), m.version)
	}
	var got []string
	counts := [kinds]int{}
	bytes, ending := 0, 0
	for _, e := range s.Sorted() {
		got = append(got, fmt.Sprint(e.ID(), e.Until, e.Note, e.By, e.Scoped))
		counts[e.Kind]++
		bytes += e.size()
		if e.Until != 0 {
			ending++
		}
	}
	if want := m.sorted(); !slices.Equal(got, want) {
		t.Fatalf("entries %q; want %q", got, want)
	}
	if s.Len() != len(m.byID) || s.counts != counts || s.bytes != bytes || s.expiring != ending {
		t.Fatalf("%d entries, counts %v, %d bytes, %d ending; want %d, %v, %d, %d", s.Len(),
			s.counts, s.bytes, s.expiring,
			len(m.byID), counts, bytes, ending)
	}
}

// randomEntry returns one of few entries, so that histories replace and remove them.
func randomEntry(r *rand.Rand) *Entry {
	e := &Entry{By: fmt.Sprint("by", r.IntN(3)), Note: fmt.Sprint("n", r.IntN(9)),
		Token: fmt.Sprint("t", r.IntN(2)), Scoped: r.IntN(3) == 0}
	if r.IntN(2) == 0 {
		e.Until = int64(1 + r.IntN(100))
	}
	name := fmt.Sprint("v", r.IntN(6))
	switch e.Kind = Kind(1 + r.IntN(4)); e.Kind {
	case Subject:
		e.Attribute, e.Value, e.Tier = "tenant", name, "pro"
	case Block:
		e.Rule, e.Key = "login", []string{name}
	default:
		e.Match = []Condition{{"user", []string{name}}}
	}
	return e
}

// step makes a random change of both, and compares the errors.
func (m *model) step(t *testing.T, r *rand.Rand, s *State) *State {
	t.Helper()
	if r.IntN(10) == 0 {
		now := int64(r.IntN(60))
		next, n := s.Expire(now)
		want := 0
		for id, e := range m.byID {
			if e.Until != 0 && e.Until <= now {
				delete(m.byID, id)
				want++
			}
		}
		m.version += int64(n)
		if n != want || hasExpired(s, now) != (n > 0) {
			t.Fatalf("%d entries ended at %d, has %v; want %d", n, now, hasExpired(s, now), want)
		}
		return next
	}
	c := Change{Entry: randomEntry(r), When: int64(r.IntN(100)), By: "me", Remove: r.IntN(3) == 0,
		Scoped: r.IntN(3) == 0}
	id := c.Entry.ID()
	have := m.byID[id]
	next, err := s.With(c)
	switch {
	case c.Remove && have == nil:
		if !errors.Is(err, ErrNotFound) {
			t.Fatalf("remove %s: %v; want %v", id, err, ErrNotFound)
		}
	case c.Scoped && have != nil && !have.Scoped:
		if !errors.Is(err, ErrScope) {
			t.Fatalf("change %s: %v; want %v", id, err, ErrScope)
		}
	case err != nil:
		t.Fatal(err)
	default:
		m.version++
		delete(m.byID, id)
		if !c.Remove {
			m.byID[id] = c.Entry
		}
	}
	if err != nil {
		return s
	}
	return next
}

var allHistories = flag.Int("histories", 600, "random histories; a quarter in a short run; make models has more")

// histories returns how many random histories to try.
func histories() int {
	if testing.Short() {
		return *allHistories / 4
	}
	return *allHistories
}

// TestRandomHistories compares states with the naive model, what Diff finds
// with what differs, and two regions that follow: one after each change, by
// records, and one that lags and loses pages on the way.
func TestRandomHistories(t *testing.T) {
	for n := range histories() {
		r := rand.New(rand.NewPCG(11, uint64(n)))
		m, s := &model{byID: map[string]*Entry{}}, New()
		near, far := New(), New()
		seen := New()
		for range 5 + r.IntN(40) {
			s = m.step(t, r, s)
			near = followRecords(t, s, near)
			if r.IntN(8) == 0 {
				far = followSlowly(t, r, m, &s, far)
			}
			if r.IntN(4) == 0 {
				checkDiff(t, seen, s)
				seen = s
			}
		}
		far = followSlowly(t, r, m, &s, far)
		near = followRecords(t, s, near)
		m.check(t, s)
		m.check(t, near)
		m.check(t, far)
		if near.Digest() != s.Digest() || far.Digest() != s.Digest() {
			t.Fatalf("history %d: digests %x and %x; want %x", n, near.Digest(), far.Digest(), s.Digest())
		}
		checkRoundTrip(t, s)
	}
}

// followRecords makes a follower follow all records of s.
func followRecords(t *testing.T, s, follower *State) *State {
	t.Helper()
	for follower.Version() != s.Version() {
		list, ok := s.Since(follower.Version(), follower.Digest(), 500)
		if !ok {
			t.Fatalf("version %d does not continue version %d", s.Version(), follower.Version())
		}
		next, err := follower.Follow(list)
		expect.NoError(t, err)
		follower = next
	}
	return follower
}

// followSlowly makes a follower follow s by pages, while s goes on changing,
// and then by records. Half of the times the follower begins with something
// else.
func followSlowly(t *testing.T, r *rand.Rand, m *model, s **State, follower *State) *State {
	t.Helper()
	if r.IntN(2) == 0 {
		follower, _ = follower.With(Change{Entry: randomEntry(r), By: "stray"})
	}
	first := (*s).Page("", 300)
	for p := first; ; p = (*s).Page(p.UpTo, 300) {
		p.Version, p.Digest = first.Version, first.Digest
		next, err := follower.FollowPage(p)
		expect.NoError(t, err)
		follower = next
		if p.IsLast() {
			break
		}
		*s = m.step(t, r, *s)
	}
	return followRecords(t, *s, follower)
}

// checkDiff checks that Diff finds exactly what differs.
func checkDiff(t *testing.T, old, now *State) {
	t.Helper()
	patched := map[string]*Entry{}
	for e := range old.All {
		patched[e.ID()] = e
	}
	now.Diff(old, func(before, after *Entry) {
		if before != nil {
			if patched[before.ID()] != before {
				t.Fatalf("%s was not there", before.ID())
			}
			delete(patched, before.ID())
		}
		if after != nil {
			patched[after.ID()] = after
		}
	})
	for e := range now.All {
		if patched[e.ID()] != e {
			t.Fatalf("%s is missing from the difference", e.ID())
		}
	}
	if len(patched) != now.Len() {
		t.Fatalf("%d entries after the difference; want %d", len(patched), now.Len())
	}
}

// checkRoundTrip checks that a state survives encoding.
func checkRoundTrip(t *testing.T, s *State) {
	t.Helper()
	b, err := s.AppendBinary(nil)
	expect.NoError(t, err)
	again, err := Parse(b)
	expect.NoError(t, err)
	c, err := again.AppendBinary(nil)
	if err != nil || string(b) != string(c) {
		t.Fatalf("encoded again: %v\n%s\nwant\n%s", err, c, b)
	}
	if again.bytes != s.bytes || again.expiring != s.expiring || again.log.n != s.log.n {
		t.Fatalf("parsed: %d bytes, %d ending, %d records; want %d, %d, %d", again.bytes,
			again.expiring, again.log.n, s.bytes, s.expiring, s.log.n)
	}
}

func deny(value string, until int64, token string) *Entry {
	return &Entry{Kind: Deny, Match: []Condition{{"user", []string{value}}}, Until: until, Token: token}
}

// fill adds n entries, named from first on.
func fill(t *testing.T, s *State, first, n int, until int64, token string) *State {
	t.Helper()
	for i := range n {
		next, err := s.With(Change{Entry: deny(fmt.Sprint(first+i), until, token), When: 1})
		if err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
		s = next
	}
	return s
}

func mustBeFull(t *testing.T, s *State, e *Entry) {
	t.Helper()
	if _, err := s.With(Change{Entry: e}); !errors.Is(err, ErrFull) {
		t.Fatalf("one more: %v; want %v", err, ErrFull)
	}
}

// hasExpired reports whether an entry of s has ended by now.
func hasExpired(s *State, now int64) bool {
	end := s.FirstEnd(now)
	return end != 0 && end <= now
}

// After the entry that ends first is gone, FirstEnd tells the real first end.
func TestFirstEndAfterARemoval(t *testing.T) {
	s := fill(t, New(), 0, 1, 50, "")
	s = fill(t, s, 1, 1, 90, "")
	s, err := s.With(Change{Entry: deny("0", 50, ""), Remove: true})
	expect.NoError(t, err)
	if got := s.FirstEnd(60); got != 90 || hasExpired(s, 60) || !hasExpired(s, 90) {
		t.Errorf("got the end %d, expired %v and %v; want 90, not before it", got, hasExpired(s, 60), hasExpired(s, 90))
	}

	s, err = s.With(Change{Entry: deny("1", 90, ""), Remove: true})
	expect.NoError(t, err)
	expect.Equal(t, s.FirstEnd(60), 0, "the end without entries")
}

func TestBoundsOfPlaces(t *testing.T) {
	s := fill(t, New(), 0, maxExpiringOfToken, 99, "a")
	mustBeFull(t, s, deny("more", 99, "a"))
	if _, err := s.With(Change{Entry: deny("1", 77, "a")}); err != nil {
		t.Errorf("an entry that exists can't be replaced: %v", err)
	}
	s = fill(t, s, maxExpiringOfToken, maxExpiring-maxExpiringOfToken, 99, "")
	mustBeFull(t, s, deny("more", 99, "b"))
	s = fill(t, s, maxExpiring, MaxEntries-maxExpiring, 0, "")
	mustBeFull(t, s, deny("more", 0, ""))
	expect.Equal(t, len(s.Log(0, MaxEntries)), MaxChanges, "the log has changes")
	for want := maxExpiring; want > 0; {
		next, n := s.Expire(100)
		if n == 0 {
			t.Fatalf("%d entries are left that have ended", want)
		}
		s, want = next, want-n
	}
	if s.Len() != MaxEntries-maxExpiring || hasExpired(s, 1000) {
		t.Errorf("%d entries after the end; want %d", s.Len(), MaxEntries-maxExpiring)
	}
}

func TestBoundOfBytes(t *testing.T) {
	s := New()
	var err error
	for i := 0; err == nil; i++ {
		e := deny(fmt.Sprintf("%01000d", i), 0, "")
		var next *State
		if next, err = s.With(Change{Entry: e}); err == nil {
			s = next
		}
	}
	if !errors.Is(err, ErrFull) || s.Bytes() > MaxBytes || s.Bytes() < MaxBytes-4096 {
		t.Errorf("%d bytes, then %v; want nearly %d, then %v", s.Bytes(), err, MaxBytes, ErrFull)
	}
}

func TestInvalidEntries(t *testing.T) {
	for name, e := range map[string]*Entry{
		"no kind":        {},
		"no conditions":  {Kind: Deny},
		"foreign field":  {Kind: Deny, Match: []Condition{{"user", []string{"a"}}}, Tier: "pro"},
		"no values":      {Kind: Deny, Match: []Condition{{"user", nil}}},
		"no tier":        {Kind: Subject, Attribute: "tenant", Value: "a"},
		"no rule":        {Kind: Block, Key: []string{"a"}},
		"long value":     deny(string(make([]byte, MaxValue+1)), 0, ""),
		"invalid UTF-8":  deny("\xff", 0, ""),
		"note with \\n":  {Kind: Deny, Match: []Condition{{"user", []string{"a"}}}, Note: "a\nb"},
		"past":           deny("a", -1, ""),
		"limits, broken": {Kind: Subject, Attribute: "tenant", Value: "a", Limits: []byte("{")},
	} {
		if s, err := New().With(Change{Entry: e}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, %v; want %v", name, s, err, ErrInvalid)
		}
	}
}

func BenchmarkOneMoreOf100000(b *testing.B) {
	s := New()
	for i := range MaxEntries - 1 {
		s, _ = s.With(Change{Entry: deny(fmt.Sprint(i), 0, "")})
	}
	e := deny("one more", 0, "")
	for b.Loop() {
		next, err := s.With(Change{Entry: e})
		if err != nil || next.Len() != MaxEntries {
			b.Fatal(err)
		}
	}
}
