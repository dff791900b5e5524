package pages

import (
	"syscall"
	"testing"
)

// Locked pages can't be given back, but what is discarded is zero all the same.
func TestDiscardLockedPages(t *testing.T) {
	mapped, area := Reserve(Large)
	defer Unreserve(mapped)
	area = area[:16*syscall.Getpagesize()]
	if !MakeUsable(area) {
		t.Skip("the system refuses memory")
	}
	area[0], area[len(area)-1] = 1, 1
	if err := syscall.Mlock(area[:1]); err != nil {
		t.Skip(err)
	}
	if Discard(area); area[0] != 0 || area[len(area)-1] != 0 {
		t.Errorf("have %d and %d", area[0], area[len(area)-1])
	}
}
