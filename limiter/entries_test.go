package limiter

import (
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/entries"
)

const entryRules = `version: 1
default_tier: free
tiers: {free: {limits: [{limit: 1, per: 1h}]}, pro: {limits: [{limit: 5, per: 1h}]}}
rules:
  - {name: login, key: [ip], limits: [{limit: 2, per: 1h}], block: 10m}
  - {name: tenant, key: [tenant], tiered: true}
`

// with returns s with entries.
func with(t *testing.T, s *entries.State, list ...*entries.Entry) *entries.State {
	t.Helper()
	for _, e := range list {
		next, err := s.With(entries.Change{Entry: e})
		expect.NoError(t, err)
		s = next
	}
	return s
}

// standalone returns a limiter of one node.
func standalone(t *testing.T) *Limiter {
	t.Helper()
	clock := NewClock()
	t.Cleanup(func() { _ = clock.Close() })
	return New(counters.New(1000), clock)
}

// TestEntriesChangeNoCounters: a tier beside the document changes a subject's
// limits and keeps what was used, a deny entry refuses, and both go when the
// entries do.
func TestEntriesChangeNoCounters(t *testing.T) {
	l := standalone(t)
	l.SetRules(compile(t, 7, entryRules))
	q := Query{Attributes: []rules.Attribute{{Name: "tenant", Value: "acme"}}}
	check := func(allowed bool, limit int64) {
		t.Helper()
		var a Answer
		expect.NoError(t, l.Check(&q, &a))
		if a.Allowed != allowed || a.RulesVersion != 7 || limit > 0 && a.Limits[0].Limit.Amount != limit {
			t.Errorf("allowed %v by %v, version %d; want %v, limit %d", a.Allowed, a.DecidedBy,
				a.RulesVersion, allowed, limit)
		}
	}
	check(true, 1)
	check(false, 1)
	pro := with(t, entries.New(),
		&entries.Entry{Kind: entries.Subject, Attribute: "tenant", Value: "acme", Tier: "pro"})
	l.SetEntries(pro)
	for range 4 {
		check(true, 5)
	}
	check(false, 5)
	l.SetRules(compile(t, 7, entryRules)) // entries survive new rules
	check(false, 5)
	l.SetEntries(with(t, pro,
		&entries.Entry{Kind: entries.Deny,
			Match: []entries.Condition{{Attribute: "tenant", Values: []string{"acme"}}}}))
	check(false, 0)
	l.SetEntries(entries.New())
	check(false, 1)
}

// The latency of a check that is blocked by hand counts for the rule that blocks
// it, whatever the Answer was used for before.
func TestLatencyOfABlockByHand(t *testing.T) {
	l := standalone(t)
	l.SetRules(compile(t, 1, entryRules))
	l.SetEntries(with(t, entries.New(), &entries.Entry{Kind: entries.Block, Rule: "login",
		Key: []string{"192.0.2.7"}, Until: time.Now().Add(time.Hour).UnixMilli()}))
	counted := func(rule string) (n int64) {
		active := l.active.Load()
		stats := active.stats[active.set.Rule(rule).Index]
		for i := range stats.stripe {
			for j := range stats.stripe[i].latency {
				n += stats.stripe[i].latency[j].Load()
			}
		}
		return n
	}

	var a Answer
	for _, q := range []*Query{
		{Rule: "tenant", Key: []string{"acme"}, ByKey: true},
		{Rule: "login", Key: []string{"192.0.2.7"}, ByKey: true},
	} {
		expect.NoError(t, l.Check(q, &a))
		a.CountLatency(time.Millisecond)
	}
	expect.Equal(t, counted("tenant"), 1, "checks counted for the rule that allowed")
	expect.Equal(t, counted("login"), 1, "checks counted for the rule that blocks")
}

func TestBlockByHand(t *testing.T) {
	l := standalone(t)
	l.SetRules(compile(t, 1, entryRules))
	until := time.Now().Add(time.Hour).UnixMilli()
	blocked := with(t, entries.New(),
		&entries.Entry{Kind: entries.Block, Rule: "login", Key: []string{"192.0.2.7"}, Until: until})
	l.SetEntries(blocked)
	attrs := []rules.Attribute{{Name: "tenant", Value: "acme"}, {Name: "ip", Value: "192.0.2.7"}}
	for name, q := range map[string]*Query{
		"attributes": {Attributes: attrs}, "key": {Rule: "login", Key: []string{"::ffff:192.0.2.7"}, ByKey: true},
		"peek": {Attributes: attrs, Mode: counters.PeekMode}, "count": {Attributes: attrs, Mode: counters.CountMode},
	} {
		var a Answer
		expect.NoError(t, l.Check(q, &a))
		la := a.TightestLimit()
		if a.Allowed || a.DecidedBy != ByOwner || la == nil || la.Rule.Name != "login" ||
			!la.Blocked || la.Remaining != 0 ||
			la.RetryAfter < 59*time.Minute || la.RetryAfter > time.Hour {
			t.Errorf("%s: allowed %v by %v, %+v; want a block of an hour", name, a.Allowed, a.DecidedBy, la)
		}
		if text := string(a.AppendReason(nil)); !strings.HasPrefix(text, `Rule "login" blocks this; retry in `) {
			t.Errorf("%s: %s", name, text)
		}
	}
	usage := func() *Usage {
		t.Helper()
		u, err := l.Usage(&Query{Rule: "login", Key: []string{"192.0.2.7"}, ByKey: true})
		expect.NoError(t, err)
		return u
	}
	if u := usage(); u.Blocked < 59*time.Minute || u.Limits[0].Used != 1 || u.Limits[0].Remaining != 0 {
		t.Errorf("blocked for %v, used %d, %d left; want an hour, 1 by the count, 0", u.Blocked,
			u.Limits[0].Used, u.Limits[0].Remaining)
	}
	if u, err := l.Usage(&Query{Rule: "tenant", Key: []string{"acme"}, ByKey: true}); err != nil ||
		u.Limits[0].Used != 1 {
		t.Errorf("tenant: %+v, %v; want only the count", u, err)
	}
	if _, err := l.Reset(&Query{Rule: "login", Key: []string{"192.0.2.7"}, ByKey: true}); err != nil {
		t.Fatal(err)
	}
	if u := usage(); (u.At.Wall+int64(u.Blocked))%int64(time.Millisecond) != 0 {
		t.Errorf("the block ends at %d ns; entries end at whole milliseconds", u.At.Wall+int64(u.Blocked))
	}
	if u := usage(); u.BlockedUntil != (u.At.Wall+int64(u.Blocked))/int64(time.Millisecond) {
		t.Errorf("the block ends at %d ms, after %v", u.BlockedUntil, u.Blocked)
	}
	if u := usage(); u.Blocked < 59*time.Minute {
		t.Errorf("after a reset, blocked for %v; want an hour", u.Blocked)
	}
	l.SetEntries(with(t, entries.New(), &entries.Entry{Kind: entries.Block, Rule: "login", Key: []string{"192.0.2.7"}}))
	var a Answer
	if err := l.Check(&Query{Attributes: attrs}, &a); err != nil || a.Allowed ||
		a.TightestLimit().RetryAfter != algorithms.Never || a.TightestLimit().Cause() != Blocked {
		t.Errorf("a block without an end: %v, %+v", err, a.TightestLimit())
	}
	if err := l.Check(&Query{Attributes: attrs, Mode: counters.CountMode}, &a); err != nil || !a.Counted ||
		a.TightestLimit().RetryAfter != algorithms.Never || a.TightestLimit().Reduced {
		t.Errorf("a count in a block without an end: %v, %+v", err, a.TightestLimit())
	}
	if u := usage(); u.BlockedUntil != entries.Forever || u.Limits[0].Remaining != 0 || u.Limits[0].MoreAfter != 0 {
		t.Errorf("a block without an end: until %d, %+v", u.BlockedUntil, u.Limits[0])
	}
	l.SetEntries(entries.New())
	expect.Equal(t, usage().Blocked, 0, "after the block, blocked for")
	expect.Equal(t, usage().BlockedUntil, 0, "after the block, blocked until")
}

// TestUnblockLiftsTheAutomaticBlock: and leaves what is used.
func TestUnblockLiftsTheAutomaticBlock(t *testing.T) {
	l := standalone(t)
	l.SetRules(compile(t, 1, entryRules))
	q := Query{Rule: "login", Key: []string{"192.0.2.7"}, ByKey: true}
	for range 3 {
		var a Answer
		expect.NoError(t, l.Check(&q, &a))
	}
	if u, err := l.Usage(&q); err != nil || u.Blocked == 0 {
		t.Fatalf("%+v, %v; want a block", u, err)
	}
	u, err := l.Unblock(&q)
	if err != nil || u.Blocked != 0 || u.Limits[0].Used != 2 {
		t.Errorf("%+v, %v; want no block, 2 used", u, err)
	}
}

// A block that is lifted begins no new life of the subject: what is reserved
// still comes back, and what was admitted elsewhere is still debited.
func TestUnblockKeepsWhatIsOwed(t *testing.T) {
	l := standalone(t)
	l.SetRules(compile(t, 1, entryRules))
	q := Query{Rule: "login", Key: []string{"192.0.2.7"}, ByKey: true}
	var a Answer
	id, err := l.Reserve(&q, time.Minute, &a)
	expect.NoError(t, err)
	expect.NoError(t, l.Check(&q, &a))
	taken := a.scratch.ops[0]
	expect.NoError(t, l.Check(&q, &a)) // refused: a block begins

	u, err := l.Unblock(&q)
	expect.NoError(t, err)
	expect.Equal(t, u.Limits[0].Used, 2, "used after the block was lifted")
	_, err = l.Settle(id, []UnitCost{{Unit: "requests", Cost: 0}})
	expect.NoError(t, err)
	u, err = l.Usage(&q)
	expect.NoError(t, err)
	expect.Equal(t, u.Limits[0].Used, 1, "used after the reservation was settled with 0")

	expect.NoError(t, l.table.ForceCapped(l.clock.Now(), taken.Key, taken.Limit, taken.TakeRecord(), 1))
	u, err = l.Usage(&q)
	expect.NoError(t, err)
	expect.Equal(t, u.Limits[0].Used, 2, "used after a debt from before arrived")
}
