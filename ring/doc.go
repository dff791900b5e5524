// Package ring says which node owns which partition, and which one is its standby.
//
// The key space has [Partitions] slices; [PartitionOf] finds a hash's. A [Table] is the assignment of all of them to a
// set of nodes, each called by its [NodeID]. [New] computes it: every node that builds a table of the same members with
// the same [Settings] has the same table. [Table.Without] takes a member out and moves nothing but what that member
// had.
//
// A Table is immutable; any number of goroutines may use one. A nil Table is the one before the first ring: nobody
// owns anything.
//
// Caveats: the assignment comes from a library, and another version of it assigns most partitions otherwise. So the
// version is a part of the settings, and a table travels as the assignment itself ([Table.AppendBinary], [Parse]), never
// as a list of members to compute it from again.
package ring
