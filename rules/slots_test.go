package rules

import (
	"strings"
	"testing"
)

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
