// Package memnet is an in-memory network for tests: hosts by IP, streams,
// packets, and the faults of real networks.
//
// A [Net] has hosts ([Net.Host]), and a [Host] listens and dials like a
// machine. Links can be cut in one direction or both. Hosts can be isolated,
// frozen (as a process looks from outside after SIGSTOP) and crashed. A delay
// can be set for all links or for one. A cut link fails silently: bytes written
// to a stream stay in its buffer and are delivered when the link is healed, as
// if TCP retransmitted them; a dial waits until its context ends; packets are
// lost.
//
// Everything works inside testing/synctest bubbles: it uses only mutexes,
// channels and timers. Only the gossip transport starts goroutines; its
// Shutdown ends them.
//
// Bounds: 256 KiB in flight per direction of a stream, 128 connections that
// wait to be accepted, 1,024 packets per socket (more are lost), and 30 s for a
// dial.
package memnet
