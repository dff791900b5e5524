// Command bench measures rlnode beside what a user would pick instead, and prints a table of ratios: one decision in
// process, checks over HTTP on one node and on three, memory, and checkpoints under load.
//
// What is compared runs in one go and takes turns, several rounds long, each in a process of its own: machines are noisy,
// and figures of different runs are not to be compared. The bench itself loads the servers, all of them by the same code.
// docs/performance.md says what each row measures.
//
// It is a module of its own, so that what it compares with is no dependency of the product. `make bench` runs it.
package main
