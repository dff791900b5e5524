package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
)

// TestUnlimited_Parse: what says that there is no limit, or that nothing is
// allowed, is written as it was read, and only where it means something.
func TestUnlimited_Parse(t *testing.T) {
	const head = "version: 1\nrules:\n  - {name: r, key: [k], %s}\n"
	for _, limits := range []string{
		`limits: unlimited`, `limits: [{unlimited: true, unit: tokens}]`, `limits: [{limit: 0, per: 1h}]`,
		`limits: [{limit: 1, per: 1h, algorithm: fixed-window, from: first}]`,
		`limits: [{limit: 1, per: 1h}, {name: all, unlimited: true, unit: tokens}]`,
	} {
		doc, err := Parse(fmt.Appendf(nil, head, limits))
		if err != nil {
			t.Errorf("%s: %v", limits, err)
			continue
		}
		if doc.FeatureLevel() != 2 {
			t.Errorf("%s: older builds can't read it", limits)
		}
		doc.source = "" // so that it is written anew
		again, err := Parse(doc.YAML())
		if err != nil || !slices.EqualFunc(again.Rules[0].Limits, doc.Rules[0].Limits, sameLimitSpec) {
			t.Errorf("%s is written as %s, %v", limits, doc.YAML(), err)
		}
	}

	for limits, want := range map[string]string{
		`limits: [{unlimited: true, limit: 5}]`:                                                        "unlimited: true excludes limit",
		`limits: [{unlimited: true, per: 1h}]`:                                                         "unlimited: true excludes per",
		`limits: endless`:                                                                              "list",
		`limits: [{limit: 0, per: 1h, algorithm: token-bucket, burst: 5}]`:                             "a limit of 0 allows nothing at once",
		`limits: [{limit: 5, per: 1h, from: first}]`:                                                   "first is for fixed-window with a duration",
		`limits: [{limit: 5, per: day, from: first}]`:                                                  "first is for fixed-window with a duration",
		`scope: global, limits: [{limit: 5, per: 1h, algorithm: fixed-window, from: first}]`:           "windows of the clock only",
		`on_limit: delay, limits: [{limit: 5, per: 1h, algorithm: fixed-window, from: first}]`:         "can't be combined with on_limit: delay",
		`limits: [{limit: 5, per: 1h, algorithm: fixed-window, from: last}]`:                           "first",
		`limits: [{limit: 5, per: 1h, algorithm: fixed-window}, {limit: 5, per: 1h, from: sometimes}]`: "sometimes",
	} {
		if _, err := Parse(fmt.Appendf(nil, head, limits)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", limits, err, want)
		}
	}
}

func sameLimitSpec(a, b *LimitSpec) bool {
	x, y := *a, *b
	x.pos, y.pos = b.pos, b.pos
	return x == y
}

// TestFromFirst_IsAnotherCounter: windows of the clock and those of the first
// hit have different counters, so that counts begin anew where one becomes the
// other.
func TestFromFirst_IsAnotherCounter(t *testing.T) {
	limitOf := func(more string) *Limit {
		set := keyedSet(t,
			"rules: [{name: r, key: [k], limits: [{limit: 5, per: 1h, algorithm: fixed-window"+more+"}]}]")
		var m Match
		expect.NoError(t, set.MatchKey(set.Rule("r"), []string{"x"}, &m))
		return m.Hits[0].Limits[0]
	}
	clock, first, same := limitOf(""), limitOf(", from: first"), limitOf(", from: clock")
	if first.Kind != algorithms.FirstWindow || first.ID == clock.ID || same.ID != clock.ID ||
		same.Kind != algorithms.FixedWindow {
		t.Errorf("got %+v, %+v, %+v", clock.Limit, first.Limit, same.Limit)
	}
}
