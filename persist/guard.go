package persist

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// errEngineFailed means that bbolt panicked or faulted. From then on, the file
// can't be trusted.
var errEngineFailed = errors.New("storage engine failed")

// guard runs f. It turns a panic, or a fault on a mapped page that the file no
// longer has, into an error that wraps errEngineFailed. A transaction that f
// left open may hold bbolt's locks forever, so after errEngineFailed the
// database must not be used again, not even to close it.
func guard(f func() error) (err error) {
	// The setting belongs to the goroutine, which may be the caller's, so restore it.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v", errEngineFailed, cause)
		}
	}()
	return f()
}
