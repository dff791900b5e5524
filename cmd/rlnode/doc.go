// Command rlnode is a rate limiter: a node that answers checks over HTTP, and the tools to use it.
//
// This package has the flags and the commands, one or two per file; the node
// itself is in package node. [run] is the whole program except for what a
// process has only once.
package main
