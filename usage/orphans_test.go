package usage

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// A problem of a month that is no longer reviewed has not gone away: nothing
// says that the bill is exact.
func TestOnlyReviewedBillsAreExactAgain(t *testing.T) {
	var log bytes.Buffer
	current := Month(2026*12 + 10)
	totals := Totals{meter: &Meter{config: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}}}
	totals.review.found = map[inexactBill]string{
		{current - 2, "n2"}: "incomplete",
		{current - 1, "n3"}: "incomplete",
		{current, "n4"}:     "estimated",
	}

	totals.logExact(map[inexactBill]string{{current, "n4"}: "estimated"}, current)

	if strings.Count(log.String(), "exact again") != 1 || !strings.Contains(log.String(), "n3") {
		t.Errorf("log: got %q, want n3 alone to be exact again", log.String())
	}
}
