package node

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/limiter/loads"
)

// dialTimeout is how long connecting to another node may take.
const dialTimeout = 2 * time.Second

// environment is what a node depends on outside itself, such as the disk, the
// network, and the clock that times authority. Tests replace it with one in
// memory and on virtual time.
type environment struct {
	storage func(*settings) (storage, error)
	listen  func() (net.Listener, error)               // the peer port
	redis   func(address string) (net.Listener, error) // nil for the network
	dial    func(ctx context.Context, address string) (net.Conn, error)
	gossip  memberlist.Transport // nil for the network
	// wan makes a new transport for gossip between regions each time the node
	// becomes an entry node. It is nil for the network.
	wan      func() (memberlist.Transport, error)
	boottime func() time.Duration
	// silence is how long a node must be silent to count as unreachable; 0 is the
	// default. Simulations of hundreds of nodes use a longer one, because
	// heartbeats would take most of the time.
	silence  time.Duration
	recorder limiter.Recorder // records which node decides what; nil outside tests
	// build says which feature level this program can read. Tests of mixed releases replace it.
	build cluster.Build
	// clockOffset is how far the node's wall clock is ahead of the system's.
	clockOffset time.Duration
	// cpu returns the processors' utilization, 0…1, and whether it is known; nil if not measured.
	cpu func(now time.Duration) (load float64, ok bool)
}

// complete returns e if a test has set it, and otherwise the environment that
// the machine offers.
func (e environment) complete(c *settings) environment {
	if e.listen != nil {
		return e
	}

	e = environment{
		storage: openStore, boottime: authority.NewClock().Boottime, recorder: recorder(),
		cpu: loads.NewCPU().Load, build: ThisBuild(),
	}
	if c.isAlone() {
		e.useNoNetwork()
		return e
	}

	e.listen = func() (net.Listener, error) {
		l, err := net.Listen("tcp", net.JoinHostPort(c.ClusterBind, strconv.Itoa(c.PeerPort)))
		if err != nil && c.AnyPort {
			l, err = net.Listen("tcp", net.JoinHostPort(c.ClusterBind, "0"))
		}
		return l, err
	}
	dialer := net.Dialer{Timeout: dialTimeout, LocalAddr: localAddress(c.ClusterBind)}
	e.dial = func(ctx context.Context, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	}
	return e
}

// localAddress makes calls come from the address that the node is bound to,
// which tells nodes on one machine apart.
func localAddress(bind string) net.Addr {
	ip := net.ParseIP(bind)
	if ip == nil || ip.IsUnspecified() {
		return nil
	}
	return &net.TCPAddr{IP: ip}
}
