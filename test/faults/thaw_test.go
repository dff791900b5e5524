//go:build faults

package faults

import (
	"bufio"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// thawPipe is the pipe's descriptor inside.
const thawPipe = 3

// The ioctls of fsfreeze.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// thaw is the outer process's care for file systems that are frozen inside: a process that waits for a frozen disk can't
// be killed, so the namespaces could not end if the tests died at the wrong moment. Inside, the path of each mount is
// written to the pipe before it is frozen; when the pipe closes, all are thawed.
type thaw struct {
	ours, theirs *os.File
	done         sync.WaitGroup
}

func newThaw() (*thaw, error) {
	r, w, err := os.Pipe()
	return &thaw{ours: r, theirs: w}, err
}

// watch opens what is announced, as process pid sees it.
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

// announce tells the outer process of a mount.
func announce(path string) error {
	_, err := unix.Write(thawPipe, []byte(path+"\n"))
	return err
}
