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
// one that this node has applied. One goroutine passes changes on to
// [Config.OnState], [Config.OnRules] and [Config.OnEntries]. [Cluster.Write]
// changes the rules from any node. [Cluster.CatchUp] waits until this node has
// applied everything that was agreed on before the call.
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
// ([Config.Primary]). Write forwards changes to the primary, and the leaders of
// the other regions copy the primary's rules. Regions reach each other through
// [OtherRegions].
//
// Caveats:
//
//   - A node that has promised to take part in a founding takes part in no
//     other until its proposer has given up. If the proposer's disk is lost for
//     good, empty the data directories of the nodes that promised. Each of
//     these nodes logs the proposer's ID every half minute.
//   - Raft's AppliedIndex counts entries handed to the state machine, even if they
//     are not applied yet. In this package, an applied index is always an
//     [agreement.State.Index].
//
// # Files
//
// From the bottom up:
//
//   - config.go, methods.go: what a node is given, and what nodes call each
//     other for;
//   - machine.go, state.go: the agreed state, as this node has applied it;
//   - core.go, raft.go, gossip.go, calls.go: the core, over package raftio;
//     replacing.go: how many voters there should be; recover.go: the log of a
//     node that is stopped;
//   - promise.go, founding.go, identity.go: the founder, and the cluster that
//     this node belongs to;
//   - members.go, hashreports.go, nodetracker.go: what is known of the nodes;
//     elections.go, authorityrequests.go, leave.go: who leads, has authority, and
//     leaves;
//   - honour.go, primary.go: what regions report, and the primary's role;
//     followentries.go, following.go: a region that follows; recording.go: the
//     primary's rounds; write.go, entries.go: writes; sharedrules.go: the regions'
//     loops;
//   - plan.go, level.go, reconciler.go: how the leader makes Raft's configuration
//     and the feature level match the members;
//   - firstentries.go, view.go, memory.go, statefeed.go, chronicle.go: a new
//     cluster, and what the rest of the node and operators get to know;
//   - cluster.go: a Cluster, its start and its end.
package cluster
