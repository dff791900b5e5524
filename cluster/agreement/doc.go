// Package agreement defines the state that the nodes of a cluster agree on.
// Each node builds it by applying Raft's entries.
//
// A [State] contains the cluster's ID, its nodes, the owner of each partition,
// each node's generation (how many times it was ended), the process of each
// node that may have authority, the rules in force, and the entries beside
// them. [Build.Apply] builds the next State from an [Entry] that [Build.Encode]
// has encoded. The result depends only on the State and the entry, not on a
// clock, the environment or map order. Nodes that apply the same entries
// therefore have the same State.
//
// The nodes of a cluster may run different releases. Each entry and each
// snapshot states the feature level needed to read it and the release that
// wrote it. A release uses a new feature only once the agreed level includes
// it. [Raise] raises the level once all members know it. No node skips an entry
// that it can't read: the error is an [*Unreadable], and the state stays
// unchanged.
//
// A partition's token is the right to be its owner. It starts at the
// partition's owner in State.From, the settled ring, and moves to its owner in
// State.To, the ring being moved to, only in a hand-off between the two. While
// the state is settled, both rings are the same.
//
// EndNode removes a node from both rings, and its standbys become the owners. The
// special cases:
//
//   - The node is the only member of both rings: they stay, because some node
//     must own the partitions. Its generation still rises, so it comes back as
//     the owner, but without its earlier counters.
//   - It is the only member of From, and To has other members: From becomes To.
//     Partitions not handed over yet start afresh at their new owners, because
//     waiting for the node could take forever.
//   - It is the only member of To, and From has other members: To becomes From.
//     Partitions already handed over start afresh at their old owners.
//   - Both rings are equal without it: nothing is left to hand over, and the
//     state is settled.
//
// [Regions] contains the regions that share the rules, and the versions that
// still count for the shares of global limits. WriteRules, ChangeRegion, Mark,
// ChangeEntries and ExpireEntries are for the primary region. Other regions copy
// its state with Adopt and AdoptEntries. An entry can't tell in which region it
// is applied, so its proposer must check that.
//
// States are immutable and share unchanged parts. They are safe for concurrent
// use. [Build.AppendSnapshot] and [Build.Parse] write and read Raft's snapshots:
// a State that was read back behaves exactly like the one written.
//
// Bounds: a ring has at most [ring.MaxMembers] members, State.Members at most
// [MaxKnown] nodes, State.Processes at most [MaxProcesses]. A State remembers
// the answers to the last [KeptAnswers] writes of rules and entries, and the
// generations of the last [KeptStrangers] nodes that have one and are not in
// Members. There are at most [MaxRegions] regions, and at most [MaxHeld]
// versions that count for shares, together about [MaxHeldBytes].
//
// # Files
//
// From the bottom up:
//
//   - id.go, hash.go, build.go: IDs, the hash by which nodes compare their
//     states, and what a build can read;
//   - entry.go: the entries that found a cluster, move rings, end nodes and
//     write rules;
//   - suspend.go, state.go: members that were taken out of the ring and seemed
//     to be alive, and the agreed state;
//   - reign.go, depart.go: leaders' reigns and nodes' processes, and nodes that
//     left for good;
//   - regions.go, held.go, follow.go: the regions, versions that still count
//     for shares, and how other regions copy the primary's rules;
//   - requests.go, entries.go: answers that are remembered, and changes of the
//     entries beside the rules;
//   - edition.go, encode.go: the rules and regions that an entry was proposed
//     for, and Raft's entries as bytes;
//   - apply.go, snapshot.go: the next state after an entry, and a whole state
//     as bytes.
package agreement
