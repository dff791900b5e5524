package resp

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/metrics"
)

// steady replaces what differs from run to run in a reply.
func steady(text string) string {
	text = regexp.MustCompile(`("(reset_after_ms|more_after_ms|retry_after_ms|blocked_until_ms)") [1-9]\d*`).ReplaceAllString(text, "$1 T")
	text = regexp.MustCompile(`retry in [0-9.]+ s`).ReplaceAllString(text, "retry in T s")
	return regexp.MustCompile(`"reservation" "[^"]+"`).ReplaceAllString(text, `"reservation" R`)
}

// askSteadily is askAll without what differs from run to run.
func (c *client) askSteadily(steps ...step) {
	c.t.Helper()
	for _, one := range steps {
		if got := steady(c.ask(one.command)); got != one.want {
			c.t.Errorf("%s:\ngot  %s\nwant %s", one.command, got, one.want)
		}
	}
}

func TestNative(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	const (
		tail  = ` "decided_by" "owner" "node" "n1" "rules_version" 1`
		about = `"unit" "requests" "window_ms" 3600000 "reset_after_ms" T "retry_after_ms" `
		rate  = ` "delay_ms" 0 "rate" `
	)
	c.askSteadily(
		step{"RL.CHECK pair acme /chat",
			`["allowed" 1 "rule" "pair" "limit" 3 "used" 1 "remaining" 2 ` + about +
				`0 "more_after_ms" T` + rate + `["limit" 3 "per_ms" 3600000]` + tail + `]`},
		step{"HELLO 3 SETNAME x",
			`{"server" "redis" "version" "7.4.0" "proto" 3 "id" 1 "mode" "standalone" "role" "master" "modules" []}`},
		step{"RL.CHECK pair acme /chat PEEK COST 2",
			`{"allowed" true "rule" "pair" "limit" 3 "used" 3 "remaining" 0 ` + about +
				`0 "more_after_ms" T` + rate + `{"limit" 3 "per_ms" 3600000}` + tail + `}`},
		step{"RL.CHECK pair acme /chat COST 3",
			`{"allowed" false "code" "rate-limited" "detail" "Limit \"pair\" of rule \"pair\" (3 requests per 1h) is used up; retry in T s." "rule" "pair" "limit" 3 "used" 1 "remaining" 2 ` + about + `T "more_after_ms" T` + rate + `{"limit" 3 "per_ms" 3600000}` + tail + `}`},
		step{"RL.CHECK pair acme /chat COUNT COST 3",
			`{"allowed" false "rule" "pair" "limit" 3 "used" 4 "remaining" 0 ` + about +
				`T "more_after_ms" T` + rate + `{"limit" 3 "per_ms" 3600000}` + tail + `}`},
		step{"RL.CHECK b u UNIT tokens COST 40 COST 2",
			`{"allowed" true "rule" "b" "limit" 3 "used" 2 "remaining" 1 ` + about +
				`0 "more_after_ms" T` + rate + `{"limit" 3 "per_ms" 3600000}` + tail + `}`},
		step{"RL.USAGE b u", `{"rule" "b" "key" ["u"] "limits" [` +
			`{"name" "b/requests/1h" "algorithm" "token-bucket" "unit" "requests" "limit" 3 "window_ms" 3600000 "used" 2 "remaining" 1 "leased" 0 "share" 3 "reset_after_ms" T "more_after_ms" T "rate" {"limit" 3 "per_ms" 3600000}} ` +
			`{"name" "b/tokens/1h" "algorithm" "token-bucket" "unit" "tokens" "limit" 100 "window_ms" 3600000 "used" 40 "remaining" 60 "leased" 0 "share" 100 "reset_after_ms" T "more_after_ms" T "rate" {"limit" 100 "per_ms" 3600000}}] "blocked_until_ms" 0}`},
		step{"RL.RESERVE a u COST 4 TTL 60000",
			`{"allowed" true "rule" "a" "limit" 5 "used" 4 "remaining" 1 ` + about +
				`0 "more_after_ms" T` + rate + `{"limit" 5 "per_ms" 3600000}` + tail +
				` "reservation" R}`},
	)
	id := regexp.MustCompile(`"reservation" "([^"]+)"`).FindStringSubmatch(c.ask("RL.RESERVE a v COST 4"))[1]
	c.askSteadily(
		step{"RL.SETTLE " + id + " COST 1",
			`{"reservation" R "settled" true "costs" {"requests" 1} "remaining" 4 "repeated" false}`},
		step{"RL.SETTLE " + id + " COST 1",
			`{"reservation" R "settled" true "costs" {"requests" 1} "remaining" 4 "repeated" true}`},
		step{"RL.RESET a v",
			`{"rule" "a" "key" ["v"] "limits" [{"name" "a" "algorithm" "token-bucket" "unit" "requests" "limit" 5 "window_ms" 3600000 "used" 0 "remaining" 5 "leased" 0 "share" 5 "reset_after_ms" 0 "rate" {"limit" 5 "per_ms" 3600000}}] "blocked_until_ms" 0}`},
		step{"RL.CHECK all",
			`{"allowed" true "rule" "all" "limit" 1000000 "used" 1 "remaining" 999999 ` + about +
				`0 "more_after_ms" T` + rate + `{"limit" 1000000 "per_ms" 3600000}` + tail + `}`},
	)
}

func TestNative_Errors(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	c.askAll(
		step{"RL.CHECK", "-ERR wrong number of arguments for 'rl.check' command"},
		step{"RL.CHECK nope x", `-ERR unknown-rule unknown rule "nope"`},
		step{"RL.CHECK pair acme",
			`-ERR bad-value key: key does not fit the rule: rule "pair" has 2 key attributes [tenant, endpoint], 1 values are given`},
		step{"RL.CHECK a u v", "-ERR bad-value v is no option here, or the key has too many values"},
		step{"RL.CHECK a u COST", "-ERR bad-value COST needs a value"},
		step{"RL.CHECK a u COST x", "-ERR bad-value COST must be a whole number from 0 to 9007199254740991"},
		step{"RL.CHECK a u COST -1", "-ERR bad-value COST must be a whole number from 0 to 9007199254740991"},
		step{"RL.CHECK a u UNIT", "-ERR bad-value UNIT needs a value"},
		step{"RL.CHECK a u UNIT x UNIT x", "-ERR bad-value the unit x is given twice"},
		step{"RL.CHECK a u PEEK COUNT", "-ERR bad-value PEEK and COUNT exclude each other"},
		step{"RL.CHECK a u TTL 5", "-ERR bad-value TTL is no option here, or the key has too many values"},
		step{"RL.RESERVE a u PEEK", "-ERR bad-value PEEK is no option here, or the key has too many values"},
		step{"RL.RESERVE a u TTL 0", "-ERR bad-value TTL must be a whole number of milliseconds from 1 to 3600000"},
		step{"RL.SETTLE x COST 1", "-ERR unknown-reservation reservation: settle: unknown reservation"},
		step{"RL.SETTLE x UNIT tokens", "-ERR bad-value COST is missing for the unit tokens"},
		step{"RL.SETTLE x", "-ERR wrong number of arguments for 'rl.settle' command"},
		step{"RL.USAGE a u COST 1", "-ERR bad-value COST is no option here, or the key has too many values"},
		step{"RL.RESET a u LIMIT nope", `-ERR unknown-limit unknown limit "nope": limit_name must be one of ["a"]`},
		step{"PING", "+PONG"},
	)
	for _, bad := range [][]string{{"RL.CHECK", "a", "\xff"}, {"RL.CHECK", "\xff", "u"},
		{"RL.CHECK", "a", "u", "UNIT", "\xff"}} {
		c.send(array(bad...))
		if got := c.reply(); !strings.HasPrefix(got, "-ERR bad-value ") || !strings.HasSuffix(got, " must be UTF-8") {
			t.Errorf("%q: got %s", bad, got)
		}
	}
	// A word that is empty, because a variable is, must not do more than the caller wants.
	for _, bad := range [][]string{
		{"RL.RESET", "a", "u", "LIMIT", ""}, {"RL.RESET", "a", "u", "REQUESTID", ""},
		{"RL.RESERVE", "a", "u", "REQUESTID", ""},
		{"RL.ACQUIRE", "a", "u", "REQUESTID", ""}, {"RL.ACQUIRE", "a", "u", "WHO", ""},
		{"RL.CHECK", "a", "u", "UNIT", ""},
	} {
		c.send(array(bad...))
		expect.Equal(t, c.reply(), "-ERR bad-value "+bad[3]+" must not be empty", "%q", bad)
	}
	c.send(array("RL.CHECK", strings.Repeat("x", 129), "u"))
	expect.Equal(t, c.reply(), "-ERR bad-value rule must not have more than 128 bytes", "c.reply()")
	c.send(array("RL.CHECK", "a", strings.Repeat("x", 1025)))
	expect.Equal(t, c.reply(), "-ERR bad-value key must not have more than 1024 bytes", "c.reply()")
}

// Tokens, their scopes and their namespaces.
func TestTokens(t *testing.T) {
	t.Parallel()
	const (
		noAuth = "-NOAUTH Authentication required."
		wrong  = "-WRONGPASS invalid username-password pair or user is disabled."
	)
	file := apitest.TokensFile(t,
		apitest.TokenEntry("asks", "t-check", "check"), apitest.TokenEntry("changes", "t-adjust", "adjust"),
		apitest.TokenEntry("reads", "t-read", "read"), apitest.TokenEntry("all", "t-admin", "admin"),
		apitest.ConfinedEntry("confined", "t-confined", "check", "throttle"),
	)
	n := startNode(t, func(c *apitest.Config) { c.TokensFile = file })

	c := dial(t, n)
	c.askAll(
		step{"PING", noAuth},
		step{"NOPE", noAuth},
		step{"HELLO 3",
			"-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"},
		step{"AUTH nope", wrong},
		step{"HELLO 3 AUTH default nope", wrong},
		step{"CL.THROTTLE k 1 1 3600", noAuth},
		step{"AUTH t-check", "+OK"},
		step{"PING", "+PONG"},
		step{"CL.THROTTLE k 1 1 3600", "[0 2 1 -1 3600]"},
		step{"RL.RESET a u", "-ERR forbidden this needs a token with the scope adjust; asks has check"},
		step{"AUTH nope", wrong},
		step{"PING", "+PONG"},
		step{"RESET", "+RESET"},
		step{"PING", noAuth},
		step{"AUTH anybody t-adjust", "+OK"},
		step{"CL.THROTTLE k 1 1 3600", "-ERR forbidden this needs a token with the scope check; changes has adjust"},
		step{"AUTH t-read", "+OK"},
		step{"PING", "+PONG"},
		step{"RL.USAGE a u", "-ERR forbidden this needs a token with the scope check; reads has read"},
		step{"AUTH t-confined", "+OK"},
		step{"THROTTLE k 2 1 3600", "[1 2 1 3600 0]"},
		step{"CL.THROTTLE k 1 1 3600",
			`-ERR forbidden-namespace confined may only ask about the namespaces throttle, and not about "cl"`},
		step{"RL.CHECK a u",
			"-ERR forbidden confined may only ask about subjects that bring their limits, in the namespaces throttle"},
		step{"HELLO 3 AUTH default t-admin",
			`{"server" "redis" "version" "7.4.0" "proto" 3 "id" 1 "mode" "standalone" "role" "master" "modules" []}`},
	)
	if got := c.ask("RL.RESET a u"); !strings.HasPrefix(got, `{"rule" "a"`) {
		t.Errorf("a reset with all scopes: got %s", got)
	}

	// A token that is gone from the file is valid no more, also on connections that have shown it.
	apitest.WriteFile(t, file, "tokens:\n"+apitest.TokenEntry("asks", "t-check", "check"))
	apitest.Until(t, "the token is gone", func() bool { return c.ask("PING") == noAuth })
}

// Each command needs its scope, and no other will do.
func TestScopes(t *testing.T) {
	t.Parallel()
	scopes := []string{"check", "adjust", "read", "entries"}
	var entries []string
	for _, scope := range scopes {
		entries = append(entries, apitest.TokenEntry(scope, "t-"+scope, scope))
	}
	file := apitest.TokensFile(t, entries...)
	n := startNode(t, func(c *apitest.Config) { c.TokensFile = file })

	anyScope := strings.Fields("hello auth quit reset ping echo select client command config info cluster readonly readwrite")
	adjust := []string{"del", "unlink", "rl.reset"}
	for _, name := range names() {
		need := "check"
		if slices.Contains(adjust, name) {
			need = "adjust"
		}

		command := name + strings.Repeat(" x", max(specs[name].arity, -specs[name].arity)-1)
		for _, scope := range scopes {
			c := dial(t, n)
			c.askAll(step{"AUTH t-" + scope, "+OK"})
			forbidden := strings.HasPrefix(c.ask(command), "-ERR forbidden this needs a token with the scope "+need)
			expect.Equal(t, forbidden, scope != need && !slices.Contains(anyScope, name),
				"%s is forbidden with the scope %s", name, scope)
		}
	}
}

// The door counts its commands and times its checks under its own name.
func TestMetrics(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	c := dial(t, n)
	c.ask("PING")
	c.ask("CL.THROTTLE k 1 1 3600")
	c.ask("RL.CHECK a u")
	c.ask("NOPE")
	got := map[string]float64{}
	n.server.Metrics(func(m metrics.Metric) {
		name := m.Name
		for _, count := range m.Counts {
			got[name] += float64(count)
		}
		got[name] += m.Value
	})
	for name, want := range map[string]float64{"requests_total": 4, "redis_seconds": 2, "connections": 1} {
		expect.Equal(t, got[name], want, "%s", name)
	}
}

// A document that does not allow a namespace forbids the commands that use it.
func TestForbiddenNamespace(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	n.UseRules(apitest.Rules + "inline: {namespaces: [cl]}\n")
	c := dial(t, n)
	c.askAll(
		step{"CL.THROTTLE k 1 1 3600", "[0 2 1 -1 3600]"},
		step{"THROTTLE k 2 1 3600",
			`-ERR forbidden-namespace namespace: the rules do not allow it: "throttle" is not in inline.namespaces`},
	)
}
