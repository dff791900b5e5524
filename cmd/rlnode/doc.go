// Command rlnode is a rate limiter: a node that answers checks over HTTP, and the tools to use it.
//
// This package has flags and commands, a file for each or for two; what runs is package node's. [run] is the whole program but for
// the process around it.
package main
