// Package regions connects regions: it knows the other regions' entry nodes, and calls them.
//
// Every region is a cluster of its own. Its voters are its *entry nodes*: they gossip with those of the other regions in a
// second pool, the WAN pool, and keep connections to them (far links, see package peer). Any node of a region calls another
// region by [Pool.Go] or [Pool.Call]; one that is no entry node has its calls passed on by one that is.
//
// [Open] starts a [Pool]. Nothing is opened on the network before [Pool.SetEntry] makes this node an entry node, and all is
// closed again when it is none any more, since voters come and go. [Pool.Regions] lists the other regions, [Pool.Changed]
// says when to look again. [Pool.Handle] registers what nodes of this region ask; what other regions ask is
// for handlers of other packages, and [Pool.Accept] for peer.Config.AcceptFar.
//
// # Which way a call takes
//
// To the entry node of that region that was last called, as long as it can be reached and was not late. To another one only
// if certainly nothing was sent to the first: then no call is served twice. A node that has no link to the region gives the call to an
// entry node of its own region, which passes it on to where it has a link, and never to a node of its own region; so a call
// makes one hop more, at most.
//
// # One name for each region
//
// A region's name stands for one cluster. Where two clusters go by one name, the node that finds out keeps to the one that
// it knew first, and says so loudly. Nodes of one cluster that go by two names are refused as well.
//
// # Bounds
//
//   - 31 other regions; further ones are left out, and a line in the log says so.
//   - Far links to 8 entry nodes of each: a region has at most 5 at a time, and others while they are replaced.
//   - 4,096 calls that are passed on at a time; beyond, the node that asks tries another entry node.
//   - One call each second to an entry node of its own region, by a node that is none; to each of them twice a second while a
//     region can't be reached.
//   - Entry nodes that failed are forgotten after 72 hours, those that left after one.
//
// # Caveats
//
// Without keys and certificates anybody who reaches the two ports can take part: call itself a region, learn what rules say, and
// take loans. Gossip is a hint here too: nothing about rules or quota is decided by it.
//
// Goroutines: one owns the pool, one asks the entry nodes of this region. Close waits for both. Calls under way end with their
// own timeouts, or with Close of the Peers.
package regions
