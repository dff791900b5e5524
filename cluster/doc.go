// Package cluster is a node's part in the cluster: who is there, what is agreed, who owns what.
//
// It joins gossip (who is there, quickly and roughly), Raft (what is agreed: the rules, the ring's members by epoch, which
// nodes were ended) and authority (a node's leave to act as an owner). [New] makes a node's part, [Cluster.Start] starts it and, in a
// first start, founds the cluster together with other nodes; [Cluster.Close] ends it.
//
// What has been agreed is an [agreement.State]: [Cluster.State] is the newest one that this node has applied.
// [Config.OnState] and [Config.OnRules] are called for each change, from one goroutine. [Cluster.Write] changes the rules
// from any node; [Cluster.Catch] waits until this node has applied all that was agreed before.
//
// A Cluster has four parts over one core, which holds Raft, the agreed state and the calls between nodes:
//
//   - The founder founds the cluster in a first start, and decides which cluster this node belongs to.
//   - The crew knows the other nodes (see census), asks for authority, and answers for it as the leader.
//   - The reconciler, on the leader, makes Raft's configuration and the feature level match the members.
//   - The governor writes rules, and shares them with other regions.
//
// Each region is a cluster. Rules are written in one of them, the primary ([Config.Primary]). Write brings them there, and the
// leaders of the other regions follow what it has agreed on. [Far] is how they reach it.
//
// Caveats:
//
//   - A first start never guesses: a node that has promised to take part in a founding takes part in no other until
//     its proposer has given up. If that proposer's disk is lost for good, the data directories of the nodes that promised
//     must be emptied; a log line names them every half minute.
//   - Raft's own AppliedIndex is that of the last entry handed to the state machine, not of the last applied; indices
//     here are always those of [agreement.State.Index].
package cluster
