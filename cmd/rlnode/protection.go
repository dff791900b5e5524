package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/internal/secret"
	"github.com/rlnode/rlnode/peer"
)

// waysOut ends every refusal to open the ports between nodes unprotected.
const waysOut = "set --cluster-secret-file (rlnode secret prints a secret), or --insecure-cluster if that network is closed by other means"

// completeProtection decides where the ports between nodes are, and checks that only those with the cluster's secret get in
// there. A node by itself that has no secret keeps them on loopback.
func (c *serveCmd) completeProtection() []error {
	errs := c.checkSecrets()
	asked := c.ClusterBind != ""
	if !asked {
		c.ClusterBind = c.Bind
	}
	bind, err := netip.ParseAddr(c.ClusterBind)
	switch {
	case err != nil && asked:
		return append(errs, fmt.Errorf("--cluster-bind: %q is not an IP address", c.ClusterBind))
	case err != nil:
		return errs // --bind is no address, which is said elsewhere
	}
	why := ""
	switch {
	case len(c.Join) > 0:
		why = "--join"
	case len(c.WANJoin) > 0:
		why = "--wan-join"
	case asked:
		why = "--cluster-bind"
	case c.BootstrapExpect > 1:
		why = "--bootstrap-expect"
	}
	open := c.ClusterSecretFile == "" && c.TLSCert == "" && !c.InsecureCluster // to anybody who gets there
	c.alone = open && why == ""
	switch {
	case bind.IsLoopback():
		errs = append(errs, checkReach("--join", c.Join, c.ClusterBind)...)
		errs = append(errs, checkReach("--wan-join", c.WANJoin, c.ClusterBind)...)
	case c.alone:
		c.ClusterBind = "127.0.0.1"
		c.Advertise = c.ClusterBind
	case open:
		errs = append(errs, fmt.Errorf("%s: the ports between nodes would be open on %s to anyone: %s", why, c.ClusterBind, waysOut))
	}
	return errs
}

// checkSecrets checks what protects the ports between nodes. Half a protection is none: who gets in by one port can take the
// cluster over.
func (c *serveCmd) checkSecrets() (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, err := c.gossipKey(); err != nil {
		errs = append(errs, err)
	}
	key, certificates := c.GossipKey != "" || c.GossipKeyFile != "", c.TLSCert != "" || c.TLSKey != "" || c.TLSCA != ""
	if certificates && (c.TLSCert == "" || c.TLSKey == "" || c.TLSCA == "") {
		wrong("--tls-cert, --tls-key and --tls-ca: each needs the two others")
	}
	if key != certificates {
		wrong("--gossip-key and --tls-cert: each leaves open what the other one protects; set both, or --cluster-secret-file in place of both")
	}
	switch {
	case c.ClusterSecretFile == "":
	case key || certificates:
		wrong("--cluster-secret-file: it takes the place of --gossip-key and --tls-…, and can't stand beside them")
	default:
		if _, err := secret.Read(c.ClusterSecretFile); err != nil {
			wrong("--cluster-secret-file: %w", err)
		}
	}
	if c.InsecureCluster && (c.ClusterSecretFile != "" || key || certificates) {
		wrong("--insecure-cluster: there is a secret, so the cluster is not insecure; leave one of them out")
	}
	return errs
}

// checkReach checks that a node on loopback looks for others only there.
func checkReach(flag string, seeds []string, bind string) (errs []error) {
	for _, seed := range seeds {
		host := seed
		if _, err := netip.ParseAddr(seed); err != nil {
			if h, _, err := net.SplitHostPort(seed); err == nil {
				host = h
			}
		}
		ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
		if err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(host, "localhost") {
			continue
		}
		errs = append(errs, fmt.Errorf("%s: %s can't be reached from %s, which is loopback: set --bind or --cluster-bind to an address "+
			"that other machines reach, and %s", flag, seed, bind, waysOut))
	}
	return errs
}

// gossipKey is the key of --gossip-key; nil without one.
func (c *serveCmd) gossipKey() ([]byte, error) {
	text := c.GossipKey
	if c.GossipKeyFile != "" {
		if text != "" {
			return nil, errors.New("--gossip-key and --gossip-key-file exclude each other")
		}
		file, err := readFile(&environment{}, c.GossipKeyFile, maxToken)
		if err != nil {
			return nil, fmt.Errorf("--gossip-key-file: %w", err)
		}
		if text = strings.TrimSpace(string(file)); text == "" {
			return nil, fmt.Errorf("--gossip-key-file: %s holds no key", c.GossipKeyFile)
		}
	}
	if text == "" {
		return nil, nil
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) != 16 && len(key) != 24 && len(key) != 32 {
		return nil, errors.New("--gossip-key: it is not 16, 24 or 32 bytes in base64")
	}
	return key, nil
}

// protection is what keeps strangers out of the ports between nodes.
type protection struct {
	credentials peer.Credentials    // nil: none
	keyring     *memberlist.Keyring // nil: none
	file        *secret.File        // nil: none
}

// protect opens what the settings ask for.
func (s *server) protect() (p protection, err error) {
	c := s.settings
	switch {
	case c.ClusterSecretFile != "":
		if p.file, err = secret.Open(c.ClusterSecretFile, s.id, s.log); err != nil {
			return p, err
		}
		p.credentials, p.keyring = p.file, p.file.Keyring()
	case c.TLSCert != "":
		files, err := peer.LoadTLS(c.TLSCert, c.TLSKey, c.TLSCA, s.log)
		if err != nil {
			return p, err
		}
		key, err := c.gossipKey()
		if err != nil {
			return p, err
		}
		p.credentials = files
		if p.keyring, err = memberlist.NewKeyring(nil, key); err != nil {
			return p, fmt.Errorf("--gossip-key: %w", err)
		}
	}
	return p, nil
}

// warnOfProtection logs who can get in at the ports between nodes, where that may not be meant.
func (c *serveCmd) warnOfProtection(log *slog.Logger) {
	switch {
	case c.InsecureCluster:
		log.Warn("--insecure-cluster: anyone who reaches the ports between nodes can take the cluster over", "cluster_bind", c.ClusterBind)
	case c.alone:
		log.Info("this node is by itself: without --cluster-secret-file the ports between nodes stay on loopback, and nodes on other "+
			"machines can't join", "cluster_bind", c.ClusterBind)
	}
}

// secretCmd prints a new secret.
type secretCmd struct{}

// Help has examples.
func (secretCmd) Help() string {
	return `The secret is what the nodes of a cluster, in all its regions, prove to each other who they are with: 32 random bytes in
base64, in a file that is the same on every node. Whoever has it can be a node, so keep the file as you keep a private key.

To change it while the cluster runs, write the file on every node before you go on to the next step: the old secret and
below it the new one; the new one and below it the old one; the new one alone. A node says in its log when it has read it.

Examples:

  rlnode secret > cluster.secret
  rlnode serve --bind 10.0.0.5 --join 10.0.0.6,10.0.0.7 --cluster-secret-file cluster.secret
  rlnode secret >> cluster.secret        # the first step of a change`
}

// Run prints it.
func (secretCmd) Run(env *environment) error {
	_, err := fmt.Fprintln(env.stdout, secret.New())
	return err
}
