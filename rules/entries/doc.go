// Package entries keeps what operators and programs put beside the rules
// document: deny and allow entries, tiers and overrides of single subjects, and
// blocks. Each [Entry] has an author, a time, a note, and perhaps an end.
//
// A [State] is an immutable value. A change copies only the path to the changed
// entry, so adding one to 100,000 entries takes some microseconds. [State.Diff]
// finds the entries that differ between two states without walking those that
// both share. Every change raises the version by one, and extends a digest. A
// log keeps the last changes: about 10,000, or fewer if they take more than 32
// MiB.
//
// The package knows nothing of rules: package document parses entries, and
// package rules matches checks against them.
package entries
