// Package usage counts what was admitted for each subject in each calendar month, for billing.
//
// A [Meter] counts the checks that this node answers as allowed, under rules with `usage: monthly`: their cost and their
// number, by rule, subject and unit, in the month (UTC) of the check. Each node counts only its own answers. So the sum over
// all nodes is what the cluster admitted, whichever nodes decided.
//
// A ledger is what one node counted in one month. While it is open, its rows are in memory, and once a second the Meter writes
// the changed rows to usage.db in the data directory. It writes a row as a value, never as a difference, so reading, writing or
// handing over a row again never counts it twice. A kill loses what was counted since the last write. The Meter closes a past
// month's ledger once nothing was counted in it for two hours: it rewrites the ledger in row order and drops it from memory. A
// closed ledger never changes. Later counts for that month, for example after a clock was set back, begin another ledger next to
// it.
//
// A [Totals] adds up the ledgers of all nodes, in row order and page by page, and names the nodes whose counts are missing. A
// node that leaves the cluster closes its ledgers and sends them to another node. A copy keeps the ledger's ID, so all copies
// of a closed ledger are identical, and each ledger is added once.
package usage
