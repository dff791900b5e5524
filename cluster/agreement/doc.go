// Package agreement defines what the nodes of a cluster agree on: the state built by applying Raft's entries.
//
// A [State] says which cluster this is, which nodes are in it, which node owns which partition, how often each node's
// authority was ended, which process of a node may have authority, and which rules are in force. [State.Apply] builds the
// next State from an entry: [Found], [Empty], [Reign], [Ring], [Leave], [Settled], [Ended], [Boot], [Forget], [Rules],
// [Primary], [Region], [Mark], [Adopt], [Raise] or [Skipped], written by [Encode]. The result depends on the entry alone,
// not on a clock, the environment or map order, so nodes that apply the same entries have the same State.
//
// Releases can differ. Each entry and each snapshot states the feature level needed to read it and the release that wrote
// it. A new feature is written, and takes effect, only from the level that knows it; [Raise] raises the level once all
// members know it. No node skips an entry that it can't read: the error is an [*Unreadable], and the state stays unchanged.
//
// A partition's token is the right to be its owner. It starts at the partition's owner in State.From, the settled ring, and
// moves to its owner in State.To, the ring being moved to, only by a hand-off between the two. While the state is settled,
// both rings are the same.
//
// Ended takes a node out of both rings; its standbys become the owners. The special cases:
//
//   - The node is the only member of both rings: they stay, because some node must own the partitions. Its generation still
//     rises, so it comes back as the owner, without anything it had before.
//   - It is the only member of From, and To has others: From becomes To. Partitions not handed over yet start afresh at their
//     new owners; waiting for the node could take forever.
//   - It is the only member of To, and From has others: To becomes From. Partitions already handed over start afresh at their
//     old owners.
//   - Both rings are equal without it: nothing is left to hand over, and the state is settled.
//
// [Regions] says which regions share the rules, and which versions still count for the shares of global limits. Rules,
// Region and Mark are for the primary region; other regions copy its state with Adopt. No entry knows in which region it is
// applied: its proposer must.
//
// States are immutable and share what did not change; any number of goroutines may use one. [State.AppendBinary] and
// [Parse] write and read Raft's snapshots: a State that was read back behaves exactly like the one written.
//
// Bounds: a ring has at most [ring.MaxMembers] members, State.Members at most [MaxKnown] nodes, State.Boots at most
// [MaxBoots]. The answers to the last [KeptRequests] writes of rules are remembered, and so are the generations of the last
// [KeptStrangers] nodes that were ended and are not in Members. There are at most [MaxRegions] regions, and at most
// [MaxHeld] versions that count for shares, together about [MaxHeldBytes].
package agreement
