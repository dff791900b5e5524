package rules

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestParseDuration(t *testing.T) {
	const h = time.Hour
	for have, want := range map[string]time.Duration{
		"7d": 168 * h, "1d12h": 36 * h,
		"1d1h1m1s1ms": 25*h + time.Minute + time.Second + time.Millisecond, "0.5d": 12 * h,
		"1.5d": 36 * h, ".5d": 12 * h,
		"0d": 0, "366d": 8784 * h, "106751d": 106751 * day, "24h": 24 * h,
		"500ms": 500 * time.Millisecond, "-1h": -h, "0": 0, "007d": 168 * h, "1d0": day,
	} {
		if v, err := ParseDuration(have); err != nil || v != want {
			t.Errorf("%s: have %v, %v, want %v", have, v, err, want)
		}
	}
	for _, s := range []string{"", "d", ".d", "7", "7D", "7 d", " 7d", "7d ", "-1d", "+1d", "1d-1h", "1d+1h", "1d1d", "12h1d", "1d1", "1dd", "1e3d", "1_0d", "1w", "7days", "1..5d",
		"106752d", "106751d24h", "99999999999999999999d", "1d99999999999999999999h", "٧d"} {
		if v, err := ParseDuration(s); err == nil || v != 0 {
			t.Errorf("%q: have %v, %v, want an error", s, v, err)
		}
	}
	for have, want := range map[time.Duration]string{
		168 * h: "7d", 24 * h: "1d", 36 * h: "36h", 366 * day: "366d", 12 * h: "12h",
		90 * time.Minute: "1h30m", 15 * time.Minute: "15m", time.Minute: "1m",
		90 * time.Second: "1m30s", 10 * time.Millisecond: "10ms", 0: "0s", day + time.Second: "24h0m1s", -day: "-24h",
	} {
		expect.Equal(t, FormatDuration(have), want, "%v", have)
	}
}

// TestDays: every duration in a document may be 7d. It equals 168h, also for
// counters, and round trips as written.
func TestDays(t *testing.T) {
	const text = `version: 1
defaults: {on_limit: delay, max_delay: %[1]s}
rules:
  - name: r
    key: [k]
    limits: [{limit: 5, per: %[1]s}, {limit: 50, per: %[2]s, algorithm: token-bucket}]
  - name: b
    key: [k]
    on_limit: refuse
    block: %[2]s
    limits: [{limit: 5, per: 1m, algorithm: sliding-window-log}]
tiers: {t: {limits: [{limit: 1, per: %[2]s}]}}
`
	compiled := func(one, seven string) (*Document, *Set) {
		t.Helper()
		doc, err := Parse(fmt.Appendf(nil, text, one, seven))
		expect.NoError(t, err)
		set, err := Compile(doc, 1)
		expect.NoError(t, err)
		return doc, set
	}
	days, inDays := compiled("1d", "6d24h")
	_, inHours := compiled("24h", "168h")
	var have, want Match
	inDays.Match([]Attribute{{"k", "v"}}, nil, &have)
	inHours.Match([]Attribute{{"k", "v"}}, nil, &want)
	if len(have.Hits) != 2 {
		t.Fatalf("have %d rules", len(have.Hits))
	}
	for i := range have.Hits {
		a, b := &have.Hits[i], &want.Hits[i]
		if !reflect.DeepEqual(a.Rule.Blocks, b.Rule.Blocks) || a.Rule.MaxDelay != b.Rule.MaxDelay ||
			a.Subject != b.Subject {
			t.Errorf("rule %s: have %v, %v, want %v, %v", a.Rule.Name, a.Rule.Blocks,
				a.Rule.MaxDelay, b.Rule.Blocks, b.Rule.MaxDelay)
		}
		for n, l := range a.Limits {
			if l.ID != b.Limits[n].ID || l.Limit != b.Limits[n].Limit {
				t.Errorf("rule %s: have %+v, want %+v", a.Rule.Name, l, b.Limits[n])
			}
		}
	}
	canonical := days.JSON()
	if strings.Count(string(canonical), `"6d24h"`) != 3 || strings.Count(string(canonical), `"1d"`) != 2 {
		t.Errorf("have %s", canonical)
	}
	again, err := Parse(canonical)
	if err != nil || again.Hash() != days.Hash() {
		t.Errorf("read back: %v, and the same: %t", err, err == nil && again.Hash() == days.Hash())
	}
}

// FuzzParseDuration: ParseDuration agrees with time.ParseDuration, and reads
// what FormatDuration writes.
func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"7d", "1d12h", "0.1d", "1h30m", "-5m", "106751d", "d", "1d-1h",
		"9223372036854775807ns"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		have, err := ParseDuration(s)
		want, wantErr := time.ParseDuration(s)
		if wantErr == nil && (err != nil || have != want) {
			t.Errorf("%q: have %v, %v, want %v", s, have, err, want)
		}
		if err != nil {
			return
		}
		if wantErr != nil && (!strings.Contains(s, "d") || have < 0) {
			t.Errorf("%q: have %v", s, have)
		}
		if back, err := ParseDuration(FormatDuration(have)); err != nil || back != have {
			t.Errorf("%q: have %s, which is %v, %v", s, FormatDuration(have), back, err)
		}
	})
}
