package peer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/rlnode/rlnode/internal/files"
	"github.com/rlnode/rlnode/ring"
)

// Credentials secure connections between nodes with mutual TLS. Their methods are called from several goroutines.
type Credentials interface {
	// Server and Client are the configuration for one handshake, with a node that dialled and with one that is dialled. They
	// have one certificate.
	Server() *tls.Config
	Client() *tls.Config
	// Verify says what is wrong, now, with a connection to a remote that takes itself for node.
	Verify(s tls.ConnectionState, node ring.NodeID) error
	// Current says whether a connection that config has made would be made in the same way now. See Peers.Renew.
	Current(s tls.ConnectionState, config *tls.Config) bool
}

// TLS is mutual TLS 1.3 with a certificate and a CA that follow their files. The CA is the boundary: whoever has a
// certificate of it, good for servers and clients, is a node. Host names are not looked at, since nodes come and go and
// are known by their IDs; so the CA must sign nothing but nodes of this cluster.
type TLS struct{ files *files.Followed[loaded] }

// loaded is what the files hold; it does not change.
type loaded struct {
	pair *tls.Certificate
	pool *x509.CertPool
}

var errNoCA = errors.New("there is no certificate in it")

// LoadTLS reads the files, which must be good to begin with. Later, when one has changed, they are read again; if they are
// no good then, the old ones stay in use. Connections that exist are kept.
func LoadTLS(cert, key, ca string, log *slog.Logger) (*TLS, error) {
	if log == nil {
		log = slog.Default()
	}
	followed, err := files.Follow(func() (loaded, error) { return load(cert, key, ca) }, func(err error) {
		if err != nil {
			log.Error("certificates between nodes not reloaded, the old ones stay in use", "error", err)
		} else {
			log.Info("certificates between nodes reloaded", "cert", cert, "ca", ca)
		}
	}, cert, key, ca)
	if err != nil {
		return nil, err
	}
	return &TLS{followed}, nil
}

func load(cert, key, ca string) (loaded, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return loaded{}, fmt.Errorf("load certificate %s with key %s: %w", cert, key, err)
	}
	text, err := os.ReadFile(ca)
	if err != nil {
		return loaded{}, fmt.Errorf("load CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return loaded{}, fmt.Errorf("load CA %s: %w", ca, errNoCA)
	}
	return loaded{&pair, pool}, nil
}

// Server implements Credentials.
func (t *TLS) Server() *tls.Config {
	l := t.files.At(time.Now())
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{*l.pair},
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              l.pool,
		SessionTicketsDisabled: true, // every handshake looks at the chain
	}
}

// Client implements Credentials.
func (t *TLS) Client() *tls.Config {
	l := t.files.At(time.Now())
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		Certificates:       []tls.Certificate{*l.pair},
		InsecureSkipVerify: true, // which would look at the host name; VerifyConnection looks at the chain
		VerifyConnection:   func(s tls.ConnectionState) error { return verify(s, l.pool) },
	}
}

// Verify implements Credentials: certificates name no nodes.
func (t *TLS) Verify(tls.ConnectionState, ring.NodeID) error { return nil }

// Current implements Credentials: connections that exist are kept.
func (t *TLS) Current(tls.ConnectionState, *tls.Config) bool { return true }

// verify is what crypto/tls does for servers, without the host name.
func verify(s tls.ConnectionState, pool *x509.CertPool) error {
	between := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots:         pool,
		Intermediates: between,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}
