// Package partitions keeps a node's part of the ring: which partitions it owns, of which it has copies, and how they
// come and go without a counter being lost or decided by two nodes.
//
// A partition has one *token*: the right to decide its counters as their owner. What Raft has agreed on says where a
// token may be: at the owner in the ring that is settled (from), or, while the cluster moves to a new ring, at the owner
// in that one (to). It starts at from and moves to `to` by one hand-off: a copy, what changed meanwhile, a freeze, the
// last changes, and the *flip*. Having sent the flip, a node never decides the partition again unless the other says
// that it has not taken it, or was ended, or has lost its memory (a new boot). A node that comes into from's place
// without knowing whether the flip was made, because it was promoted or has restarted, asks first.
//
// Each copy knows how new it is: of which lineage, after how many hand-overs of it, and up to which round of changes. A node
// that goes on with a partition whose other owner is lost asks all who may have a copy, and gets the newest. Copies that
// can't be compared are merged.
//
// What a node admits without the owner is a debt to it. It reports debts in seals, which are numbered. The owner notes each
// node's last number beside the counters, and the note goes wherever they go, so no debt is debited twice.
//
// Whether a node that has a token may use it is another question: that needs authority (package authority), which is
// looked at after each decision. The gate of a partition in the table of counters is open exactly while its token is
// here and it is not frozen.
//
// The [Keeper] also sends what changed to each partition's standby every 100 ms, receives the copies of others, acts as
// a standby within one node's share while an owner can't be reached, and gives its copies back to an owner that lost
// its memory. [Keeper.Confirm] tells when what changed in a partition would outlive this process.
package partitions
