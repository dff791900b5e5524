// Package memnet is a network in memory for tests: hosts by IP, streams, packets, and the faults that real networks
// have.
//
// A [Net] has hosts ([Net.Host]), and a [Host] listens and dials as a machine does. Links can be cut in one direction
// or both, hosts can be isolated, frozen (as a process that got SIGSTOP looks from outside) and crashed, and a delay
// can be set, for all links or for one. A cut link says nothing: what is written on a stream stays in its buffer and is delivered when the link
// is healed, as TCP does by sending it again; a dial waits until its context ends; packets are lost.
//
// Everything works inside testing/synctest bubbles: there are only mutexes, channels and timers, and nothing starts a
// goroutine but the gossip transport, whose Shutdown ends it.
//
// Bounds: 256 KiB in flight for each direction of a stream, 128 connections that wait to be accepted, 1,024 packets for
// each socket (more are lost), and 30 s for a dial.
package memnet
