// Package persist stores what a node needs after a restart: its counters,
// Raft's state, its bills and its identity.
//
// [CounterFile] writes changed counters to counters.db, in a checkpoint every
// second and a last one at a clean stop. The file is a log of frames (see
// frame.go) and a base (see base.go). While the node runs, the table in memory
// is authoritative, and losing the file loses nothing. If the file is lost
// before a start, counters that no other node has begin anew. A damaged frame
// is skipped; a damaged file is set aside and replaced. A failing disk stops
// checkpoints, not checks; [CounterFile.Status] reports it. The fallback
// counters, for what a node decides alone, live in a separate table, saved in
// fallback.db in the same way. A [SmallFile] is a small file that is always
// replaced as a whole.
//
// [RaftStore] stores Raft's log, term, vote and snapshots in raft.db and snapshots/.
// They hold everything that the cluster has agreed on, including the rules.
// Losing them is not safe: a node that forgets what it acknowledged can cause
// two leaders, so a damaged or missing part keeps the node from starting. A
// leader whose disk hangs loses its leadership (see raftguard.go). A node that
// must save its term while the disk is full waits (see raftstable.go). The file
// lock on raft.db keeps a second process out of the data directory, so Raft is
// opened first.
//
// [OpenDir] creates the data directory and the node identity in it.
// docs/operations.md lists all files of the data directory, and what losing each
// one means.
//
// bbolt trusts its file: on damaged pages it may panic, fault or never return.
// So a file's pages are verified before bbolt opens it (see pages.go), and
// every later call into bbolt is guarded (see guard.go).
//
// # Files
//
// From the bottom up:
//
//   - dir.go, lock_unix.go, disk_linux.go: the data directory with the node's
//     identity, the lock of a file, and the room on the disk;
//   - replace.go, smallfile.go: files that are replaced as a whole;
//   - guard.go, pages.go, pages_linux.go, file.go: calls into bbolt that may
//     panic, the pages of its files, and a file that is opened, verified and,
//     if it is damaged, set aside;
//   - newidentity.go: another identity for a node that the cluster has refused;
//   - buckets.go: keys and values with checksums, for bills;
//   - frame.go, base.go, counterfile.go: the file of counters; load.go: it is
//     read at the start; checkpoint.go: it is written every second;
//   - raftchecksum.go, raftguard.go, raftstable.go, probe.go: checksums in
//     Raft's log, writes to a disk that hangs, writes to one that is full, and
//     a test of the disk;
//   - raft.go, raftcheck.go: Raft's store, and what is checked before it is
//     used.
package persist
