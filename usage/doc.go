// Package usage counts, by calendar month, what each subject was admitted, for billing.
//
// A [Meter] counts what this node answers as admitted under rules with `usage: monthly`: the cost by rule, subject and unit,
// and the number of checks, in the month (UTC) of the check. Each node counts only its own answers. So the sum over all
// nodes is what the cluster admitted, whichever node decided.
//
// A ledger is what one node counted in one month. While it is open, its rows are in memory, and once a second the changed
// ones are written to usage.db in the data directory. A row is written as a value, never as a difference, so reading,
// writing or handing it over again never counts twice. A kill loses what was counted since the last write. A past month's
// ledger is closed once nothing was counted in it for two hours: it is rewritten in row order, leaves memory, and never
// changes again. Later counts for that month, such as after a clock was set back, begin another ledger beside it.
//
// A [Cluster] adds up the ledgers of all nodes, in row order and page by page, and names the nodes that are missing. A node
// that leaves closes its ledgers and sends them to another node. A closed ledger keeps its identity and never changes, so
// all copies of it are the same, and each ledger is added once.
package usage
