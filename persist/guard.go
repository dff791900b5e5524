package persist

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// errBroken marks a panic or a memory fault inside bbolt: the file can't be trusted from here on.
var errBroken = errors.New("storage engine failed")

// guard runs f and turns a panic, or a fault on a mapped page that the file no longer has, into an error that
// wraps errBroken. A transaction that f left open may hold bbolt's locks for ever: the database is then not to be
// used again, not even to close it.
func guard(f func() error) (err error) {
	// The setting belongs to the goroutine, which may be a caller's own.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v", errBroken, cause)
		}
	}()
	return f()
}
