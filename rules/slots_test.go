package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/entries"
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

// TestSlotTTLsOfEntries: an entry with a limit of slots may be filed more than
// once, for rules that group addresses differently, or have its limit for each
// variant of a rule. Its ttl is noted and forgotten once all the same.
func TestSlotTTLsOfEntries(t *testing.T) {
	for _, test := range []struct{ name, text, rule, attribute, value string }{
		{"two groupings", `version: 1
rules:
  - {name: conn, key: [ip], limits: [{limit: 20, ttl: 30s, algorithm: concurrency}]}
  - {name: net, key: [ip], ipv6_prefix: 48, limits: [{limit: 100, per: 1m}]}`, "conn", "ip", "203.0.113.7"},
		{"two variants", `version: 1
rules:
  - {name: talk, key: [[user, ip], endpoint], limits: [{limit: 20, ttl: 30s, algorithm: concurrency}]}`,
			"talk", "endpoint", "/chat"},
	} {
		t.Run(test.name, func(t *testing.T) {
			base := mustCompile(t, test.text)
			with := func(s *entries.State, value, ttl string) *entries.State {
				f, err := base.ReadSubject(test.attribute, value, fmt.Appendf(nil,
					"{limits: {%s: [{limit: 50, ttl: %s, algorithm: concurrency}]}}", test.rule, ttl))
				return put(t, s, f, err)
			}
			ttlOf := func(set *Set, value string) time.Duration {
				ttl, _ := set.SlotTTL(slotSource(test.rule, origin{"entry", test.attribute, value}, &LimitSpec{}))
				return ttl
			}

			const other = "203.0.113.8"
			alone := with(entries.New(), other, "10s")
			both := with(alone, test.value, "30s")
			set := base.WithEntries(both, nil)
			expect.Equal(t, ttlOf(set, test.value), 30*time.Second, "ttl at first")

			replaced := set.WithEntries(with(both, test.value, "45s"), set)
			expect.Equal(t, ttlOf(replaced, test.value), 45*time.Second, "ttl of the replaced entry")

			removed := set.WithEntries(alone, replaced)
			expect.Equal(t, ttlOf(removed, test.value), 0, "ttl of the removed entry")
			expect.Equal(t, ttlOf(removed, other), 10*time.Second, "ttl of the entry that stays")
		})
	}
}
