// Package counters is the table of all counters of a node: sharded, bounded and free of pointers.
//
// A 128-bit [Key] identifies a counter. Key.Hi is the hash of rule and subject and selects the shard, so all limits of one
// rule and subject share one lock. Key.Lo tells the limits apart. The table does not store the names of subjects. The hash
// is keyed (see package rules), so nobody can choose names that collide.
//
// [Table.Take] decides a whole check at once: it locks the shards of all its counters, in order, and debits all of the
// counters or none. A counter is dropped once it equals a fresh one. At its bound, the table evicts the counters closest to
// fresh, but never one that is refusing. If only refusing counters are left, a new subject is refused until the first of
// those is fresh again. The bound applies to the whole table: a shard draws room from the table's budget a little at a time,
// and returns what it does not need. So one shard can hold many times more than another. Such a shard keeps its counters in
// several tables of records, each of which is moved separately.
//
// Inline counters, of limits that came with a call, have a tag in their keys ([Key.Inline]). They fill at most half of each
// shard's part of the bound, and only ever take the place of one another, so that no flood of them costs configured subjects
// theirs.
//
// Loans between regions ([Table.Lend], [Table.Borrow]) are a Take and a Give, recorded in companions of the counter.
//
// Each partition of the key space has a gate. While it is shut, the table decides nothing there: another node owns those
// counters, and this one may hold a copy ([Table.Put]). Each change is marked twice, for checkpoints ([Table.Changed]) and
// for replicas ([Table.Replicate]). Partitions are copied, merged and dropped whole.
//
// Where the system allows it, records live outside the garbage-collected heap, so tens of millions of counters cost the
// collector nothing.
package counters
