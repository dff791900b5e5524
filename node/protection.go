package node

import (
	"fmt"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/secret"
)

// waysOut ends every refusal to open the ports between nodes unprotected: it says what to do about it.
func waysOut(m *mistakes) string {
	return fmt.Sprintf("set %s (rlnode secret prints a secret), or %s if that network is closed by other means",
		m.name("ClusterSecretFile"), m.name("InsecureCluster"))
}

// checkSecrets checks the protection of the ports between nodes. Half a protection is none: whoever gets in through one
// port can take over the cluster.
func (s *settings) checkSecrets(m *mistakes) {
	file, key := m.name("ClusterSecretFile"), m.name("GossipKey")
	hasKey, certificates := len(s.GossipKey) > 0, several(s.TLSCert, s.TLSKey, s.TLSCA)
	if n := len(s.GossipKey); hasKey && n != 16 && n != 24 && n != 32 {
		m.note("GossipKey", "it has %d bytes; it must have 16, 24 or 32", n)
	}
	if certificates && (s.TLSCert == "" || s.TLSKey == "" || s.TLSCA == "") {
		m.note("TLSCert", "%s, %s and %s need each other", m.name("TLSCert"), m.name("TLSKey"), m.name("TLSCA"))
	}
	if hasKey != certificates {
		m.note("GossipKey", "%s and %s: each leaves open what the other one protects; set both, or %s in place of both", key, m.name("TLSCert"), file)
	}
	switch {
	case s.ClusterSecretFile == "":
	case hasKey || certificates:
		m.note("ClusterSecretFile", "it takes the place of %s and of %s and its like, and can't stand beside them", key, m.name("TLSCert"))
	default:
		if _, err := secret.Read(s.ClusterSecretFile); err != nil {
			m.note("ClusterSecretFile", "%w", err)
		}
	}
	if s.InsecureCluster && (s.ClusterSecretFile != "" || hasKey || certificates) {
		m.note("InsecureCluster", "there is a secret, so the cluster is not insecure; leave one of them out")
	}
}

// protection keeps strangers out of the ports between nodes. Its fields are nil if unused.
type protection struct {
	credentials peer.Credentials
	keyring     *memberlist.Keyring
	file        *secret.File
}

// protect opens the protection that the settings ask for.
func (n *Node) protect() (p protection, err error) {
	c := n.config
	switch {
	case c.ClusterSecretFile != "":
		if p.file, err = secret.Open(c.ClusterSecretFile, n.id, n.log); err != nil {
			return p, err
		}
		p.credentials, p.keyring = p.file, p.file.Keyring()
	case c.TLSCert != "":
		files, err := peer.LoadTLS(c.TLSCert, c.TLSKey, c.TLSCA, n.log)
		if err != nil {
			return p, err
		}
		p.credentials = files
		if p.keyring, err = memberlist.NewKeyring(nil, c.GossipKey); err != nil {
			return p, fmt.Errorf("%s: %w", c.FieldName("GossipKey"), err)
		}
	}
	return p, nil
}
