package document

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

func readContract(t testing.TB) []byte {
	t.Helper()
	src, err := os.ReadFile("testdata/contract.yaml")
	expect.NoError(t, err)
	return src
}

// readConditions returns a document with every kind of condition.
func readConditions(t testing.TB) string {
	t.Helper()
	src, err := os.ReadFile("testdata/conditions.yaml")
	expect.NoError(t, err)
	return string(src)
}

func mustParse(t testing.TB, src string) *Document {
	t.Helper()
	doc, err := Parse([]byte(src))
	if err != nil {
		t.Fatalf("Parse: %v\n%s", err, src)
	}
	return doc
}

func TestParse_contractExample(t *testing.T) {
	doc := mustParse(t, string(readContract(t)))
	have := [...]int{len(doc.Rules), len(doc.Tiers), len(doc.Subjects), len(doc.Deny), len(doc.Allow)}
	if want := [...]int{11, 5, 1, 1, 2}; have != want {
		t.Errorf("rules, tiers, attributes with subjects, denied and allowed: have %v, want %v", have, want)
	}
	var warned []string
	for _, w := range doc.Warnings() {
		warned = append(warned, fmt.Sprintf("%s at %d", w.Path, w.Line))
	}
	wantWarned := ""
	expect.Equal(t, strings.Join(warned, ", "), wantWarned, "warnings")
}

// one is a document of one rule, which begins on line 2.
const one = "rules:\n  - name: a\n    key: [ip]\n    limits: [{limit: 1, per: 1m}]\n"

func TestParse_mistakes(t *testing.T) {
	rule := func(lines ...string) string {
		return "rules:\n  - name: a\n    key: [ip]\n    " + strings.Join(lines, "\n    ") + "\n"
	}
	lim := func(limit string) string { return rule("limits: [" + limit + "]") }
	okLimits := "limits: [{limit: 1, per: 1m}]"
	tests := []struct {
		name, src string
		want      []string // line:column path, and a part of the message
	}{
		{"empty", "", []string{"1:1 |empty"}},
		{"only a comment", "# nothing\n", []string{"1:1 |empty"}},
		{"not a map", "- 1", []string{"1:1 |expected a mapping, not a list"}},
		{"version", "version: 2", []string{"1:10 version|the only version is 1"}},
		{"unknown key", "ruels: []", []string{"1:1 ruels|did you mean rules?"}},
		{"duplicate key", "default: allow\ndefault: deny", []string{"2:1 default|duplicate"}},
		{"default", "default: maybe", []string{`1:10 default|"maybe" is not one of allow, deny`}},
		{"several documents", "default: deny\n---\ndefault: deny", []string{"3:1 |only one document"}},
		{"syntax", "rules:\n  - name: a\n   key: []\n", []string{"3:4 |did not find expected"}},
		{"subject with no limits in its limits", "subjects: {tenant: {acme: {limits: {}}}}",
			[]string{"1:27 subjects.tenant.acme|a subject needs a tier or limits"}},
		{"zone of one machine", "defaults: {tz: localtime}", []string{"1:16 defaults.tz|is not a time zone"}},
		{"zone with leap seconds", "defaults: {tz: right/UTC}", []string{"1:16 defaults.tz|is not a time zone"}},
		{"zone by a detour", "defaults: {tz: ./UTC}", []string{"1:16 defaults.tz|is not a time zone"}},
		{"unclosed", "rules: [", []string{"1:9 |did not find expected"}},
		{"tab", "rules:\n\t- a", []string{"2:1 |cannot start any token"}},
		{"alias unknown", "default: *x", []string{"1:10 |unknown anchor 'x'"}},
		{"too deep", strings.Repeat("[", 100) + strings.Repeat("]", 100), []string{"1:66 |levels of nesting"}},
		{"bad UTF-8", "default: é\xff", []string{"1:11 |UTF-8"}},
		{"control character", "default: a\x01", []string{"1:11 |control characters"}},
		{"tag", "default: !word deny", []string{"1:10 |tag !word is not supported"}},
		{"merge key", "tiers: {a: &a {limits: []}, b: {<<: *a}}", []string{"1:33 |merge keys"}},
		{"key no text", "? [a]\n: b", []string{"1:3 |a key must be plain text"}},
		{"alias inside itself", "tiers: &a {b: *a}", []string{"1:15 |stands inside"}},
		{"characters, not bytes", "lists: {deny: [{é: ü, ö: 1, ö: 2}]}", []string{`1:29 lists.deny[0].ö|duplicate`}},
		{"many commas", "{" + strings.Repeat("a: b,", 1_000_001) + "}", []string{"1:1 |commas"}},
		{"several at once",
			"default: maybe\ndefault_tier: gold\nrules: [{name: a, key: [], limits: [{limit: -1, per: 1y}]}]\n",
			[]string{
				`1:10 default|maybe`, `2:1 default_tier|"gold" is not defined`,
				"3:45 rules[0].limits[0].limit|-1 is not in 0…9007199254740991",
				`3:54 rules[0].limits[0].per|"1y" is not a duration`}},

		{"rule without name", "rules: [{key: [], limits: [{limit: 1, per: 1m}]}]",
			[]string{"1:9 rules[0]|needs a name"}},
		{"rule without key", "rules: [{name: a, limits: [{limit: 1, per: 1m}]}]", []string{"1:9 rules[0]|needs a key"}},
		{"rule without limits", "rules: [{name: a, key: []}]", []string{"1:9 rules[0]|needs limits"}},
		{"limits and tiered",
			rule(okLimits, "tiered: true") + "tiers: {f: {limits: [{limit: 1, per: 1h}]}}",
			[]string{"4:5 rules[0].limits|tiered rule's limits"}},
		{"tiered without tiers", rule("tiered: true"), []string{"4:5 rules[0].tiered|needs tiers"}},
		{"no limit", rule("limits: []"), []string{"4:13 rules[0].limits|at least one limit"}},
		{"seventeen limits", rule("limits: [" + strings.Repeat("1, ", 17) + "]"),
			[]string{"4:13 rules[0].limits|17 limits; at most 16 are allowed"}},
		{"duplicate rule", one + strings.TrimPrefix(one, "rules:\n"),
			[]string{`5:5 rules[1].name|the name "a" is taken by rules[0]`}},
		{"unknown key of a rule", rule(okLimits, "algorithm: fixed-window"),
			[]string{"5:5 rules[0].algorithm|unknown key"}},
		{"unknown key of a limit", lim("{limit: 1, per: 1m, window: 3}"),
			[]string{"4:34 rules[0].limits[0].window|unknown key"}},
		{"key twice", "rules: [{name: a, key: [ip, ip], limits: [{limit: 1, per: 1m}]}]",
			[]string{`1:29 rules[0].key[1]|duplicate attribute "ip"`}},
		{"key no list", "rules: [{name: a, key: ip, limits: [{limit: 1, per: 1m}]}]",
			[]string{"1:24 rules[0].key|expected a list, not text"}},
		{"empty name", "rules: [{name: '', key: [], limits: [{limit: 1, per: 1m}]}]",
			[]string{"1:16 rules[0].name|can't be empty"}},
		{"long name",
			"rules: [{name: " + strings.Repeat("x", 129) + ", key: [], limits: [{limit: 1, per: 1m}]}]",
			[]string{"1:16 rules[0].name|longer than 128"}},
		{"control in name", `rules: [{name: "a\u0007", key: [], limits: [{limit: 1, per: 1m}]}]`,
			[]string{"1:16 rules[0].name|control"}},
		{"1,001 rules", "rules: [" + strings.Repeat("1,", 1001) + "]",
			[]string{"1:8 rules|1001 rules; at most 1000 are allowed"}},

		{"limit missing", lim("{per: 1m}"), []string{"4:14 rules[0].limits[0]|limit is missing"}},
		{"per missing", lim("{limit: 1}"), []string{"4:14 rules[0].limits[0]|per is missing"}},
		{"limit negative", lim("{limit: -1, per: 1m}"), []string{"4:22 rules[0].limits[0].limit|-1 is not in 0…"}},
		{"limit too large", lim("{limit: 9007199254740992, per: 1m}"),
			[]string{"4:22 rules[0].limits[0].limit|is not in"}},
		{"limit overflows", lim("{limit: 99999999999999999999999, per: 1m}"),
			[]string{"4:22 rules[0].limits[0].limit|is not in"}},
		{"limit fraction", lim("{limit: 1.5, per: 1m}"),
			[]string{"4:22 rules[0].limits[0].limit|expected an integer, not a number"}},
		{"limit exponent", lim("{limit: 1e3, per: 1m}"), []string{"4:22 rules[0].limits[0].limit|expected an integer"}},
		{"limit text", lim(`{limit: "10", per: 1m}`),
			[]string{"4:22 rules[0].limits[0].limit|expected an integer, not text"}},
		{"limit octal", lim("{limit: 010, per: 1m}"), []string{"4:22 rules[0].limits[0].limit|plain decimal digits"}},
		{"per without unit", lim("{limit: 1, per: 60}"),
			[]string{"4:30 rules[0].limits[0].per|needs a unit, as in 60s"}},
		{"per short", lim("{limit: 1, per: 9ms}"), []string{"4:30 rules[0].limits[0].per|9ms is not in 10ms…366d"}},
		{"per long", lim("{limit: 1, per: 8785h}"), []string{"4:30 rules[0].limits[0].per|is not in"}},
		{"per negative", lim("{limit: 1, per: -1m}"), []string{"4:30 rules[0].limits[0].per|is not in"}},
		{"algorithm", lim("{limit: 1, per: 1m, algorithm: token-buckt}"),
			[]string{"4:45 rules[0].limits[0].algorithm|did you mean token-bucket?"}},
		{"calendar with bucket", lim("{limit: 1, per: day, algorithm: token-bucket}"),
			[]string{"4:46 rules[0].limits[0].algorithm|calendar windows are for fixed-window"}},
		{"burst on window", lim("{limit: 1, per: 1m, algorithm: fixed-window, burst: 3}"),
			[]string{"4:66 rules[0].limits[0].burst|not for fixed-window"}},
		{"burst on default", lim("{limit: 1, per: 1m, burst: 3}"),
			[]string{"4:14 rules[0].limits[0].burst|not for sliding-window"}},
		{"burst on calendar with bucket default",
			"defaults: {algorithm: token-bucket}\n" + lim("{limit: 1, per: day, burst: 3}"),
			[]string{"5:14 rules[0].limits[0].burst|not for fixed-window"}},
		{"burst zero", lim("{limit: 1, per: 1m, algorithm: token-bucket, burst: 0}"),
			[]string{"4:66 rules[0].limits[0].burst|0 is not in 1"}},
		{"bad zone", lim("{limit: 1, per: day, tz: Mars/Base}"),
			[]string{"4:39 rules[0].limits[0].tz|not a time zone"}},
		{"zone Local", lim("{limit: 1, per: day, tz: Local}"), []string{"4:39 rules[0].limits[0].tz|not a time zone"}},
		{"zone outside", lim("{limit: 1, per: day, tz: ../../etc/passwd}"),
			[]string{"4:39 rules[0].limits[0].tz|not a time zone"}},
		{"same counter", lim("{limit: 1, per: 60s}, {limit: 2, per: 1m}"),
			[]string{"4:36 rules[0].limits[1]|the same counter"}},
		{"same counter by zone",
			rule("tz: Europe/Berlin", "limits: [{limit: 1, per: day}, {limit: 2, per: day, tz: Europe/Berlin}]"),
			[]string{"5:36 rules[0].limits[1]|the same counter"}},
		{"same limit name", lim("{name: x, limit: 1, per: 60s}, {name: x, limit: 2, per: 1h}"),
			[]string{`4:45 rules[0].limits[1].name|two limits are called "x"`}},
		{"a default name", lim("{limit: 1, per: 60s}, {name: a/requests/60s, limit: 2, per: 1h}"),
			[]string{`4:36 rules[0].limits[1].name|rules[0].limits[0] is called "a/requests/60s", too, for it has no name of its own`}},

		{"match nothing", rule("match: {}", okLimits), []string{"4:12 rules[0].match|at least one attribute"}},
		{"match empty list", rule("match: {a: []}", okLimits), []string{"4:16 rules[0].match.a|matches nothing"}},
		{"match null", rule("match: {a: }", okLimits), []string{"4:16 rules[0].match.a|expected text, not nothing"}},
		{"match map", rule("match: {a: {b: c}}", okLimits),
			[]string{"4:16 rules[0].match.a|expected text, not a mapping"}},
		{"match no address", rule("match: {ip: 300.1.1.1}", okLimits),
			[]string{"4:17 rules[0].match.ip|neither an address"}},
		{"match bad CIDR", rule("match: {ip: [10.0.0.0/33]}", okLimits),
			[]string{"4:18 rules[0].match.ip[0]|neither an address nor a CIDR"}},
		{"match host bits", rule("match: {src_ip: 10.0.0.1/8}", okLimits),
			[]string{"4:21 rules[0].match.src_ip|did you mean 10.0.0.0/8?"}},
		{"match long value", rule("match: {a: "+strings.Repeat("x", 1025)+"}", okLimits),
			[]string{"4:16 rules[0].match.a|longer than 1024"}},

		{"cost without by", rule("cost: {default: 1}", okLimits), []string{"4:11 rules[0].cost|by is missing"}},
		{"cost negative", rule("cost: {by: e, values: {x: -1}}", okLimits),
			[]string{"4:31 rules[0].cost.values.x|-1 is not in 0"}},
		{"scope", rule("scope: world", okLimits), []string{"4:12 rules[0].scope|not one of region, global"}},
		{"global sliding", rule("scope: global", okLimits), []string{"5:14 rules[0].limits[0]|not for sliding-window"}},
		{"global tiers",
			rule("scope: global", "tiered: true") + "tiers: {f: {limits: [{limit: 1, per: 1h}]}}",
			[]string{`6:22 tiers.f.limits[0]|the rule "a" has scope: global`}},
		{"global override",
			rule("scope: global", "limits: [{limit: 1, per: day}]") +
				"subjects: {ip: {1.1.1.1: {limits: {a: [{limit: 1, per: 1m}]}}}}",
			[]string{`6:40 subjects.ip["1.1.1.1"].limits.a[0]|scope: global`}},
		{"regions without global", rule("regions: {us: 1}", okLimits),
			[]string{"4:5 rules[0].regions|for scope: global"}},
		{"too many regions",
			rule("scope: global", "regions: {"+manyRegions()+"}", "limits: [{limit: 1, per: day}]"),
			[]string{"5:14 rules[0].regions|33 regions; at most 32 are allowed"}},
		{"regions sum",
			rule("scope: global", "regions: {us: 0.5, eu: 0.4}", "limits: [{limit: 1, per: day}]"),
			[]string{"5:14 rules[0].regions|add up to 0.9"}},
		{"block", rule(okLimits, "block: 1ms"), []string{"5:12 rules[0].block|1ms is not in"}},
		{"usage", rule(okLimits, "usage: daily"), []string{`5:12 rules[0].usage|"daily" is not one of monthly`}},
		{"usage is no word", rule(okLimits, "usage: true"), []string{"5:12 rules[0].usage|not one of monthly"}},
		{"per long", lim("{limit: 1, per: 366d1ms}"),
			[]string{"4:30 rules[0].limits[0].per|366d1ms is not in 10ms…366d"}},
		{"per longer than can be said", lim("{limit: 1, per: 200000d}"),
			[]string{"4:30 rules[0].limits[0].per|200000d is not in 10ms…366d"}},
		{"per in weeks", lim("{limit: 1, per: 1w}"),
			[]string{`4:30 rules[0].limits[0].per|"1w" is not a duration such as 500ms, 15m, 24h or 7d`}},
		{"max_delay", rule(okLimits, "max_delay: 25h"), []string{"5:16 rules[0].max_delay|25h is not in 1ms…1d"}},
		{"on_limit", rule(okLimits, "on_limit: wait"), []string{"5:15 rules[0].on_limit|not one of refuse, delay"}},
		{"lease", rule(okLimits, "lease: {threshold: 0.4, ttl: 10s, idle: 0}"),
			[]string{"5:24 rules[0].lease.threshold|0.5…0.95", "5:34 rules[0].lease.ttl|50ms…5s",
				"5:45 rules[0].lease.idle|above 0"}},
		{"ipv4_prefix", rule(okLimits, "ipv4_prefix: 33"), []string{"5:18 rules[0].ipv4_prefix|1…32"}},
		{"ipv6_prefix", rule(okLimits, "ipv6_prefix: 129"), []string{"5:18 rules[0].ipv6_prefix|1…128"}},
		{"shadow", rule(okLimits, "shadow: yes"), []string{"5:13 rules[0].shadow|expected true or false, not text"}},
		{"adaptive",
			rule(okLimits, "adaptive: {source: s, steps: [{above: 0.5, factor: 0}, {above: 0.5, factor: 1}]}"),
			[]string{"5:56 rules[0].adaptive.steps[0].factor|above 0",
				"5:60 rules[0].adaptive.steps[1]|above the one before"}},
		{"adaptive incomplete", rule(okLimits, "adaptive: {steps: []}"),
			[]string{"5:15 rules[0].adaptive|source is missing", "5:23 rules[0].adaptive.steps|1 to 100 steps"}},

		{"tier without limits", "tiers: {f: {}}", []string{"1:12 tiers.f|needs limits"}},
		{"burst in tier", "tiers: {f: {limits: [{limit: 1, per: 1m, burst: 2}]}}",
			[]string{"1:22 tiers.f.limits[0].burst|not for sliding-window"}},
		{"same counter in tier", "tiers: {f: {limits: [{limit: 1, per: 1m}, {limit: 1, per: 1m}]}}",
			[]string{"1:43 tiers.f.limits[1]|same counter"}},
		{"subject tier", "subjects: {t: {x: {tier: gold}}}", []string{`1:16 subjects.t.x.tier|"gold" is not defined`}},
		{"subject of nothing", "subjects: {t: {x: {}}}", []string{"1:19 subjects.t.x|needs a tier or limits"}},
		{"override without rule", "subjects: {t: {x: {limits: {r: [{limit: 1, per: 1m}]}}}}",
			[]string{`1:29 subjects.t.x.limits.r|no rule is called "r"`}},
		{"override of another key",
			one + "subjects: {t: {x: {limits: {a: [{limit: 1, per: 1m}]}}}}",
			[]string{`5:29 subjects.t.x.limits.a|key does not include "t"`}},
		{"address twice",
			"tiers: {f: {limits: [{limit: 1, per: 1m}]}}\nsubjects: {ip: {1.2.3.4: {tier: f}, '::ffff:1.2.3.4': {tier: f}}}",
			[]string{`2:37 subjects.ip["1.2.3.4"]|duplicate`}},
		{"subject no address",
			"tiers: {f: {limits: [{limit: 1, per: 1m}]}}\nsubjects: {ip: {10.0.0.0/8: {tier: f}}}",
			[]string{`2:17 subjects.ip["10.0.0.0/8"]|not an address`}},
		{"list entry", "lists: {deny: [{}, {ip: 1.2.3}]}",
			[]string{"1:16 lists.deny[0]|at least one", `1:25 lists.deny[1].ip|neither an address`}},
		{"headers", "headers: {reset: never}", []string{"1:18 headers.reset|unix, delta"}},
		{"profile", "profiles: {web: {ip: cookie:x, trusted_hops: 0}, no: {}}",
			[]string{"1:22 profiles.web.ip|not a source", "1:46 profiles.web.trusted_hops|1…32",
				"1:54 profiles.no|at least one attribute"}},
		{"profile's hops",
			"profiles: {a: {user: header:X-User, trusted_hops: 1}, b: {client: header:x-forwarded-for, trusted_hops: 2}}",
			[]string{"1:51 profiles.a|trusted_hops is for addresses"}},
		{"profile's secrets",
			"profiles: {web: {ip: fingerprint:X-Ip, a: fingerprint:X-Forwarded-For, endpoint: fingerprint:X-Uri, b: 'fingerprint:', c: fingerprint:X-Key}}",
			[]string{"1:22 profiles.web.ip|is for secrets", "1:43 profiles.web.a|is for secrets",
				"1:82 profiles.web.endpoint|is for secrets", "1:104 profiles.web.b|not a source"}},
		{"profile's sources",
			"profiles: {web: {ip: header:Forwarded, a: 'header:X Y', b: 'header:', c: method, d: {}}}",
			[]string{"1:22 profiles.web.ip|X-Forwarded-For", "1:43 profiles.web.a|not a source",
				"1:60 profiles.web.b|not a source", "1:74 profiles.web.c|not a source",
				"1:85 profiles.web.d|expected text"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.src))
			checkErrors(t, err, tt.want)
		})
	}
}

// checkErrors compares Errors with wants of the form "line:column path|part of the message".
func checkErrors(t *testing.T, err error, want []string) {
	t.Helper()
	var have Errors
	if !errors.As(err, &have) || len(have) != len(want) {
		t.Fatalf("have errors:\n%v\nwant %q", err, want)
	}
	for i, w := range want {
		place, message, _ := strings.Cut(w, "|")
		if at := fmt.Sprintf("%d:%d %s", have[i].Line, have[i].Column, have[i].Path); at != place ||
			!strings.Contains(have[i].Message, message) {
			t.Errorf("have %s|%s, want %s", at, have[i].Message, w)
		}
	}
}

func manyRegions() string {
	var names []string
	for i := range 33 {
		names = append(names, fmt.Sprintf("r%d: %d", i, min(1, i/32)))
	}
	return strings.Join(names, ", ")
}

func TestDocument_Warnings(t *testing.T) {
	doc := mustParse(t, `defaults: {on_limit: delay, max_delay: 1s, consistency: local}
rules:
  - name: a
    key: []
    limits: [{limit: 1, per: 1m}]
    on_limit: delay
    max_delay: 2s
    consistency: local
    on_partition: deny
  - {name: b, key: [], on_limit: refuse, consistency: exact, lease: {idle: 0.1}, limits: [{limit: 1, per: 1m}]}
  - name: c
    key: [ip]
    scope: global
    regions: {us: 0.5, eu: 0.3, ap: 0.2, no: 0}
    limits:
      - {limit: 2, per: 1m, algorithm: fixed-window}
      - {limit: 3, per: 1m, algorithm: fixed-window, unit: x}
      - {limit: 100, per: 1m, algorithm: token-bucket, burst: 1, name: burst}
  - {name: d, key: [tenant], scope: global, tiered: true, regions: {us: 0.9, eu: 0.1}}
  - {name: e, key: [], shadow: true, usage: monthly, limits: [{limit: 1, per: 1m}]}
tiers:
  small: {limits: [{limit: 1, per: day}]}
`)
	checkErrors(t, Errors(doc.Warnings()), []string{
		"16:9 rules[2].limits[0]|too small to divide among the regions in whole units: these refuse everything: ap",
		"18:9 rules[2].limits[2]|these refuse everything: eu, ap",
		"20:38 rules[4].usage|a shadow rule is not counted",
		"22:20 tiers.small.limits[0]|these refuse everything: eu",
	})
}

func TestDocument_Warnings_emptyValues(t *testing.T) {
	doc := mustParse(t, `rules:
  - {name: a, key: [ip], match: {tenant: ['', x], plan: '*'}, limits: [{limit: 1, per: 1m}]}
  - {name: b, key: [tenant], cost: {by: plan, values: {'': 2, y: 3}}, limits: [{limit: 1, per: 1m}]}
lists:
  deny: [{tenant: x}, {tenant: ''}]
  allow: [{user: ['']}]
subjects: {tenant: {'': {limits: {b: [{limit: 9, per: 1m}]}}, x: {limits: {b: [{limit: 9, per: 1m}]}}}}
`)
	checkErrors(t, Errors(doc.Warnings()), []string{
		`2:26 rules[0].match.tenant|"" never matches`,
		`3:30 rules[1].cost.values|"" never matches`,
		`4:1 lists.deny[1].tenant|"" never matches`,
		`4:1 lists.allow[0].user|"" never matches`,
		`7:21 subjects.tenant|"" never matches`,
	})
}

// Tables of costs and subjects compare values as they stand. Patterns there are
// most probably a mistake.
func TestDocument_Warnings_patterns(t *testing.T) {
	doc := mustParse(t, `rules:
  - {name: a, key: [tenant], match: {endpoint: '/a/*'}, limits: [{limit: 1, per: 1m}],
     cost: {by: endpoint, values: {/b/*: 3, 10.0.0.0/8: 2, /c: 1}}}
subjects: {tenant: {x: {limits: {a: [{limit: 9, per: 1m}]}}, y*: {limits: {a: [{limit: 9, per: 1m}]}}}}
`)
	checkErrors(t, Errors(doc.Warnings()), []string{
		`3:6 rules[0].cost.values|"/b/*" is compared as it stands`,
		`3:6 rules[0].cost.values|"10.0.0.0/8" is compared as it stands`,
		`4:62 subjects.tenant|"y*" is compared as it stands`,
	})
}

func TestDocument_Warnings_maxDelay(t *testing.T) {
	doc := mustParse(t, `defaults: {max_delay: 9s}
rules:
  - {name: idle, key: [ip], max_delay: 5s, limits: [{limit: 1, per: 1m}]}
  - {name: refuse, key: [ip], max_delay: 5s, on_limit: refuse, limits: [{limit: 1, per: 1m}]}
  - {name: delay, key: [ip], max_delay: 5s, on_limit: delay, limits: [{limit: 1, per: 1m}]}
  - {name: leaky, key: [ip], max_delay: 5s, limits: [{limit: 1, per: 1m}, {limit: 9, per: 1m, algorithm: leaky-bucket, name: queue}]}
  - {name: leaky-tier, key: [tenant], max_delay: 5s, tiered: true}
  - {name: leaky-subject, key: [tenant], max_delay: 5s, limits: [{limit: 1, per: 1m}]}
tiers: {one: {limits: [{limit: 9, per: 1m, algorithm: leaky-bucket}]}}
subjects: {tenant: {acme: {limits: {leaky-subject: [{limit: 9, per: 1m, algorithm: leaky-bucket}]}}}}
`)
	checkErrors(t, Errors(doc.Warnings()), []string{
		"3:29 rules[0].max_delay|without on_limit: delay",
		"4:31 rules[1].max_delay|without on_limit: delay",
	})
	doc = mustParse(t,
		"defaults: {on_limit: delay}\nrules: [{name: a, key: [ip], max_delay: 5s, limits: [{limit: 1, per: 1m}]}]\n")
	checkErrors(t, Errors(doc.Warnings()), nil)
}

func TestParse_bounds(t *testing.T) {
	if _, err := Parse(make([]byte, MaxDocument+1)); err == nil || !strings.Contains(err.Error(), "8 MiB") {
		t.Errorf("too large: have %v", err)
	}
	_, err := Parse([]byte("rules: [" + strings.Repeat("{},", 999) + "]\ntiers: [" + strings.Repeat("1,", 500) + "]"))
	if errs := err.(Errors); len(errs) != maxErrors+1 || !strings.HasPrefix(errs[maxErrors].Message, "and ") {
		t.Errorf("many mistakes: have %d, last %v", len(errs), errs[len(errs)-1])
	}
	laughs := "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'k'; c++ {
		laughs += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.Repeat(fmt.Sprintf("*%c, ", c-1), 10))
	}
	if _, err := Parse([]byte(laughs)); err == nil || !strings.Contains(err.Error(), "aliases counted each time") {
		t.Errorf("billion laughs: have %v", err)
	}
	many := "rules: ["
	for i := range 1000 {
		many += fmt.Sprintf("{name: r%d, key: [t], tiered: true},", i)
	}
	many += "]\ntiers:\n"
	for i := range 1001 {
		many += fmt.Sprintf("  t%d: {limits: [{limit: 1, per: 1m}]}\n", i)
	}
	if _, err := Parse([]byte(many)); err == nil || !strings.Contains(err.Error(), "at most 1000000 are allowed") {
		t.Errorf("tiers times rules: have %v", err)
	}
}

func TestParse_accepts(t *testing.T) {
	tests := map[string]string{
		"anchor":    "tiers:\n  a: &a {limits: [{limit: 1, per: 1m}]}\n  b: *a\n",
		"json":      `{"rules":[{"name":"a","key":[],"limits":[{"limit":1,"per":"1m"}]}]}`,
		"no rules":  "version: 1",
		"braces":    "{}",
		"number":    "lists: {deny: [{tenant: 123}, {beta: true}, {v: 1.0}]}",
		"string ip": "lists: {deny: [{ip: unknown}]}",
		"amount":    "tiers: {a: {limits: [{limit: 9007199254740991, per: 8784h}]}}",
		"zones":     "tiers: {a: {limits: [{limit: 1, per: day}, {limit: 1, per: day, tz: Asia/Tokyo}]}}",
		"CRLF":      "version: 1\r\ndefault: deny\r\n",
		"marker":    "---\nversion: 1\n...\n",
		"cost zero": strings.Replace(one, "    limits",
			"    cost: {by: e, values: {x: 0}, default: 0}\n    limits", 1),
		"regions": strings.Replace(one, "    limits: [{limit: 1, per: 1m}]",
			"    scope: global\n    regions: {a: 0.333, b: 0.333, c: 0.333}\n    limits: [{limit: 1, per: 1m, algorithm: fixed-window}]",
			1),
		"burst by default": "defaults: {algorithm: token-bucket}\ntiers: {a: {limits: [{limit: 1, per: 1m, burst: 4}]}}",
	}
	for name, src := range tests {
		t.Run(name, func(t *testing.T) { mustParse(t, src) })
	}
}

// Too many rules are refused before anything is built of them.
func TestManyRulesCostLittle(t *testing.T) {
	one := "  - {name: r, key: [a], limits: [{limit: 1, per: 1s}]} # " + strings.Repeat("x", 60) + "\n"
	for name, src := range map[string]string{
		"indented":    "version: 1\nrules:\n" + strings.Repeat(one, 58_000),
		"in a column": "rules:\n# first\n\n" + strings.Repeat(strings.TrimLeft(one, " "), 58_000) + "version: 1\n",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse([]byte(src))
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "58000 rules; at most 1000 are allowed") {
			t.Errorf("%s: got %.200v", name, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 4*uint64(len(src)) {
			t.Errorf("%s: %d bytes were allocated for %d", name, took, len(src))
		}
	}
}

// What only looks like rules is not counted.
func TestOnlyRulesAreCounted(t *testing.T) {
	entry := "    - {ip: 192.0.2.1}\n"
	src := "version: 1\nlists:\n  deny:\n" + strings.Repeat(entry, 3000) +
		"rules:\n  - name: r\n    key:\n      - a\n    limits:\n      - {limit: 1, per: 1s}\n"
	if _, err := Parse([]byte(src)); err != nil {
		t.Errorf("got %.200v", err)
	}
}
