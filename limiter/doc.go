// Package limiter decides checks: it matches the rules in force, asks the counters, all or nothing, and says
// how the decision came about.
//
// A [Limiter] is the heart of a node. It holds no state of its own beyond figures: rules are an immutable
// [rules.Set] behind an atomic pointer, counters live in a [counters.Table]. Each check reads the clock once and
// is decided by one version of the rules from beginning to end.
//
// Given the time by its caller ([Limiter.CheckAt]) it is deterministic, which is how logs are replayed.
//
// # In a cluster
//
// [New] makes a node by itself, [Join] one of many. Then a check is one Take here where the gates of all its partitions
// are open, with a look at authority before it and after it. Otherwise it is a journey (journey.go): each of its subjects is
// routed once, here, to its lease, to another node, or to this node alone. What is decided here comes first; then all
// others are asked at once, one message for each node, which decides its group all or nothing. Each subject gets a ruling:
// who decided it, and how that is undone. When one is refused, the others get back what they took: once, one way, with the
// lineage it was taken in.
//
// Before anyone is asked, what this node has leased of a subject is spent, and what its owner refused a moment ago is
// refused (package localcache). Questions carry wishes for leases, answers bring what the owner has debited for them
// (package grants), and what is left of a lease at its end goes back once, one way.
//
// A node that can't be asked is replaced by the next on a subject's trail (route.go): the node that was named instead, the
// other end of a hand-over, the standby, which passes the question on or acts, and at last this node alone, by
// `on_partition` (package localcache). A partition that is being handed over is waited for, without polls. A node that is
// slow but not silent is waited for as well, so that a loaded cluster admits no more than an idle one. A check takes at
// most 900 ms. Changes, settlings and reservations with an id are errands along the same trail (remote.go).
//
// Checks alike that meet on the way to one node travel in one message, which says how many they are ([ClusterStats]
// counts them). Messages carry the limits themselves, so that owner and asker go by one version of the rules: the
// asker's, once it has had the chance to catch up.
//
// # Over regions
//
// Of limits that regions divide each region decides its share, as a limit of its own (shares.go). Owners borrow what is left
// elsewhere, ahead of need and beside all checks: a loan is debited at the lender, confirmed, and put into the borrower's
// counter at most once (borrow.go, lend.go). The other regions are reached by a [Far].
package limiter
