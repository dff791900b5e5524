// Package limiter decides checks. It matches the rules in force, takes the cost from the counters, all or nothing, and reports
// how the decision came about.
//
// A [Limiter] is the heart of a node. Rules are an immutable [rules.Set] behind an atomic pointer; counters live in a
// [counters.Table]. A check reads the clock once and is decided by one version of the rules from beginning to end. If the
// caller supplies the time ([Limiter.CheckAt]) the limiter is deterministic, which is how logs are replayed.
//
// # In a cluster
//
// [New] makes a standalone node, [Join] a member of a cluster. A check whose partitions are all decided here is a single Take,
// with authority checked before and after it. Any other check is a cluster check (clustercheck.go). It routes each subject
// once: here, to a lease, to another node, or to this node alone. What this node decides comes first. Then all the other nodes
// are asked at once, one message each, and each decides its group all or nothing. Every subject gets a decision: how it was
// made, and how to undo that. If one subject is refused, the others give back what they took: once, in a message without a
// reply, with the lineage it was taken in (refund.go).
//
// Before another node is asked, the subject's lease is spent, and a refusal that its owner made a moment ago is repeated
// (package localcache). Questions carry requests for leases; answers carry the leases that the owner debited.
// When a lease ends, what is left of it goes back the same way as a check's cost.
//
// If a node can't be asked, the subject's next candidate is (route.go): the node that the first one named, the other end
// of a hand-off, then the standby, which passes the question on or acts, and in the end this node alone, by `on_partition`. A
// check waits, without polling, for a partition that is being handed over. It also waits for a node that is slow but not
// silent: a loaded cluster must not admit more than an idle one. A check takes at most 900 ms. Changes of counters,
// settlements, and reservations with an id go to the owner in the same order (remote.go).
//
// Identical checks on their way to one node share a message. Messages carry the limits themselves, so owner and asker use the
// same version of the rules: the asker's, once it has had a chance to catch up. Each message has one Code method, which both
// writes and reads it ([wire.Coder]).
//
// # Parts
//
// The limiter holds its parts as types of their own: leases (lease.go, grant.go), reservations (reserve.go, reserveonce.go,
// settle.go), loans between regions (borrow.go, lend.go), and the subjects refused most (top.go).
//
// # Across regions
//
// If regions divide a limit, each region decides within its share (shares.go). Owners borrow what is left in other regions,
// ahead of need and outside any check. A loan is debited at the lender, confirmed, and put into the borrower's counter at most
// once. [Far] reaches the other regions.
package limiter
