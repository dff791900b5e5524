package limiter

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/rules/entries"
)

const ttlRules = `version: 1
default_tier: free
tiers:
  free: {limits: [{limit: 5, ttl: FREE, algorithm: concurrency}]}
  pro: {limits: [{limit: 5, ttl: 40s, algorithm: concurrency}]}
rules:
  - {name: own, key: [k], limits: [{limit: 5, ttl: OWN, algorithm: concurrency}]}
  - {name: tiered, key: [user], tiered: true}
subjects:
  k: {listed: {limits: {own: [{limit: 5, ttl: 60s, algorithm: concurrency}]}}}
  user: {ann: {tier: pro}}
`

// Renewals last as long as the limit of their subject says now, whether the
// rule has it, a tier, a listed subject, or an entry: the ttl of another
// subject neither shortens them nor makes them longer.
func TestRenewalsFollowTheLimitOfTheirSubject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		var state *entries.State
		setEntry := func(ttl string) {
			state = entries.New()
			if ttl != "" {
				limits := json.RawMessage(`{"own": [{"limit": 5, "ttl": "` + ttl + `", "algorithm": "concurrency"}]}`)
				state = with(t, state,
					&entries.Entry{Kind: entries.Subject, Attribute: "k", Value: "entry", Limits: limits})
			}
			for _, n := range w.nodes {
				n.SetEntries(state)
			}
		}
		version := int64(1)
		setRules := func(own, free string) {
			version++
			for _, n := range w.nodes {
				n.SetRules(compile(t, version, strings.NewReplacer("OWN", own, "FREE", free).Replace(ttlRules)))
			}
		}
		setRules("20s", "30s")
		setEntry("90s")

		type subject struct{ rule, key string }
		subjects := []subject{{"own", "other"}, {"own", "listed"}, {"own", "entry"},
			{"tiered", "bob"}, {"tiered", "ann"}}
		ids := map[subject]string{}
		for i, s := range subjects {
			ids[s] = w.nodes[i%3].expectSlot(s.key, s.rule, s.key, 0, true)
		}
		renewed := func(what string, want ...time.Duration) {
			t.Helper()
			for i, s := range subjects {
				for j, n := range w.nodes {
					left, err := n.RenewSlot(ids[s], time.Hour)
					if got := left.Round(time.Second); err != nil || got != want[i]*time.Second {
						t.Errorf("%s: %s of %s, renewed at node %d: got %v, %v; want %v", what,
							s.key, s.rule, j, got, err, want[i]*time.Second)
					}
				}
			}
		}
		renewed("as at first", 20, 60, 90, 30, 40)
		setRules("5s", "10s")
		renewed("the rule and a tier have shorter ones", 5, 60, 90, 10, 40)
		setRules("70s", "80s")
		renewed("they have longer ones", 70, 60, 90, 80, 40)
		setEntry("15s")
		renewed("the entry has a shorter one", 70, 60, 15, 80, 40)
		setEntry("")
		renewed("the entry is gone", 70, 60, 70, 80, 40)
	})
}
