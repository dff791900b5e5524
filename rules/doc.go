// Package rules implements the rules file: it parses, validates, changes and
// compiles it, and matches checks against it.
//
// A [Document] is what a person writes, complete and valid. [Parse] reports
// every mistake at once, each with its position, and [Document.Apply] returns a
// copy with one [Change] made. [Compile] turns a document into a [Set].
// [Set.Match] finds the rules that apply to a check's attributes, with their
// subjects and limits. It neither walks all rules nor allocates.
//
// Subjects are hashed with a key; see [Set.Keyed].
//
// Documents and Sets are immutable and safe for concurrent use. A [Match] is
// scratch space for one goroutine.
//
// Caveats: a rule's limits depend on the subject, so they are in a [Hit] and
// not in the [Rule]. Exact addresses in `match` and in the lists are compared
// as addresses, but, unlike subjects, not grouped by prefix: to match a
// network, write a CIDR. The time zone database is compiled in, so that all
// nodes use the same one.
package rules
