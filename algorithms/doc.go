// Package algorithms is the arithmetic of rate limiting: Take, Give, Force and Peek over small integer states.
//
// A [Limit] says what is allowed. A [State] (24 bytes) is what one counter remembers of its past; the zero State
// is a fresh counter. The exact sliding-window log needs more than that and has a type of its own, [Log], with
// the same operations. Everything is a pure function of state, limit, time and cost: no clock, no lock, no I/O,
// no floating point. Results are exact at every legal limit; fractions are kept as numerators over the window's
// nanoseconds, so that nothing is lost or gained by looking often.
//
// Everything that a cluster does is built from these two primitives:
//
//   - Take debits a cost if the limit allows it; Force debits it regardless, as a debt.
//   - Give puts back a cost taken before, and only what is still held against it: what was taken in a window
//     that is over, or from a bucket that has had time to refill whole, is not there to be given back.
//
// Repeating a Take only costs quota; a Give must happen at most once. The callers see to that.
//
// Times are given as [Now], a reading of two clocks: buckets and logs live on the steady one, windows are
// aligned by the wall clock. A state never goes back in time: a reading older than the state counts as the
// state's own time.
package algorithms
