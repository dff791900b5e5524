// Package notes implements what a partition remembers beside its counters:
// which reservations were made and settled, which slots are held, the answers
// to requests with an id, the rates at which buckets have drained, when
// subjects were reset, and which debts of other nodes its counters include.
// Each such fact is a [Note], kept until it expires.
//
// Notes go wherever the counters of their partition go: to standbys, to the
// next owner, and to disk. They share no bound with counters, so no number of
// notes takes room from a check.
//
// A [Store] has a budget in bytes for each purpose, and no purpose takes from
// another's budget. Budgets bound only what a node makes itself: a copy or a
// hand-over always finds room. At the bound, the oldest answers and resets go,
// while a reservation, a slot or a write is refused. Reservations and the rates
// of their buckets are shared fairly: see [LockedPartition.PutIfRoom].
package notes
