// Package rules is the rules file: it parses, checks, changes and compiles it, and matches checks against it.
//
// A [Document] is what a person writes, complete and valid: [Parse] tells every mistake at once with its place, and
// [Document.Apply] makes a changed copy from a [Change] of one piece. A [Set] is a document made ready by [Compile]
// for deciding: [Set.Match] says which rules apply to a check's attributes, for which subjects and with which
// limits, without walking the rules and without allocating.
//
// Subjects are hashed with a key: see [Set.Keyed].
//
// Documents and Sets are immutable; any number of goroutines may use one. A [Match] is scratch space of one.
//
// Caveats: a rule's limits depend on the subject, so they are found in a [Hit] and not in the [Rule]. Exact
// addresses in `match` and in the lists are compared as addresses, but not grouped as subjects are: to match a
// network, write it as a CIDR. Time zones are compiled in, so that all nodes know the same ones.
package rules
