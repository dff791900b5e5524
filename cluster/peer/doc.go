// Package peer carries calls between the nodes of a cluster and to nodes of
// other regions, and Raft's connections.
//
// [New] makes a [Peers], which listens at the peer port. [Peers.Handle]
// registers the handler of a method, for callers in the region or in other
// regions; [Peers.Start] begins to answer. Peers keeps one connection to each
// node in [Peers.SetNodes]. [Peers.Go], [Peers.Call] and [Peers.Send] send
// messages to such a node. [Peers.CallAt] calls an address whose node is not
// known yet. [Peers.Raft] provides Raft's connections. [Peers.SetFarNodes] is
// for nodes of other regions, which are other clusters.
//
// # Methods
//
// A method is a number. Each package that nodes call has a range of numbers:
// cluster 1 to 31, authority 32 to 47, partitions 48 to 79, limiter 80 to 127,
// usage 128 to 135, history 144 to 151, regions 200 to 207, and this package 254
// and 255. A call of an unregistered method fails with [CodeNoMethod].
//
// # The wire
//
// A connection may begin with a TLS handshake (see [TLS]). Then comes a
// preamble: magic, the lowest and highest protocol versions that the build
// supports, the purpose of the connection, and the [Identity] of the dialling
// node. The other side answers with its own preamble, or refuses with a reason.
// Both use the highest version that they share. If they share none, the
// connection is refused, and the reason names the release that is needed.
// Preambles are the same in all releases, except that later ones may extend the
// Identity and add purposes. After the preambles, the bytes are Raft's own, or
// messages: calls from the node that dialled, replies in the other direction.
// So two nodes that call each other have two connections.
//
// A caller whose call is the only one in flight writes it. A connection's
// reader writes the replies to all messages that one read has brought. Both
// write only as much as they can without waiting. The connection's writer
// writes the rest, and everything under TLS and through a tunnel. Messages
// queued during a write go out right after it, without a timer.
//
// Each end sends a heartbeat, which is an empty message, every fifth of
// Config.Silence, or every 400 ms over a far connection. A node sends the
// heartbeats of all its connections at once. The nodes of a region send theirs
// together: the first heartbeat wakes the other nodes, and these then send
// their own.
//
// # Reachable
//
// A near node is reached over its direct connection or, while that is silent or
// broken, through a tunnel: a connection that another node of the region
// relays. The node is unreachable while there is neither, and while nothing has
// arrived for Config.Silence. Its pending calls then fail at once, and so do
// new ones. A silent direct connection is kept, because the remote may only be
// paused, and is usable again after the next byte. After 5 s of silence it is
// closed and dialled again. After twice Config.Silence, a second connection is
// dialled, and replaces the silent one if it is established first: after a cut,
// TCP retransmits only after a pause as long as the cut, or longer. Time in
// which this process did not run does not count as silence. The end that was
// dialled stops its heartbeats when it receives nothing. So a link that is
// broken in one direction counts as broken at both ends.
//
// # Far
//
// A far connection is one between two regions, and its preamble says so. It is
// refused if both ends are in one region; a near connection, or Raft's, is
// refused if they are not. So a message over a far connection never reaches a
// Near handler or Raft, and a message over a near one never reaches a Far
// handler. A far connection counts as silent after 2 s, and is then closed.
//
// # Bounds
//
//   - A message has at most 16 MiB; a larger one fails with ErrTooLarge. A queue
//     to one node holds at most 65,536 messages and 32 MiB, and at most 65,536
//     calls wait for a reply; others fail with ErrBusy at once. Replies that do
//     not fit are dropped, and the call times out.
//   - A handshake, TLS included, takes at most 2 s (enough for round trips of
//     300 ms), and a preamble has at most 1 KiB. At most 256 connections are in
//     a handshake; further ones wait in the listener. At most 4,096 accepted
//     connections are open, 512 of them from other regions; further ones are
//     closed.
//   - A dial takes at most 2 s, of which TCP may take half a second. The pause
//     between dials is 50 ms to 1 s, with jitter. To another region, TCP has
//     1.5 s and the handshake another 2 s, and a pause is at most 500 ms.
//   - At most 64 of Raft's connections wait for Accept; further ones are
//     closed.
//
// # Caveats
//
// A failed call may have been served, unless its error wraps ErrNotSent or is
// ErrBusy or ErrTooLarge: the failure only means that no reply arrived. The
// Identity of a remote is the one it sent when the connection began. So it
// lacks a cluster that became known later.
//
// # Files
//
// From the bottom up:
//
//   - identity.go, preamble.go, region.go, tls.go: who is at the other end,
//     which version both use, who may connect, and TLS from files;
//   - message.go, call.go, queue.go, handlers.go: messages, calls and their
//     errors, what waits to be sent, and who answers;
//   - loggedonce.go, socket.go, listen.go: what is logged only once, a
//     connection of the network, and the handshake at both ends;
//   - conn.go: a connection that carries messages;
//   - link.go, tunnel.go, path.go: the connection to a node is kept up, or
//     replaced by one through another node;
//   - stall.go, pulse.go, clocks.go: times in which this process did not run,
//     the heartbeats of all connections at once, and the clocks of other nodes;
//   - raft.go, renew.go: Raft's connections, and a change of the credentials;
//   - peers.go: what has all connections, and calls to nodes.
package peer
