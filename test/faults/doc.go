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
// can be compared. A program built with the tag also follows a file that steps its wall clock.
//
// Clients ask by all algorithms, exact and hybrid, and keep what they saw: who decided, and between which two readings of
// the clock. Checkers judge that, and a report of theirs is proof; what can't be told is counted for the nodes:
//
//   - owners: never two of a partition;
//   - limits: no fixed window admits more than promised, by itself or together with the next;
//   - spans: over no span does a bucket or a sliding window admit more than its capacity, and its rate in the span and in
//     the life of a lease;
//   - service: where nothing is wrong, what is asked for is admitted, nobody is locked out, and a node that is cut off
//     answers at once, by itself;
//   - counts: nothing is forgotten that may not be;
//   - quotas: over all regions no fixed window and no bucket admits more than one limit, what other guarantees excuse in a
//     region aside; a region that is cut off admits its share, less what it has lent;
//   - history: rules are linearizable, by porcupine.
//
// Each is tested with made-up violations. Limits, spans and quotas are also run on nodes built with the tag nodebit, which
// grant leases and loans without debiting them: they have to notice.
package faults
