// Package partitions manages a node's part of the ring: the partitions it owns, the copies it holds, and how both move
// between nodes without losing a counter or letting two nodes decide it.
//
// Each partition has one *token*: the right to decide its counters as their owner. The state agreed on through Raft says
// where a token may be: at the owner in the settled ring (from) or, while the cluster moves to a new ring, at the owner
// in that one (to). A token starts at from and moves to `to` in one hand-off: a copy, the changes made since, a freeze,
// the last changes, and the *flip*. Once a node has sent the flip, it never decides the partition again unless the other
// node says that it did not take the token, or was ended, or lost its memory (a new boot). A node that takes from's place
// without knowing whether the flip was made, because it was promoted or has restarted, asks first.
//
// Each copy knows how new it is: its lineage, the number of hand-overs in that lineage, and the last round of changes it
// has. A node that takes over a partition whose other owner is lost asks every node that may have a copy, and fetches the
// newest. Copies that can't be compared are merged.
//
// Costs that a node admits without the owner are a debt to the owner. The node reports its debts in numbered seals. The
// owner notes each node's last number beside the counters, and the note travels with them everywhere, so no debt is
// debited twice.
//
// Whether a node that has a token may use it is a separate question: that needs authority (package authority), which is
// checked before and after each decision. A partition's gate in the table of counters is open exactly while its token is
// here and it is not frozen.
//
// The [Keeper] also pushes changes to each partition's standby every 100 ms, receives copies from others, acts as a
// standby within one node's share while an owner can't be reached, and gives its copies back to an owner that lost its
// memory. [Keeper.Confirm] waits until the changes in a partition would survive the loss of this process.
package partitions
