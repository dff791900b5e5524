// Package rawconn makes the system calls of TCP connections without the
// knowledge of Go's scheduler.
//
// Otherwise the first call after a pause wakes a thread that looks for blocked
// calls every 20 µs until the process is idle again. That makes up a third of
// an idle node's load, and delays each answer of a node with little to do.
package rawconn

// TryWriter is a connection that can write without waiting. The connection that
// [Wrap] returns is one, if it has raw calls.
type TryWriter interface {
	// TryWrite writes what fits in the connection's buffer now, and returns its
	// length. The length is 0 after an error, which the next Write returns.
	TryWrite(b []byte) int
}

// Pool lends buffers.
type Pool interface {
	Get() []byte
	Put([]byte)
}

// Consumer is given what a connection has received, and reports whether it took
// it. It must not read from the connection. An error means that no more is to
// be read.
type Consumer func(input []byte) (taken bool, err error)

// PooledReader is a connection that needs no buffer while it waits. The
// connection that [Wrap] returns is one, if it has raw calls.
type PooledReader interface {
	// ReadPooled waits until there is input, reads it into a buffer of pool and
	// offers it to consume. If consume takes the input, ReadPooled puts the buffer back
	// and waits for more. Otherwise it returns the buffer, which the caller must
	// put back. A nil consume takes nothing.
	//
	// It returns either at least one byte, in the buffer, or an error and no
	// buffer. An error of consume is returned as it is.
	ReadPooled(pool Pool, consume Consumer) ([]byte, error)
}

// WaitCounter is a connection that counts the reads that found no input. The
// connection that [Wrap] returns is one, if it has raw calls.
type WaitCounter interface {
	// Waits returns how often a read found nothing, and so had to wait. Between
	// inputs that a Take takes, only one read in TryInterval may look.
	Waits() uint64
}

// TryInterval is the number of inputs taken in a row after which a read looks
// for more, even if the system has said that there is none. So [WaitCounter]
// goes on counting.
const TryInterval = 32
