package node

import (
	"fmt"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/secret"
)

// protectionAdvice tells the operator how to protect the ports between nodes.
// It ends every refusal to open them unprotected.
func protectionAdvice(m *mistakes) string {
	return fmt.Sprintf("set %s (rlnode secret prints a secret), or %s if that network is protected otherwise",
		m.name("ClusterSecretFile"), m.name("InsecureCluster"))
}

// checkSecrets checks the protection of the ports between nodes. All of them
// must be protected: anyone who gets in through one port can take over the
// cluster.
func (s *settings) checkSecrets(m *mistakes) {
	keyBytes := len(s.GossipKey)
	hasKey := keyBytes > 0
	if hasKey && keyBytes != 16 && keyBytes != 24 && keyBytes != 32 {
		m.add("GossipKey", "it has %d bytes; it must have 16, 24 or 32", keyBytes)
	}

	hasCertificates := anySet(s.TLSCert, s.TLSKey, s.TLSCA)
	if hasCertificates && (s.TLSCert == "" || s.TLSKey == "" || s.TLSCA == "") {
		m.add("TLSCert", "set %s, %s and %s together", m.name("TLSCert"), m.name("TLSKey"), m.name("TLSCA"))
	}
	if hasKey != hasCertificates {
		m.add("GossipKey", "%s and %s protect different ports; set both, or %s instead",
			m.name("GossipKey"), m.name("TLSCert"), m.name("ClusterSecretFile"))
	}

	switch {
	case s.ClusterSecretFile == "":
	case hasKey || hasCertificates:
		m.add("ClusterSecretFile", "it replaces %s and %s; don't set both", m.name("GossipKey"), m.name("TLSCert"))
	default:
		if _, err := secret.Read(s.ClusterSecretFile); err != nil {
			m.add("ClusterSecretFile", "%w", err)
		}
	}

	if s.InsecureCluster && (s.ClusterSecretFile != "" || hasKey || hasCertificates) {
		m.add("InsecureCluster", "it contradicts the secret that is set; leave out one of them")
	}
}

// protection keeps strangers out of the ports between nodes. Its fields are nil if unused.
type protection struct {
	credentials peer.Credentials
	keyring     *memberlist.Keyring
	file        *secret.File
}

// protect loads the secret, or the keys and certificates, that the settings name.
func (n *Node) protect() (p protection, err error) {
	c := n.config
	switch {
	case c.ClusterSecretFile != "":
		p.file, err = secret.Open(c.ClusterSecretFile, n.id, n.log)
		if err != nil {
			return p, err
		}
		p.credentials = p.file
		p.keyring = p.file.Keyring()
	case c.TLSCert != "":
		files, err := peer.LoadTLS(c.TLSCert, c.TLSKey, c.TLSCA, n.log)
		if err != nil {
			return p, err
		}
		p.credentials = files

		p.keyring, err = memberlist.NewKeyring(nil, c.GossipKey)
		if err != nil {
			return p, fmt.Errorf("%s: %w", c.FieldName("GossipKey"), err)
		}
	}

	return p, nil
}
