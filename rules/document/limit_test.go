package document

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestUnlimited_Parse: what says that there is no limit, or that nothing is
// allowed, is written as it was read, and only where it means something.
func TestUnlimited_Parse(t *testing.T) {
	const head = "version: 1\nrules:\n  - {name: r, key: [k], %s}\n"
	for _, limits := range []string{
		`limits: unlimited`, `limits: [{unlimited: true, unit: tokens}]`, `limits: [{limit: 0, per: 1h}]`,
		`limits: [{limit: 1, per: 1h, algorithm: fixed-window, from: first}]`,
		`limits: [{limit: 1, per: 1h}, {name: all, unlimited: true, unit: tokens}]`,
	} {
		doc, err := Parse(fmt.Appendf(nil, head, limits))
		if err != nil {
			t.Errorf("%s: %v", limits, err)
			continue
		}
		if doc.FeatureLevel() != 2 {
			t.Errorf("%s: older builds can't read it", limits)
		}
		doc.source = "" // so that it is written anew
		again, err := Parse(doc.YAML())
		if err != nil || !slices.EqualFunc(again.Rules[0].Limits, doc.Rules[0].Limits, sameLimitSpec) {
			t.Errorf("%s is written as %s, %v", limits, doc.YAML(), err)
		}
	}

	for limits, want := range map[string]string{
		`limits: [{unlimited: true, limit: 5}]`:                                                        "unlimited: true excludes limit",
		`limits: [{unlimited: true, per: 1h}]`:                                                         "unlimited: true excludes per",
		`limits: endless`:                                                                              "list",
		`limits: [{limit: 0, per: 1h, algorithm: token-bucket, burst: 5}]`:                             "a limit of 0 allows nothing at once",
		`limits: [{limit: 5, per: 1h, from: first}]`:                                                   "first is for fixed-window with a duration",
		`limits: [{limit: 5, per: day, from: first}]`:                                                  "first is for fixed-window with a duration",
		`scope: global, limits: [{limit: 5, per: 1h, algorithm: fixed-window, from: first}]`:           "windows of the clock only",
		`on_limit: delay, limits: [{limit: 5, per: 1h, algorithm: fixed-window, from: first}]`:         "can't be combined with on_limit: delay",
		`limits: [{limit: 5, per: 1h, algorithm: fixed-window, from: last}]`:                           "first",
		`limits: [{limit: 5, per: 1h, algorithm: fixed-window}, {limit: 5, per: 1h, from: sometimes}]`: "sometimes",
	} {
		if _, err := Parse(fmt.Appendf(nil, head, limits)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", limits, err, want)
		}
	}
}

func sameLimitSpec(a, b *LimitSpec) bool {
	x, y := *a, *b
	x.pos, y.pos = b.pos, b.pos
	return x == y
}

// TestSlotLimitMistakes: what slots can't be combined with is a mistake,
// wherever the limit or the setting is, and its message says what to write.
func TestSlotLimitMistakes(t *testing.T) {
	const slots = "limits: [{limit: 2, ttl: 30s, algorithm: concurrency}]"
	for _, test := range []struct {
		name, text string
		want       []string // the path, and what to write
	}{
		{"scope: global", "rules: [{name: a, key: [k], scope: global, " + slots + "}]",
			[]string{"rules[0].limits[0].algorithm", "scope: global", "leave scope out"}},
		{"consistency: local", "rules: [{name: a, key: [k], consistency: local, " + slots + "}]",
			[]string{"rules[0].limits[0].algorithm", "consistency: local", "consistency: exact"}},
		{"consistency: local by default", "defaults: {consistency: local}\nrules: [{name: a, key: [k], " + slots + "}]",
			[]string{"rules[0].limits[0].algorithm", "consistency: local", "consistency: exact"}},
		{"on_limit: delay", "rules: [{name: a, key: [k], on_limit: delay, max_delay: 1s, " + slots + "}]",
			[]string{"rules[0].limits[0].algorithm", "on_limit: delay", "on_limit: refuse"}},
		{"on_limit: delay by default",
			"defaults: {on_limit: delay, max_delay: 1s}\nrules: [{name: a, key: [k], " + slots + "}]",
			[]string{"rules[0].limits[0].algorithm", "on_limit: delay", "on_limit: refuse"}},
		{"a tier", "rules: [{name: a, key: [k], consistency: local, tiered: true}]\ntiers: {t: {" + slots + "}}",
			[]string{"tiers.t.limits[0].algorithm", "consistency: local", "consistency: exact"}},
		{"a listed subject", "rules: [{name: a, key: [k], consistency: local, limits: [{limit: 1, per: 1m}]}]\n" +
			"subjects: {k: {x: {limits: {a: [{limit: 2, ttl: 30s, algorithm: concurrency}]}}}}",
			[]string{"subjects.k.x.limits.a[0].algorithm", "consistency: local", "consistency: exact"}},
		{"per", "rules: [{name: a, key: [k], limits: [{limit: 2, per: 30s, algorithm: concurrency}]}]",
			[]string{"rules[0].limits[0].per", "give ttl"}},
		{"burst", "rules: [{name: a, key: [k], limits: [{limit: 2, ttl: 30s, burst: 3, algorithm: concurrency}]}]",
			[]string{"rules[0].limits[0].burst", "not for algorithm: concurrency"}},
	} {
		_, err := Parse([]byte(test.text))
		if err == nil {
			t.Errorf("%s: got no mistake", test.name)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %q, want it to have %q", test.name, err, want)
			}
		}
	}
}
