//go:build !linux

package usage

import "os"

// allocate gives a file blocks up to size.
func allocate(f *os.File, from, size int64) error { return writeZeros(f, from, size) }
