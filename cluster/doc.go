// Package cluster is a node's life among the others: who is there, and what is agreed.
//
// It wires gossip (who is there, quickly and roughly), Raft (what is agreed: the rules, the ring's members by epoch,
// who has been ended) and authority (a node's leave to act as an owner). [Open] starts all of it and, in a first
// start, founds the cluster together with the others; [Cluster.Close] ends it.
//
// What has been agreed is an [agreement.State]: [Cluster.State] is the newest that this node has applied, and
// [Config.OnState] and [Config.OnRules] tell about each change, from one goroutine. [Cluster.Write] changes the rules
// from any node; [Cluster.Catch] waits until this node knows all that was agreed before.
//
// Of several regions, each is a cluster. Rules are written in one of them, the primary ([Config.Primary]); Write brings them
// there, and the leaders of the others follow what it has agreed on. [Far] is how they reach it.
//
// Caveats:
//
//   - A first start never guesses: a node that has promised to take part in a founding takes part in no other until
//     its proposer has given up. If that proposer's disk is lost for good, the data directories of those who promised
//     must be emptied; a log line names them every half minute.
//   - Raft's own AppliedIndex is that of the last entry handed to the state machine, not of the last applied; indices
//     here are always those of [agreement.State.Index].
package cluster
