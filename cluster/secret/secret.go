package secret

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"time"
)

const (
	size = 32 // bytes of a secret
	// maxLines bounds the secrets in a file: the one in use, and its successor or predecessor.
	maxLines = 2
)

// The labels separate the derived values. They are part of the protocol:
// another label makes another cluster.
const (
	labelGossip      = "rlnode gossip key"
	labelAuthority   = "rlnode node authority"
	labelFingerprint = "rlnode secret fingerprint"
)

// Certificates are valid for as long as the format can express, and are
// verified at a fixed time. Nodes' clocks may be wrong, and a secret is retired
// by changing it, not by expiry.
var (
	validFrom  = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	validUntil = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	verifiedAt = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
)

// Secret is known to all nodes of a cluster and to no one else.
type Secret [size]byte

// New returns a random secret.
func New() (s Secret) {
	_, _ = rand.Read(s[:]) // never fails
	return s
}

// String returns the secret itself in base64, as in a line of the file.
func (s Secret) String() string { return base64.StdEncoding.EncodeToString(s[:]) }

// Fingerprint identifies a secret without revealing it.
func (s Secret) Fingerprint() string { return hex.EncodeToString(s.derive(labelFingerprint, 4)) }

// Parse parses one or two secrets, one per line. Blank lines and blanks around
// a secret are ignored. The error names the line.
func Parse(text []byte) ([]Secret, error) {
	var all []Secret
	for i, line := range bytes.Split(text, []byte{'\n'}) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}

		b, err := base64.StdEncoding.Strict().DecodeString(string(line))
		if err != nil || len(b) != size {
			return nil, fmt.Errorf("line %d is not %d bytes in base64, as rlnode secret prints them", i+1, size)
		}

		s := Secret(b)
		if len(all) == maxLines {
			return nil, fmt.Errorf("line %d is one too many: a file has at most %d secrets", i+1, maxLines)
		}
		if len(all) > 0 && all[0] == s {
			return nil, fmt.Errorf("line %d is the same secret again", i+1)
		}

		all = append(all, s)
	}

	if len(all) == 0 {
		return nil, errors.New("it has no secret")
	}

	return all, nil
}

// GossipKey returns the 32-byte key that encrypts gossip.
func (s Secret) GossipKey() []byte { return s.derive(labelGossip, 32) }

// derive derives n bytes from s with HKDF (RFC 5869) and SHA-256.
func (s Secret) derive(label string, n int) []byte {
	b, err := hkdf.Key(sha256.New, s[:], nil, label, n)
	if err != nil {
		panic(err) // n is too large
	}
	return b
}

// issuer is a certificate authority: it issues certificates to nodes.
type issuer struct {
	key  ed25519.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool // only cert
}

// issuer derives the issuer. Ed25519 signs without randomness, so the
// certificate is the same on every node.
func (s Secret) issuer() (*issuer, error) {
	key := ed25519.NewKeyFromSeed(s.derive(labelAuthority, ed25519.SeedSize))
	id := sha256.Sum256(key.Public().(ed25519.PublicKey))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "rlnode cluster"},
		NotBefore: validFrom, NotAfter: validUntil, SubjectKeyId: id[:20],
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(nil, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("derive the authority of the cluster: %w", err)
	}

	a := &issuer{key: key, pool: x509.NewCertPool()}
	a.cert, err = x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("derive the authority of the cluster: %w", err)
	}

	a.pool.AddCert(a.cert)
	return a, nil
}

// issue makes a certificate for a node, with a fresh key.
func (a *issuer) issue(node [16]byte) (*tls.Certificate, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate: %w", err)
	}

	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("issue a certificate: %w", err)
	}

	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: hex.EncodeToString(node[:])},
		NotBefore: validFrom, NotAfter: validUntil,
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{nodeURI(node)},
	}
	der, err := x509.CreateCertificate(nil, template, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate: %w", err)
	}

	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// verify returns an error unless a issued the certificate to a node.
func (a *issuer) verify(cert *x509.Certificate) error {
	_, err := cert.Verify(x509.VerifyOptions{
		Roots: a.pool, CurrentTime: verifiedAt, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	return err
}

// nodeURI identifies a node in its certificate.
func nodeURI(node [16]byte) *url.URL {
	return &url.URL{Scheme: "rlnode", Host: "node", Path: "/" + hex.EncodeToString(node[:])}
}
