package document

import (
	"fmt"
	"strings"
	"testing"
)

func TestEnvoyMistakes(t *testing.T) {
	in := func(descriptors string) string { return "envoy: [{domain: d, descriptors: [" + descriptors + "]}]" }
	lim := func(limit string) string { return in("{key: k, rate_limit: {" + limit + "}}") }
	const at = "envoy[0].descriptors[0]"
	deep := strings.Repeat("{key: k, descriptors: [", 16) + "{key: k}" + strings.Repeat("]}", 16)
	for _, tt := range []struct {
		name, src string
		want      []string
	}{
		{"no list", "envoy: {domain: d}", []string{"1:8 envoy|expected a list"}},
		{"no domain", "envoy: [{descriptors: []}]", []string{"1:9 envoy[0]|domain is missing"}},
		{"empty domain", "envoy: [{domain: ''}]", []string{"1:18 envoy[0].domain|can't be empty"}},
		{"control", "envoy: [{domain: \"a\\n\"}]", []string{"1:18 envoy[0].domain|control characters"}},
		{"domain twice", "envoy:\n  - domain: a\n  - domain: b\n  - domain: a",
			[]string{`4:5 envoy[2].domain|the domain "a" is taken by envoy[0]`}},
		{"unknown key of a domain", "envoy: [{domain: d, descriptor: []}]",
			[]string{"1:21 envoy[0].descriptor|did you mean descriptors?"}},
		{"no key", in("{value: v}"), []string{"1:35 " + at + "|key is missing"}},
		{"empty key", in("{key: ''}"), []string{"1:41 " + at + ".key|can't be empty"}},
		{"long value", in("{key: k, value: " + strings.Repeat("x", 1025) + "}"),
			[]string{"1:51 " + at + ".value|longer than 1024"}},
		{"many stars", in("{key: k, value: '" + strings.Repeat("*", 17) + "'}"),
			[]string{"1:51 " + at + ".value|more than 16 *"}},
		{"unknown key", in("{key: k, shadow: true}"), []string{"1:44 " + at + ".shadow|unknown key"}},
		{"shadow_mode inside", lim("unit: day, requests_per_unit: 1, shadow_mode: true"),
			[]string{"1:90 " + at + ".rate_limit.shadow_mode|unknown key"}},
		{"twice", in("{key: k}, {key: k, value: v}, {key: k}"),
			[]string{`1:65 envoy[0].descriptors[2]|"k" is a duplicate of descriptors[0]`}},
		{"twice, as the reference server sees it", in("{key: k_v}, {key: k, value: v}"),
			[]string{`1:47 envoy[0].descriptors[1]|"k_v" is a duplicate of descriptors[0]`}},
		{"no unit", lim("requests_per_unit: 1"), []string{"1:56 " + at + ".rate_limit|unit is missing"}},
		{"unit", lim("unit: dya, requests_per_unit: 1"),
			[]string{"1:63 " + at +
				`.rate_limit.unit|"dya" is not one of second, minute, hour, day, week, month, year; did you mean day?`}},
		{"unit unknown", lim("unit: unknown, requests_per_unit: 1"),
			[]string{"1:63 " + at + ".rate_limit.unit|is not one of"}},
		{"unit and per", lim("unit: day, per: 1d, requests_per_unit: 1"),
			[]string{"1:68 " + at + ".rate_limit.per|unit and per exclude each other"}},
		{"no requests", lim("unit: day"),
			[]string{"1:56 " + at + ".rate_limit|requests_per_unit is missing; 0 refuses everything"}},
		{"many requests", lim("unit: day, requests_per_unit: 4294967296"),
			[]string{"1:87 " + at + ".rate_limit.requests_per_unit|is not in 0…4294967295"}},
		{"unlimited with a unit", lim("unit: day, unlimited: true"),
			[]string{"1:57 " + at + ".rate_limit.unit|unlimited excludes unit"}},
		{"burst", lim("unit: day, requests_per_unit: 1, burst: 2"),
			[]string{"1:90 " + at + ".rate_limit.burst|not for fixed-window"}},
		{"calendar", lim("per: day, requests_per_unit: 1, algorithm: token-bucket"),
			[]string{"1:89 " + at + ".rate_limit.algorithm|calendar windows"}},
		{"empty name in replaces", lim("unit: day, requests_per_unit: 1, replaces: [{name: ''}]"),
			[]string{"1:108 " + at + ".rate_limit.replaces[0].name|can't be empty"}},
		{"no name in replaces", lim("unit: day, requests_per_unit: 1, replaces: [{}]"),
			[]string{"1:101 " + at + ".rate_limit.replaces[0]|name is missing"}},
		{"replaces itself", lim("unit: day, requests_per_unit: 1, name: a, replaces: [{name: a}]"),
			[]string{"1:56 " + at + `.rate_limit.replaces|"a" is the limit's own name`}},
		{"share_threshold", in("{key: k, value: v*, share_threshold: true}"),
			[]string{"1:72 " + at + ".share_threshold|is not supported"}},
		{"value_to_metric", in("{key: k, value_to_metric: true}"),
			[]string{"1:61 " + at + ".value_to_metric|is not supported"}},
		{"metadata", in("{key: k, metadata: [1]}"), []string{"1:54 " + at + ".metadata|expected a mapping"}},
		{"number in metadata", in("{key: k, metadata: {a: .nan}}"),
			[]string{"1:58 " + at + ".metadata.a|JSON can't represent .nan"}},
		{"large metadata", in("{key: k, metadata: {a: " + strings.Repeat("x", 4096) + "}}"),
			[]string{"1:54 " + at + ".metadata|4104 bytes as JSON; at most 4096 are allowed"}},
		{"17 levels", in(deep),
			[]string{"1:402 " + at + strings.Repeat(".descriptors[0]", 15) + ".descriptors|more than 16 levels"}},
		{"long path",
			in("{key: " + strings.Repeat("a", 1024) + ", descriptors: [{key: " + strings.Repeat("b", 1022) + "}]}"),
			[]string{"1:1081 " + at + ".descriptors[0]|have 2049 bytes; at most 2048 are allowed"}},
		{"1,001 domains", "envoy: [" + strings.Repeat("1,", 1001) + "]",
			[]string{"1:8 envoy|1001 domains; at most 1000 are allowed"}},
		{"101 replaced",
			lim("unit: day, requests_per_unit: 1, replaces: [" + strings.Repeat("1,", 101) + "]"),
			[]string{"1:100 " + at + ".rate_limit.replaces|101 names; at most 100 are allowed"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.src))
			checkErrors(t, err, tt.want)
		})
	}
}

// TestEnvoyCounts: mistakes that only the whole document shows.
func TestEnvoyCounts(t *testing.T) {
	many := func(n int, descriptor string) string {
		var b strings.Builder
		b.WriteString("envoy:\n  - domain: d\n    descriptors:\n")
		for i := range n {
			fmt.Fprintf(&b, "      - "+descriptor+"\n", i)
		}
		return b.String()
	}
	const limit = "rate_limit: {unit: day, requests_per_unit: 1}}"
	for _, tt := range []struct {
		most            int
		descriptor, why string
	}{
		{10_000, "{key: k, value: v%d, " + limit,
			"4:7: envoy[0].descriptors: more than 10000 descriptors in all domains"},
		{1000, "{key: k, value: 'v%d*', " + limit,
			"4:9: envoy[0].descriptors: 1001 sibling descriptors with *; at most 1000 are allowed"},
		{1000, "{key: k, value: v%d, detailed_metric: true, " + limit,
			"envoy: 1001 descriptors with detailed_metric; at most 1000 are allowed"},
	} {
		if _, err := Parse([]byte(many(tt.most, tt.descriptor))); err != nil {
			t.Errorf("%s: %v", tt.descriptor, err)
		}
		if _, err := Parse([]byte(many(tt.most+1, tt.descriptor))); err == nil ||
			!strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: have %v", tt.descriptor, err)
		}
	}
}
