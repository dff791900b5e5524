package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rlnode/rlnode/replay"
	"github.com/rlnode/rlnode/rules/document"
)

// printTable prints rows in columns. Tabs separate the columns in header and line.
func printTable[R any](w io.Writer, header string, rows []R, line func(R) string) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, header)
	for _, row := range rows {
		fmt.Fprintln(table, line(row))
	}
	return table.Flush()
}

// printable quotes s if it is empty or would not print unchanged: any client
// that sends checks can choose values.
func printable(s string) string { return replay.Printable(s) }

// oneLine returns text whose values are quoted already, without what could move the cursor.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}

// yesNo returns the text of a yes-or-no column.
func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// durationText writes a duration for people, such as 3d5h or 38m18s; seconds only below a day.
func durationText(d time.Duration) string {
	const day = 24 * time.Hour
	if d < day {
		return document.FormatDuration(d)
	}
	rest := (d % day).Truncate(time.Minute)
	if rest == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	return fmt.Sprintf("%dd%s", d/day, document.FormatDuration(rest))
}

// millis returns n milliseconds.
func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
