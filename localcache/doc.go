// Package localcache holds what a node may decide without asking a counter's owner.
//
// [Leases] hold cost that owners have debited in advance for this node to spend, and refusals that owners made a moment ago.
//
// [New] makes the counters of rules with `consistency: local`, and those of the fallback while the node is cut off. They are
// separate from the counters that the node owns. What the fallback admits is reported to the owner later, by partitions.Keeper.
// A node that counts by itself has a *share* of each limit: [Share] divides whole units among the members of the ring, so that
// all shares together are the limit.
package localcache
