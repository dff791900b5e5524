// Command rlnode is a rate limiter: a node that answers checks over HTTP, and the tools to use it.
//
// This package reads flags and puts the parts together. [run] is the whole program but for the process around
// it; serve.go says in which order a node starts and stops, and why; the other files are a command or two each.
package main
