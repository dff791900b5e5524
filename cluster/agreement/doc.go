// Package agreement is what the nodes of a cluster agree on: the state that Raft's entries make.
//
// A [State] says which cluster this is, who is in it, who owns which partition, how often each node's authority was
// ended, which process of a node may have it, and which rules are in force. [State.Apply] makes the next one from an
// entry: [Found], [Empty], [Reign], [Ring], [Leave], [Settled], [Ended], [Boot], [Forget], [Rules], [Primary],
// [Region], [Mark], [Adopt], [Raise] or [Skipped], written by [Encode].
// Everything is in the entry: no clock, no environment and no order of a map decides anything, so nodes that apply the
// same entries have the same State.
//
// Releases can differ. An entry, and a snapshot, says which feature level it takes to read it, and which release wrote it.
// What is new is written, and takes effect, only from the level on that knows it; [Raise] raises the level when all members do.
// Nobody skips what it can't read: the error is an [*Unreadable], and the state stays as it was before.
//
// A partition's token is the right to be its owner. It starts at its owner in State.From, the ring that is settled, and
// moves to its owner in State.To, the ring being moved to, only by a hand-off between these two. While the state is
// settled both rings are one.
//
// Ended takes a node out of both rings, so that its standbys are the owners from then on. What else could happen:
//
//   - The node is the only member of both: they stay as they are, because somebody must own. Its generation rises all
//     the same, so it comes back as the owner, with nothing that it had before.
//   - It is the only member of From, and To has others: From becomes To. What had not been handed over begins anew at
//     its new owner; waiting for the node could be for ever.
//   - It is the only member of To, and From has others: To becomes From. What had been handed over begins anew at its
//     old owner.
//   - Both rings are equal after it: nothing is left to be handed over, and the state is settled.
//
// [Regions] says which regions share the rules, and which versions still count for the shares of global limits. Rules, Region
// and Mark are for the region that is the primary; others take its state over by Adopt. No entry knows in which region it is
// applied: who proposes it has to.
//
// States are immutable and share what did not change; any number of goroutines may use one. [State.AppendBinary] and
// [Parse] are Raft's snapshots: a State that was read back goes on as the one that was written would.
//
// Bounds: a ring has at most [ring.MaxMembers] members, State.Members at most [MaxKnown] nodes, and State.Boots
// [MaxBoots]. The answers to the last [KeptRequests] writes of rules are remembered, and the generations of the last
// [KeptStrangers] nodes that were ended and are not in Members. There are at most [MaxRegions] regions, and [MaxHeld] versions
// that count for shares, of [MaxHeldBytes] together.
package agreement
