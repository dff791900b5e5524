// Package simulation judges what many nodes admitted on virtual time, and has
// the load and the rules of such runs.
//
// A [Ledger] records everything that happened. The checkers use nothing else,
// so tests can check them with artificial ledgers. They never guess: where the
// time of a decision is unknown, or the cost that a lost owner took with it,
// they allow whatever may be right. [Ledger.WriteStory] prints what happened to
// one subject.
//
// The runs themselves are tests of package node. They run whole nodes, without
// HTTP and disks, on a network in memory, and fill a Ledger: of one region,
// whose subjects of [Rules] a [Load] checks, or of several, whose subjects of
// an [Edition] a [RegionsLoad] checks. See there for the faults, and for what
// must go on during them.
//
// # What is judged
//
//   - G2: owners, leases and standbys together admit no more than the limit in any fixed window. Over any span, other limits
//     admit no more than their algorithm does over the span and a lease's life. Where an owner was lost or a standby acted,
//     this becomes G5: it also allows the debits, leases included, that the owner's followers had not received, and what the
//     standby admitted. A partition whose owner and standby were lost at once begins anew.
//   - G3, G5: while demand above the limit lasts to the end of a fixed window, 98 % of the limit is admitted, less the cost of
//     one check, unless a fault affected the owner or the asking nodes in the window or the five seconds before.
//   - G4: a node that has been cut off for two seconds decides only alone, except that its leases may live a little longer.
//     Alone, and as an acting standby, it admits at most its share.
//   - G8: in a window, by its number on each region's own clock, all regions together admit no more of a global limit than
//     some version of it allows that was recorded as honoured by all regions and not outdated before the window. Token
//     buckets admit, over any span D, at most burst + rate × (D + TTL). What G5 allows inside a region comes on top. While
//     demand lasts, a region without faults admits 98 % of its own share, by the least of all versions that it holds, less
//     what it has lent.
//   - G10: every check is decided, within a second.
package simulation
