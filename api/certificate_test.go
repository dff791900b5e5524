package api

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/files"
)

// writePair writes a new self-signed certificate and its key.
func writePair(t *testing.T, dir, name string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write(t, certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}))
	return certFile, keyFile
}

func write(t *testing.T, name string, text []byte) {
	t.Helper()
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCertificateFollowsItsFiles(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := writePair(t, dir, "one")
	c, err := loadCertificate(certFile, keyFile, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	name := func() string {
		now = now.Add(2 * files.Interval)
		return c.At(now).Leaf.Subject.CommonName
	}
	if have := name(); have != "one" {
		t.Fatalf("have %s", have)
	}
	old, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	writePair(t, dir, "two")
	fresh, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	if have := c.At(now).Leaf.Subject.CommonName; have != "one" {
		t.Errorf("looked at sooner than the interval: have %s", have)
	}
	write(t, keyFile, old)
	if have := name(); have != "one" {
		t.Errorf("with a key that does not fit: have %s", have)
	}
	write(t, keyFile, fresh[:len(fresh)/2])
	if have := name(); have != "one" {
		t.Errorf("with half a key: have %s", have)
	}
	if err := os.Remove(keyFile); err != nil {
		t.Fatal(err)
	}
	if have := name(); have != "one" {
		t.Errorf("without a key: have %s", have)
	}
	write(t, keyFile, fresh)
	if have := name(); have != "two" {
		t.Errorf("have %s, want two", have)
	}
}
