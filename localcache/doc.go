// Package localcache holds leases, on both sides: what this node may spend
// without asking a counter's owner, and what it has granted as an owner. It
// also holds recent refusals by owners, and the counters and shares by which a
// node decides alone.
//
// [Leases] is the holder's side. A lease is what this node may spend of one
// subject: up to two grants, each a cost that the owner debited in advance, and
// the owner's last refusal.
//
// A [LeaseLedger] is the owner's side. It keeps each grant, by subject, until
// the holder returns the grant or reports it as spent, or until it has
// certainly ended. The ledger itself never touches counters.
// [LeaseLedger.Grant] has its caller debit a grant before it records the grant,
// so a grant is never more than a Take made early.
//
// Sizes ([Size]): below the threshold, a grant is at most what is left until the
// threshold, divided by N + 1 for N nodes, or the idle part (see below) if that
// is more. A single busy node gets nearly all that is left in a few grants, and
// N equally busy nodes get a fair part each. Above the threshold, all grants of a subject together
// stay under `lease.idle` of its limit, in equal parts for all nodes. If a part
// is less than one unit, or hardly anything remains, the owner grants nothing
// and each check asks it.
//
// Callers of an inline subject may bring different limits. At each node, the
// subject's lease has one set of limits, and callers with other limits ask the
// owner. Inline subjects take up at most half of either side.
//
// A token bucket refills while its tokens are leased out, so the tokens that a
// holder returns may have been refilled already. The ledger takes back no more
// than it granted ([LeaseLedger.Return]). The bucket takes back only tokens
// that have certainly not been refilled ([algorithms.Limit.Give]). A token may
// be spent up to a TTL after it was debited: over any span D a bucket admits at
// most burst + rate × (D + TTL).
//
// [NewFallbackTable] returns the fallback counters, for what a node decides
// alone: under rules with `consistency: local`, and while it is cut off. They
// are separate from the counters that the node owns. What the node admitted
// while it was cut off, partitions.Keeper later reports to the owner. A node
// that counts alone has a *share* of each limit: [Share] divides whole units
// among the members of the ring, so that all shares add up to the limit.
//
// # Files
//
// From the bottom up:
//
//   - policy.go, demand.go, pressure.go: how a subject may be leased, and what a
//     node asks for;
//   - refusal.go, lease.go: what a node knows of one subject; leaseshard.go,
//     expire.go, leases.go: of all;
//   - size.go, ledger.go: what an owner grants, and has granted; unspent.go: what
//     is left of it;
//   - share.go: shares, and fallback counters.
package localcache
