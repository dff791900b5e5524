package simulation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// Edition is the rules document of all regions. It changes during the run.
type Edition struct {
	regions int
	rules   []ruleText
}

// ruleText is one rule with one limit.
type ruleText struct {
	name, per, algorithm string
	base, amount         int
	global, exact        bool
	parts                []part
}

// part is a region's part of a limit, in thousandths.
type part struct{ region, thousandths int }

// FirstEdition returns the first rules for a number of regions and of nodes in each.
func FirstEdition(nodes, regions int) *Edition {
	large, mid := nodes*perShare*regions, 90*regions
	e := &Edition{regions: regions}
	add := func(name, per, algorithm string, amount int) *ruleText {
		e.rules = append(e.rules,
			ruleText{name: name, per: per, algorithm: algorithm, base: amount, amount: amount, global: true})
		return &e.rules[len(e.rules)-1]
	}
	add("all-2s", "2s", "fixed-window", mid)
	add("all-5s", "5s", "fixed-window", mid)
	add("all-10s", "10s", "fixed-window", mid)
	add("all-large-5s", "5s", "fixed-window", large)
	add("all-large-10s", "10s", "fixed-window", large)
	add("all-small-5s", "5s", "fixed-window", 3*regions+1)
	add("all-bucket-5s", "5s", "token-bucket", mid)
	add("all-bucket-large-5s", "5s", "token-bucket", large)
	add("all-exact-5s", "5s", "fixed-window", mid).exact = true
	parts := add("all-parts-5s", "5s", "fixed-window", mid)
	for r := range min(3, regions) {
		parts.parts = append(parts.parts, part{r, []int{500, 300, 200}[r]})
	}

	rest := 1000
	for i := range parts.parts[1:] {
		rest -= parts.parts[1+i].thousandths
	}

	parts.parts[0].thousandths = rest
	add("own-10s", "10s", "fixed-window", nodes*perShare).global = false
	add("own-bucket-10s", "10s", "token-bucket", nodes*perShare).global = false
	return e
}

// Text renders the document.
func (e *Edition) Text() string {
	var b strings.Builder
	b.WriteString("version: 1\nrules:\n")

	for i := range e.rules {
		r := &e.rules[i]
		fmt.Fprintf(&b, "  - name: %s\n    key: [%s]\n", r.name, attributeOf(r.name))

		if r.global {
			b.WriteString("    scope: global\n")
		}
		if r.exact {
			b.WriteString("    consistency: exact\n")
		}

		if len(r.parts) > 0 {
			b.WriteString("    regions:\n")
			for _, p := range r.parts {
				fmt.Fprintf(&b, "      %s: %d.%03d\n", RegionName(p.region), p.thousandths/1000, p.thousandths%1000)
			}
		}

		fmt.Fprintf(&b, "    limits: [{limit: %d, per: %s, algorithm: %s}]\n", r.amount, r.per, r.algorithm)
	}

	return b.String()
}

// Change changes the amounts or parts of some global limits. It prefers limits
// under load, where a mistake shows best.
func (e *Edition) Change(random *rand.Rand, busy func(rule string) bool) {
	for i := range e.rules {
		r := &e.rules[i]
		if odds := random.IntN(8); !r.global || odds > 0 && !busy(r.name) || odds > 5 {
			continue
		}

		switch random.IntN(5) {
		case 0:
			r.amount = max(2, int(float64(r.base)*[]float64{0.4, 0.7, 1, 1.5}[random.IntN(4)]))
		case 1:
			r.parts = nil
		default:
			r.parts = e.divide(random)
		}
	}
}

// divide draws parts for some of the regions.
func (e *Edition) divide(random *rand.Rand) (parts []part) {
	rest := 1000
	for _, region := range random.Perm(e.regions)[:1+random.IntN(e.regions)] {
		t := 1 + random.IntN(max(1, rest/2))
		parts = append(parts, part{region, t})
		rest -= t
		if rest < 2 {
			break
		}
	}
	parts[len(parts)-1].thousandths += rest
	slices.SortFunc(parts, func(a, b part) int { return a.region - b.region })
	return parts
}
