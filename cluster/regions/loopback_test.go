package regions

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/ring"
)

// real is a node on this machine's network.
type real struct {
	*Pool
	peers *peer.Peers
	at    string // where it gossips
}

// onLoopback starts an entry node.
func onLoopback(t *testing.T, i int, join ...string) *real {
	t.Helper()
	n := &real{}
	name := regionName(i)
	self := peer.Identity{Node: ring.NodeID{byte(i + 1)}, Boot: 1, Name: name, Region: name,
		Cluster: [16]byte{byte(i + 1)}}
	logger := slog.New(slog.DiscardHandler)
	var err error
	n.peers, err = peer.New(peer.Config{
		Self:   func() peer.Identity { return self },
		Listen: func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		},
		AcceptFar: func(remote peer.Identity) error { return n.Accept(remote) },
		Logger:    logger,
	})
	expect.NoError(t, err)
	t.Cleanup(func() { n.peers.Close() })
	n.Pool, err = Open(Config{
		Self: Node{ID: self.Node, Boot: 1, Name: name, Region: name,
			PeerPort: n.peers.Raft().Addr().(*net.TCPAddr).Port},
		Primary: name, Bind: "127.0.0.1", Advertise: "127.0.0.1",
		Keyring: keyring(make([]byte, 32)), Join: join, Peers: n.peers, Logger: logger,
	})
	expect.NoError(t, err)
	t.Cleanup(func() { n.Close() })
	for m := range 1 << 8 {
		if peer.Method(m) == peer.MethodClock { // package peer answers it
			continue
		}
		n.peers.Handle(peer.Method(m), peer.Far, func(c *peer.Call) { c.Reply(append([]byte(name+" "), c.Body...)) })
	}
	n.peers.Start()
	n.SetEntryNode(true)
	process.Eventually(t, "it is in the pool", func() bool { return len(n.view.Load().addresses) > 0 })
	n.at = n.view.Load().addresses[0]
	return n
}

// TestOverLoopback: three regions of one node each, over TCP and UDP.
func TestOverLoopback(t *testing.T) {
	first := onLoopback(t, 0)
	nodes := []*real{first, onLoopback(t, 1, first.at), onLoopback(t, 2, first.at)}
	for i, n := range nodes {
		for r := range 3 {
			if r == i {
				continue
			}
			body := fmt.Sprintf("from %d", i)
			process.Eventually(t, body, func() bool {
				reply, err := n.Call(t.Context(), regionName(r), 1, []byte(body))
				return err == nil && string(reply) == regionName(r)+" "+body
			})
		}
	}
	nodes[0].SetEntryNode(false)
	process.Eventually(t, "one has left",
		func() bool { return !nodes[1].Reachable("ap") && len(nodes[1].Regions()) == 1 })
}

// keyring returns a keyring with one key.
func keyring(key []byte) *memberlist.Keyring {
	k, err := memberlist.NewKeyring(nil, key)
	if err != nil {
		panic(err)
	}
	return k
}
