// Package rules compiles the rules file and matches checks against it.
//
// A [document.Document] is what a person writes. [Compile] turns it into a
// [Set]. [Set.Match] finds the rules that apply to a check's attributes, with
// their subjects and limits. It does not walk all rules, and allocates nothing
// if the caller reuses its [Match].
//
// Subjects are hashed with a key; see [Set.Keyed].
//
// Sets are immutable and safe for concurrent use. A [Match] is scratch space
// for one goroutine. A [History] keeps the versions of a document.
//
// A rule's limits depend on the subject, so a [Hit] has them, and the [Rule]
// has not. Subjects that are addresses are grouped by prefix. Addresses in
// `match` and in the lists are not: each stands for itself, and a CIDR stands
// for a network. The time zone database is compiled in, so that all nodes use
// the same one.
//
// # Files
//
// From the bottom up:
//
//   - hash.go, attributes.go, condition.go, profile.go, refusal.go: hashes of
//     subjects, and compiled parts that know of nothing else;
//   - sharebound.go, limit.go, advertised.go, lower.go, rule.go, globals.go: a limit,
//     its part for a region, and a rule;
//   - listkey.go, index.go, overlay.go, inlineset.go, envoy.go: how rules,
//     entries, inline limits and Envoy's descriptors are filed;
//   - set.go: all of these together;
//   - compiler.go, compilelimit.go, compilesubject.go, compilerule.go,
//     compileenvoy.go, compile.go: from a document to a set;
//   - values.go, find.go, beside.go, subject.go: the attributes of a check, what
//     they find, and the subject's limits;
//   - solecounter.go, inline.go, envoyhit.go, match.go, shares.go: the hits of a check,
//     and a region's shares of their limits;
//   - entry.go, overlaycompile.go: entries beside the document;
//   - explain.go, history.go, historyencode.go: why a rule does not apply, and
//     the versions of the rules.
package rules
