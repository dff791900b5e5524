package document

import (
	"errors"
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
		"٧d", "99999999999999999999w"} {
		v, err := ParseDuration(s)
		if !errors.Is(err, errDuration) || v != 0 {
			t.Errorf("%q: have %v, %v, want that it is no duration", s, v, err)
		}
	}
	for _, s := range []string{"106752d", "106751d24h", "99999999999999999999d", "1d99999999999999999999h", "3000000h", "-3000000h"} {
		v, err := ParseDuration(s)
		if !errors.Is(err, errTooLong) || v != 0 {
			t.Errorf("%q: have %v, %v, want that it is too long", s, v, err)
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
