//go:build !linux

package persist

// forgetPages does nothing here.
func (f *file) forgetPages() {}
