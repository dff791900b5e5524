// Package limiter decides checks: it matches the rules in force, asks the counters, all or nothing, and says
// how the decision came about.
//
// A [Limiter] is the heart of a node. It holds no state of its own beyond figures: rules are an immutable
// [rules.Set] behind an atomic pointer, counters live in a [counters.Table]. Each check reads the clock once and
// is decided by one version of the rules from beginning to end.
//
// Given the time by its caller ([Limiter.CheckAt]) it is deterministic, which is how logs are replayed.
package limiter
