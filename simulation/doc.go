// Package simulation runs clusters of hundreds of nodes, and several regions of them, in one process on virtual time, and
// judges what they admitted.
//
// Real are the limiter with its leases, the counters, the rules and the ring: each node is a [limiter.Limiter]. What they
// stand on is a model, drawn from one seed: a network that delays, and is cut between nodes, in one direction or both, or
// between sets of them; and the control plane as docs/ARCHITECTURE.md describes it: a leader where most voters are,
// authority for two seconds, ends, standbys promoted from what they have been pushed, hand-overs, nodes that crash,
// restart and leave. [Run] must be called in a bubble of testing/synctest, whose time it is:
//
//	synctest.Test(t, func(t *testing.T) { ledger, err = simulation.Run(config) })
//	broken := ledger.Judge()
//
// With Config.Regions above 1 there are so many of these clusters, each with a clock of its own, wrong by up to three seconds,
// and what is between them: a network that takes 40 ms each way, loses and delays, and is cut between regions in all ways; a
// primary, whose rules change, as the set of regions does, and who the primary is. Real are then the rules with their shares,
// what is agreed about regions ([agreement.State], whose entries a region's leader commits), and loans. A model is what
// leaders do: ask the primary for news, tell what is honoured, mark what all honour.
//
// A [Ledger] says all that happened, and the checkers go by nothing else, so that they are tested with records made up.
// They never guess: where the time of a decision isn't known, or what a lost owner took with it, they allow what may be
// right. [Ledger.WriteStory] prints what happened to one subject.
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
// All nodes of a cluster share one clock. A message is never lost but by a fault, and never overtaken. A hand-over happens at once
// after its freeze; that it may be in doubt is tested in package partitions. Checkpoints are not modelled: who finds no
// copy begins anew, and what can't be confirmed by a standby is not lent. A region is removed only when nobody asks it any
// more. The record is in memory, some 70 bytes a check; a Config is bounded accordingly.
//
// Decisions of the model come from the seed, but goroutines that are ready at the same moment run in any order: a seed
// gives the same faults and nearly the same run, not the same to the last check.
package simulation
