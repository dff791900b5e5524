// Package rawconn makes the system calls of TCP connections without the
// knowledge of Go's scheduler.
//
// Otherwise the first call after a pause wakes a thread that looks for blocked
// calls every 20 µs until the process is idle again. That makes up a third of
// an idle node's load, and delays each answer of a node with little to do.
package rawconn

// TryWriter is a connection that can write without waiting. What [Wrap] returns
// is one, if it has raw calls.
type TryWriter interface {
	// TryWrite writes what fits in the connection's buffer now, and returns its
	// length. It is 0 even after an error, which the next Write returns.
	TryWrite(b []byte) int
}

// Pool lends buffers.
type Pool interface {
	Get() []byte
	Put([]byte)
}

// LateReader is a connection that needs no buffer while it waits. What [Wrap]
// returns is one, if it has raw calls.
type LateReader interface {
	// ReadLate waits until there is input, and then reads it into a buffer of pool,
	// which the caller must put back. It returns either at least one byte, in the
	// buffer, or an error and no buffer.
	ReadLate(pool Pool) ([]byte, error)
}

// Waiter is a connection that counts the reads that had to wait for input. What
// [Wrap] returns is one, if it has raw calls.
type Waiter interface {
	// Waits returns how often a read has waited.
	Waits() uint64
}
