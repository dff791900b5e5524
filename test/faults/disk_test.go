//go:build faults

package faults

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rlnode/rlnode/internal/expect"
)

// disks gives each node its own file system.
func (f *fleet) disks(give func(*node)) {
	f.t.Helper()
	f.t.Cleanup(func() { // after the processes have ended: cleanups run in reverse order
		for _, n := range f.nodes {
			_ = unix.Unmount(n.dir, unix.MNT_DETACH) // the mount ends with the tests at the latest
		}
		os.RemoveAll(f.dir)
	})
	for _, n := range f.nodes {
		give(n)
	}
}

// ownDisk gives the node's data its own file system, in a file.
func (n *node) ownDisk() {
	n.t.Helper()
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		n.t.Skip(err)
	}
	image := n.dir + ".image"
	f, err := os.Create(image)
	if err == nil {
		err = f.Truncate(128 << 20)
		f.Close()
	}
	if err == nil {
		err = os.MkdirAll(n.dir, 0o700)
	}
	expect.NoError(n.t, err)
	n.net.must("mkfs.ext4", "-q", "-F", image)
	if err := run("mount", "-o", "loop", image, n.dir); err != nil {
		n.t.Skipf("no file system to freeze can be had here: %v", err)
	}
	expect.NoError(n.t, announce(n.dir))
}

// freeze blocks all writes to the node's disk, and returns a function that unblocks them.
func (n *node) freeze() (thaw func()) {
	n.t.Helper()
	d, err := os.Open(n.dir)
	expect.NoError(n.t, err)
	if err := unix.IoctlSetInt(int(d.Fd()), fiFreeze, 0); err != nil {
		d.Close()
		n.t.Skipf("the file system can't be frozen here: %v", err)
	}
	return func() {
		if err := unix.IoctlSetInt(int(d.Fd()), fiThaw, 0); err != nil {
			n.t.Errorf("thaw: %v", err)
		}
		d.Close()
	}
}

// TestHungDisk: the leader's disk hangs, but the leader keeps sending
// heartbeats. Another node has to lead.
func TestHungDisk(t *testing.T) {
	onlyLong(t)
	f := emptyFleet(t, 3)
	f.disks((*node).ownDisk)
	t.Cleanup(f.close)
	f.open()
	f.run(func(f *fleet, l *load) {
		leader := f.leader()
		at := boottime()
		thaw := leader.freeze()
		t.Logf("%s: the disk of %s hangs", clockTime(), leader.name)
		for _, n := range f.nodes {
			f.suspect(cutOff, n, at) // until there is a new leader
		}
		defer thaw()
		began := time.Now()
		within(t, 15*time.Second, "another node leads", func() string {
			for _, n := range f.nodes {
				if c, err := n.cluster(); n != leader && err == nil && c.View == "connected" &&
					c.Leader != leader.name && c.Leader != "" {
					return ""
				}
			}
			return leader.name + " is still named"
		})
		t.Logf("another node leads after %v", time.Since(began))
		f.pass(long(10 * time.Second))
	})
}

// smallDisk gives the node's data its own small file system, in memory.
func (n *node) smallDisk() {
	n.t.Helper()
	err := os.MkdirAll(n.dir, 0o700)
	if err == nil {
		err = unix.Mount("tmpfs", n.dir, "tmpfs", 0, "size=64m")
	}
	expect.NoError(n.t, err)
}

// fill uses up all space on the node's disk; empty frees it.
func (n *node) fill() {
	n.t.Helper()
	f, err := os.OpenFile(n.filler(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	expect.NoError(n.t, err)
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err = f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		n.t.Fatalf("the disk is not full: %v", err)
	}
}

func (n *node) empty() {
	n.t.Helper()
	if err := os.Remove(n.filler()); err != nil {
		n.t.Error(err)
	}
}

func (n *node) filler() string { return filepath.Join(n.dir, "filler") }

// TestDiskFull: a node has no space for its log and its checkpoints, and keeps deciding.
func TestDiskFull(t *testing.T) {
	onlyLong(t)
	f := emptyFleet(t, 3)
	f.disks((*node).smallDisk)
	t.Cleanup(f.close)
	f.open()
	f.run(func(f *fleet, l *load) {
		n, leader, at := f.any(), f.leader(), boottime()
		if f.random.IntN(2) == 0 {
			n = leader
		}
		n.fill()
		t.Logf("%s: the disk of %s is full (it leads: %v)", clockTime(), n.name, n == leader)
		for _, other := range f.nodes {
			if n == leader || n == other {
				f.suspect(cutOff, other, at) // until there is a new leader, and n follows it
			}
		}
		// The node gives up its ballast, so fill that space, too.
		for range 10 {
			f.pass(time.Second)
			n.fill()
		}
		n.empty()
		f.pass(2 * time.Second)
	})
}
