package rules

import (
	"fmt"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

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
				f, err := base.Document.ReadSubject(test.attribute, value, fmt.Appendf(nil,
					"{limits: {%s: [{limit: 50, ttl: %s, algorithm: concurrency}]}}", test.rule, ttl))
				return put(t, s, f, err)
			}
			ttlOf := func(set *Set, value string) time.Duration {
				from := document.Origin{Kind: "entry", Attribute: test.attribute, Name: value}
				ttl, _ := set.SlotTTL(slotSource(test.rule, from, &document.LimitSpec{}))
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
