package algorithms

import (
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := Zone(name)
	expect.NoError(t, err)
	return z
}

func TestCalendarWindows(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	tests := []struct {
		name  string
		unit  CalendarUnit
		zone  *time.Location
		at    string
		start string
		end   string
	}{
		{"a plain day", Day, berlin, "2026-06-10T23:59:59", "2026-06-10T00:00:00", "2026-06-11T00:00:00"},
		{"23 hours", Day, berlin, "2026-03-29T12:00:00", "2026-03-29T00:00:00", "2026-03-30T00:00:00"},
		{"25 hours", Day, berlin, "2026-10-25T12:00:00", "2026-10-25T00:00:00", "2026-10-26T00:00:00"},
		{"week from Monday", Week, berlin, "2026-11-22T12:00:00", "2026-11-16T00:00:00", "2026-11-23T00:00:00"},
		{"end of January", Month, berlin, "2026-01-31T23:59:00", "2026-01-01T00:00:00", "2026-02-01T00:00:00"},
		{"leap February", Month, berlin, "2028-02-29T10:00:00", "2028-02-01T00:00:00", "2028-03-01T00:00:00"},
		{"year", Year, berlin, "2026-12-31T23:59:59", "2026-01-01T00:00:00", "2027-01-01T00:00:00"},
		{"minute", Minute, zone(t, "Asia/Kathmandu"), "2026-01-01T05:45:30", "2026-01-01T05:45:00",
			"2026-01-01T05:46:00"},
		{"hour", Hour, zone(t, "Asia/Kathmandu"), "2026-01-01T05:45:30", "2026-01-01T05:00:00", "2026-01-01T06:00:00"},
		{"no midnight", Day, zone(t, "America/Sao_Paulo"), "2018-11-04T10:00:00",
			"2018-11-04T01:00:00", "2018-11-05T00:00:00"},
		{"midnight set back", Day, zone(t, "Asia/Beirut"), "2026-10-25T10:00:00",
			"2026-10-25T00:00:00", "2026-10-26T00:00:00"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			local := func(s string) time.Time {
				at, err := time.ParseInLocation("2006-01-02T15:04:05", s, tt.zone)
				expect.NoError(t, err)
				return at
			}
			c := NewCalendar(tt.unit, tt.zone)
			start, end := c.Bounds(local(tt.at).UnixNano())
			if start != local(tt.start).Unix() || end != local(tt.end).Unix() {
				t.Errorf("have %s to %s", time.Unix(start, 0).In(tt.zone), time.Unix(end, 0).In(tt.zone))
			}
		})
	}
}

// Around every clock change in a set of zones chosen for their oddities, a
// window contains the time asked for, follows the previous one without a gap,
// and is found again from any point inside.
func TestCalendarWindowsTile(t *testing.T) {
	zones := []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Beirut", "America/Sao_Paulo",
		"America/St_Johns", "Pacific/Apia", "Africa/Casablanca", "Asia/Tehran", "America/Havana", "Asia/Gaza", "Africa/Cairo"}
	for _, name := range zones {
		t.Run(strings.ReplaceAll(name, "/", "-"), func(t *testing.T) {
			z := zone(t, name)
			for unit := Minute; unit <= Year; unit++ {
				c := NewCalendar(unit, z)
				at := time.Date(1990, 1, 1, 0, 0, 0, 0, z)
				for range 200 {
					_, change := at.ZoneBounds()
					if change.IsZero() {
						break
					}
					walk(t, c, change.Add(-26*time.Hour), change.Add(26*time.Hour))
					at = change
				}
			}
		})
	}
}

func walk(t *testing.T, c *Calendar, from, to time.Time) {
	t.Helper()
	lastStart, lastEnd := int64(0), int64(0)
	for at := from; at.Before(to); at = at.Add(1693 * time.Second) {
		start, end := c.Bounds(at.UnixNano())
		fresh := NewCalendar(c.unit, c.zone)
		if s, e := fresh.Bounds(at.UnixNano()); s != start || e != end {
			t.Fatalf("%s at %s: the memo changes the answer: %d…%d and %d…%d", c, at, start, end, s, e)
		}
		switch {
		case at.Unix() < start || at.Unix() >= end:
			t.Fatalf("%s at %s: %s to %s", c, at, time.Unix(start, 0).In(c.zone), time.Unix(end, 0).In(c.zone))
		case lastEnd != 0 && start != lastStart && start < lastEnd:
			t.Fatalf("%s at %s: overlaps the window before", c, at)
		case c.unit >= Day && lastEnd != 0 && start != lastStart && start != lastEnd:
			t.Fatalf("%s at %s: a gap after the window before", c, at)
		}
		lastStart, lastEnd = start, end
	}
}

func TestCalendarLimit(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	l := &Limit{Kind: FixedWindow, Amount: 5, Window: 24 * time.Hour, Calendar: NewCalendar(Day, berlin)}
	late := At(time.Date(2026, 10, 25, 23, 0, 0, 0, berlin)) // a day of 25 hours
	s, ok := l.Take(State{}, late, 5)
	d := l.Describe(s, late, 5, ok)
	if !ok || d.ResetAfter != time.Hour || l.WindowLength(late) != 25*time.Hour {
		t.Errorf("have %+v, window %s", d, l.WindowLength(late))
	}
	d = l.Peek(s, late, 1)
	if d.Allowed || d.RetryAfter != time.Hour {
		t.Errorf("have %+v", d)
	}
	d = l.Peek(s, At(time.Date(2026, 10, 26, 0, 0, 0, 0, berlin)), 5)
	if !d.Allowed {
		t.Errorf("have %+v after midnight", d)
	}
	month := &Limit{Kind: FixedWindow, Amount: 1, Window: 720 * time.Hour, Calendar: NewCalendar(Month, time.UTC)}
	s, _ = month.Take(State{}, At(time.Date(2026, 1, 31, 23, 59, 0, 0, time.UTC)), 1)
	_, ok = month.Take(s, At(time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)), 1)
	if !ok {
		t.Error("31 January and 1 February are one window")
	}
}
