package peer

import (
	"crypto/x509"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/testca"
)

func loadTLS(t *testing.T, a *testca.Authority, usages ...x509.ExtKeyUsage) *TLS {
	t.Helper()
	cert, key, ca := a.Write(t, t.TempDir(), usages...)
	s, err := LoadTLS(cert, key, ca, slog.New(slog.DiscardHandler))
	expect.NoError(t, err)
	return s
}

func TestTLS(t *testing.T) {
	onBothNetworks(t, func(t *testing.T, w *world) {
		ca := testca.New(t, "ours")
		a, b := w.node(1, withTLS(loadTLS(t, ca))), w.node(2, withTLS(loadTLS(t, ca)))
		w.connect(a, b)
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
	ours, theirs := testca.New(t, "ours"), testca.New(t, "theirs")
	tests := []struct {
		name string
		a, b *TLS
	}{
		{"another CA", loadTLS(t, ours), loadTLS(t, theirs)},
		{"no TLS here", nil, loadTLS(t, ours)},
		{"no TLS there", loadTLS(t, ours), nil},
		{"not for servers or clients", loadTLS(t, ours, x509.ExtKeyUsageCodeSigning), loadTLS(t, ours)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			onVirtualTime(t, func(t *testing.T, w *world) {
				a, b := w.node(1, withTLS(test.a)), w.node(2, withTLS(test.b))
				a.knows(b)
				b.knows(a)
				time.Sleep(20 * time.Second)
				if a.Reachable(b.id) || b.Reachable(a.id) {
					t.Error("they are connected")
				}
				for _, n := range []*node{a, b} {
					if have := n.log.Count("level=WARN"); have == 0 || have > 4 {
						t.Errorf("logged %d times:\n%s", have, n.log)
					}
				}
			})
		})
	}
}

func TestTLSFilesAreReloaded(t *testing.T) {
	first, second := testca.New(t, "first"), testca.New(t, "second")
	dirA, dirB := t.TempDir(), t.TempDir()
	open := func(dir string) *TLS {
		cert, key, ca := first.Write(t, dir)
		s, err := LoadTLS(cert, key, ca, slog.New(slog.NewTextHandler(io.Discard, nil)))
		expect.NoError(t, err)
		return s
	}
	a, b := open(dirA), open(dirB)
	start := time.Now()
	old := a.files.Current(start)
	expect.NoError(t, os.WriteFile(filepath.Join(dirA, "ca.pem"), []byte("broken"), 0o600))
	for i := range 3 {
		if have := a.files.Current(start.Add(time.Duration(i) * 2 * time.Second)); have != old {
			t.Error("invalid files are used")
		}
	}
	second.Write(t, dirA)
	second.Write(t, dirB)
	later := start.Add(time.Minute)
	a.files.Check()
	if have := a.files.Current(later); have == old || have.pool.Equal(old.pool) {
		t.Error("new files are not used")
	}
	b.files.Check()
	b.files.Check()
	w := &world{t: t}
	n, m := w.node(1, withTLS(a)), w.node(2, withTLS(b))
	n.knows(m)
	w.connected(n, m)

	if _, err := LoadTLS("no", "such", "file", nil); err == nil {
		t.Error("missing files are no error")
	}
}
