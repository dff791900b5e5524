// Package counters implements a node's counter table: sharded, bounded and free of pointers.
//
// A 128-bit [Key] identifies a counter. Key.Subject is the hash of rule and
// subject. It selects the shard, so all limits of one rule and subject share
// one lock. Key.Counter tells the limits apart. The table does not store the
// names of subjects. The hash is keyed (see package rules), so nobody can
// choose names that collide.
//
// [Table.Take] decides a whole check atomically: it locks the shards of all
// counters involved, in order, and debits all of the counters or none. The
// table drops a counter once it equals a fresh one. At its bound, the table
// evicts the counters closest to fresh, but never one that is refusing. If only
// refusing counters are left, a new subject is refused until the first of them
// becomes fresh. The bound applies to the table as a whole: shards draw room
// from a common budget in small steps and return what they do not need, so one
// shard can hold many times more than another. A large shard splits its
// counters into several subtables, each of which is rehashed on its own.
//
// Inline counters, whose limits came with a call, carry a tag in their keys
// ([Key.IsInline]). They fill at most half of each shard's part of the bound
// and only ever replace each other, so no flood of them displaces configured
// subjects.
//
// Loans between regions ([Table.DebitLoan], [Table.CreditLoan]) are a Take and
// a Give, recorded in companions of the counter.
//
// Each partition of the key space has a gate. While a partition's gate is shut,
// the table decides nothing for it: another node owns those counters, and this
// one may hold a copy ([Table.Put]). Each change is marked twice, for
// checkpoints ([Table.Changed]) and for replicas ([Table.Replicate]).
// Partitions are copied, merged and dropped as a whole.
//
// On Linux, subtables live outside the garbage-collected heap, so tens of
// millions of counters add no work for the collector.
//
// # Files
//
// From the bottom up:
//
//   - op.go: the ops of a check; memory.go (and package pages), records.go, shard.go:
//     where counters are stored;
//   - gate.go, time.go, life.go: whether a partition decides, and by which clock;
//   - table.go, block.go, slots.go, prefetch.go: decisions; evict.go, sweep.go: the
//     room for counters;
//   - change.go, memo.go, loan.go, settle.go: other changes;
//   - dirty.go, changed.go, replicate.go, copy.go, merge.go, notes.go, wire.go:
//     copies on other nodes and on disk; stats.go: what is shown.
package counters
