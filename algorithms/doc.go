// Package algorithms implements the arithmetic of rate limiting: Take, Give,
// Force and Peek on small integer states.
//
// A [Limit] says what is allowed. A [State] (24 bytes) is what one counter
// remembers of its past; the zero State is a fresh counter. The exact
// sliding-window log needs more room, so it has a type of its own, [Log], with
// the same operations, which change it.
//
// The result of an operation depends only on state, limit, time and cost. No
// operation uses a clock, a lock, I/O or floating point. (Calendars read time
// zones once, and remember their current window.) Results are exact for every
// legal limit. Fractions are kept as numerators over the window's nanoseconds,
// so frequent reads lose and gain nothing.
//
// Everything that a cluster does is built on three primitives:
//
//   - Take debits a cost if the limit allows it.
//   - Force debits it regardless, as a debt.
//   - Give puts back a cost taken earlier, but only as far as the state still
//     holds it. A cost taken in a window that is over, or from a bucket that has
//     since had time to refill completely, can't be given back.
//
// Repeating a Take only costs quota. A Give must happen at most once; callers
// ensure that.
//
// Times are given as [Instant], a reading of two clocks. Buckets, logs and
// windows that begin with their first hit use the steady clock; other windows
// are aligned to the wall clock. A state never goes back in time: a reading
// older than the state counts as the state's own time.
package algorithms
