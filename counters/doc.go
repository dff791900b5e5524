// Package counters implements a node's counter table: sharded, bounded and free of pointers.
//
// A 128-bit [Key] identifies a counter. Key.Subject is the hash of rule and
// subject. It selects the shard, so all limits of one rule and subject share
// one lock. Key.Counter tells these limits apart. The table does not store the
// names of subjects. The hash has a secret key (see package rules), so nobody
// can choose names that collide.
//
// [Table.Take] decides a whole check atomically: it locks the shards of all
// counters involved, in order, and debits all of the counters or none.
//
// The table drops a counter once it equals a fresh one. When the table is full,
// it evicts the counters closest to fresh, but never one that is refusing. If
// only refusing counters are left, a new subject is refused until the first of
// them becomes fresh. The bound applies to the table as a whole: shards draw
// room from a common budget in small steps and return what they do not need, so
// one shard can hold many times more than another. A large shard splits its
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
// Each partition of the key space has a gate. While it is shut, the table
// decides nothing for the partition: another node owns those counters, and this
// one may hold a copy ([Table.Put]). Each change is marked twice, for
// checkpoints ([Table.DrainChanges]) and for replicas ([Table.Replicate]).
// Partitions are copied, merged and dropped as a whole.
//
// On Linux, subtables live outside the garbage-collected heap, so tens of
// millions of counters add no work for the collector.
//
// # Files
//
// From the bottom up:
//
//   - key.go, fullness.go, group.go, subtable.go, shard.go: where a counter is
//     stored, and what is stored of it;
//   - dirty.go, memory.go (and package pages), grow.go, logs.go: marks of
//     changes, the memory of subtables and their growth, and counters that are
//     logs;
//   - table.go: the table, which holds all of these;
//   - op.go: the ops of a check; record.go, wire.go: a counter in transit;
//   - time.go, lock.go, gate.go: by which clock a partition decides, which locks
//     a check takes, and whether a partition decides at all;
//   - evict.go, sweep.go: the room for counters; stats.go: what is shown;
//   - memo.go, rates.go, companion.go, slots.go: what is kept beside counters;
//   - change.go, block.go, usage.go, life.go: one counter is changed or read;
//   - decide.go, take.go, prefetch.go: checks;
//   - loan.go, place.go, settle.go, amend.go: other changes;
//   - copy.go, merge.go, changed.go, replicate.go: copies on other nodes and on
//     disk.
package counters
