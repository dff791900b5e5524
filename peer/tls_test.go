package peer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := x509.ParseCertificate(der)
	return &authority{cert, key}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

var forNodes = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}

// write puts a certificate, its key and the CA into a folder.
func (a *authority) write(t *testing.T, dir string, usages ...x509.ExtKeyUsage) (cert, key, ca string) {
	t.Helper()
	k := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "node"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0), ExtKeyUsage: usages,
	}, a.cert, &k.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, kind string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return put("cert.pem", "CERTIFICATE", der), put("key.pem", "EC PRIVATE KEY", text), put("ca.pem", "CERTIFICATE", a.cert.Raw)
}

func (a *authority) load(t *testing.T, usages ...x509.ExtKeyUsage) *TLS {
	t.Helper()
	cert, key, ca := a.write(t, t.TempDir(), usages...)
	s, err := LoadTLS(cert, key, ca, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTLS(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		ca := newAuthority(t, "ours")
		a, b := w.node(1, withTLS(ca.load(t, forNodes...))), w.node(2, withTLS(ca.load(t, forNodes...)))
		a.knows(b)
		b.knows(a)
		w.connected(a, b)
		w.connected(b, a)
		w.echo(a, b, "hello")
		if have, err := a.Call(t.Context(), b.id, methodEcho, make([]byte, 3<<20)); err != nil || len(have) != 3<<20 {
			t.Errorf("have %d bytes, %v", len(have), err)
		}
		if _, _, err := a.CallAt(t.Context(), b.address, methodEcho, nil); err != nil {
			t.Error(err)
		}
	})
}

func TestTLSRefusals(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	tests := []struct {
		name string
		a, b *TLS
	}{
		{"another CA", ours.load(t, forNodes...), theirs.load(t, forNodes...)},
		{"no TLS here", nil, ours.load(t, forNodes...)},
		{"no TLS there", ours.load(t, forNodes...), nil},
		{"not for servers or clients", ours.load(t, x509.ExtKeyUsageCodeSigning), ours.load(t, forNodes...)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				a, b := w.node(1, withTLS(test.a)), w.node(2, withTLS(test.b))
				a.knows(b)
				b.knows(a)
				time.Sleep(20 * time.Second)
				if a.Reachable(b.id) || b.Reachable(a.id) {
					t.Error("they are connected")
				}
				for _, n := range []*node{a, b} {
					if have := n.log.count("level=WARN"); have == 0 || have > 4 {
						t.Errorf("logged %d times:\n%s", have, n.log)
					}
				}
			})
		})
	}
}

func TestTLSFilesAreReloaded(t *testing.T) {
	first, second := newAuthority(t, "first"), newAuthority(t, "second")
	dirA, dirB := t.TempDir(), t.TempDir()
	open := func(dir string) *TLS {
		cert, key, ca := first.write(t, dir, forNodes...)
		s, err := LoadTLS(cert, key, ca, slog.New(slog.NewTextHandler(io.Discard, nil)))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := open(dirA), open(dirB)
	start := time.Now()
	old := a.current(start)
	if err := os.WriteFile(filepath.Join(dirA, "ca.pem"), []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if have := a.current(start.Add(2 * time.Second)); have != old {
		t.Error("files that are no good are used")
	}
	second.write(t, dirA, forNodes...)
	second.write(t, dirB, forNodes...)
	later := start.Add(4 * time.Second)
	if have := a.current(later); have == old || have.pool.Equal(old.pool) {
		t.Error("new files are not used")
	}
	b.current(later)
	w := &world{t: t}
	n, m := w.node(1, withTLS(a)), w.node(2, withTLS(b))
	n.knows(m)
	w.connected(n, m)

	if _, err := LoadTLS("no", "such", "file", nil); err == nil {
		t.Error("missing files are no error")
	}
}
