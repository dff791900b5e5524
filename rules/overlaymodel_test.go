package rules

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

// appliedDocument is a document of TestEntriesAgreeWithTheModel, with what the
// model must know of it.
type appliedDocument struct {
	text  string
	tiers map[string]int64 // amounts
	login int64            // amount of the rule login; 0: there is no such rule
}

var appliedDocuments = []appliedDocument{
	{`version: 1
rules:
  - {name: plan, key: [tenant], tiered: true}
  - {name: login, key: [user], limits: [{limit: 5, per: 1h}]}
  - {name: chat, key: [[user, ip], tenant], limits: [{limit: 5, ttl: 30s, algorithm: concurrency}]}
tiers: {free: {limits: [{limit: 10, per: 1h}]}, pro: {limits: [{limit: 20, per: 1h}]}}
default_tier: free
`, map[string]int64{"free": 10, "pro": 20}, 5},
	{`version: 1
rules:
  - {name: login, key: [user], limits: [{limit: 6, per: 1h}]}
  - {name: chat, key: [[user, ip], tenant], limits: [{limit: 5, ttl: 30s, algorithm: concurrency}]}
  - {name: plan, key: [tenant], tiered: true}
tiers: {free: {limits: [{limit: 11, per: 1h}]}}
default_tier: free
`, map[string]int64{"free": 11}, 6},
	{`version: 1
rules: [{name: plan, key: [tenant], tiered: true}]
tiers: {free: {limits: [{limit: 12, per: 1h}]}, pro: {limits: [{limit: 22, per: 1h}]}}
default_tier: free
`, map[string]int64{"free": 12, "pro": 22}, 0},
}

// overlayModel is the naive form of what entries do to checks: a list of them,
// looked through for each check.
type overlayModel struct {
	doc  *appliedDocument
	list []*entries.Entry
}

// find returns the entry that holds at now, in Unix ms, or nil.
func (m *overlayModel) find(kind entries.Kind, name string, now int64) *entries.Entry {
	for _, e := range m.list {
		isOf := e.Value == name || len(e.Key) == 1 && e.Key[0] == name || len(e.Match) == 1 &&
			e.Match[0].Values[0] == name
		if e.Kind == kind && isOf && (e.Until == 0 || now < e.Until) {
			return e
		}
	}
	return nil
}

// sleeps reports whether the document lacks what e names.
func (m *overlayModel) sleeps(e *entries.Entry) bool {
	switch {
	case e.Kind == entries.Block || len(e.Limits) > 0:
		return m.doc.login == 0
	case e.Kind == entries.Subject:
		return m.doc.tiers[e.Tier] == 0
	}
	return false
}

// outcome returns what a check of a tenant and a user comes to.
func (m *overlayModel) outcome(tenant, user string, now int64) string {
	if m.find(entries.Deny, user, now) != nil {
		return "denied"
	}
	if m.find(entries.Allow, user, now) != nil {
		return "allowed"
	}

	plan := m.doc.tiers["free"]
	if e := m.find(entries.Subject, tenant, now); e != nil && !m.sleeps(e) {
		plan = m.doc.tiers[e.Tier]
	}
	out := fmt.Sprint("plan ", plan)
	if m.doc.login == 0 {
		return out
	}
	login := m.doc.login
	if m.find(entries.Subject, user, now) != nil {
		login = 7
	}
	return fmt.Sprintf("%s, login %d, blocked %v", out, login, m.find(entries.Block, user, now) != nil)
}

// outcomeIn is [overlayModel.outcome] as a set finds it.
func outcomeIn(s *Set, m *Match, tenant, user string, now int64) string {
	m.Now = now
	s.Match(attrs("tenant="+tenant, "user="+user), nil, m)
	switch m.List {
	case Denied:
		return "denied"
	case Allowed:
		return "allowed"
	}
	amounts, blocked := map[string]int64{}, false
	for i := range m.Hits {
		h := &m.Hits[i]
		amounts[h.Rule.Name] = h.Limits[0].Amount
		blocked = blocked || s.BlockedUntil(m, h) != 0
	}
	if amounts["login"] == 0 {
		return fmt.Sprint("plan ", amounts["plan"])
	}
	return fmt.Sprintf("plan %d, login %d, blocked %v", amounts["plan"], amounts["login"], blocked)
}

// randomBeside returns one of few entries, so that histories replace and remove them.
func randomBeside(r *rand.Rand) *entries.Entry {
	e := &entries.Entry{}
	if r.IntN(2) == 0 {
		e.Until = int64(1 + r.IntN(100))
	}
	user, tenant := fmt.Sprint("u", r.IntN(3)), fmt.Sprint("t", r.IntN(3))
	switch r.IntN(5) {
	case 0:
		e.Kind, e.Match = entries.Deny, []entries.Condition{{Attribute: "user", Values: []string{user}}}
	case 1:
		e.Kind, e.Match = entries.Allow, []entries.Condition{{Attribute: "user", Values: []string{user}}}
	case 2:
		e.Kind, e.Attribute, e.Value, e.Tier = entries.Subject, "tenant", tenant, pick(r, []string{"free", "pro"})
	case 3:
		e.Kind, e.Attribute, e.Value, e.Limits = entries.Subject, "user", user, fmt.Appendf(nil,
			`{"login":[{"limit":7,"per":"1h"}],"chat":[{"limit":7,"ttl":"%ds","algorithm":"concurrency"}]}`, 1+r.IntN(9))
	default:
		e.Kind, e.Rule, e.Key = entries.Block, "login", []string{user}
	}
	return e
}

var allHistories = flag.Int("histories", 600, "random histories; a quarter in a short run; make models has more")

// TestEntriesAgreeWithTheModel: entries are added, replaced, removed and ended,
// documents are applied under them, so that some sleep and wake, and the node's
// clock steps to and fro. Checks are decided as by the naive model, and two
// nodes that took different ways agree.
func TestEntriesAgreeWithTheModel(t *testing.T) {
	histories := *allHistories
	if testing.Short() {
		histories /= 4
	}
	var bases []*Set
	for i := range appliedDocuments {
		bases = append(bases, mustCompile(t, appliedDocuments[i].text))
	}
	for n := range histories {
		r := rand.New(rand.NewPCG(21, uint64(n)))
		state, at := entries.New(), 0
		model := &overlayModel{doc: &appliedDocuments[at]}
		set, m := bases[at].WithEntries(state, nil), &Match{}
		for range 5 + r.IntN(20) {
			switch r.IntN(6) {
			case 0:
				at = r.IntN(len(bases))
				model.doc = &appliedDocuments[at]
			case 1:
				state = model.end(state, int64(r.IntN(60)))
			default:
				state = model.change(t, r, state)
			}
			set = bases[at].WithEntries(state, set)
			if r.IntN(4) > 0 {
				continue // several changes at once
			}
			model.check(t, r, n, set, m)
			model.check(t, r, n, bases[at].WithEntries(state, nil), m) // a node that has just started
		}
	}
}

// end removes the entries that have ended before now.
func (m *overlayModel) end(s *entries.State, now int64) *entries.State {
	var left []*entries.Entry
	for _, e := range m.list {
		if e.Until == 0 || e.Until > now {
			left = append(left, e)
		}
	}
	m.list = left
	next, _ := s.Expire(now)
	return next
}

// change makes a random change of both.
func (m *overlayModel) change(t *testing.T, r *rand.Rand, s *entries.State) *entries.State {
	t.Helper()
	e := randomBeside(r)
	var left []*entries.Entry
	for _, other := range m.list {
		if other.ID() != e.ID() {
			left = append(left, other)
		}
	}
	remove := len(left) < len(m.list) && r.IntN(2) == 0
	next, err := s.With(entries.Change{Entry: e, Remove: remove})
	expect.NoError(t, err)
	m.list = left
	if !remove {
		m.list = append(m.list, e)
	}
	return next
}

// check compares a set with the model, at random times.
func (m *overlayModel) check(t *testing.T, r *rand.Rand, history int, set *Set, match *Match) {
	t.Helper()
	asleep := 0
	for _, e := range m.list {
		if m.sleeps(e) {
			asleep++
		}
	}
	if got := set.Asleep(); got != asleep {
		t.Fatalf("history %d: %d entries are asleep, want %d", history, got, asleep)
	}
	m.checkSlotTTLs(t, history, set)
	for i := range 6 {
		tenant, user, now := fmt.Sprint("t", i%3), fmt.Sprint("u", r.IntN(3)), int64(1+r.IntN(110))
		got, want := outcomeIn(set, match, tenant, user, now), m.outcome(tenant, user, now)
		if got != want {
			t.Fatalf("history %d: tenant %s, user %s at %d: got %s, want %s; entries %+v", history,
				tenant, user, now, got, want, m.list)
		}
	}
}

// checkSlotTTLs compares the ttls of slots that entries give users with those of the model.
func (m *overlayModel) checkSlotTTLs(t *testing.T, history int, set *Set) {
	t.Helper()
	for i := range 3 {
		user := fmt.Sprint("u", i)
		want := ""
		for _, e := range m.list {
			if e.Kind == entries.Subject && e.Value == user && !m.sleeps(e) {
				want = string(e.Limits)
			}
		}
		from := document.Origin{Kind: "entry", Attribute: "user", Name: user}
		ttl, found := set.SlotTTL(slotSource("chat", from, &document.LimitSpec{}))
		if found != (want != "") || found && !strings.Contains(want, fmt.Sprintf(`"ttl":"%s"`, ttl)) {
			t.Fatalf("history %d: user %s: got ttl %s, %t, want that of %q", history, user, ttl, found, want)
		}
	}
}
