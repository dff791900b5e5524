// Package regions connects regions: it tracks the other regions' entry nodes and calls them.
//
// Every region is a cluster of its own. Its voters are its *entry nodes*: they gossip with those of other regions in a
// second pool, the WAN pool, and keep connections to them (far links, see package peer). Any node calls another region with
// [Pool.Go] or [Pool.Call]. A node that is not an entry node has its calls passed on by one.
//
// [Open] starts a [Pool]. It opens nothing on the network until [Pool.SetEntry] makes this node an entry node, and closes
// everything again when the node stops being one, since voters come and go. [Pool.Regions] lists the other regions, and
// [Pool.Changed] signals when to look again. [Pool.Handle] registers the calls from nodes of this region. Calls from other
// regions are up to handlers of other packages, and [Pool.Accept] is meant for peer.Config.AcceptFar.
//
// # Which way a call takes
//
// A call goes to the entry node of the region that was called last, as long as it is reachable and was not late. It goes to
// another one only if certainly nothing was sent to the first, so no call is served twice. A node without a link to the
// region gives the call to an entry node of its own region. That node passes it on over its own link, and never to a node
// of its own region; so a call makes at most one extra hop.
//
// # One name for each region
//
// A region's name stands for one cluster. If two clusters use the same name, a node that notices keeps the one it knew
// first and logs an error. Nodes of one cluster that use two names are refused as well.
//
// # Bounds
//
//   - 31 other regions; further ones are left out, which is logged.
//   - Far links to 8 entry nodes of each region: it has at most 5 at a time, and others while they are replaced.
//   - 4,096 calls being passed on at a time; beyond that, the asking node tries another entry node.
//   - A node that is not an entry node calls one entry node of its region per second; while a region can't be reached, all of
//     them twice a second.
//   - Entry nodes that failed are forgotten after 72 hours, those that left after one.
//
// # Caveats
//
// Without keys and certificates, anyone who can reach the two ports can take part: pose as a region, learn what the rules
// say, and take loans. Gossip is only a hint: it decides nothing about rules or quota.
//
// Goroutines: one owns the pool, one asks the entry nodes of this region. Close waits for both. Calls under way end by
// their own timeouts, or when the Peers close.
package regions
