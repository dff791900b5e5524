// Package faults breaks clusters of real processes and checks that they keep
// their promises. `make faults` runs it. It needs root and Linux, and compiles
// only with the build tag faults.
//
// The test binary restarts itself in its own namespaces (network, mounts,
// processes). There it creates a bridge and, for each node, a network namespace
// on that bridge. When the last process ends, the kernel removes all of this,
// even if the tests crash, and nothing outside is touched. Clients dial a node
// from inside its namespace, so a node that is cut off still has clients.
//
// Nodes are also built with the tag faults. They write each decision that they
// make as an owner, with the times before and after it, to a shared mapping
// that survives kill -9. All clocks are the machine's, so records of all nodes
// are comparable. With the tag, a program also follows a file that steps its
// wall clock.
//
// Clients make checks with all algorithms, exact and hybrid, and record what
// they observe: who decided, and between which two readings of the clock.
// Checkers judge these records. A violation that they report is proven: in
// cases of doubt, they decide in favour of the nodes.
//
//   - owners: a partition never has two;
//   - limits: no fixed window admits more than promised, alone or together with the next;
//   - spans: no bucket or sliding window admits more over any span than its capacity plus its rate over the span and the life of a
//     lease;
//   - service: without faults, all demand within the limits is admitted and no subject is locked out; a node that is cut off
//     answers at once, alone;
//   - counts: nothing is forgotten beyond what the guarantees allow;
//   - quotas: over all regions, no fixed window or bucket admits more than one limit, except what other guarantees allow within a
//     region; a region that is cut off admits its share, less what it has lent;
//   - history: rules are linearizable, as judged by porcupine.
//
// Each checker is tested with made-up violations. Limits, spans and quotas are
// also run on nodes built with the tag nodebit, which grant leases and loans
// without debiting them: the checkers have to notice.
package faults
