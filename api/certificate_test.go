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
	if have := c.Current(now).Leaf.Subject.CommonName; have != "one" {
		t.Errorf("before the reload interval has passed: have %s", have)
	}
	write(t, keyFile, old)
	if have := name(); have != "one" {
		t.Errorf("with a key that does not fit: have %s", have)
	}
	write(t, keyFile, fresh[:len(fresh)/2])
	if have := name(); have != "one" {
		t.Errorf("with half a key: have %s", have)
	}
	expect.NoError(t, os.Remove(keyFile))
	if have := name(); have != "one" {
		t.Errorf("without a key: have %s", have)
	}
	write(t, keyFile, fresh)
	expect.Equal(t, name(), "two", "name()")
}
