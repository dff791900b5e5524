package persist

import "syscall"

// forgetPages tells the kernel that the file's mapped pages are not needed for
// now. bbolt maps the whole file and touches every page that a checkpoint
// writes. Without forgetPages, those pages would count as the process's memory,
// up to the size of the file. Later reads bring them back from the page cache.
//
// No write transaction may be in progress, because it could move the map.
// usedBytes is the size that a transaction reported, so at least that much is
// mapped. The file itself may be longer than the map, and the memory past the
// map is not bbolt's.
func (f *file) forgetPages() {
	length := uintptr(f.usedBytes.Load()) &^ uintptr(f.db.Info().PageSize-1)
	if length == 0 {
		return
	}
	// On an error, the pages stay, which is harmless.
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, f.db.Info().Data, length, syscall.MADV_DONTNEED)
}
