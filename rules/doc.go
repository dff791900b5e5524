// Package rules is the rules file: it parses, checks, changes and compiles it, and matches checks against it.
//
// A [Document] is what a person writes, complete and valid. [Parse] reports every mistake at once, each with its place,
// and [Document.Apply] returns a copy with one [Change] made. A [Set] is a document compiled for deciding: see
// [Compile]. [Set.Match] finds the rules that apply to a check's attributes, for which subjects and with which limits,
// without walking all rules and without allocating.
//
// Subjects are hashed with a key: see [Set.Keyed].
//
// Documents and Sets are immutable; any number of goroutines may use one. A [Match] is scratch space for one goroutine.
//
// Caveats: a rule's limits depend on the subject, so they are in a [Hit] and not in the [Rule]. Exact addresses in
// `match` and in the lists are compared as addresses, but not grouped as subjects are: to match a network, write it as
// a CIDR. Time zones are compiled in, so that all nodes use the same ones.
package rules
