// Package cluster implements a node's part in the cluster: which nodes there are, what is agreed on, and which node owns
// what.
//
// It combines gossip (which nodes are there, quickly and roughly), Raft (what is agreed on: the rules, the ring's members
// by epoch, which nodes were ended) and authority (a node's right to act as an owner). [New] creates a node's part.
// [Cluster.Start] starts it and, in a first start, founds the cluster together with other nodes. [Cluster.Close] ends it.
//
// The agreed state is an [agreement.State]; [Cluster.State] returns the newest one that this node has applied.
// [Config.OnState] and [Config.OnRules] are called for each change, from one goroutine. [Cluster.Write] changes the rules
// from any node; [Cluster.CatchUp] waits until this node has applied everything agreed on before.
//
// A Cluster has four parts over one core, which holds Raft, the agreed state and the calls between nodes:
//
//   - The founder founds the cluster in a first start, and decides which cluster this node belongs to.
//   - The crew tracks the other nodes (see census), asks for authority, and answers requests for it on the leader.
//   - The reconciler, on the leader, makes Raft's configuration and the feature level match the members.
//   - The governor writes rules, and shares them with other regions.
//
// Each region is a cluster. Rules are written in one of them, the primary ([Config.Primary]). Write forwards them there,
// and the leaders of the other regions follow what it has agreed on. They reach it through [Far].
//
// Caveats:
//
//   - A first start never guesses: a node that has promised to take part in a founding takes part in no other until its
//     proposer has given up. If that proposer's disk is lost for good, the data directories of the nodes that promised must be
//     emptied; a log line names the proposer every half minute.
//   - Raft's own AppliedIndex is that of the last entry handed to the state machine, not of the last applied; indices here
//     are always those of [agreement.State.Index].
package cluster
