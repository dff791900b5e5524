// Package counters is the table of all counters of a node: sharded, bounded, pointer-free.
//
// A counter is found by a 128-bit [Key]. Key.Hi is the hash of the rule and the subject and picks the shard, so
// that all limits of one rule and subject live under one lock; Key.Lo tells the limits apart. The names of
// subjects are not kept here. The hash is keyed (see package rules), so nobody can choose names that lie together.
//
// [Table.Take] decides a whole check at once: it holds the shards of all its counters, in order, and debits
// all of them or none. A counter is dropped once it equals a fresh one. At its bound the table evicts what is
// closest to fresh and never a counter that is being refused; where nothing else is left, a new subject is
// refused until the first of those is free again. The bound is the table's: a shard takes of what the table has left, a
// little at a time, and gives back what it has no use for. So one shard can hold many times what others do, in which case
// it keeps them in several tables of records, each of which is moved by itself.
//
// Loans between regions ([Table.Lend], [Table.Borrow]) are a Take and a Give, noted in companions of the counter.
//
// Each partition of the keys has a gate. Where it is shut, the table decides nothing: its counters are another node's,
// of which this one may hold a copy ([Table.Put]). What changes is marked twice, for checkpoints ([Table.Changed]) and
// for replicas ([Table.Replicate]). Partitions are copied, joined and dropped whole.
//
// Memory for the records lies outside of the garbage-collected heap where the system allows it, so that tens of
// millions of counters cost the collector nothing.
package counters
