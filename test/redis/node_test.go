package redis

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/process"
)

var program = flag.String("rlnode", "", "the node's program; empty: the tests are skipped")

const (
	token    = "a-token-of-the-test"
	planRule = "version: 1\nrules:\n  - name: plan\n    key: [user]\n    limits: [{limit: 10, per: 1h}]\n"
	loopback = "127.0.0.1"
	patience = 60 * time.Second
)

// node is a process of rlnode.
type node struct {
	t     *testing.T
	name  string
	args  []string
	redis string // address of the Redis protocol
	http  string // address of the data plane
	log   string
	proc  *exec.Cmd
}

// freeAddress returns a loopback address on which nobody listens, and which it
// has not returned before.
func freeAddress(t *testing.T) (address, port string) {
	t.Helper()
	port = strconv.Itoa(process.FreePort(t))
	return net.JoinHostPort(loopback, port), port
}

// newNode returns a node that is not started. more are further flags.
func newNode(t *testing.T, name string, more ...string) *node {
	t.Helper()
	if *program == "" {
		t.Skip("no -rlnode")
	}
	dir := t.TempDir()
	rules := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(rules, []byte(planRule), 0o600); err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, name: name, log: filepath.Join(dir, "log")}
	var redisPort, httpPort string
	n.redis, redisPort = freeAddress(t)
	n.http, httpPort = freeAddress(t)
	n.args = append([]string{
		"serve", "--name", name, "--data-dir", filepath.Join(dir, "data"), "--rules", rules,
		"--redis-port", redisPort, "--http-port", httpPort, "--admin-port", "0", "--grpc-port", "0",
	}, more...)
	t.Cleanup(n.end)
	return n
}

// end stops n, and shows what it logged where the test failed: the node that a
// test misses is seldom the one that caused it.
func (n *node) end() {
	n.stop()
	if n.t.Failed() {
		text, _ := os.ReadFile(n.log)
		n.t.Logf("%s:\n%s", n.name, text)
	}
}

// start starts n, and returns before it is ready.
func (n *node) start() {
	n.t.Helper()
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	n.proc = exec.Command(*program, n.args...)
	n.proc.Stdout, n.proc.Stderr = log, log
	if err := n.proc.Start(); err != nil {
		n.t.Fatal(err)
	}
}

// awaitReady waits until n decides.
func (n *node) awaitReady() {
	n.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, scheme := range []string{"http", "https"} {
			reply, err := probe.Get(scheme + "://" + n.http + "/readyz")
			if err != nil {
				continue
			}
			reply.Body.Close()
			if reply.StatusCode == http.StatusOK {
				return
			}
		}
	}
	n.t.Fatalf("%s did not get ready", n.name)
}

// stop ends n as a service manager would, and waits.
func (n *node) stop() {
	if n.proc == nil {
		return
	}
	_ = n.proc.Process.Signal(syscall.SIGTERM)
	_ = n.proc.Wait()
	n.proc = nil
}

// startNode starts a node by itself.
func startNode(t *testing.T, more ...string) *node {
	t.Helper()
	_, gossip := freeAddress(t)
	_, peer := freeAddress(t)
	n := newNode(t, "alone", append(more, "--gossip-port", gossip, "--peer-port", peer)...)
	n.start()
	n.awaitReady()
	return n
}

// startCluster starts three nodes.
func startCluster(t *testing.T) (nodes []*node) {
	t.Helper()
	var ports [3][2]string
	var join []string
	for i := range ports {
		var address string
		address, ports[i][0] = freeAddress(t)
		join = append(join, address)
		_, ports[i][1] = freeAddress(t)
	}
	for i := range ports {
		_, wan := freeAddress(t)
		n := newNode(t, fmt.Sprintf("n%d", i+1), "--bootstrap-expect", "3", "--gossip-port",
			ports[i][0], "--peer-port", ports[i][1],
			"--wan-port", wan, "--join", strings.Join(join, ","))
		n.start()
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		n.awaitReady()
	}
	return nodes
}

// certificate writes a certificate for loopback, which signs itself, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "rlnode"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.ParseIP(loopback)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der},
		key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
