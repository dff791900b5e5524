package algorithms

import (
	"fmt"
	"sync/atomic"
	"time"
)

// CalendarUnit is the length of a calendar window.
type CalendarUnit uint8

// The calendar's units, named as in the rules file.
const (
	Minute CalendarUnit = iota
	Hour
	Day
	Week // begins on Monday
	Month
	Year
)

var calendarUnits = [...]struct {
	name    string
	nominal time.Duration
}{
	{"minute", time.Minute},
	{"hour", time.Hour},
	{"day", 24 * time.Hour},
	{"week", 7 * 24 * time.Hour},
	{"month", 30 * 24 * time.Hour},
	{"year", 365 * 24 * time.Hour},
}

// String returns the unit's name in the rules file.
func (u CalendarUnit) String() string { return calendarUnits[u].name }

// Nominal returns the unit's usual length.
func (u CalendarUnit) Nominal() time.Duration { return calendarUnits[u].nominal }

// Longest returns an upper bound on the unit's windows: a day may have 25 hours, a month 31 days.
func (u CalendarUnit) Longest() time.Duration {
	if u < Day {
		return calendarUnits[u].nominal
	}
	return calendarUnits[u].nominal*32/30 + 26*time.Hour
}

// ParseCalendarUnit returns the unit with that name in the rules file.
func ParseCalendarUnit(name string) (CalendarUnit, bool) {
	for u, c := range calendarUnits {
		if c.name == name {
			return CalendarUnit(u), true
		}
	}
	return 0, false
}

// Calendar divides time into windows of a calendar unit in a time zone. A day
// lasts from one local midnight to the next, which may take 23, 24 or 25 hours.
type Calendar struct {
	unit CalendarUnit
	zone *time.Location
	// lastWindow caches the last result, as most calls ask for the same window. It
	// never changes the results.
	lastWindow atomic.Pointer[span]
}

type span struct{ start, end int64 } // Unix seconds

// NewCalendar returns the windows of unit in zone.
func NewCalendar(unit CalendarUnit, zone *time.Location) *Calendar {
	return &Calendar{unit: unit, zone: zone}
}

// String returns the unit and the zone, such as "day@Europe/Berlin".
func (cal *Calendar) String() string { return fmt.Sprintf("%s@%s", cal.unit, cal.zone) }

// Unit returns the unit of the calendar's windows.
func (cal *Calendar) Unit() CalendarUnit { return cal.unit }

// Zone returns the name of the calendar's time zone.
func (cal *Calendar) Zone() string { return cal.zone.String() }

// Bounds returns the first second of the window that contains the wall time (in
// Unix nanoseconds) and the first second after it, both as Unix seconds.
func (cal *Calendar) Bounds(wall int64) (start, end int64) {
	sec := floorDiv(wall, int64(time.Second))
	if sp := cal.lastWindow.Load(); sp != nil && sp.start <= sec && sec < sp.end {
		return sp.start, sp.end
	}
	sp := cal.windowAt(time.Unix(sec, 0).In(cal.zone))
	cal.lastWindow.Store(&sp)
	return sp.start, sp.end
}

func (cal *Calendar) windowAt(t time.Time) span {
	switch cal.unit {
	case Minute:
		start := t.Unix() - int64(t.Second())
		return span{start, start + 60}
	case Hour:
		return cal.hourWindow(t)
	}

	y, m, d := t.Date()
	y2 := y
	m2 := m

	d2 := d
	switch cal.unit {
	case Day:
		d2++
	case Week:
		d -= (int(t.Weekday()) + 6) % 7
		d2 = d + 7
	case Month:
		d = 1
		d2 = 1
		m2 = m + 1
	case Year:
		m = 1
		d = 1
		m2 = 1
		d2 = 1
		y2 = y + 1
	}

	sp := span{cal.midnight(y, m, d), cal.midnight(y2, m2, d2)}
	if t.Unix() >= sp.end {
		// The clocks went back across midnight, and t is in the second pass of the old
		// date. The new date's window has already begun.
		return cal.windowAt(time.Unix(sp.end, 0).In(cal.zone))
	}

	return sp
}

// hourWindow returns the local hour of t, cut where the zone's offset changes
// within it. It doesn't use Time.ZoneBounds, which is wrong on the last day of
// some leap years.
func (cal *Calendar) hourWindow(t time.Time) span {
	start := t.Unix() - int64(t.Minute()*60+t.Second())
	sp := span{start, start + 3600}
	same := func(sec int64) bool { return cal.offset(sec) == cal.offset(t.Unix()) }
	if !same(sp.start) {
		sp.start = firstSecond(sp.start, t.Unix(), same)
	}
	if !same(sp.end - 1) {
		sp.end = firstSecond(t.Unix(), sp.end-1, func(sec int64) bool { return !same(sec) })
	}
	return sp
}

func (cal *Calendar) offset(sec int64) int {
	_, offset := time.Unix(sec, 0).In(cal.zone).Zone()
	return offset
}

// midnight returns the first second of a local date. If the clocks are set
// forward at midnight, that is 1:00. If they are set back across it, the date
// begins twice, and the first time counts.
func (cal *Calendar) midnight(y int, m time.Month, d int) int64 {
	date := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	noon := time.Date(y, m, d, 12, 0, 0, 0, cal.zone).Unix()
	begun := func(sec int64) bool {
		y, m, d := time.Unix(sec, 0).In(cal.zone).Date()
		return !time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Before(date)
	}

	// Local midnight is UTC midnight minus the zone's offset. That is either the
	// offset before a clock change or the one after it.
	first := noon
	for _, offset := range []int{cal.offset(noon - 26*3600), cal.offset(noon)} {
		at := date.Unix() - int64(offset)
		if at < first && begun(at) {
			first = at
		}
	}

	if begun(first - 1) { // the clock change skips midnight and begins before it
		first = firstSecond(first-6*3600, first, begun)
	}

	return first
}

// firstSecond returns the first second in (from, to] for which ok holds. ok
// must be false at from, true at to, and change once in between.
func firstSecond(from, to int64, ok func(int64) bool) int64 {
	for from+1 < to {
		mid := from + (to-from)/2
		if ok(mid) {
			to = mid
		} else {
			from = mid
		}
	}
	return to
}
