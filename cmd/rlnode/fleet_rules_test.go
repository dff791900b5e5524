package main

import (
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestG9_WhatATeamWroteSurvives: commands that are typed while the leader is
// dead are carried out once. Rules and entries, and how they became so, survive
// that all nodes are killed.
func TestG9_WhatATeamWroteSurvives(t *testing.T) {
	t.Parallel()
	if testing.Short() && raceDetector {
		t.Skip("several processes under the race detector are slow; whole nodes run in one process too")
	}
	n := startTeam(t)
	n.run("apply -f - -m searches", strings.Replace(teamRules, "limit: 100", "limit: 200", 1), 0,
		"version 2 is in force")
	n.run("deny add ip=203.0.113.7 --for 24h --note incident", "", 0)
	n.run("subject set tenant=globex --tier gold", "", 0)
	n.run("block --rule login --key 203.0.113.9 --for 1h", "", 0)
	n.run("deny add ip=203.0.113.8", "", 0)
	n.run("deny remove ip=203.0.113.8", "", 0)

	c, err := n.cluster()
	expect.NoError(t, err)
	dead := n.fleet.byName(c.Leader)
	dead.kill()
	n.until("apply -f - -m meanwhile", strings.Replace(teamRules, "limit: 100", "limit: 300", 1))
	n.until("rollback 2 -m back", "")
	n.until("deny add ip=203.0.113.10", "")
	n.until("subject set tenant=globex --tier free --note lapsed", "")
	n.run("diff -", "version: 1\n", 4, "every rule counts as in use", "node "+dead.name+" does not answer")
	n.run("apply -f -", "version: 1\n", 3, "--remove login")

	dead.startProcess()
	n.fleet.awaitWhole()
	before := n.fleet.awaitTold()
	for part, times := range map[string]int{`"what":"document"`: 4, `"message":"meanwhile"`: 1,
		`"message":"back"`: 1, `"note":"incident"`: 2, `"note":"lapsed"`: 2} {
		expect.Equal(t, strings.Count(before, part), times, "%s in %s", part, before)
	}

	for _, m := range n.fleet.nodes {
		m.kill()
	}
	for _, m := range n.fleet.nodes {
		m.startProcess()
	}
	n.fleet.awaitWhole()
	expect.Equal(t, n.fleet.awaitTold(), before, "after all were killed")
	for range n.fleet.nodes {
		expect.Equal(t, n.check(`{"attributes": {"ip": "203.0.113.7"}}`), 403, "a denied address")
		expect.Equal(t, n.check(`{"rule": "login", "key": "203.0.113.9"}`), 429, "a blocked subject")
	}
	n.run("rollback 3 -m again", "", 0, "version 5 is in force")
	n.run("versions", "", 0, "again", "meanwhile")
}

// TestBlocksOfBothKinds: a block by hand is known to all nodes, the automatic
// one to the owner. At any node, the later one counts, a reset lifts only the
// automatic one, and unblock lifts both.
func TestBlocksOfBothKinds(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	n.run("apply -f -",
		strings.Replace(teamRules, "limits: [{limit: 5, per: 15m}]",
			"consistency: exact\n    block: 10m\n    limits: [{limit: 5, per: 15m}]", 1),
		0)
	ask := func(want int) {
		t.Helper()
		expect.Equal(t, n.check(`{"rule": "login", "key": "203.0.113.9"}`), want, "a check")
	}
	blocked := func(what string, from, to time.Duration) {
		t.Helper()
		for range n.fleet.nodes {
			n.turnAndCatchUp()
			var usage struct {
				Until int64 `json:"blocked_until_ms"`
			}
			text, err := n.get("/v1/usage?rule=login&key=203.0.113.9", &usage)
			expect.NoError(t, err)
			if left := time.Until(time.UnixMilli(usage.Until)); usage.Until == 0 && to > 0 ||
				usage.Until > 0 && (left <= from || left > to) {
				t.Errorf("%s at %s: blocked for %v, want more than %v and at most %v: %s", what,
					n.name, left, from, to, text)
			}
		}
	}
	const subject = " --rule login --key 203.0.113.9"

	for range 5 {
		ask(200)
	}
	blocked("nothing is refused yet", 0, 0)
	ask(429)
	blocked("the limit blocks", 0, 10*time.Minute)
	n.run("block"+subject+" --for 1h", "", 0)
	blocked("blocked by hand, too", 10*time.Minute, time.Hour)
	n.put("DELETE", "/v1/usage?rule=login&key=203.0.113.9", "")
	blocked("reset", 10*time.Minute, time.Hour)
	ask(429)
	n.run("unblock"+subject, "", 0)
	blocked("unblocked", 0, 0)

	for range 5 {
		ask(200)
	}
	ask(429)
	n.run("block"+subject+" --for 1m", "", 0)
	blocked("the automatic one is later", time.Minute, 10*time.Minute)
	n.run("unblock"+subject, "", 0)
	blocked("both are lifted", 0, 0)
	n.run("unblock"+subject, "", 1, "404", "does not block this")
}

const conditionRules = `version: 1
attributes: {ip: {}, user: {fold: [trim, lower, nfc]}, endpoint: {path: true}, tenant: {}}
rules:
  - {name: guesses, match: {endpoint: /login}, key: [[user, ip]], consistency: exact, limits: [{limit: 5, per: 8760h, algorithm: fixed-window}]}
  - {name: trial, key: [tenant], tiers: [free], consistency: exact, limits: [{limit: 2, per: 8760h, algorithm: fixed-window}]}
  - {name: idea, not: {endpoint: [/health]}, key: [ip], shadow: true, consistency: exact, limits: [{limit: 1, per: 8760h, algorithm: fixed-window}]}
tiers:
  free: {limits: [{limit: 9, per: 1h}]}
  gold: {limits: [{limit: 99, per: 1h}]}
default_tier: free
`

// TestConditionsOnThreeNodes: whatever a subject's spelling, and whichever node
// is asked, it is one subject. Tiers of entries count in conditions, and
// commands tell of all nodes.
func TestConditionsOnThreeNodes(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	n.run("apply -f - --force", conditionRules, 0, "version 2 is in force")
	allowed := func(want int, attributes ...string) {
		t.Helper()
		got := 0
		for range 2 {
			for _, a := range attributes {
				if n.check(`{"attributes": {`+a+`}}`) == 200 {
					got++
				}
			}
		}
		expect.Equal(t, got, want, "allowed of twice %q", attributes)
	}

	allowed(5, `"user": "Ann", "endpoint": "/login"`, `"user": " ann", "endpoint": "//login/"`,
		`"user": "ANN", "endpoint": "/a/../login;v=1"`, `"user": "ann", "endpoint": "/%6cogin"`)
	allowed(5, `"ip": "192.0.2.7", "endpoint": "/login"`,
		`"ip": "::ffff:192.0.2.7", "user": "", "endpoint": "/login"`,
		`"ip": "192.0.2.7", "endpoint": "/login"`)
	n.run("try --attr user=ann --attr endpoint=/login", "", 1, "refused by guesses")
	n.run("top --rule guesses", "", 0, "guesses: user=ann", "guesses: ip=192.0.2.7")
	n.run("top --by shadow", "", 0, "idea: 192.0.2.7")
	n.run("top --near", "", 0, "guesses: user=ann")

	allowed(2, `"tenant": "acme"`, `"tenant": "acme"`)
	n.run("subject set tenant=acme --tier gold", "", 0)
	allowed(2, `"tenant": "acme"`)
	n.run("try --attr tenant=acme", "", 0, "trial")
	n.run("try --attr ip=192.0.2.8 --attr endpoint=/health/", "", 0, "idea")

	expect.Equal(t, n.check(`{"rule": "guess", "key": "ann"}`), 404, "a rule that there is not")
	expect.Equal(t, n.figure("rlnode_unknown_rule_total"), "1", "checks of unknown rules at %s", n.name)
	log := file(t, "log.jsonl",
		strings.Repeat(`{"time":"2026-01-01T10:00:00Z","attributes":{"user":"ann","endpoint":"/login"}}`+"\n", 9))
	n.run("replay --rules "+file(t, "new.yaml", conditionRules)+" --against 1 "+log, "", 0,
		"Newly refused: 4 checks of 1 subjects")
}
