// Package grants is the owner's side of leases: how much of a limit it hands out in advance, and how much of that is still out.
//
// A [Ledger] keeps each grant, by subject, until the grant is given back, its holder reports it as spent, or it has certainly
// ended. The ledger does not touch the counters. The caller debits a grant before the ledger records it ([Ledger.Grant]), so a
// grant is never more than a Take made early.
//
// Sizes ([Size]): below the threshold a grant is at most half of the headroom under it. A single busy node gets nearly all of
// it, and N equally busy nodes get a fair part each. Above the threshold all grants of a subject together stay under
// `lease.idle` of its limit, in equal parts for all nodes. If a part is less than one unit, or hardly anything remains, nothing
// is granted and each check asks the owner.
//
// A token bucket refills while its tokens are out. A return is accepted only as long as the bucket's level plus everything that
// is out stays within the burst ([Ledger.Return]); otherwise tokens would pile up outside the bucket. So over any span D a
// bucket admits at most burst + rate × (D + TTL).
package grants
