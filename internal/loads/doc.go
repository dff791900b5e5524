// Package loads knows how busy the sources are that adaptive rules follow, and which of their steps is in force.
//
// A source is a name and a load, 0…1,000, where 1 usually means that all of something is in use. [Loads.Tell] takes what this
// node is told. It travels to all nodes by gossip ([Loads.Packets], [Loads.Hear]), and whole lists to those that join
// ([Loads.Whole]). Each report is valid for a time that is counted from when it was told: messages say how much of it is left, and
// no clock is read for another node. After that the source is unknown, as one that nobody has told of, and lowers nothing.
//
// Of two reports about one source the later one counts. Each has a number one above the highest that its node had seen;
// of two with the same number, told at two nodes at once, that of the higher node ID counts, everywhere.
//
// The source [NodeCPU] is each node's own: it is measured (see [CPU]), not told, and does not travel.
//
// [Loads.Steps] says which step of each rule is in force. A step comes into force as soon as the load is above it, and goes
// out of force when the load is clearly below it (see [Margin]), or has not been above it for [Settle], or is unknown.
package loads
