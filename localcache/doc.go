// Package localcache holds what a node may decide without asking a counter's owner, and what it has leased out as an owner.
//
// [Leases] hold cost that owners have debited in advance for this node to spend, and refusals that owners made a moment ago.
//
// A [LeaseLedger] is the owner's side: it keeps each grant, by subject, until the grant is given back, its holder reports it as
// spent, or it has certainly ended. The ledger does not touch the counters. The caller debits a grant before the ledger
// records it ([LeaseLedger.Grant]), so a grant is never more than a Take made early.
//
// Sizes ([Size]): below the threshold a grant is at most half of the headroom under it. A single busy node gets nearly all of
// it, and N equally busy nodes get a fair part each. Above the threshold all grants of a subject together stay under
// `lease.idle` of its limit, in equal parts for all nodes. If a part is less than one unit, or hardly anything remains,
// nothing is granted and each check asks the owner.
//
// Callers of an inline subject may ask about it with different limits or amounts. Both sides know its leases by the set of
// limits, up to four a subject; a configured subject has one set. Inline subjects have at most half of either side's room.
//
// A token bucket refills while its tokens are out. A return is accepted only as long as the bucket's level plus everything
// that is out stays within the burst ([LeaseLedger.Return]); otherwise tokens would pile up outside the bucket. So over any span D
// a bucket admits at most burst + rate × (D + TTL).
//
// [New] makes the fallback counters, of what a node decides alone: by rules with `consistency: local`, and while it is cut off.
// They are separate from the counters that the node owns. What it admits while cut off is reported to the owner later, by
// partitions.Keeper.
// A node that counts by itself has a *share* of each limit: [Share] divides whole units among the members of the ring, so that
// all shares together are the limit.
package localcache
