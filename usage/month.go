package usage

import (
	"errors"
	"fmt"
	"time"
)

// Month is a calendar month in UTC: 12 × year + 0…11.
type Month int32

// allMonths stands for every month.
const allMonths Month = 0

// ErrMonth means that a text is not a month.
var ErrMonth = errors.New("month must be YYYY-MM, from 1970-01 to 2199-12")

// The years that a Month may be in. Their Unix nanoseconds fit into an int64 with room to spare.
const (
	firstYear = 1970
	lastYear  = 2199
)

// MonthOf returns the month of a time in Unix nanoseconds. It returns the first
// or the last month for a time out of range.
func MonthOf(wall int64) Month {
	t := time.Unix(0, wall).UTC()
	month := Month(t.Year()*12 + int(t.Month()) - 1)
	return min(max(month, firstYear*12), lastYear*12+11)
}

// ParseMonth parses a month as String formats it. The error is ErrMonth.
func ParseMonth(text string) (Month, error) {
	t, err := time.Parse("2006-01", text)
	if err != nil || len(text) != len("2006-01") || t.Year() < firstYear || t.Year() > lastYear {
		return 0, ErrMonth
	}
	return Month(t.Year()*12 + int(t.Month()) - 1), nil
}

// String formats the month like 2026-11.
func (month Month) String() string { return fmt.Sprintf("%04d-%02d", month/12, month%12+1) }

// Begin returns when the month begins, in Unix nanoseconds.
func (month Month) Begin() int64 {
	return time.Date(int(month/12), time.Month(month%12+1), 1, 0, 0, 0, 0, time.UTC).UnixNano()
}
