// Package replay runs the limiter on virtual time to show what rules would have done to a log.
//
// [Run] reads logs, sorts their records by time, decides each as a check at its
// own time, and returns a [Report]. A line is in Common Log Format, Combined
// Log Format or JSON; Run detects the format of each line. A log may be
// compressed with gzip. Run skips lines that it can't read; the report counts
// them and shows the first ones.
//
// Memory is bounded, but for 16 bytes a record. Run holds records in
// [Config.Memory] bytes. If they don't fit, it puts them in a temporary file
// that it removes when it returns. [Config.MaxCounters] bounds the counters and
// the tallies of subjects; the report says if that was too few.
package replay
