// Package document implements the rules file as people write it: it parses,
// checks, changes, compares and renders it, and knows nothing of how checks are
// decided. Package rules compiles a document for that.
//
// A [Document] is complete and valid. [Parse] reports every mistake at once,
// each with its position, and [Document.Apply] returns a copy with one [Change]
// made. Documents are immutable and safe for concurrent use.
//
// Each part of a document is a type whose name ends in Spec, with a table of its
// keys that says how to read and write each. The same tables make the JSON
// Schema. Limits that calls bring, entries beside the document and a
// configuration of Envoy's reference server are read with them, too.
//
// # Files
//
// From the bottom up:
//
//   - errors.go, node.go, duration.go, fold.go, attribute.go: mistakes, nodes of
//     the text, durations, and the spellings of an attribute's value;
//   - shapes.go, decode.go, fields.go: reading a node, and tables of keys;
//   - settings.go, key.go, condition.go, limit.go, refusal.go, rule.go,
//     parserule.go, subject.go, profile.go, inline.go, envoy.go: the parts of a
//     document;
//   - document.go, identity.go: the document, and which counters its limits have;
//   - validate.go, declare.go, parse.go: contradictions between parts, and
//     reading the whole;
//   - encode.go, schema.go: rendering it, and its JSON Schema;
//   - change.go, edit.go, join.go: changes of one piece, in the text, too, and
//     documents in several files;
//   - diff.go, review.go, warnings.go, names.go, split.go: what two documents
//     differ in, and what a person should know of one;
//   - entry.go, spelling.go, listing.go: entries beside the document, and what
//     callers see of both;
//   - inlinelimit.go, envoyimport.go, starter.go: limits that calls bring, the
//     configurations of other programs, and the rules that a node begins with.
package document
