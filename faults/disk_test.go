//go:build faults

package faults

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ownDisk gives the node's data a file system of its own, in a file.
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
	if err != nil {
		n.t.Fatal(err)
	}
	n.net.must("mkfs.ext4", "-q", "-F", image)
	if err := run("mount", "-o", "loop", image, n.dir); err != nil {
		n.t.Skipf("no file system to freeze can be had here: %v", err)
	}
	if err := announce(n.dir); err != nil {
		n.t.Fatal(err)
	}
}

// freeze makes all writes to the node's disk wait, and returns what ends that.
func (n *node) freeze() (thaw func()) {
	n.t.Helper()
	d, err := os.Open(n.dir)
	if err != nil {
		n.t.Fatal(err)
	}
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

// TestHungDisk: the leader's disk hangs, and the leader goes on sending heartbeats. Another has to lead.
func TestHungDisk(t *testing.T) {
	f := emptyFleet(t, 3)
	for _, n := range f.nodes {
		n.ownDisk()
	}
	t.Cleanup(func() { // after the processes have ended: cleanups run last things first
		for _, n := range f.nodes {
			_ = run("umount", n.dir) // all of it ends with the tests at the latest
			os.RemoveAll(filepath.Dir(n.dir))
		}
	})
	t.Cleanup(f.close)
	f.open()
	f.run(func(f *fleet, l *load) {
		leader := f.leader()
		at := boottime()
		thaw := leader.freeze()
		t.Logf("%s: the disk of %s hangs", clockTime(), leader.name)
		for _, n := range f.nodes {
			f.fault(cutOff, n, at) // as long as there is no leader
		}
		defer thaw()
		began := time.Now()
		within(t, 15*time.Second, "another node leads", func() string {
			for _, n := range f.nodes {
				if c, err := n.cluster(); n != leader && err == nil && c.View == "connected" && c.Leader != leader.name && c.Leader != "" {
					return ""
				}
			}
			return leader.name + " is still named"
		})
		t.Logf("another node leads after %v", time.Since(began))
		f.pass(long(10 * time.Second))
	})
}
