// Command rlnode is a rate limiter: a node that answers checks over HTTP, and the tools to use it.
//
// This package has the flags and commands, one or two to a file; the node itself is in package node. [run] is the whole
// program except for the process around it.
package main
