//go:build faults

package faults

import (
	"bufio"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// thawPipe is the descriptor of the pipe, inside.
const thawPipe = 3

// The ioctls of fsfreeze.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// thaw makes the outer process thaw file systems that are frozen inside: a
// process that waits for a frozen disk can't be killed, so the namespaces could
// not end if the tests died at the wrong moment. Before a mount is frozen, its
// path is written to the pipe; when the pipe closes, thaw thaws all of them.
type thaw struct {
	ours, theirs *os.File
	done         sync.WaitGroup
}

func newThaw() (*thaw, error) {
	r, w, err := os.Pipe()
	return &thaw{ours: r, theirs: w}, err
}

// watch opens announced mounts, as process pid sees them.
func (t *thaw) watch(pid int) {
	t.theirs.Close()
	t.done.Go(func() {
		var open []*os.File
		for lines := bufio.NewScanner(t.ours); lines.Scan(); {
			if f, err := os.Open(fmt.Sprintf("/proc/%d/root%s", pid, lines.Text())); err == nil {
				open = append(open, f)
			}
		}
		for _, f := range open {
			_ = unix.IoctlSetInt(int(f.Fd()), fiThaw, 0) // it may not be frozen
			f.Close()
		}
	})
}

func (t *thaw) close() {
	t.done.Wait()
	t.ours.Close()
}

// announce sends a mount's path to the outer process.
func announce(path string) error {
	_, err := unix.Write(thawPipe, []byte(path+"\n"))
	return err
}
