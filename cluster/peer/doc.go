// Package peer carries calls between the nodes of a cluster, and to those of other regions, and Raft's connections.
//
// [New] makes a [Peers], which listens at the peer port. [Peers.Handle] registers who answers which method, in a region and
// between regions; [Peers.Start] begins to answer. Peers keep one connection to every node that [Peers.Know] has named.
// [Peers.Go], [Peers.Call] and [Peers.Send] send messages to such a node. [Peers.CallAt] asks an address whose node is not
// known yet. [Peers.Raft] gives Raft its connections. [Peers.KnowFar] is for nodes of other regions, which are other clusters.
//
// # Methods
//
// A method is a number, and each package that nodes call has numbers of its own: cluster 1 to 31, authority 32 to 47,
// partitions 48 to 79, limiter 80 to 127, usage 128 to 135, wan 200 to 207. A number that nobody has registered is answered
// with [CodeNoMethod].
//
// # The wire
//
// A connection may begin with a TLS handshake (see [TLS]). Then comes a preamble: magic, the lowest and the highest version of
// the protocol that the build speaks, what the connection is for, and the [Identity] of the node that dials. The other side
// answers with its own, or with a refusal and its reason. Both go by the highest version that they have in common; without one
// the connection is refused, and the reason says which release is needed. Preambles are the same in all releases, but that later
// ones may add to an Identity, and know more that a connection may be for. After that the bytes are Raft's own, or messages: the calls of the node that dialled in one direction, their
// replies in the other. So two nodes that call each other have two connections.
//
// What is queued while some messages are written is written next, at once: no timer. An end that has nothing to say sends a heartbeat,
// which is an empty message, each fifth of Config.Silence.
//
// # Reachable
//
// A node is unreachable while there is no connection to it, and while nothing has come for Config.Silence. Its calls
// fail at once then, and so do new ones. A silent connection is kept, since the remote may only be paused, and is good
// again with the next byte; after 5 s of silence it is closed and dialled anew. Beside one that is silent for twice
// Config.Silence another is dialled, which takes its place if it is there first: after a cut TCP sends again only after a
// pause as long as the cut has lasted, or longer. Time in which this process did not run
// does not count as silence. The end that was dialled stops its heartbeats when it hears nothing itself, so a link that
// is broken in one direction counts as broken at both ends.
//
// # Far
//
// A far connection is one between two regions, and says so in its preamble. It is refused where both ends are in one region,
// and so is a near one, or Raft's, where they are not: what comes over a far connection never reaches a handler of Near or Raft,
// and what comes over a near one never a handler of Far. A far connection is silent after 2 s, and closed then.
//
// # Bounds
//
//   - A message has at most 16 MiB; a queue to one node 65,536 messages and 32 MiB; and as many calls wait for a reply.
//     What does not fit fails with ErrBusy at once. Replies that do not fit are dropped, and the call times out.
//   - A handshake, TLS included, takes at most 2 s (enough for round trips of 300 ms) and a preamble 1 KiB; at most 256
//     connections are in that state, and further ones wait in the listener. At most 4,096 accepted connections are open, 512 of
//     them from other regions; further ones are closed.
//   - A dial takes at most 2 s, half a second of which TCP may take; between two there is a pause of 50 ms to 1 s, with jitter. To another region TCP has 1.5 s
//     and the handshake 2 s more, and a pause is 500 ms at most.
//   - At most 64 of Raft's connections wait for Accept; further ones are closed.
//
// # Caveats
//
// A failed call may have been served all the same: the failure says only that no reply came. The Identity of a remote is
// what it said when the connection began; a cluster that became known later is not in it.
package peer
