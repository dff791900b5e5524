package persist

import "syscall"

// forgetPages tells the system that the file's mapped pages are not needed for now. bbolt maps the whole file and
// touches every page that a checkpoint writes; left alone they would count as the process's memory, up to the size
// of the file. What is read later comes back from the page cache.
func (f *file) forgetPages() {
	info, err := f.handle.Stat()
	if err != nil {
		return
	}
	// An error means that they stay, which is harmless.
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, f.db.Info().Data, uintptr(info.Size()), syscall.MADV_DONTNEED)
}
