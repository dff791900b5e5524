// Package history keeps what a node decided: by minute for a day and by hour
// for a month, of all checks and of at most 64 rules, with latencies but
// without subjects. The dashboard draws it.
//
// Once a minute, a [History] reads the node's counts and stores the difference
// to the last reading, as a step. Steps lie in segments: an hour of minutes, or
// a day of hours. A segment is compressed and has a file of its own in the
// folder history of the data directory, which is replaced as a whole. So the
// files have a fixed number and a bounded size. Steps in which the process did
// not run, or was suspended, are missing. A kill loses the minute that it falls
// into; a stop loses nothing.
//
// Each node keeps its own decisions. [History.Report] adds up those of all nodes that answer.
package history
