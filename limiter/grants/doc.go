// Package grants is an owner's side of leases: how much of a limit it hands out in advance, to whom, and what of that is
// still out.
//
// A [Ledger] remembers, by subject, each grant until it is given back, its holder says that it is spent, or it has ended
// for sure. The counters themselves are elsewhere: whoever grants debits them first, by the sizes that the ledger says
// ([Ledger.Grant]), so that a grant is never more than a Take made early.
//
// Sizes ([Size]): below the threshold a grant is at most half of the headroom that is left under it, so that a single busy
// node gets nearly all and N equally busy ones a fair part each. Above it all grants of a subject together stay under
// `lease.idle` of its limit, in equal parts for all nodes: where that is less than one unit, or hardly anything remains,
// each check asks.
//
// A token bucket refills while its tokens are out. What comes back is taken only so far that what is in the bucket and
// what is out are together no more than its burst ([Ledger.Return]); else tokens would pile up beside it. So over any span
// D a bucket admits at most burst + rate × (D + TTL).
package grants
