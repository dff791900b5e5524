package rules

import (
	"runtime"
	"strings"
	"testing"
)

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
