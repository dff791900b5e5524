// Package partitions manages a node's part of the ring: the partitions it owns,
// the copies it holds, and how both move between nodes. A move loses no
// counter, and two nodes never decide the same counter.
//
// Each partition has one *token*: the right to decide its counters as their
// owner. The state agreed on through Raft says where a token may be: at the
// owner in the settled ring (`from`) or, while the cluster moves to a new ring
// (`to`), at the owner in the new one. The token moves from the old owner to
// the new one in one hand-off: a copy, the changes made since, a freeze, the
// last changes, and the *flip*. Once a node has sent the flip, it decides the
// partition again in two cases only: the other node replies that it did not
// take the token, or the agreed state shows that the other node was ended, has
// begun a new process, or is no longer the target. A node that becomes the
// owner in `from` by promotion, or by a restart, does not know whether the flip
// was made. So it asks the other side first.
//
// Each copy records how new it is: its lineage, the number of hand-overs in
// that lineage, and the last round of changes it has. A node that takes over a
// partition after the other owner was lost asks every node that may have a
// copy, and fetches the newest. It merges copies of different lineages, since
// each may have what the other lacks. A lineage also says when it began. A node
// that was ended may have kept its copy for days. No node fetches that copy
// once there is a whole copy of a later lineage.
//
// Costs that a node admits without the owner are a debt to the owner. The node
// numbers its debts and reports them in order. The owner stores each node's
// last number next to the counters, and sends both together to wherever the
// counters go. So no debt is debited twice.
//
// A token alone is not enough. To use it, a node also needs authority (package
// authority), which is checked before and after each decision. A partition's
// gate in the table of counters is open exactly while its phase is owning: its
// token is here, the partition is not frozen, and no search for newer counters
// goes on.
//
// The [Keeper] also pushes changes to each partition's standby every 100 ms,
// receives copies from others, acts as a standby within one node's share while
// an owner can't be reached or has no authority, and gives its copies back to
// an owner that lost its memory. [Keeper.Confirm] waits until the changes in a
// partition would survive the loss of this process.
//
// # Files
//
// From the bottom up:
//
//   - version.go, adopted.go, part.go: how new a copy is, the agreed state, and
//     what a node knows of a partition;
//   - calls.go, wire.go, config.go: messages, and what a keeper is given;
//   - debt.go, debts.go, debtnumbers.go: what is owed to owners, once;
//   - copytargets.go, confirmation.go: who gets copies, and who waits for them;
//   - phases.go: a partition changes its phase;
//   - push.go, copy.go: copies that are sent, and that arrive; confirm.go: what
//     would survive this process; drop.go: copies that nobody needs;
//   - route.go, standby.go: who decides, and decisions without the owner;
//   - report.go: the debts of these;
//   - handoff.go, pull.go, recover.go: a token that moves, copies that are asked
//     for, and a token whose owner was lost;
//   - adopt.go, inbox.go, loop.go, keeper.go: a keeper follows the agreed state,
//     handles the messages of others, and does its work again and again;
//     stats.go: what is shown.
package partitions
