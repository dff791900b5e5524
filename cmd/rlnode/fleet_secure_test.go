package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/cluster/secret"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/ring"
)

const gossipKey = "c2l4dGVlbiBieXRlcyEhIQ==" // 16 bytes

// secretFleet returns a fleet whose nodes each have a file with the secret.
func secretFleet(t *testing.T, n int, s secret.Secret) *fleet {
	t.Helper()
	if testing.Short() && raceDetector {
		t.Skip("several processes under the race detector are slow")
	}
	f := newEmptyFleet(t)
	for i := range n {
		m := f.newNode(i+1, n)
		m.args = append(m.args, "--cluster-secret-file", f.writeSecrets(m.name, s))
		f.nodes = append(f.nodes, m)
	}
	for _, m := range f.nodes {
		m.startProcess()
	}
	f.awaitWhole()
	return f
}

// writeSecrets writes a node's file of secrets and returns its name.
func (f *fleet) writeSecrets(node string, all ...secret.Secret) string {
	f.t.Helper()
	name := filepath.Join(f.dir, node+".secret")
	writeSecrets(f.t, name, all...)
	return name
}

func writeSecrets(t *testing.T, name string, all ...secret.Secret) {
	t.Helper()
	var lines strings.Builder
	for _, s := range all {
		fmt.Fprintln(&lines, s)
	}
	expect.NoError(t, os.WriteFile(name+".new", []byte(lines.String()), 0o600))
	expect.NoError(t, os.Rename(name+".new", name))
}

// TestSecretIsChangedUnderLoad_long is TestSecretIsChangedInOneProcess with
// real processes. Afterwards, no node can join with the old secret, and a node
// restarted with the new one rejoins.
func TestSecretIsChangedUnderLoad_long(t *testing.T) {
	t.Parallel()
	long(t)
	old, next := secret.New(), secret.New()
	f := secretFleet(t, 3, old)
	f.nodes[0].apply(exactRules(1_000_000))
	load := f.startTraffic("year", subjects(50), 2, 20*time.Millisecond)
	for step, secrets := range [][]secret.Secret{{old, next}, {next, old}, {next}} {
		for _, m := range f.nodes {
			f.writeSecrets(m.name, secrets...)
		}
		for _, m := range f.nodes {
			process.Eventually(t, m.name+" has reloaded the secret", func() bool {
				return strings.Count(m.log.String(), "the cluster's secret is reloaded") == step+1
			})
		}
	}
	time.Sleep(11 * time.Second) // connections that were not replaced are closed after ten
	load.end()
	if load.failed.Load() > 0 || load.total() == 0 {
		t.Error("checks failed")
	}
	late := f.nodes[2]
	late.kill()
	f.writeSecrets(late.name, old)
	late.startProcess()
	late.waitReady() // alone
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if c, err := late.cluster(); err == nil && c.View == "connected" {
			t.Fatal("a node with the old secret is connected")
		}
	}
	late.kill()
	f.writeSecrets(late.name, next)
	late.startProcess()
	f.awaitWhole()
}

// checkReadyzStays checks for some seconds that /readyz keeps answering this
// status. It polls the whole time, because there is no event to wait for.
func checkReadyzStays(t *testing.T, want int, nodes ...*fleetNode) {
	t.Helper()
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for _, m := range nodes {
			if status, _, err := m.call("GET", m.data+"/readyz", "", ""); err == nil && status != want {
				t.Fatalf("%s: have %d, want %d", m.name, status, want)
			}
		}
	}
}

// A node with another secret says within seconds that the others reject it, and
// so does its /readyz.
func TestAnotherSecretIsSaid(t *testing.T) {
	t.Parallel()
	ours := secret.New()
	f := secretFleet(t, 1, ours)
	other := f.newNode(2, 3, "--cluster-secret-file", f.writeSecrets("n2", secret.New()))
	other.startProcess()
	process.Eventually(t, "the log says so", func() bool {
		return strings.Contains(other.log.String(),
			`level=WARN msg="a node rejects this one: their cluster secrets differ`)
	})
	process.Eventually(t, "/readyz says so", func() bool {
		_, text := other.readiness()
		return strings.Contains(text, "reject this node: is the cluster secret the same everywhere?")
	})
}

// TestStrangersStayOutside_long: without the secret, a stranger can't join,
// read or call, and its messages disturb no node. The test sends each kind of
// message to each port: without a secret, with another one, and with the
// stranger's own certificates.
func TestStrangersStayOutside_long(t *testing.T) {
	t.Parallel()
	long(t)
	ours := secret.New()
	f := secretFleet(t, 3, ours)
	before, err := f.nodes[0].cluster()
	expect.NoError(t, err)
	term := f.nodes[0].figure("rlnode_raft_term")

	cert, key := certificate(t)
	joins := "--join=" + f.nodes[0].ip + "," + f.nodes[1].ip
	var outside []*fleetNode
	for what, args := range map[string][]string{
		"without a secret":    nil,
		"another secret":      {"--cluster-secret-file", f.writeSecrets("stranger", secret.New())},
		"a key and authority": {"--gossip-key", gossipKey, "--tls-cert", cert, "--tls-key", key, "--tls-ca", cert},
	} {
		m := f.newNode(10+len(outside), 0, append(args, joins)...)
		m.name = what
		m.startProcess()
		outside = append(outside, m)
	}
	id := f.nodeID(before.Members[0].ID)
	stall := watchStalls(t)
	t.Run("attacks", func(t *testing.T) {
		attack := func(what string, run func(*testing.T)) {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				run(t)
			})
		}
		for what, credentials := range f.strangers(cert, key) {
			attack("calls with "+what, func(t *testing.T) {
				tryCalls(t, credentials, f.nodes[0].ip, id)
				tryRaft(t, credentials, f.nodes[0].ip, id)
			})
		}
		attack("bytes", func(t *testing.T) {
			for _, port := range []string{"7946", "7947", "7948"} {
				tryBytes(t, net.JoinHostPort(f.nodes[0].ip, port))
			}
		})
		attack("gossip", func(t *testing.T) { tryGossip(t, f.net+".20", f.nodes[0].ip, false) })
		attack("gossip between regions", func(t *testing.T) { tryGossip(t, f.net+".21", f.nodes[0].ip, true) })
		attack("nodes", func(t *testing.T) { checkReadyzStays(t, 503, outside...) })
	})
	for _, m := range outside {
		if status, text, err := m.call("GET", m.admin+"/v1/rules", "", ""); err != nil || status == 200 {
			t.Errorf("%s reads the rules: %d, %v, %s", m.name, status, err, text)
		}
	}
	if longest := stall(); longest > stallLimit {
		t.Logf("the machine stood still for %v: the leader may have changed for that", longest)
		return
	}

	for _, m := range f.nodes {
		c, err := m.cluster()
		if err != nil || fmt.Sprint(c) != fmt.Sprint(before) {
			t.Errorf("%s was disturbed: %v\nhave %+v\nwant %+v", m.name, err, c, before)
		}
	}
	if have := f.nodes[0].figure("rlnode_raft_term"); have != term {
		t.Errorf("Raft's term is %s, and was %s", have, term)
	}
}

// figure returns the value of a metric without labels.
func (m *fleetNode) figure(name string) string {
	m.fleet.t.Helper()
	_, text, err := m.call("GET", m.admin+"/metrics", "", "")
	expect.NoError(m.fleet.t, err)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	m.fleet.t.Fatalf("no metric %s", name)
	return ""
}

func (f *fleet) nodeID(text string) ring.NodeID {
	f.t.Helper()
	id, err := ring.ParseNodeID(text)
	expect.NoError(f.t, err)
	return id
}

var strangerID = ring.NodeID{0xee}

// strangers are the credentials that an attacker without the secret could use.
func (f *fleet) strangers(cert, key string) map[string]peer.Credentials {
	f.t.Helper()
	other, err := secret.Open(f.writeSecrets("peer", secret.New()), strangerID, slog.New(slog.DiscardHandler))
	expect.NoError(f.t, err)
	files, err := peer.LoadTLS(cert, key, cert, slog.New(slog.DiscardHandler))
	expect.NoError(f.t, err)
	return map[string]peer.Credentials{"nothing": nil, "another secret": trusting{other},
		"certificates of its own": trusting{files}}
}

// trusting are credentials of an attacker: it accepts any node, so that only
// the node's own check refuses the connection.
type trusting struct{ peer.Credentials }

// Client implements peer.Credentials.
func (c trusting) Client() *tls.Config {
	config := c.Credentials.Client().Clone()
	config.InsecureSkipVerify, config.VerifyConnection = true, nil
	return config
}

// Verify implements peer.Credentials.
func (trusting) Verify(tls.ConnectionState, [16]byte) error { return nil }

// strangerPeers dials as a node does.
func strangerPeers(t *testing.T, credentials peer.Credentials, region string) *peer.Peers {
	t.Helper()
	p, err := peer.New(peer.Config{
		Self: func() peer.Identity {
			return peer.Identity{Node: strangerID, Boot: 1, Name: "stranger", Region: region}
		},
		Listen: func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		},
		AcceptFar: func(peer.Identity) error { return nil },
		TLS:       credentials, Logger: slog.New(slog.DiscardHandler),
	})
	expect.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	p.Start()
	return p
}

// tryCalls makes calls of all packages' methods, within the region and from
// another one. None gets a connection.
func tryCalls(t *testing.T, credentials peer.Credentials, ip string, id ring.NodeID) {
	t.Helper()
	address := net.JoinHostPort(ip, "7947")
	near := strangerPeers(t, credentials, "default")
	for method := 0; method < 256; method += 8 { // some of each package
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		reply, _, err := near.CallAt(ctx, address, peer.Method(method), []byte("{}"))
		cancel()
		if !errors.Is(err, peer.ErrUnreachable) {
			t.Fatalf("method %d: have %q, %v", method, reply, err)
		}
	}
	far := strangerPeers(t, credentials, "elsewhere")
	far.SetFarNodes(map[ring.NodeID]string{id: address})
	near.SetNodes(map[ring.NodeID]string{id: address})
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if far.Reachable(id) || near.Reachable(id) {
			t.Fatal("connected")
		}
	}
}

// tryRaft sends each of Raft's messages.
func tryRaft(t *testing.T, credentials peer.Credentials, ip string, id ring.NodeID) {
	t.Helper()
	p := strangerPeers(t, credentials, "default")
	transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: raftStream{p.Raft()}, MaxPool: 1, Timeout: 5 * time.Second, Logger: hclog.NewNullLogger(),
	})
	defer transport.Close()
	target := raft.ServerAddress(peer.RaftAddress(id, net.JoinHostPort(ip, "7947")))
	header := raft.RPCHeader{ProtocolVersion: 3, ID: []byte(strangerID.String()), Addr: []byte("x")}
	const term = 1 << 40
	for name, err := range map[string]error{
		"vote": transport.RequestVote("", target,
			&raft.RequestVoteRequest{RPCHeader: header, Term: term, LeadershipTransfer: true},
			&raft.RequestVoteResponse{}),
		"pre-vote": transport.RequestPreVote("", target,
			&raft.RequestPreVoteRequest{RPCHeader: header, Term: term}, &raft.RequestPreVoteResponse{}),
		"append": transport.AppendEntries("", target,
			&raft.AppendEntriesRequest{RPCHeader: header, Term: term}, &raft.AppendEntriesResponse{}),
		"timeout": transport.TimeoutNow("", target, &raft.TimeoutNowRequest{RPCHeader: header},
			&raft.TimeoutNowResponse{}),
		"snapshot": transport.InstallSnapshot("", target,
			&raft.InstallSnapshotRequest{RPCHeader: header, Term: term, Size: 1},
			&raft.InstallSnapshotResponse{}, strings.NewReader("x")),
	} {
		if err == nil {
			t.Errorf("Raft has answered %s", name)
		}
	}
}

// raftStream is the layer that Raft's transport dials with.
type raftStream struct{ peer.RaftLayer }

func (s raftStream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return s.RaftLayer.Dial(string(address), timeout)
}

// tryBytes sends each kind of gossip message in the clear, by UDP and TCP, with
// and without a label, and noise.
func tryBytes(t *testing.T, address string) {
	t.Helper()
	for _, label := range []string{"", "\xf4\x06rlnode", "\xf4\x0arlnode-wan"} {
		for kind := range 256 {
			noise := make([]byte, rand.IntN(200))
			for i := range noise {
				noise[i] = byte(rand.Uint32())
			}
			message := append(append([]byte(label), byte(kind)), noise...)
			for _, network := range []string{"udp", "tcp"} {
				c, err := net.Dial(network, address)
				if err != nil {
					if network == "udp" || strings.HasSuffix(address, "7947") {
						continue
					}
					t.Fatalf("%s %s: %v", network, address, err)
				}
				_, _ = c.Write(message) // the node may close the connection at once
				c.Close()
			}
		}
	}
}

// tryGossip joins the gossip of the region or of all regions, without a key and with a wrong one.
func tryGossip(t *testing.T, bind, ip string, wan bool) {
	t.Helper()
	port := 7946
	if wan {
		port = 7948
	}
	for _, with := range []*memberlist.Keyring{nil, otherKeyring(t)} {
		g, err := gossip.Open(gossip.Config{
			Self: gossip.Member{ID: strangerID, Boot: 1, Name: "stranger", Region: "default", PeerPort: 7947}, WAN: wan,
			BindAddr: bind, Join: []string{net.JoinHostPort(ip, fmt.Sprint(port))}, Keyring: with,
			Logger: slog.New(slog.DiscardHandler),
		})
		expect.NoError(t, err)
		for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if n := len(g.Members()); n != 1 {
				t.Errorf("a stranger sees %d members", n)
				break
			}
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
}

func otherKeyring(t *testing.T) *memberlist.Keyring {
	t.Helper()
	k, err := memberlist.NewKeyring(nil, secret.New().GossipKey())
	expect.NoError(t, err)
	return k
}
