// Package persist keeps on disk what a node must find again: its counters, its rules and its name.
//
// [Counters] writes changed counters to counters.db, a checkpoint each second and one at a clean stop. The table
// in memory is authoritative: the file is safe to lose, nothing else is in it, and a damaged one is set aside and
// begun anew. A failing disk stops checkpoints, not checks; [Counters.Status] tells it.
//
// [Rules] holds the rules and their last versions in rules.db, which is not safe to lose: a write is acknowledged
// after it is on disk, and a damaged file stops the node. Its file lock is what keeps a second process off the
// data directory, so it is opened first.
//
// [OpenDir] makes the data directory and the node's identity in it.
//
// bbolt trusts its file: on damaged pages it may panic, fault or never end. So each file's pages are walked before
// bbolt opens it (see pages.go), and every later call into it is guarded (see guard.go).
package persist
