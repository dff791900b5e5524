// Package memnet is an in-memory network for tests: hosts by IP, streams, packets, and the faults of real networks.
//
// A [Net] has hosts ([Net.Host]), and a [Host] listens and dials like a machine. Links can be cut in one direction or
// both. Hosts can be isolated, frozen (as a process looks from outside after SIGSTOP) and crashed. A delay can be set
// for all links or for one. A cut link fails silently: what is written to a stream stays in its buffer and is delivered
// when the link is healed, as if TCP retransmitted it; a dial waits until its context ends; packets are lost.
//
// Everything works inside testing/synctest bubbles: there are only mutexes, channels and timers. Nothing starts a
// goroutine but the gossip transport, whose Shutdown ends it.
//
// Bounds: 256 KiB in flight per direction of a stream, 128 connections that wait to be accepted, 1,024 packets per
// socket (more are lost), and 30 s for a dial.
package memnet
