package api

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/reload"
	"github.com/rlnode/rlnode/internal/testca"
)

func write(t *testing.T, name string, text []byte) {
	t.Helper()
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCertificateFollowsItsFiles(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := testca.WritePair(t, dir, "one")
	c, err := loadCertificate(certFile, keyFile, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	testca.WritePair(t, dir, "two")
	fresh, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
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
