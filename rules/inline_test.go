package rules

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

func keyedSet(t *testing.T, text string) *Set {
	t.Helper()
	doc, err := document.Parse([]byte("version: 1\n" + text))
	expect.NoError(t, err)
	set, err := Compile(doc, 1)
	expect.NoError(t, err)
	return set.Keyed([]byte("secret"))
}

// inlineHit returns the hit of a subject that brings its limits.
func inlineHit(t *testing.T, set *Set, q *InlineSubject) Hit {
	t.Helper()
	var m Match
	expect.NoError(t, set.MatchInline(q, true, &m))
	return m.Hits[0]
}

func TestInlineMistakes(t *testing.T) {
	for _, tt := range []struct {
		document string
		limit    document.InlineLimit
		why      string
	}{
		{"", document.InlineLimit{Limit: -1, Per: "1m"}, "limits[0].limit: -1 is not in 0…"},
		{"", document.InlineLimit{Limit: 1 << 53, Per: "1m"}, "limits[0].limit: 9007199254740992 is not in"},
		{"", document.InlineLimit{Limit: 1, Per: "1x"}, "limits[0].per: \"1x\" is not a duration"},
		{"", document.InlineLimit{Limit: 1, Per: "367d"}, "limits[0].per: 367d is not in 10ms…366d"},
		{"", document.InlineLimit{Limit: 1, PerMS: 9}, "limits[0].per: 9ms is not in"},
		{"", document.InlineLimit{Limit: 1, PerMS: 1 << 53}, "is not in 10ms…366d"},
		{"", document.InlineLimit{Limit: 1}, "limits[0]: per is missing"},
		{"", document.InlineLimit{Limit: 1, Per: "1m", PerMS: 5000}, "limits[0].per_ms: per and per_ms exclude each other"},
		{"", document.InlineLimit{Limit: 1, Per: "1m", Algorithm: "bucket"}, "limits[0].algorithm: \"bucket\" is not one of"},
		{"", document.InlineLimit{Limit: 1, Per: "day", Algorithm: "token-bucket"},
			"limits[0].algorithm: calendar windows are for fixed-window"},
		{"", document.InlineLimit{Limit: 1, Per: "1m", Burst: 2}, "limits[0].burst: burst is for token-bucket"},
		{"", document.InlineLimit{Limit: 1, Per: "1m", Burst: -1, Algorithm: "token-bucket"}, "limits[0].burst: -1 is not in"},
		{"", document.InlineLimit{Limit: 1, Per: "day", TZ: "Mars/Base"}, "limits[0].tz: \"Mars/Base\" is not a time zone"},
		{"", document.InlineLimit{Limit: 1, Per: "1m", Name: "a\nb"}, "limits[0].name: a name can't contain control characters"},
		{"", document.InlineLimit{Limit: 1, Per: "1m", Unit: strings.Repeat("u", 129)},
			"limits[0].unit: a name can't be longer than 128 bytes"},
		{"", document.InlineLimit{Limit: 1, Per: "1m", From: "now"}, "limits[0].from: \"now\" is not one of first, clock"},
		{"", document.InlineLimit{Limit: 1, Per: "1m", From: "first"}, "limits[0].from: first is for fixed-window"},
		{"", document.InlineLimit{Limit: 1, Per: "day", From: "first"}, "limits[0].from: first is for fixed-window"},
		{"inline: {max_limit: 10}", document.InlineLimit{Limit: 11, Per: "1m"},
			"limits[0].limit: the rules allow no more than 10"},
		{"inline: {max_limit: 10}",
			document.InlineLimit{Limit: 1, Per: "1m", Algorithm: "token-bucket", Burst: 11},
			"limits[0].burst: the rules allow no more than 10"},
		{"inline: {max_per: 1h}", document.InlineLimit{Limit: 1, Per: "61m"}, "limits[0].per: the rules allow no more than 1h"},
		{"inline: {max_per: 1h}", document.InlineLimit{Limit: 1, Per: "day"}, "limits[0].per: the rules allow no more than 1h"},
	} {
		var m Match
		err := keyedSet(t, tt.document).MatchInline(&InlineSubject{Limits: []document.InlineLimit{tt.limit}}, true, &m)
		if !errors.Is(err, ErrInline) || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%+v: have %v, want %q", tt.limit, err, tt.why)
		}
	}
	var m Match
	one := document.InlineLimit{Limit: 1, Per: "60s"}
	err := keyedSet(t, "").MatchInline(&InlineSubject{Limits: []document.InlineLimit{one, {Limit: 2, Per: "1m"}}}, true, &m)
	if !errors.Is(err, ErrInline) ||
		!strings.Contains(err.Error(), "limits[0] has the same unit, algorithm and window") {
		t.Errorf("have %v", err)
	}
	set := keyedSet(t, "")
	expect.NoError(t, set.MatchInline(&InlineSubject{Key: []string{"k"}, Limits: []document.InlineLimit{one}}, true, &m))
	if err := set.MatchInline(&InlineSubject{Namespace: InlineName, Key: []string{"k"},
		Limits: []document.InlineLimit{{Limit: 9, Per: "1h"}}}, false, &m); !errors.Is(err, ErrInline) {
		t.Errorf("a subject is given twice: %v", err)
	}
}

func TestInlineNamespaces(t *testing.T) {
	q := func(namespace string) *InlineSubject {
		return &InlineSubject{Namespace: namespace, Limits: []document.InlineLimit{{Limit: 1, Per: "1m"}}}
	}
	for _, tt := range []struct{ document, namespace, name string }{ // name is empty where it is refused
		{"", "", "inline"}, {"", "any", "inline"},
		{"inline: {allow: false}", "", ""}, {"inline: {allow: false, namespaces: [a]}", "a", ""},
		{"inline: {namespaces: [a, team-*]}", "a", "inline/a"},
		{"inline: {namespaces: [a, team-*]}", "team-x", "inline"},
		{"inline: {namespaces: [a, team-*]}", "b", ""}, {"inline: {namespaces: [a, team-*]}", "", ""},
		{"inline: {namespaces: ['*', a]}", "b", "inline"}, {"inline: {namespaces: ['*', a]}", "a", "inline/a"},
		{"inline: {allow: true, max_limit: 5}", "b", "inline"},
	} {
		var m Match
		set := keyedSet(t, tt.document)
		switch err := set.MatchInline(q(tt.namespace), true, &m); {
		case tt.name == "" && !errors.Is(err, ErrNamespace):
			t.Errorf("%s, %q: have %v", tt.document, tt.namespace, err)
		case tt.name != "" &&
			(err != nil || m.Hits[0].Rule.Name != tt.name || set.Names()[m.Hits[0].Rule.Index] != tt.name):
			t.Errorf("%s, %q: have %v, %+v", tt.document, tt.namespace, err, m.Hits)
		}
	}
	// A rule may have the name of inline limits; then it counts both.
	set := keyedSet(t, "rules: [{name: inline, key: [], limits: [{limit: 1, per: 1m}]}]")
	if h := inlineHit(t, set, q("")); h.Rule.Index != 0 || len(set.Names()) != 1 {
		t.Errorf("have index %d of %q", h.Rule.Index, set.Names())
	}
}

// TestInlineIdentity: amounts, names and order don't tell counters apart; unit,
// algorithm, window, namespace and key do.
func TestInlineIdentity(t *testing.T) {
	set := keyedSet(t, "rules: [{name: n, key: [k], limits: [{limit: 5, per: 1m}]}]")
	base := InlineSubject{Namespace: "n", Key: []string{"k"}, Limits: []document.InlineLimit{{Limit: 5, Per: "1m"}}}
	first := inlineHit(t, set, &base)
	with := func(change func(*InlineSubject)) Hit {
		q := base
		q.Key, q.Limits = append([]string{}, q.Key...), append([]document.InlineLimit{}, q.Limits...)
		change(&q)
		return inlineHit(t, set, &q)
	}
	for name, h := range map[string]Hit{
		"amount":      with(func(q *InlineSubject) { q.Limits[0].Limit = 9 }),
		"name":        with(func(q *InlineSubject) { q.Limits[0].Name = "x" }),
		"spelling":    with(func(q *InlineSubject) { q.Limits[0].Per = "60s" }),
		"in ms":       with(func(q *InlineSubject) { q.Limits[0] = document.InlineLimit{Limit: 5, PerMS: 60_000} }),
		"consistency": with(func(q *InlineSubject) { q.Exact = true }),
		"shadow":      with(func(q *InlineSubject) { q.Shadow = true }),
	} {
		if h.Subject != first.Subject || h.Limits[0].ID != first.Limits[0].ID ||
			h.Rule == first.Rule && name != "spelling" {
			t.Errorf("another %s is another counter, or the same rule", name)
		}
	}
	for name, h := range map[string]Hit{
		"unit":      with(func(q *InlineSubject) { q.Limits[0].Unit = "tokens" }),
		"algorithm": with(func(q *InlineSubject) { q.Limits[0].Algorithm = "fixed-window" }),
		"window":    with(func(q *InlineSubject) { q.Limits[0].Per = "2m" }),
		"from":      with(func(q *InlineSubject) { q.Limits[0].Algorithm, q.Limits[0].From = "fixed-window", "first" }),
	} {
		if h.Subject != first.Subject || h.Limits[0].ID == first.Limits[0].ID {
			t.Errorf("another %s is the same counter", name)
		}
	}
	seen := map[Hash]string{first.Subject: "itself"}
	var m Match
	expect.NoError(t, set.MatchKey(set.Rules[0], []string{"k"}, &m))
	seen[m.Hits[0].Subject] = "a rule's subject"
	for name, h := range map[string]Hit{
		"namespace": with(func(q *InlineSubject) { q.Namespace = "m" }),
		"none":      with(func(q *InlineSubject) { q.Namespace = "" }),
		"key":       with(func(q *InlineSubject) { q.Key = []string{"kk"} }),
		"no key":    with(func(q *InlineSubject) { q.Key = nil }),
		"empty":     with(func(q *InlineSubject) { q.Key = []string{""} }),
		"two":       with(func(q *InlineSubject) { q.Key = []string{"k", ""} }),
		"moved":     with(func(q *InlineSubject) { q.Namespace, q.Key = "nk", []string{""} }),
		"cut":       with(func(q *InlineSubject) { q.Key = []string{"", "k"} }),
	} {
		if other, twice := seen[h.Subject]; twice {
			t.Errorf("%s is the same subject as %s", name, other)
		}
		seen[h.Subject] = name
	}
	a, b := document.InlineLimit{Limit: 1, Per: "1m"}, document.InlineLimit{Limit: 2, Per: "1h"}
	there := with(func(q *InlineSubject) { q.Limits = []document.InlineLimit{a, b} })
	back := with(func(q *InlineSubject) { q.Limits = []document.InlineLimit{b, a} })
	for i := range there.Limits {
		if there.Limits[i].ID != back.Limits[i].ID || there.Limits[i].CallIndex == back.Limits[i].CallIndex {
			t.Errorf("limit %d: sets in another order differ: %+v, %+v", i, there.Limits[i], back.Limits[i])
		}
	}
	if h := with(func(q *InlineSubject) {
		q.Limits[0].Algorithm, q.Limits[0].From = "fixed-window",
			"first"
	}); h.Rule.Consistency != Exact || h.Limits[0].Kind != algorithms.FirstWindow {
		t.Errorf("have %v, %v", h.Rule.Consistency, h.Limits[0].Kind)
	}
}

// TestInlineSetsAreBounded: a set is compiled once; beyond the bound each call
// compiles its own, which is not kept.
func TestInlineSetsAreBounded(t *testing.T) {
	set := keyedSet(t, "")
	ask := func(limit int) *Rule {
		return inlineHit(t, set, &InlineSubject{Limits: []document.InlineLimit{{Limit: int64(limit), Per: "1m"}}}).Rule
	}
	for i := 1; i <= maxInterned; i++ {
		if r := ask(i); r.ForOneCall {
			t.Fatalf("set %d is not kept", i)
		}
	}
	if a, b := ask(maxInterned+1), ask(maxInterned+1); a == b || !a.ForOneCall || !b.ForOneCall ||
		set.Interned() != maxInterned {
		t.Errorf("sets beyond the bound are kept: %d", set.Interned())
	}
	for _, i := range []int{1, maxInterned} {
		if first := ask(i); first.ForOneCall || ask(i) != first {
			t.Errorf("set %d is no longer kept", i)
		}
	}
	if other := keyedSet(t, ""); other.Interned() != 0 {
		t.Error("another Set has the interned sets, too")
	}
}

// TestInlineKeepsNothingOfTheCall: an interned set must not point into a request's buffer.
func TestInlineKeepsNothingOfTheCall(t *testing.T) {
	buffer := []byte("1hfixed-windowtokensnameUTC")
	at := func(from, to int) string { return unsafe.String(&buffer[from], to-from) }
	set := keyedSet(t, "")
	h := inlineHit(t, set, &InlineSubject{Namespace: at(0, 2), Limits: []document.InlineLimit{
		{Limit: 1, Per: at(0, 2), Algorithm: at(2, 14), Unit: at(14, 20), Name: at(20, 24), TZ: at(24, 27)},
	}})
	for i := range buffer {
		buffer[i] = 'x'
	}
	l := h.Limits[0]
	if text := fmt.Sprint(l.Per, l.Unit, l.Name, h.Rule.Name); strings.Contains(text, "x") {
		t.Errorf("the set changed with the buffer: %s", text)
	}
	same := InlineSubject{Limits: []document.InlineLimit{{Limit: 1, Per: "1h", Algorithm: "fixed-window",
		Unit: "tokens", Name: "name", TZ: "UTC"}}}
	if inlineHit(t, set, &same).Rule != h.Rule {
		t.Error("the set is not found again")
	}
}

// TestKeysWithOneCounter: in the namespaces of the commands of Redis, all
// limits of a key are one counter. What could not be one is refused.
func TestKeysWithOneCounter(t *testing.T) {
	set := keyedSet(t, "")
	cell := document.InlineLimit{Limit: 5, Per: "5s", Burst: 5, Algorithm: "token-bucket"}
	first := document.InlineLimit{Limit: 5, Per: "5s", Algorithm: "fixed-window", From: "first"}
	for namespace, l := range map[string]document.InlineLimit{CellNamespace: cell, ThrottleNamespace: cell,
		IncrexNamespace: first} {
		other := l
		other.Limit, other.Per, other.Unit = 7, "1h", "tokens"
		a := inlineHit(t, set, &InlineSubject{Namespace: namespace, Key: []string{"k"}, Limits: []document.InlineLimit{l}})
		b := inlineHit(t, set, &InlineSubject{Namespace: namespace, Key: []string{"k"}, Limits: []document.InlineLimit{other}})
		kept := SoleCounterLimit(namespace)
		for _, have := range []*Limit{a.Limits[0], b.Limits[0]} {
			if have.ID != kept.ID || have.Kind != kept.Kind {
				t.Errorf("%s: have %x, %v, want %x, %v", namespace, have.ID, have.Kind, kept.ID, kept.Kind)
			}
		}
		if a.Subject != b.Subject || a.Rule.Consistency != Exact {
			t.Errorf("%s: have %+v and %+v", namespace, a, b)
		}
	}
	if SoleCounterLimit("other") != nil ||
		inlineHit(t, set,
			&InlineSubject{Namespace: "other", Limits: []document.InlineLimit{cell}}).Limits[0].Kind != algorithms.TokenBucket {
		t.Error("another namespace has them, too")
	}

	high := cell
	high.Limit, high.Burst, high.Per = 1_000_000_001, 1, "1s"
	for _, tt := range []struct {
		namespace, want string
		limits          []document.InlineLimit
	}{
		{CellNamespace, "limits: in the namespace", []document.InlineLimit{cell, high}},
		{CellNamespace, "limits[0].algorithm: in the namespace", []document.InlineLimit{first}},
		{ThrottleNamespace, "limits[0].algorithm: in the namespace", []document.InlineLimit{{Limit: 1, Per: "1s"}}},
		{IncrexNamespace, "limits[0].from: in the namespace",
			[]document.InlineLimit{{Limit: 1, Per: "1s", Algorithm: "fixed-window"}}},
		{IncrexNamespace, "limits[0].from: in the namespace", []document.InlineLimit{cell}},
		{CellNamespace, "limits[0].limit: in the namespace \"cl\", at most one per nanosecond", []document.InlineLimit{high}},
	} {
		var m Match
		err := set.MatchInline(&InlineSubject{Namespace: tt.namespace, Limits: tt.limits}, true, &m)
		if !errors.Is(err, ErrInline) || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("have %v, want %q", err, tt.want)
		}
	}
}
