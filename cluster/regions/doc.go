// Package regions connects regions: it tracks the other regions' entry nodes and calls them.
//
// Every region is a cluster of its own. Its voters are its *entry nodes*: they
// gossip with those of other regions in a second pool, the WAN pool, and keep
// connections to them (far links, see package peer). Any node calls another
// region with [Pool.Go] or [Pool.Call]. A node that is not an entry node
// forwards its calls through one.
//
// [Open] starts a [Pool]. The Pool opens nothing on the network until
// [Pool.SetEntryNode] makes this node an entry node. When this node stops being
// one, which happens as voters come and go, the Pool closes everything again.
// [Pool.Regions] lists the other regions, and [Pool.Changed] signals when the
// list may have changed. [Pool.Handle] registers the handlers for calls from
// nodes of this region. Other packages handle the calls from other regions.
// [Pool.Accept] is meant for peer.Config.AcceptFar.
//
// # Routing
//
// A call goes to the entry node that was called last in the region, as long as
// that node is reachable and answers in time. The call goes to another entry
// node only if certainly nothing was sent to the first, so no call is served
// twice. A node without a link to the region sends the call to an entry node of
// its own region. That node forwards the call over its own link, and never to a
// node of its own region, so a call makes at most one extra hop.
//
// # One name for each region
//
// A region's name stands for one cluster. If two clusters use the same name, a
// node that notices this keeps the one that it knew first, and logs an error.
// It also refuses nodes of its own cluster that use another region's name.
//
// # Bounds
//
//   - 31 other regions; further ones are ignored and logged.
//   - Far links to 8 entry nodes of each region: a region has at most 5 at a
//     time, and more only while some are replaced.
//   - 4,096 forwarded calls in flight; beyond that, the caller tries another
//     entry node.
//   - A node that is not an entry node polls one entry node of its region per
//     second, and an entry node polls up to 8 others every 10 s. While a region
//     can't be reached, each node polls up to 8 of them twice a second.
//   - Entry nodes that failed are forgotten after 72 hours, those that left
//     after one.
//
// # Caveats
//
// Without keys and certificates, anyone who can reach the two ports can take
// part: pose as a region, read the rules, and take loans. Gossip is only a
// hint: it decides nothing about rules or quota.
//
// Goroutines: one owns this node's part in the WAN pool, one polls the entry
// nodes of this region. Close waits for both. Calls in flight end with their
// own timeouts, or when the Peers close.
package regions
