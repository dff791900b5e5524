// Package ring assigns each partition an owner and a standby.
//
// The key space has [Partitions] slices; [PartitionOf] returns the one that a
// hash belongs to. A [Table] assigns all of them to a set of nodes, each
// identified by its [NodeID]. [New] computes it: every node that builds a table
// of the same members with the same [Settings] gets the same table.
// [Table.Without] removes a member and moves only what that member had.
//
// A Table is immutable; any number of goroutines may use one. A nil Table
// stands for the time before the first ring: nobody owns anything.
//
// The assignment comes from a library. Another version of the library assigns
// most partitions differently. The version is therefore part of the settings,
// and nodes exchange the assignment itself ([Table.AppendBinary], [Parse]),
// never a list of members to compute it from.
package ring
