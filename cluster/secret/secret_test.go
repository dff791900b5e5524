package secret

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

var (
	first, second, third = Secret{1}, Secret{2}, Secret{3}
	node                 = [16]byte{7}
)

func write(t *testing.T, name string, secrets ...Secret) {
	t.Helper()
	var b strings.Builder
	for _, s := range secrets {
		b.WriteString(s.String() + "\n")
	}
	expect.NoError(t, os.WriteFile(name, []byte(b.String()), 0o600))
}

func open(t *testing.T, id [16]byte, secrets ...Secret) (*File, string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "secret")
	write(t, name, secrets...)
	f, err := Open(name, id, slog.New(slog.DiscardHandler))
	expect.NoError(t, err)
	return f, name
}

func TestParse(t *testing.T) {
	a, b := first.String(), second.String()
	for _, test := range []struct {
		text string
		want []Secret
		err  string // part of the error
	}{
		{text: a, want: []Secret{first}},
		{text: "\r\n  " + a + "\t\r\n\n" + b + "\n", want: []Secret{first, second}},
		{text: "", err: "no secret"},
		{text: "\n \n", err: "no secret"},
		{text: a + "\n" + a, err: "line 2 is the same"},
		{text: a + "\n" + b + "\n\n" + third.String(), err: "line 4 is one too many"},
		{text: a[:40], err: "line 1 is not 32 bytes"},
		{text: a + "AAAA", err: "line 1 is not"},
		{text: "# a comment\n" + a, err: "line 1 is not"},
		{text: strings.TrimRight(a, "="), err: "line 1 is not"},
	} {
		have, err := Parse([]byte(test.text))
		if !slices.Equal(have, test.want) || (err == nil) != (test.err == "") || err != nil &&
			!strings.Contains(err.Error(), test.err) {
			t.Errorf("%q: have %v, %v; want %v, %q", test.text, have, err, test.want, test.err)
		}
		if err != nil && strings.Contains(err.Error(), a[:8]) {
			t.Errorf("%q: the error reveals the secret: %v", test.text, err)
		}
	}
	if a, b := New(), New(); a == b {
		t.Error("two new secrets are the same")
	}
	if s, err := Parse([]byte(New().String())); err != nil || len(s) != 1 {
		t.Errorf("a new secret can't be read: %v", err)
	}
}

// TestDerived pins the derived values: nodes of different releases must derive
// the same from a secret.
func TestDerived(t *testing.T) {
	a, err := first.issuer()
	expect.NoError(t, err)
	for what, pair := range map[string][2]string{
		"fingerprint": {first.Fingerprint(), "ab1b825b"},
		"gossip key": {hex.EncodeToString(first.GossipKey()),
			"4da785e74b488f12f17139de936ecb29098ef1ec1b875fe2da6c74e190469540"},
		"authority": {hex.EncodeToString(a.key.Public().(ed25519.PublicKey)),
			"b1807cabca9f4912e5f7f86d00879035c8dcf665983936bc3642ae6b460faa6c"},
	} {
		expect.Equal(t, pair[0], pair[1], "%s", what)
	}
	again, err := first.issuer()
	if err != nil || !bytes.Equal(a.cert.Raw, again.cert.Raw) {
		t.Errorf("the authority differs from run to run: %v", err)
	}
	if bytes.Equal(first.GossipKey(), second.GossipKey()) || len(first.GossipKey()) != 32 {
		t.Error("gossip keys do not differ")
	}
	if bytes.Contains(a.key.Seed(), first.GossipKey()) || bytes.Equal(first.GossipKey(), first[:]) {
		t.Error("one is derived from the other")
	}
}

func TestChanges(t *testing.T) {
	for _, test := range []struct {
		name      string
		from, to  []Secret
		unrelated bool
	}{
		{name: "the new one is accepted", from: []Secret{first}, to: []Secret{first, second}},
		{name: "the new one is used", from: []Secret{first, second}, to: []Secret{second, first}},
		{name: "the old one goes", from: []Secret{second, first}, to: []Secret{second}},
		{name: "back", from: []Secret{second, first}, to: []Secret{first, second}},
		{name: "a large step that shares a secret", from: []Secret{first, second}, to: []Secret{third, first}},
		{name: "the other one stays", from: []Secret{first, second}, to: []Secret{second, third}},
		{name: "another cluster", from: []Secret{first}, to: []Secret{second}, unrelated: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, name := open(t, node, test.from...)
			write(t, name, test.to...)
			reload := func() (bool, error) {
				before := f.inForce.Load()
				_, err := f.load()
				return f.inForce.Load() != before, err
			}
			changed, err := reload()
			if test.unrelated {
				if changed || !errors.Is(err, errUnrelated) {
					t.Errorf("have %v, %v", changed, err)
				}
				return
			}
			if !changed || err != nil {
				t.Fatalf("have %v, %v", changed, err)
			}
			var want [][]byte
			for _, s := range test.to {
				want = append(want, s.GossipKey())
			}
			if have := f.Keyring().GetKeys(); !slices.EqualFunc(have, want, bytes.Equal) {
				t.Errorf("have %d keys of gossip, not those of the file", len(have))
			}
			if changed, err := reload(); changed || err != nil {
				t.Errorf("without a change: have %v, %v", changed, err)
			}
		})
	}
}

// TestFollow: an invalid file leaves the secret in force, and is logged once.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, name := open(t, node, first)
		var log process.Output
		f.log = slog.New(slog.NewTextHandler(&log, nil))
		var changes atomic.Int64
		go f.Follow(t.Context(), func() { changes.Add(1) })
		step := func(text string, want int64, says string) {
			t.Helper()
			expect.NoError(t, os.WriteFile(name, []byte(text), 0o600))
			before := len(log.String())
			time.Sleep(10 * time.Second)
			synctest.Wait()
			said := log.String()[before:]
			if changes.Load() != want || strings.Count(said, says) != 1 || strings.Count(said, "\n") != 1 {
				t.Errorf("%q: %d changes, want %d, log:\n%s", text, changes.Load(), want, said)
			}
		}
		step("", 0, "no secret")
		step(second.String(), 0, "none of the secrets in force")
		step(first.String()+"\n"+second.String(), 1, "reloaded")
		step(second.String()+"\n"+first.String(), 2, "used="+second.Fingerprint())
		step(second.String(), 3, "reloaded")
		if strings.Contains(log.String(), second.String()) {
			t.Error("the secret is logged")
		}
	})
}

// handshake makes a TLS connection between two nodes, and returns each end's state.
func handshake(t *testing.T, server, client *tls.Config) (atServer, atClient tls.ConnectionState, err error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	defer listener.Close()
	served := make(chan error, 1)
	go func() {
		raw, err := listener.Accept()
		if err == nil {
			defer raw.Close()
			c := tls.Server(raw, server)
			if err = c.Handshake(); err == nil {
				_, err = c.Write([]byte("x")) // the dialling side learns of a rejected certificate only when it reads
			}
			atServer = c.ConnectionState()
		}
		served <- err
	}()
	raw, err := net.Dial("tcp", listener.Addr().String())
	expect.NoError(t, err)
	c := tls.Client(raw, client)
	if err = c.Handshake(); err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	raw.Close()
	err = errors.Join(err, <-served)
	return atServer, c.ConnectionState(), err
}

func TestHandshakes(t *testing.T) {
	other := [16]byte{8}
	for _, test := range []struct {
		name           string
		server, client []Secret
		bad            bool
	}{
		{name: "one secret", server: []Secret{first}, client: []Secret{first}},
		{name: "the first step", server: []Secret{first, second}, client: []Secret{first}},
		{name: "between the first and the second", server: []Secret{second, first}, client: []Secret{first, second}},
		{name: "the third step", server: []Secret{second}, client: []Secret{second, first}},
		{name: "strangers", server: []Secret{first}, client: []Secret{second}, bad: true},
		{name: "a step left out", server: []Secret{second, first}, client: []Secret{first}, bad: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, _ := open(t, node, test.server...)
			c, _ := open(t, other, test.client...)
			atServer, atClient, err := handshake(t, s.Server(), c.Client())
			if (err != nil) != test.bad {
				t.Fatalf("have %v", err)
			}
			if test.bad {
				return
			}
			if err := errors.Join(s.Verify(atServer, other), c.Verify(atClient, node)); err != nil {
				t.Error(err)
			}
			if s.Verify(atServer, node) == nil || c.Verify(atClient, other) == nil {
				t.Error("a node passes with another's certificate")
			}
		})
	}
}

// TestForged: certificates that an attacker could obtain are rejected.
func TestForged(t *testing.T) {
	f, _ := open(t, node, first)
	ours, err := first.issuer()
	expect.NoError(t, err)
	theirs, err := second.issuer()
	expect.NoError(t, err)
	// The same names and numbers, but another key.
	theirs.cert.RawSubject, theirs.cert.SubjectKeyId = ours.cert.RawSubject, ours.cert.SubjectKeyId
	forged, err := theirs.issue(node)
	expect.NoError(t, err)
	issued, err := ours.issue([16]byte{9})
	expect.NoError(t, err)
	leaf, err := x509.ParseCertificate(issued.Certificate[0])
	expect.NoError(t, err)
	below, err := (&issuer{key: issued.PrivateKey.(ed25519.PrivateKey), cert: leaf}).issue(node)
	expect.NoError(t, err)
	below.Certificate = append(below.Certificate, issued.Certificate[0])
	for name, cert := range map[string]*tls.Certificate{"another authority with the same name": forged, "issued by a node": below} {
		config := f.Client()
		config.Certificates = []tls.Certificate{*cert}
		if _, _, err := handshake(t, f.Server(), config); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	config := f.Client()
	config.Certificates = nil
	if _, _, err := handshake(t, f.Server(), config); err == nil {
		t.Error("no certificate: accepted")
	}
	config = f.Client()
	config.MaxVersion, config.MinVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, _, err := handshake(t, f.Server(), config); err == nil {
		t.Error("TLS 1.2: accepted")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(first.String() + "\n" + second.String()))
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := Parse(text); (err == nil) != (len(s) == 1 || len(s) == 2) {
			t.Errorf("have %d, %v", len(s), err)
		}
	})
}
