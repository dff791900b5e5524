package document

import (
	"errors"
	"math"
	"regexp"
	"strings"
	"time"
)

const day = 24 * time.Hour

var (
	errDuration = errors.New("not a duration such as 500ms, 15m, 24h or 7d")
	errTooLong  = errors.New("longer than 106751d")

	digits = regexp.MustCompile(`[0-9]+`)
)

// Span is a duration and the text it was written as.
type Span struct {
	Text string
	time.Duration
}

// ParseDuration reads a duration as time.ParseDuration does, and also days: 7d,
// 1.5d, 1d12h. Days come first, and have no sign. A day is always 24 hours,
// also when the clocks change.
func ParseDuration(s string) (time.Duration, error) {
	v, err := parseDuration(s)
	if err == nil {
		return v, nil
	}

	// With small numbers, it is a duration: then it is one that 64 bits can't hold.
	_, errOfSmall := parseDuration(digits.ReplaceAllString(s, "1"))
	if errOfSmall == nil {
		return 0, errTooLong
	}
	return 0, err
}

// parseDuration is ParseDuration, but does not tell what is too long from what
// is no duration.
func parseDuration(s string) (time.Duration, error) {
	days, rest, ok := strings.Cut(s, "d")
	if !ok {
		v, err := time.ParseDuration(s)
		if err != nil {
			return 0, errDuration
		}
		return v, nil
	}

	for i := range len(days) {
		c := days[i]
		if c != '.' && (c < '0' || c > '9') {
			return 0, errDuration
		}
	}

	if rest == "" {
		rest = "0"
	} else if rest[0] == '-' || rest[0] == '+' {
		return 0, errDuration
	}

	hours, err := time.ParseDuration(days + "h")
	more, restErr := time.ParseDuration(rest)
	if err != nil || restErr != nil || hours > (math.MaxInt64-more)/24 {
		return 0, errDuration
	}

	return 24*hours + more, nil
}

// FormatDuration writes a duration for people: whole days as days, without
// trailing zero minutes and seconds. [ParseDuration] reads the result.
func FormatDuration(v time.Duration) string {
	if v >= day && v%day == 0 {
		return strings.TrimSuffix((v/24).String(), "h0m0s") + "d"
	}
	s := v.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}
