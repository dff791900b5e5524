// Package limiter decides checks. It matches the rules in force, takes the cost
// from the counters, all or nothing, and reports how the decision was made.
//
// A [Limiter] holds the rules, an immutable [rules.Set] behind an atomic
// pointer, and the counters, a [counters.Table]. One version of the rules
// decides a check from beginning to end. If the caller supplies the time
// ([Limiter.CheckAt]), the limiter is deterministic; package replay relies on
// that.
//
// # In a cluster
//
// [New] makes a standalone node, [NewInCluster] a member of a cluster. If this
// node owns all of a check's partitions, the check is a single Take, with
// authority checked before and after it. Any other check is a cluster check
// (clustercheck.go). A cluster check routes each subject: to the counters here,
// to a lease, to another node, or to this node alone. It first takes what this
// node decides. Then it asks all the other owners at once, with one message
// each. Each owner decides its group all or nothing. (Standbys, and owners that
// are asked again, get one message a subject.)
//
// For every subject, the cluster check records how the decision was made and
// how to undo it. If one subject is refused, the check gives back what the
// others took. A refund (refund.go) is sent once, without a reply. It names the
// life of the counters from which the cost was taken.
//
// Before a check asks another node, it tries to spend the subject's lease, or
// to repeat a recent refusal by the owner (package localcache). Questions carry
// requests for grants; answers carry the grants that the owner has debited.
// When a grant ends, what is left of it goes back in the same way as a check's
// cost.
//
// If a node can't be reached, the check asks the subject's next candidate
// (route.go): the node that an earlier one named, then the other side of a
// hand-off, then the standby, which forwards the question or acts for the
// owner. In the end, this node decides alone, by `on_partition`. A check waits,
// without polling, for a partition that is being handed over. It also waits for
// a slow node: a loaded cluster must not admit more than an idle one. A plain
// check takes at most 900 ms. Changes of counters, settlements, slots, and
// reservations with an id try the same candidates (remote.go).
//
// Identical checks bound for one node share a message. Messages carry the
// limits themselves, so the owner decides by the asker's version of the rules. An
// asker that is behind is told so once, and may catch up first. A single method writes
// and reads a message ([wire.Coder]).
//
// # Layers
//
// A check is decided in layers. Each calls the next and adds one thing:
//
//   - decide (limiter.go) begins a plain check. acquireConfirmed (acquire.go)
//     begins a check that acquires slots, and makes sure that the slots outlive
//     their owners.
//   - decideWithLoan waits for loans between regions.
//   - decidePrepared gives a delayed check its place in the queue.
//   - tryDecide decides without a reply from another node; finish waits for
//     replies.
//   - takeAsOwner checks authority.
//   - takeFromTable asks the table.
//
// A layer changes the check's options (answer.go) for the layers below it, and
// restores them when it returns.
//
// Only some checks need the layers above these: checkOnceOrAtMost (once.go) for
// a request id or at_most, reserveOnce for a request that takes effect once,
// [Limiter.Reserve], and [Limiter.Acquire] with acquireOnce.
//
// # Files
//
// The limiter's parts are types of their own. From the bottom up, a group of
// files at a time:
//
//   - query.go, subjectkey.go, answer.go, reason.go: a query, its answer, and
//     the answer in words;
//   - clock.go, wall.go, seal.go, wire.go, regionwire.go: the time, IDs that
//     callers hold, and what messages have in common;
//   - stats.go, intervals.go, refusals.go: what is counted to be shown; package
//     top has the lists of subjects;
//   - inforce.go, shares.go, adapt.go, setrules.go: the rules in force, what
//     lowers their limits, and how they change;
//   - list.go, entries.go, unlimited.go, match.go, conclude.go: the ops of a
//     query, and what becomes of them;
//   - cluster.go, limiter.go, take.go, new.go: a limiter, and its part in a
//     cluster; the path of one check begins in limiter.go;
//   - batch.go, atmost.go: several checks, and one that takes what there is;
//   - question.go, reply.go, remote.go, serve.go, exchange.go: messages between
//     nodes, and the node that is asked;
//   - route.go, clustercheck.go, rounds.go, ask.go, rollback.go, fallback.go: a
//     check over several nodes;
//   - grant.go, lease.go, unspent.go, notices.go: leases, here and as their
//     owner;
//   - refund.go, backlog.go: what goes back, and what is tried again;
//   - requests.go, change.go, amend.go, usage.go, adjust.go, keyusage.go, bill.go:
//     reading and changing counters, once;
//   - reservation.go, place.go, reserve.go, once.go, settle.go, expiry.go:
//     reservations, and checks with an id;
//   - slot.go, acquisition.go, acquire.go, acquireonce.go, slots.go,
//     slotrequests.go: slots;
//   - queueplace.go, waitingroom.go, passplace.go: queues;
//   - shortage.go, borrow.go, lend.go, regions.go: limits that regions divide;
//   - record.go, top.go, ruleuse.go, activity.go, metrics.go: counting what was
//     decided, and showing it.
//
// # Across regions
//
// If regions divide a limit, each region decides within its share (shares.go).
// Owners borrow unused quota from other regions, ahead of need. If only a share
// refuses a check, the check may wait for a loan. The lender debits a loan and
// confirms the debit before it answers. The borrower credits the loan to its
// counter at most once. [OtherRegions] reaches the other regions.
package limiter
