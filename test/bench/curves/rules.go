package main

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// sorts are the ways in which one of n rules applies: the text of the i-th
// rule, and the attributes of a check to which only that rule applies.
var sorts = []struct {
	line  string
	match func(i int) string
	query func(i int) limiter.Query
}{
	{"by a value", func(i int) string { return fmt.Sprintf("{endpoint: /v1/things/%d}", i) },
		func(i int) limiter.Query { return attributes(fmt.Sprintf("/v1/things/%d", i), "192.0.2.1") }},
	{"by the beginning of a value",
		func(i int) string { return fmt.Sprintf("{endpoint: \"/v1/%d/*\"}", i) },
		func(i int) limiter.Query { return attributes(fmt.Sprintf("/v1/%d/x", i), "192.0.2.1") }},
	{"by CIDR", func(i int) string { return fmt.Sprintf("{ip: 10.%d.%d.0/24}", i/256, i%256) },
		func(i int) limiter.Query { return attributes("/", fmt.Sprintf("10.%d.%d.9", i/256, i%256)) }},
	{"by its name", func(i int) string { return fmt.Sprintf("{endpoint: /v1/things/%d}", i) },
		func(i int) limiter.Query {
			return limiter.Query{Rule: fmt.Sprint("r", i), Key: []string{"acme"}, ByKey: true}
		}},
}

func attributes(endpoint, ip string) limiter.Query {
	return limiter.Query{Attributes: []rules.Attribute{
		{Name: "tenant", Value: "acme"}, {Name: "endpoint", Value: endpoint},
		{Name: "ip", Value: ip}, {Name: "method", Value: "POST"},
	}}
}

func measureRules(o *options) (map[string][]point, error) {
	sizes := []int{1, 3, 10, 30, 100, 300, 1000}
	if o.quick {
		sizes = []int{1, 10, 100}
	}

	var samples []sample
	for _, s := range sorts {
		for _, place := range []string{"first", "last"} {
			if place == "first" && s.line != sorts[0].line {
				continue
			}

			for _, n := range sizes {
				i := n - 1
				if place == "first" {
					i = 0
				}
				run, err := oneOf(o, n, s.match, s.query(i), fmt.Sprint("r", i))
				if err != nil {
					return nil, err
				}
				samples = append(samples, sample{"the " + place + ", " + s.line, float64(n), run})
			}
		}
	}

	return map[string][]point{"rules": timed(o, samples)}, nil
}

// oneOf times checks by n rules, of which only the one called want applies.
func oneOf(o *options, n int, match func(int) string, q limiter.Query, want string) (func(int), error) {
	var text strings.Builder
	text.WriteString("rules:\n")

	for i := range n {
		fmt.Fprintf(&text, "  - {name: r%d, match: %s, key: [tenant], limits: [%s]}\n", i, match(i), counted)
	}

	l, err := o.open(10_000, text.String())
	if err != nil {
		return nil, err
	}

	var a limiter.Answer
	if err := l.Check(&q, &a); err != nil || len(a.Limits) != 1 || a.Limits[0].Rule.Name != want {
		return nil, fmt.Errorf("have %d limits of %d rules, want that of %s: %v", len(a.Limits), n, want, err)
	}

	return l.checks(&q, func(int) {}, 1, rand.New(rand.NewPCG(1, 3))), nil
}

// listings are the settings that rules may have for a subject.
var listings = []struct {
	line, of string
	amount   int64
}{
	{"subjects with a tier", "{tier: gold}", 2_000_000_000},
	{"subjects with limits of their own", "{limits: {r: [{limit: 3000000000, per: 1440h}]}}", 3_000_000_000},
	{"subjects that are not listed, beside those", "{tier: gold}", 1_000_000_000},
}

func measureSubjects(o *options) (map[string][]point, error) {
	sizes := []int{1, 10, 100, 1000, 10_000, 100_000}
	if o.quick {
		sizes = sizes[:4]
	}

	var samples []sample
	for i, listing := range listings {
		for _, n := range sizes {
			prefix := "user-"
			if i == 2 {
				prefix = "else-"
			}
			run, err := among(o, n, listing.of, prefix, listing.amount)
			if err != nil {
				return nil, err
			}
			samples = append(samples, sample{listing.line, float64(n), run})
		}
	}

	return map[string][]point{"subjects": timed(o, samples)}, nil
}

// among times checks of n random subjects with rules that list n of them. Keys
// of listed subjects begin with user-.
func among(o *options, n int, of, prefix string, amount int64) (func(int), error) {
	listed := textOf(n)
	var text strings.Builder
	text.WriteString("default_tier: free\nrules:\n  - {name: r, key: [user], tiered: true}\n" +
		"tiers: {free: {limits: [{limit: 1000000000, per: 1440h}]}, gold: {limits: [{limit: 2000000000, per: 1440h}]}}\nsubjects:\n  user:\n")

	for i := range n {
		fmt.Fprintf(&text, "    %s: %s\n", keyAt(listed, i), of)
	}

	l, err := o.open(200_000, text.String())
	if err != nil {
		return nil, err
	}

	asked := strings.ReplaceAll(listed, "user-", prefix)
	q := &limiter.Query{Attributes: []rules.Attribute{{Name: "user", Value: keyAt(asked, n-1)}}}
	var a limiter.Answer
	if err := l.Check(q, &a); err != nil || len(a.Limits) != 1 || a.Limits[0].Limit.Amount != amount {
		return nil, fmt.Errorf("have %v among %d subjects, want a limit of %d: %v", a.Limits, n, amount, err)
	}

	return l.checks(q, func(i int) { q.Attributes[0].Value = keyAt(asked, i) }, n, rand.New(rand.NewPCG(1, 4))), nil
}
