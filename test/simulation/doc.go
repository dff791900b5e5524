// Package simulation judges what many nodes admitted on virtual time, and runs a model of several regions, for which whole
// nodes would take too long.
//
// A [Ledger] records everything that happened. The checkers use nothing else, so tests can check them with artificial
// ledgers. They never guess: where the time of a decision is unknown, or the cost that a lost owner took with it, they
// allow whatever may be right. [Ledger.WriteStory] prints what happened to one subject.
//
// # One region
//
// Simulations of one region are tests of package node. They run whole nodes, without HTTP and disks, on a network in
// memory. A [Load] checks subjects of [Rules] and the tests fill a Ledger. See there for the faults, and for what must go on
// during them.
//
// # Several regions
//
// [Run] must be called in a bubble of testing/synctest:
//
//	synctest.Test(t, func(t *testing.T) { ledger, err = simulation.Run(config) })
//	broken := ledger.Judge()
//
// The limiter with its leases and loans, the counters, the ring, the rules with their shares, and the agreed state about
// regions ([agreement.State], whose entries a region's leader commits) are real: each node is a [limiter.Limiter]. The
// network and the control plane below them are a model, drawn from one seed. Inside a region, the network delays messages
// and is cut between nodes or sets of nodes, in one direction or both. The control plane has a leader where most voters
// are, authority for two seconds, ends, standbys that take over from the copies pushed to them, hand-overs, and nodes that
// crash, restart and leave. Each region has its own clock, wrong by up to three seconds. Between regions, messages take 40 ms
// each way; they are lost and delayed, and links are cut in all ways. The rules, the set of regions and the primary change.
// Leaders do what real ones do between regions: they ask the primary for news, report what is honoured, and record what all
// regions honour.
//
// The model remains because it simulates 200 nodes of ten regions in seconds, and whole nodes would take an hour: G8 depends
// on orders of events that only a few hundred seeds reach.
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
//
// # Limits of the model
//
// All nodes of a region share one clock. Only faults lose messages, and a link keeps their order. A hand-over happens at once
// after its freeze; package partitions tests hand-overs that end in doubt. There are no checkpoints: an owner that finds no
// copy begins anew, and an owner without a follower to confirm lends nothing. A region is removed only when it no longer
// takes checks. The ledger is in memory, some 70 bytes a check, so a Config is bounded.
//
// The model draws its decisions from the seed, but goroutines that are ready at the same moment run in any order. A seed
// reproduces the faults and nearly the same run, not every check.
package simulation
