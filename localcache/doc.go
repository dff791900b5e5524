// Package localcache keeps what a node may decide by itself, without asking a counter's owner: the counters of rules
// with `consistency: local`, and those of its fallback while it is cut off.
//
// [Counters] are a table of their own, apart from the counters that the node owns, so that the two never mix: what a
// fallback admits, the owner is told later, by partitions.Keeper. A node that counts by itself has a *share* of each
// limit: [Share] divides whole units among the members of the ring, so that all shares together are the limit.
package localcache
