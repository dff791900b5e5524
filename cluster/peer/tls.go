package peer

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/rlnode/rlnode/internal/reload"
)

// Credentials secure connections between nodes with mutual TLS. The methods are
// called from several goroutines.
type Credentials interface {
	// Server and Client return the configuration for one handshake: Server with a
	// node that dialled, Client with one that is dialled. Each has one certificate.
	Server() *tls.Config
	Client() *tls.Config
	// Verify returns an error if the current credentials do not accept a connection
	// to a remote that claims to be node.
	Verify(s tls.ConnectionState, node [16]byte) error
	// Current reports whether a connection that was made with config would be made
	// in the same way now. See Peers.Renew.
	Current(s tls.ConnectionState, config *tls.Config) bool
}

// TLS is mutual TLS 1.3 with a certificate and a CA that are reloaded when
// their files change. The CA is the boundary: any holder of a certificate that
// it issued, valid for both servers and clients, counts as a node. Host names
// are not checked, because nodes come and go and are identified by their IDs.
// So the CA must sign only nodes of this cluster.
type TLS struct {
	files *reload.Files[loaded]
}

// loaded is the content of the files. It is immutable.
type loaded struct {
	pair *tls.Certificate
	pool *x509.CertPool
}

var errNoCA = errors.New("the file has no certificate")

// LoadTLS reads the files, which must be valid. When a file changes later, all
// are read again; if they are then invalid, the old ones stay in use.
// Connections that exist are kept. A nil log means slog.Default.
func LoadTLS(cert, key, ca string, log *slog.Logger) (*TLS, error) {
	log = cmp.Or(log, slog.Default())
	load := func() (loaded, error) { return loadFiles(cert, key, ca) }
	report := func(_ loaded, err error) {
		if err != nil {
			log.Error("certificates between nodes can't be reloaded, the old ones stay in use", "error", err)
			return
		}
		log.Info("certificates between nodes reloaded", "cert", cert, "ca", ca)
	}
	files, err := reload.Open(load, report, cert, key, ca)
	if err != nil {
		return nil, err
	}

	return &TLS{files}, nil
}

func loadFiles(cert, key, ca string) (loaded, error) {
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
	l := t.files.Current(time.Now())
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{*l.pair},
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              l.pool,
		SessionTicketsDisabled: true, // every handshake checks the chain
	}
}

// Client implements Credentials.
func (t *TLS) Client() *tls.Config {
	l := t.files.Current(time.Now())
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		Certificates:       []tls.Certificate{*l.pair},
		InsecureSkipVerify: true, // the standard check needs a host name; VerifyConnection checks the chain
		VerifyConnection:   func(s tls.ConnectionState) error { return verify(s, l.pool) },
	}
}

// Verify implements Credentials. It accepts every node, because these
// certificates name none.
func (t *TLS) Verify(tls.ConnectionState, [16]byte) error { return nil }

// Current implements Credentials: existing connections are kept.
func (t *TLS) Current(tls.ConnectionState, *tls.Config) bool { return true }

// verify checks a chain as crypto/tls does for servers, without the host name.
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
