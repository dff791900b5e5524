package main

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/cluster/secret"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// TestProtection: the ports between nodes are never open to a network without a
// secret, and the refusal says what to set.
func TestProtection(t *testing.T) {
	clearEnv(t)
	good := file(t, "cluster.secret", secret.New().String()+"\n")
	bad := file(t, "bad.secret", "secret\n")
	key := "--gossip-key=" + gossipKey
	certificates := []string{"--tls-cert=a", "--tls-key=b", "--tls-ca=c"}
	both := []string{"--cluster-secret-file", "--insecure-cluster"} // the flags that solve it
	for _, test := range []struct {
		args    string
		cluster string   // address of the ports between nodes
		alone   bool     // no other node can join
		wrong   []string // parts of the error; nil for no error
	}{
		{args: "", cluster: "127.0.0.1", alone: true},
		{args: "--bind ::1", cluster: "::1", alone: true},
		{args: "--bind 0.0.0.0", cluster: "127.0.0.1", alone: true},
		{args: "--bind 10.0.0.5 --bootstrap-expect 1", cluster: "127.0.0.1", alone: true},
		{args: "--bind 127.0.0.11 --join 127.0.0.12,127.0.0.13:7000,[::1]:7946,localhost --bootstrap-expect 3", cluster: "127.0.0.11"},
		{args: "--wan-join 127.9.9.9", cluster: "127.0.0.1"},
		{args: "--bind 0.0.0.0 --cluster-bind 127.0.0.1 --join 127.0.0.2", cluster: "127.0.0.1"},
		{args: "--bind 0.0.0.0 --cluster-secret-file " + good, cluster: "0.0.0.0"},
		{args: "--bind 0.0.0.0 --join n1,n2 --cluster-secret-file " + good, cluster: "0.0.0.0"},
		{args: "--bind 127.0.0.1 --cluster-bind 10.0.0.5 --join n1,n2 --cluster-secret-file " +
			good, cluster: "10.0.0.5"},
		{args: "--bind 0.0.0.0 --join n1 --insecure-cluster", cluster: "0.0.0.0"},
		{args: "--bind 0.0.0.0 --join n1 " + key + " " + strings.Join(certificates, " "), cluster: "0.0.0.0"},

		{args: "--bind 0.0.0.0 --join n1", wrong: append([]string{"--join", "0.0.0.0"}, both...)},
		{args: "--bind 10.0.0.5 --wan-join n1", wrong: append([]string{"--wan-join", "10.0.0.5"}, both...)},
		{args: "--bind 0.0.0.0 --bootstrap-expect 3", wrong: append([]string{"--bootstrap-expect"}, both...)},
		{args: "--cluster-bind 0.0.0.0", wrong: append([]string{"--cluster-bind", "0.0.0.0"}, both...)},
		{args: "--cluster-bind nowhere", wrong: []string{"--cluster-bind", "nowhere"}},
		{args: "--join 10.0.0.6", wrong: append([]string{"--join", "10.0.0.6", "--cluster-bind"}, both...)},
		{args: "--join 127.0.0.2,n2:7946", wrong: append([]string{"--join", "n2:7946", "--cluster-bind"}, both...)},
		{args: "--wan-join [2001:db8::1]:7948 --cluster-secret-file " + good,
			wrong: []string{"--wan-join", "2001:db8::1"}},
		{args: key, wrong: []string{"--gossip-key", "--tls-cert", "--cluster-secret-file"}},
		{args: strings.Join(certificates, " "), wrong: []string{"--gossip-key", "--tls-cert", "--cluster-secret-file"}},
		{args: key + " --tls-cert=a", wrong: []string{"--tls-key"}},
		{args: key + " --cluster-secret-file " + good, wrong: []string{"--cluster-secret-file", "--gossip-key"}},
		{args: "--cluster-secret-file " + good + " " + strings.Join(certificates, " "),
			wrong: []string{"--cluster-secret-file", "--tls-"}},
		{args: "--insecure-cluster --cluster-secret-file " + good, wrong: []string{"--insecure-cluster"}},
		{args: "--cluster-secret-file " + bad, wrong: []string{"--cluster-secret-file", bad, "line 1"}},
		{args: "--cluster-secret-file /nowhere", wrong: []string{"--cluster-secret-file", "/nowhere"}},
	} {
		c, err := parseServe(strings.Fields(test.args)...)
		if err == nil {
			err = c.complete()
		}
		if (err != nil) != (test.wrong != nil) {
			t.Errorf("%q: have %v", test.args, err)
			continue
		}
		for _, part := range test.wrong {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q: %q is not in %q", test.args, part, err)
			}
		}
		if err == nil && (c.ClusterBind != test.cluster || c.alone != test.alone) {
			t.Errorf("%q: have %s, alone %v; want %s, %v", test.args, c.ClusterBind, c.alone, test.cluster, test.alone)
		}
	}
}

// TestListensOnLoopback asks the kernel where a node listens that has no flags,
// or only opens its data plane.
func TestListensOnLoopback(t *testing.T) {
	t.Parallel()
	port, grpc, redis := strconv.Itoa(process.FreePort(t)), strconv.Itoa(process.FreePort(t)), strconv.Itoa(process.FreePort(t))
	for _, test := range []struct {
		name string
		args []string
		open string // the ports that others reach; empty if none
	}{
		{name: "serve", args: []string{"--http-port", "0"}},
		{name: "serve --bind 0.0.0.0",
			args: []string{"--bind", "0.0.0.0", "--http-port", port, "--grpc-port", grpc},
			open: port + " " + grpc},
		{
			name: "serve --bind 0.0.0.0 --redis-port", open: port + " " + grpc + " " + redis,
			args: []string{"--bind", "0.0.0.0", "--http-port", port, "--grpc-port", grpc, "--redis-port", redis},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := launchBare(t,
				append([]string{"serve", "--data-dir", t.TempDir(), "--admin-port", "0"}, test.args...)...)
			s.awaitReady()
			// Two planes; Envoy; gossip in and between regions, TCP and UDP; calls between
			// nodes. The last port opens when the node becomes a voter.
			var sockets []netip.AddrPort
			want := 8
			if strings.HasSuffix(test.name, "--redis-port") {
				want = 9
			}
			process.Eventually(t, "all sockets listen", func() bool {
				sockets = listening(t, s.cmd.Process.Pid)
				return len(sockets) >= want
			})
			opened := 0
			for _, at := range sockets {
				if at.Addr().IsLoopback() {
					continue
				}
				if !slices.Contains(strings.Fields(test.open), fmt.Sprint(at.Port())) {
					t.Errorf("%s: %v is open to others", test.name, at)
				}
				opened++
			}
			expect.Equal(t, opened, len(strings.Fields(test.open)), "%s: ports are open", test.name)
			if !strings.Contains(s.log.String(), "nodes on other machines can't join this one") {
				t.Error("the log does not say that other nodes can't join")
			}
		})
	}
}

// TestTwoNodesByThemselves: two lone nodes don't compete for ports.
func TestTwoNodesByThemselves(t *testing.T) {
	t.Parallel()
	for range 2 {
		s := launchBare(t, "serve", "--data-dir", t.TempDir(), "--http-port", "0", "--admin-port", "0")
		s.awaitReady()
	}
}

// TestRefusedToOpen: the exit code is that of an invalid command line.
func TestRefusedToOpen(t *testing.T) {
	t.Parallel()
	code, _, stderr := tool(t, "", "serve", "--bind", "0.0.0.0", "--join", "10.0.0.6", "--data-dir",
		filepath.Join(t.TempDir(), "d"))
	if code != 2 || !strings.Contains(stderr, "--cluster-secret-file") ||
		!strings.Contains(stderr, "--insecure-cluster") {
		t.Errorf("have %d, %s", code, stderr)
	}
}

func TestSecretCommand(t *testing.T) {
	t.Parallel()
	code, first, _ := tool(t, "", "secret")
	_, second, _ := tool(t, "", "secret")
	if secrets, err := secret.Parse([]byte(first + second)); code != 0 || err != nil || len(secrets) != 2 {
		t.Errorf("have %d, %v, %d secrets", code, err, len(secrets))
	}
}

// listening lists the TCP and UDP addresses on which a process listens.
func listening(t *testing.T, pid int) (all []netip.AddrPort) {
	t.Helper()
	inodes := make(map[string]bool)
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Skip("there is no /proc here")
	}
	for _, fd := range fds {
		if link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())); err == nil {
			if inode, ok := strings.CutPrefix(link, "socket:["); ok {
				inodes[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	const listen, unconnected = "0A", "07"
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) > 9 && inodes[fields[9]] && (fields[3] == listen || fields[3] == unconnected) {
				all = append(all, kernelAddress(t, fields[1]))
			}
		}
		f.Close()
	}
	return all
}

// kernelAddress parses an address from the kernel's tables: hexadecimal words
// in the machine's order, little-endian here.
func kernelAddress(t *testing.T, text string) netip.AddrPort {
	t.Helper()
	host, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(host)
	expect.NoError(t, err)
	for i := 0; i+4 <= len(b); i += 4 {
		slices.Reverse(b[i : i+4])
	}
	ip, ok := netip.AddrFromSlice(b)
	n, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		t.Fatalf("unknown form of a kernel address: %q", text)
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(n))
}
