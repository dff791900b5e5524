// Package cluster makes a node a member of the cluster: it tracks the other
// nodes, agrees with them on the rules and the ring, and obtains the right to
// own partitions.
//
// It combines three mechanisms. Gossip reports quickly, but unreliably, which
// nodes are alive. Raft agrees on the rules, on the members of each ring, and
// on which nodes were ended. Authority is a node's right to act as an owner.
// [New] creates a node's part in the cluster. [Cluster.Start] starts it and, on
// the first start, founds the cluster together with other nodes.
// [Cluster.Close] ends it.
//
// The agreed state is an [agreement.State]. [Cluster.State] returns the newest
// one that this node has applied. One goroutine calls [Config.OnState] and
// [Config.OnRules] for each change. [Cluster.Write] changes the rules from any
// node. [Cluster.CatchUp] waits until this node has applied everything that was
// agreed on before the call.
//
// A Cluster has four parts over one core, which holds Raft, the agreed state
// and the calls between nodes:
//
//   - The founder founds the cluster on this node's first start, and decides
//     which cluster the node belongs to.
//   - The nodeTracker tracks the other nodes (see listMembers) and asks for
//     authority. On the leader, it answers such requests.
//   - The reconciler, on the leader, makes Raft's configuration and the feature
//     level match the members.
//   - sharedRules writes rules and shares them with other regions.
//
// Each region is a cluster. Rules are written in one region, the primary
// ([Config.Primary]). Write forwards changes to it, and the leaders of the
// other regions copy its rules. They reach it through [OtherRegions].
//
// Caveats:
//
//   - A node that has promised to take part in a founding takes part in no other
//     until its proposer has given up. If the proposer's disk is lost for good,
//     empty the data directories of the nodes that promised. Every half minute,
//     these log the proposer's ID.
//   - Raft's AppliedIndex counts entries handed to the state machine, even if they
//     are not applied yet. In this package, an applied index is always an
//     [agreement.State.Index].
package cluster
