// Package replay is the limiter on virtual time: what rules would have done to a log.
//
// [Run] reads logs, puts their records in order of time, decides each as a check at its own time and returns a
// [Report]. A log is in Common or Combined Log Format or in JSON lines, told apart line by line, plain or
// compressed with gzip. A line that can't be read is counted and named, and the rest goes on.
//
// Memory is bounded. Records wait for their turn in [Config.Memory] bytes; what does not fit is sorted in parts
// into a temporary file that is gone when Run returns. Counters and the tallies of subjects stop at
// [Config.MaxCounters] each, and the report says when that was too few.
package replay
