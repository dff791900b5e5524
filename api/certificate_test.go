package api

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/reload"
	"github.com/rlnode/rlnode/internal/testca"
)

func write(t *testing.T, name string, text []byte) {
	t.Helper()
	expect.NoError(t, os.WriteFile(name, text, 0o600))
}

func TestCertificateFollowsItsFiles(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := testca.WritePair(t, dir, "one")
	c, err := loadCertificate(certFile, keyFile, slog.New(slog.DiscardHandler))
	expect.NoError(t, err)
	now := time.Now()
	name := func() string {
		c.Current(now.Add(2 * reload.Interval)) // sees the change
		now = now.Add(4 * reload.Interval)
		return c.Current(now).Leaf.Subject.CommonName
	}
	if have := name(); have != "one" {
		t.Fatalf("have %s", have)
	}
	old, err := os.ReadFile(keyFile)
	expect.NoError(t, err)
	testca.WritePair(t, dir, "two")
	fresh, err := os.ReadFile(keyFile)
	expect.NoError(t, err)
	expect.Equal(t, c.Current(now).Leaf.Subject.CommonName, "one", "before the reload interval has passed")
	write(t, keyFile, old)
	expect.Equal(t, name(), "one", "with a key that does not fit")
	write(t, keyFile, fresh[:len(fresh)/2])
	expect.Equal(t, name(), "one", "with half a key")
	expect.NoError(t, os.Remove(keyFile))
	expect.Equal(t, name(), "one", "without a key")
	write(t, keyFile, fresh)
	expect.Equal(t, name(), "two", "name()")
}
