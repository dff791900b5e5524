// Package usage counts what each subject was admitted, by calendar month, for bills.
//
// A [Meter] counts what this node answers as admitted, for rules with `usage: monthly`: the cost by rule, subject and unit, and
// the number of checks, in the month (UTC) of the check. Each node counts its own answers and no others', so the sum over all
// nodes is what the cluster admitted, whichever node decided.
//
// A ledger is what one node counted in one month. While it is counted in, its rows are in memory, and those that changed are
// written once a second to usage.db in the data directory. What is written of a row is its value, never a difference, so nothing
// that is read again, written again or handed over again counts twice. A kill loses what was counted since the last write. Once
// nothing was counted in a past month for two hours, its ledger is closed: it is written anew, in the order of its rows, leaves
// memory, and never changes again. What is counted in that month afterwards, as by a clock that was set back, begins another
// ledger beside it.
//
// A [Cluster] adds up the ledgers of all nodes, in the order of their rows and page by page, and names the nodes that are missing.
// A node that leaves closes its ledgers and sends them to another node. A closed ledger keeps its identity and never changes, so
// every copy of it is the same, and each is added once.
package usage
