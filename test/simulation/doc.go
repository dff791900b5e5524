// Package simulation judges what many nodes admitted on virtual time, and runs models of several regions, of which whole nodes
// would take too long.
//
// A [Ledger] says all that happened, and the checkers go by nothing else, so that they are tested with records made up.
// They never guess: where the time of a decision isn't known, or what a lost owner took with it, they allow what may be
// right. [Ledger.WriteStory] prints what happened to one subject.
//
// # One region
//
// Runs of one region are tests in cmd/rlnode: whole nodes with all that a node has but HTTP and disks, on a network in memory.
// They are asked by a [Load], which goes by [Rules], and fill a Ledger. See there for what goes wrong in them, and for what has
// to go on meanwhile.
//
// # Several regions
//
// [Run] must be called in a bubble of testing/synctest, whose time it is:
//
//	synctest.Test(t, func(t *testing.T) { ledger, err = simulation.Run(config) })
//	broken := ledger.Judge()
//
// Real are the limiter with its leases and loans, the counters, the ring, the rules with their shares, and what is agreed about
// regions ([agreement.State], whose entries a region's leader commits): each node is a [limiter.Limiter]. What they stand on is a
// model, drawn from one seed. Inside of a region it is a network that delays, and is cut between nodes, in one direction or both, or
// between sets of them, and a control plane: a leader where most voters are, authority for two seconds, ends, standbys
// promoted from what they have been pushed, hand-overs, nodes that crash, restart and leave. A region has a clock of its own, wrong
// by up to three seconds. Between regions it is a network that takes 40 ms each way, loses and delays, and is cut in all
// ways; a primary, whose rules change, as the set of regions does, and who the primary is; and what leaders do: ask the primary for
// news, tell what is honoured, mark what all honour.
//
// The model stays for these since 200 nodes of ten regions take seconds in it, and whole ones an hour: G8 is about orders of
// events that a few hundred seeds reach.
//
// # What is judged
//
//   - G2: no window of a fixed-window limit has more than the limit by owners, leases and standbys together; no span of
//     another limit more than its algorithm admits over the span and a lease's life. Where an owner was lost, or a standby
//     acted, this becomes G5: more by the debits, leases included, that its followers had not been told of, and by what the
//     standby admitted. A partition whose owner and standby were lost at once begins anew.
//   - G3, G5: where demand lasts to the end of a fixed window, above the limit, and nothing was wrong with the owner and
//     those who asked in the window and five seconds before, 98 % of the limit is admitted, less what one check costs.
//   - G4: a node that has been cut off for two seconds admits nothing but alone, in leases for their life longer; alone,
//     and as a standby that acts, at most its share.
//   - G8: in a window, by its number on each region's own clock, all regions together admit no more of a global limit than a
//     version of it allows that was recorded as honoured by all, and not outdated before the window; of token buckets, over any
//     span, burst + rate × (D + TTL). What G5 allows inside a region comes on top. And where demand lasts, a region in which
//     nothing is wrong admits 98 % of its own share, by the least of all versions that it holds, less what it has lent.
//   - G10: every check is decided, within a second.
//
// # Limits of the model
//
// All nodes of a region share one clock. A message is never lost but by a fault, and never overtaken. A hand-over happens at once
// after its freeze; that it may be in doubt is tested in package partitions. Checkpoints are not modelled: who finds no
// copy begins anew, and what can't be confirmed by a standby is not lent. A region is removed only when nobody asks it any
// more. The record is in memory, some 70 bytes a check; a Config is bounded accordingly.
//
// Decisions of the model come from the seed, but goroutines that are ready at the same moment run in any order: a seed
// gives the same faults and nearly the same run, not the same to the last check.
package simulation
