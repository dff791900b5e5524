package node

import (
	"fmt"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/cluster/secret"
)

// protection keeps strangers out of the ports between nodes. Its fields are nil if unused.
type protection struct {
	credentials peer.Credentials
	keyring     *memberlist.Keyring
	file        *secret.File
}

// loadProtection loads the secret, or the keys and certificates, that the
// settings name.
func (n *Node) loadProtection() (p protection, err error) {
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
