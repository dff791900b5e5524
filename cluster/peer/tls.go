package peer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// certificateInterval is how often the files are looked at, at most.
const certificateInterval = time.Second

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
type TLS struct {
	cert, key, ca string
	log           *slog.Logger

	mu     sync.Mutex // guards what follows
	loaded loaded
	seen   [3]fileMark // of the files in use, or of those that were no good
	looked time.Time
}

// loaded is what the files hold; it does not change.
type loaded struct {
	pair *tls.Certificate
	pool *x509.CertPool
}

// fileMark tells a file from what it was before.
type fileMark struct {
	changed time.Time
	size    int64
	err     string
}

var errNoCA = errors.New("there is no certificate in it")

// LoadTLS reads the files, which must be good to begin with. Later, when one has changed, they are read again; if they are
// no good then, the old ones stay in use. Connections that exist are kept.
func LoadTLS(cert, key, ca string, log *slog.Logger) (*TLS, error) {
	if log == nil {
		log = slog.Default()
	}
	t := &TLS{cert: cert, key: key, ca: ca, log: log, looked: time.Now()}
	t.seen = t.marks()
	l, err := t.load()
	if err != nil {
		return nil, err
	}
	t.loaded = l
	return t, nil
}

func (t *TLS) load() (loaded, error) {
	pair, err := tls.LoadX509KeyPair(t.cert, t.key)
	if err != nil {
		return loaded{}, fmt.Errorf("load certificate %s with key %s: %w", t.cert, t.key, err)
	}
	text, err := os.ReadFile(t.ca)
	if err != nil {
		return loaded{}, fmt.Errorf("load CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return loaded{}, fmt.Errorf("load CA %s: %w", t.ca, errNoCA)
	}
	return loaded{&pair, pool}, nil
}

// current gives what is in use, read again if the files have changed.
func (t *TLS) current(now time.Time) loaded {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.looked) < certificateInterval {
		return t.loaded
	}
	t.looked = now
	marks := t.marks()
	if marks == t.seen {
		return t.loaded
	}
	t.seen = marks
	l, err := t.load()
	if err != nil {
		t.log.Error("certificates between nodes not reloaded, the old ones stay in use", "error", err)
		return t.loaded
	}
	t.log.Info("certificates between nodes reloaded", "cert", t.cert, "ca", t.ca)
	t.loaded = l
	return l
}

func (t *TLS) marks() (m [3]fileMark) {
	for i, name := range [...]string{t.cert, t.key, t.ca} {
		if info, err := os.Stat(name); err != nil {
			m[i].err = err.Error()
		} else {
			m[i] = fileMark{changed: info.ModTime(), size: info.Size()}
		}
	}
	return m
}

// Server implements Credentials.
func (t *TLS) Server() *tls.Config {
	l := t.current(time.Now())
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
	l := t.current(time.Now())
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
