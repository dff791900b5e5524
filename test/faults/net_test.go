//go:build faults

package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rlnode/rlnode/internal/expect"
)

// network is bridges and the nodes' namespaces on them: one bridge, or one per
// region with a router between.
type network struct {
	t       *testing.T
	hosts   []*host
	regions []int   // their bridges; 0 without regions
	router  *router // nil without regions
}

// host is a namespace with one address. Packets that it must not receive are
// dropped on arrival, without notice to the sender.
type host struct {
	net    *network
	region int
	name   string
	ip     string
	port   string          // the bridge's end of its cable
	fd     int             // of the namespace
	deaf   map[string]bool // addresses
	shy    map[string]bool // addresses whose packets to the peer port are dropped
	// stale: the filters don't match deaf yet.
	stale bool
	down  bool
}

// bridgeOf returns the name of a region's bridge.
func bridgeOf(region int) string { return fmt.Sprintf("rlbr%d", region) }

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{t: t}
	t.Cleanup(n.close)
	n.bridge(0)
	return n
}

// newWorld returns a network of regions 1 to n, with a router between them.
func newWorld(t *testing.T, regions int, seed uint64) *network {
	t.Helper()
	n := &network{t: t}
	t.Cleanup(n.close)
	for i := range regions {
		n.bridge(i + 1)
		n.must("ip", "addr", "add", gateway(i+1)+"/24", "dev", bridgeOf(i+1))
	}
	r, err := openRouter(seed, n.regions...)
	expect.NoError(t, err)
	n.router = r
	return n
}

// gateway returns the router's address in a region.
func gateway(region int) string { return fmt.Sprintf("10.77.%d.254", region) }

func (n *network) bridge(region int) {
	n.t.Helper()
	n.must("ip", "link", "add", bridgeOf(region), "type", "bridge", "forward_delay", "0")
	n.regions = append(n.regions, region)
	n.must("ip", "link", "set", bridgeOf(region), "up")
}

func (n *network) must(name string, args ...string) {
	n.t.Helper()
	expect.NoError(n.t, run(name, args...))
}

func (n *network) close() {
	if n.router != nil {
		if err := n.router.close(); err != nil {
			n.t.Error(err)
		}
	}
	for _, h := range n.hosts {
		unix.Close(h.fd)
		_ = run("ip", "link", "del", h.port)  // the namespace alone takes a while
		_ = run("ip", "netns", "del", h.name) // it ends with the tests at the latest
	}
	for _, region := range n.regions {
		_ = run("ip", "link", "del", bridgeOf(region))
	}
}

// host adds a namespace in a region; 0 without regions.
func (n *network) host(i, region int) *host {
	n.t.Helper()
	h := &host{
		net: n, region: region, name: fmt.Sprintf("n%d", i), ip: fmt.Sprintf("10.77.%d.%d", region, i),
		port: fmt.Sprintf("rlp%d", i), deaf: map[string]bool{}, shy: map[string]bool{},
	}
	n.must("ip", "netns", "add", h.name)
	n.must("ip", "link", "add", h.port, "type", "veth", "peer", "name", "eth0", "netns", h.name)
	n.must("ip", "link", "set", h.port, "master", bridgeOf(region), "up")
	n.must("ip", "-n", h.name, "link", "set", "lo", "up")
	n.must("ip", "-n", h.name, "addr", "add", h.ip+"/24", "dev", "eth0")
	n.must("ip", "-n", h.name, "link", "set", "eth0", "up")
	if n.router != nil {
		n.must("ip", "-n", h.name, "route", "add", "default", "via", gateway(region))
	}
	n.must("ip", "netns", "exec", h.name, "nft",
		"add table inet cut; add set inet cut deaf { type ipv4_addr; }; add set inet cut shy { type ipv4_addr; }; "+
			"add chain inet cut in { type filter hook input priority 0; }; add rule inet cut in ip saddr @deaf drop; "+
			"add rule inet cut in ip saddr @shy tcp dport 7947 drop")
	fd, err := unix.Open("/run/netns/"+h.name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	expect.NoError(n.t, err)
	h.fd = fd
	n.hosts = append(n.hosts, h)
	return h
}

// inside runs f in the namespace.
func (h *host) inside(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			done <- err
			return
		}
		defer unix.Close(home)
		if err := unix.Setns(h.fd, unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		err = f()
		if back := unix.Setns(home, unix.CLONE_NEWNET); back != nil {
			done <- errors.Join(err, back) // the thread ends with this goroutine
			return
		}
		runtime.UnlockOSThread()
		done <- err
	}()
	return <-done
}

// dial connects from inside the namespace, like the node's own clients.
func (h *host) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = h.inside(func() error {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// start starts a process in the namespace.
func (h *host) start(c *exec.Cmd) error { return h.inside(c.Start) }

// ignore makes h receive nothing from another host, from the next apply on. The
// other direction is unchanged.
func (h *host) ignore(from *host) {
	if h != from {
		h.deaf[from.ip], h.stale = true, true
	}
}

// apply installs the filters of all hosts almost at the same time.
func (n *network) apply() {
	n.t.Helper()
	var all sync.WaitGroup
	wrong := make([]error, len(n.hosts))
	for i, h := range n.hosts {
		if h.stale {
			all.Go(func() { wrong[i] = h.apply() })
		}
	}
	all.Wait()
	expect.NoError(n.t, errors.Join(wrong...))
}

func (h *host) apply() error {
	h.stale = false
	script := ""
	for set, addresses := range map[string]map[string]bool{"deaf": h.deaf, "shy": h.shy} {
		script += "flush set inet cut " + set + "; "
		if len(addresses) > 0 {
			script += "add element inet cut " + set + " { " +
				strings.Join(slices.Collect(maps.Keys(addresses)), ", ") + " }; "
		}
	}
	return run("ip", "netns", "exec", h.name, "nft", script)
}

// unplug pulls the cable at the bridge, so that the node loses its carrier.
func (h *host) unplug() {
	h.down = true
	h.net.must("ip", "link", "set", h.port, "down")
}

// heal undoes all cuts.
func (n *network) heal() {
	n.t.Helper()
	if n.router != nil {
		n.router.mend()
	}
	for _, h := range n.hosts {
		if h.down {
			n.must("ip", "link", "set", h.port, "up")
			h.down = false
		}
		if len(h.deaf)+len(h.shy) > 0 {
			clear(h.deaf)
			clear(h.shy)
			h.stale = true
		}
	}
	n.apply()
}

// cutPair cuts the link between two nodes.
func (n *network) cutPair(a, b *host) {
	a.ignore(b)
	b.ignore(a)
}

// isolate cuts a node off from all others.
func (n *network) isolate(h *host) {
	for _, other := range n.hosts {
		n.cutPair(h, other)
	}
}
