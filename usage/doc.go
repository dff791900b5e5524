// Package usage counts what was admitted for each subject in each calendar month, for billing.
//
// A [Meter] counts the checks that this node answers as allowed, under rules
// with `usage: monthly`: their cost and their number, by rule, subject and
// unit, in the month (UTC) of the check. Each node counts only its own answers.
// So the sum over all nodes is what the cluster admitted, whichever nodes
// decided.
//
// A ledger is what one process counted in one month. While it is open, its rows
// are in memory, and once a second the Meter writes the changed rows to
// usage.db in the data directory. It writes a row as a value, never as a
// difference, so reading, writing or sending a row again never counts it twice.
// A kill loses what was counted since the last write. The Meter closes the
// ledgers of earlier processes, and a past month's ledger once nothing was
// counted in it for two hours: it rewrites the ledger in row order and drops it
// from memory. A closed ledger never changes. Later counts for that month begin
// another ledger next to it. A ledger is live as long as this process counts in
// it.
//
// A [Totals] adds up the ledgers of all nodes, in row order and page by page,
// and names the nodes whose counts are missing. It also keeps a copy of this
// node's ledgers on another node, and holds copies for other nodes. A bill
// counts only one copy of a ledger: of the intact ones, the one that got
// furthest.
//
// # Files
//
// From the bottom up:
//
//   - month.go, row.go, ledgernumbers.go, ledger.go, listing.go: a ledger in
//     memory; file.go: in the file;
//   - peers.go: other nodes, and calls to them; holding.go: which ledgers a node
//     has; pages.go: ledgers are read, sent and stored page by page;
//   - upkeep.go: what is in the file at the start, and what leaves it; writing.go:
//     what is counted gets into the file; meter.go: counting;
//   - statement.go: what a node says that it has; copy.go: the side that sends a
//     copy; records.go, holder.go: the side that holds it;
//   - notes.go: which nodes there were, and which months were exported; gather.go:
//     a bill, and what it lacks; stream.go: its rows; merge.go: many ledgers
//     become one;
//   - orphans.go: copies of nodes that are gone; handover.go: a node leaves;
//     totals.go: what runs all this, and answers other nodes.
package usage
