// Package persist keeps on disk what a node must find again: its counters, Raft's state and its name.
//
// [Counters] writes changed counters to counters.db, a checkpoint each second and one at a clean stop: a log of frames
// (see frame.go) and a base (see base.go). The table in memory is authoritative. The file is safe to lose, and nothing else is
// in it. A damaged frame is passed over, a damaged file is set aside and begun anew. A failing disk stops checkpoints, not
// checks; [Counters.Status] reports both. What a node decides by itself it counts in a table of its own, kept in
// fallback.db in the same way. A [Note] is a small file that is replaced whole.
//
// [Raft] holds Raft's log, term, vote and snapshots in raft.db and snapshots/; what a cluster has agreed on, the rules
// among it, is all there. They are not safe to lose: a node that has forgotten what it acknowledged can make two
// leaders, so a damaged or missing part stops the node. A disk that hangs costs a leader its leadership (see
// raftguard.go); a full one makes a node wait that has to save its term (see raftstable.go). Its file lock is what
// keeps a second process off the data directory, so it is opened first.
//
// [OpenDir] makes the data directory and the node's identity in it.
//
// bbolt trusts its file: on damaged pages it may panic, fault or never end. So each file's pages are walked before
// bbolt opens it (see pages.go), and every later call into it is guarded (see guard.go).
package persist
