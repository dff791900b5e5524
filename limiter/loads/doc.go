// Package loads tracks the loads that adaptive rules follow, and which step of
// each rule is in force.
//
// A source has a name and a load, 0…1,000. A load of 1 usually means that all
// of something is in use. [Loads.Report] accepts reports made to this node.
// They spread to all nodes by gossip ([Loads.Packets], [Loads.Receive]); a
// joining node gets the whole list ([Loads.FullState]). Each report is valid
// for a time that counts from when it was made. Messages carry the time left,
// so nodes never compare clocks. After that time, the source is unknown, like
// one that was never reported, and lowers no limit.
//
// Of two reports about one source, the later one counts. Each report has a
// number, one above the number of the last report about the source that its
// node has seen. Two nodes may make reports with the same number at once. All
// nodes then pick the one from the higher node ID.
//
// The source [NodeCPU] is local to each node: the node measures it (see [CPU]),
// and it does not spread.
//
// [Loads.Steps] says which step of each rule is in force. A step comes into
// force as soon as the load is above it. The step goes out of force when the
// load is clearly below it (see [Margin]), has not been above it for
// [SettleTime], or is unknown.
package loads
