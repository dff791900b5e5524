package node

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/internal/loads"
	"github.com/rlnode/rlnode/limiter"
)

// dialBound is how long a connection to another node may take.
const dialBound = 2 * time.Second

// world is what a node finds outside of itself: the disk, the network, and the clock that authority is counted on. Tests have one
// of their own, in memory and on virtual time.
type world struct {
	storage func(*settings) (storage, error)
	listen  func() (net.Listener, error) // the peer port
	dial    func(ctx context.Context, address string) (net.Conn, error)
	gossip  memberlist.Transport // nil: the network
	// wan makes a transport of gossip between regions, anew each time that the node becomes an entry node; nil: the network.
	wan      func() (memberlist.Transport, error)
	boottime func() time.Duration
	// silence makes a node unreachable: longer in simulations of hundreds of nodes, whose heartbeats would take most of the
	// time. 0: as always.
	silence  time.Duration
	recorder limiter.Recorder // of who decides what; nil outside of tests
	// build is what this program can read: another one in tests of releases that differ.
	build cluster.Build
	// cpu is how busy the processors are, 0…1; nil: nobody measures.
	cpu func(now time.Duration) (load float64, ok bool)
}

// complete is w, or the machine's world if a Config has none.
func (w world) complete(c *settings) world {
	if w.listen != nil {
		return w
	}
	w = world{
		storage: openStore, boottime: authority.NewClock().Boottime, recorder: recorder(), cpu: loads.NewCPU().Load, build: ThisBuild(),
	}
	if c.alone() {
		w.useNoNetwork()
		return w
	}
	w.listen = func() (net.Listener, error) {
		l, err := net.Listen("tcp", net.JoinHostPort(c.ClusterBind, strconv.Itoa(c.PeerPort)))
		if err != nil && c.AnyPort {
			l, err = net.Listen("tcp", net.JoinHostPort(c.ClusterBind, "0"))
		}
		return l, err
	}
	dialer := net.Dialer{Timeout: dialBound, LocalAddr: localAddress(c.ClusterBind)}
	w.dial = func(ctx context.Context, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	}
	return w
}

// localAddress makes calls come from the address that the node is bound to, so that nodes on one machine differ.
func localAddress(bind string) net.Addr {
	ip := net.ParseIP(bind)
	if ip == nil || ip.IsUnspecified() {
		return nil
	}
	return &net.TCPAddr{IP: ip}
}
