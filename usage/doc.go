// Package usage counts what each subject was admitted, by calendar month, for bills.
//
// A [Meter] counts what this node answers as admitted: the cost by rule, subject and unit, and the number of checks, in the
// month (UTC) of the check. Each node counts its own answers and no others', so the sum over all nodes is what the
// cluster admitted, whoever decided. Months live in ledgers: files of rows that are mapped into memory. Those that are
// under way are in shared memory, so that a killed process loses nothing that it had answered, and no check waits for
// a disk. Each has a mirror on the disk. A power cut may lose what was not synced: the last [syncInterval]; where shared
// memory goes with the process, a kill may lose what was not copied: the last [copyInterval].
//
// A [Cluster] adds up the ledgers of all nodes, in order of their rows and page by page, and says whose are missing. A
// node that leaves hands its ledgers to another. Each keeps the identity of the node that counted it, its source, and of
// several copies of one source only one is added, so a repeated hand-over doubles nothing.
//
// # The file
//
// A ledger begins with 256 bytes: magic, source, month, and their CRC. Rows follow, each a multiple of 8 bytes long: a
// word with its length and the CRC of what never changes, the cost, the checks, the hash of subject and unit, and the
// names. A row is written before the word that makes it one. Cost and checks are added to in place, atomically. So at
// every moment the file is one that can be read: a kill leaves at most a row without its word, which is written over.
// Space is allocated before it is mapped into use; where there is none new subjects are counted without their names. A
// mirror's head tells up to where rows are whole, and is written after them; what is behind that is none. It also tells how far
// the disk has them: what a power cut has left in pieces behind that is no damage.
//
// A month that is over stays as it is: rows lie close together already, so nothing is to be gained by moving them into
// another file, and no crash between two files can count anything twice.
package usage
