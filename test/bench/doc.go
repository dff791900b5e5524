// Command bench compares rlnode with what one would use instead, and prints a
// table of ratios: one decision in process, checks over HTTP on one node and on
// three, memory, and checkpoints under load.
//
// All contenders run in one session and take turns for several rounds, each in
// its own process: machines are noisy, and figures of different runs are not
// comparable. The bench itself loads all servers, with the same code.
// docs/performance.md explains each row.
//
// It is a separate module, so that the product does not depend on its
// contenders. `make bench` runs it.
package main
