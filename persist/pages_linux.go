package persist

import "syscall"

// forgetPages tells the system that the mapped pages of the file are not needed for now. bbolt maps the whole file and touches
// every page that a checkpoint writes; left alone they would count as the process's memory, up to the size of the file. What
// is read later comes back from the page cache.
//
// No transaction that writes may be under way, since it could move the map. used is what a transaction called its size: so much
// is mapped. The file itself may be longer than the map, and what lies behind the map is somebody else's memory.
func (f *file) forgetPages() {
	length := uintptr(f.used.Load()) &^ uintptr(f.db.Info().PageSize-1)
	if length == 0 {
		return
	}
	// An error means that they stay, which is harmless.
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, f.db.Info().Data, length, syscall.MADV_DONTNEED)
}
