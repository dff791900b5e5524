// Package replay runs the limiter on virtual time: it shows what rules would have done to a log.
//
// [Run] reads logs, sorts their records by time, decides each as a check at its own time, and returns a [Report]. A log
// is in Common or Combined Log Format or in JSON lines, which are told apart line by line; it may be compressed with
// gzip. A line that can't be read is counted and named, and the rest goes on.
//
// Memory is bounded. Records are sorted in [Config.Memory] bytes; if they don't fit, parts are sorted into a temporary
// file, which is removed when Run returns. Counters and the tallies of subjects are limited to [Config.MaxCounters]
// each, and the report says if that was too few.
package replay
