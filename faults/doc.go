// Package faults breaks a cluster of real processes and looks whether it keeps its promises. `make faults` runs it; it
// needs root and Linux, and is compiled only with the build tag faults.
//
// The test binary starts itself again in namespaces of its own (network, mounts, processes). There it makes a bridge and,
// for each node, a network namespace on that bridge. Whatever happens to the tests, the kernel takes all of this away
// with the last process, and nothing outside is touched. Clients dial a node from inside the node's namespace, so that
// a node that is cut off from the others still has clients.
//
// Nodes are built with the tag faults as well: they write each decision made as an owner, with the time before and
// after it, to a shared mapping that survives kill -9. All clocks are the machine's own, so the records of all nodes
// can be compared. Three checkers judge what was seen, and each is tested with made-up violations: owners (never two),
// limits (never more admitted than promised), and history (rules are linearizable, by porcupine).
package faults
