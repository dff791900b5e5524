package secret

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/internal/reload"
	"github.com/rlnode/rlnode/internal/tick"
)

const maxFile = 4 << 10 // bytes

// errForeignCertificate means that a certificate was not issued by a secret of this
// cluster, or was issued to another node.
var errForeignCertificate = errors.New("it does not have this cluster's secret")

// errUnrelated rejects a change that would cut the node off from the others.
var errUnrelated = errors.New("it has none of the secrets in force: change it in three steps, old and new, new and old, new, " +
	"each on every node before the next")

// File follows a file with the secrets of the cluster. Its methods are safe for concurrent use.
type File struct {
	name    string
	node    [16]byte
	log     *slog.Logger
	keyring *memberlist.Keyring
	inForce atomic.Pointer[derivedKeys]
	files   *reload.Files[*derivedKeys]
}

// derivedKeys holds the values derived from the file. It is immutable.
type derivedKeys struct {
	secrets []Secret  // the first one is used, all are accepted
	issuers []*issuer // one per secret
	leaf    *tls.Certificate
}

// Read reads the secrets in a file. The error names the file.
func Read(name string) ([]Secret, error) {
	text, err := readFile(name)
	if err != nil {
		return nil, err
	}
	secrets, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return secrets, nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s: it has more than %d bytes", name, maxFile)
	}
	return text, err
}

// Open reads the file, which must be valid, and issues this node's certificate.
// Follow picks up changes.
func Open(name string, node [16]byte, log *slog.Logger) (*File, error) {
	f := &File{name: name, node: node, log: log}
	var err error
	f.files, err = reload.Open(f.load, f.report, name)
	if err != nil {
		return nil, fmt.Errorf("read the cluster's secret: %w", err)
	}
	return f, nil
}

// deriveKeys derives the values to bring into force. It keeps the certificate
// while the first secret stays, so that connections with it stay valid.
func (f *File) deriveKeys(secrets []Secret, old *derivedKeys) (*derivedKeys, error) {
	made := &derivedKeys{secrets: secrets}
	for _, s := range secrets {
		a, err := s.issuer()
		if err != nil {
			return nil, err
		}
		made.issuers = append(made.issuers, a)
	}

	if old != nil && old.secrets[0] == secrets[0] {
		made.leaf = old.leaf
		return made, nil
	}

	var err error
	made.leaf, err = made.issuers[0].issue(f.node)
	return made, err
}

// Follow checks the file once a second until ctx ends, and calls changed after
// new secrets have come into force. If the file is unusable, the secrets in
// force stay.
func (f *File) Follow(ctx context.Context, changed func()) {
	for range tick.Every(ctx.Done(), reload.Interval) {
		before := f.inForce.Load()
		f.files.Check()
		if f.inForce.Load() != before {
			changed()
		}
	}
}

// load brings the file's secrets into force if they differ.
func (f *File) load() (*derivedKeys, error) {
	secrets, err := Read(f.name)
	if err != nil {
		return nil, err
	}

	old := f.inForce.Load()
	if old != nil && slices.Equal(secrets, old.secrets) {
		return old, nil
	}
	if old != nil && !slices.ContainsFunc(secrets, func(s Secret) bool { return slices.Contains(old.secrets, s) }) {
		return nil, errUnrelated
	}

	made, err := f.deriveKeys(secrets, old)
	if err != nil {
		return nil, err
	}

	// Gossip comes first: if its keys can't be changed, the secrets in force
	// stay.
	if err := f.replaceGossipKeys(old, secrets); err != nil {
		return nil, fmt.Errorf("change the keys of gossip: %w", err)
	}

	f.inForce.Store(made)
	return made, nil
}

// report logs the outcome of a change of the file.
func (f *File) report(_ *derivedKeys, err error) {
	if err != nil {
		f.log.Error("the cluster's secret can't be reloaded; the one in force stays", "file", f.name, "error", err)
		return
	}
	f.log.Info("the cluster's secret is reloaded", "file", f.name, "used", f.Fingerprints()[0],
		"accepted", f.Fingerprints())
}

// replaceGossipKeys replaces the gossip keys of before, nil at first, with
// those of next. The two share a secret, which is used in between. It removes
// only the last key, because memberlist would overwrite keys that other
// goroutines are reading.
func (f *File) replaceGossipKeys(before *derivedKeys, next []Secret) (err error) {
	if before == nil {
		var keys [][]byte
		for _, s := range next {
			keys = append(keys, s.GossipKey())
		}
		f.keyring, err = memberlist.NewKeyring(keys, keys[0])
		return err
	}

	old := before.secrets
	var kept Secret
	for _, s := range next {
		if slices.Contains(old, s) {
			kept = s
		}
	}

	if err := f.keyring.UseKey(kept.GossipKey()); err != nil {
		return err
	}

	for _, s := range old {
		if !slices.Contains(next, s) {
			if err := f.keyring.RemoveKey(s.GossipKey()); err != nil {
				return err
			}
		}
	}

	for _, s := range next {
		if err := f.keyring.AddKey(s.GossipKey()); err != nil {
			return err
		}
	}

	return f.keyring.UseKey(next[0].GossipKey())
}

// Keyring returns the gossip keys; it follows the file.
func (f *File) Keyring() *memberlist.Keyring { return f.keyring }

// Fingerprints identifies the secrets in force without revealing them, the one in use first.
func (f *File) Fingerprints() (all []string) {
	for _, s := range f.inForce.Load().secrets {
		all = append(all, s.Fingerprint())
	}
	return all
}

// Server returns the configuration for one handshake with a node that dialled this one.
func (f *File) Server() *tls.Config {
	c := f.config()
	c.ClientAuth = tls.RequireAnyClientCert // VerifyConnection checks it
	return c
}

// Client returns the configuration for one handshake with a node that this one dials.
func (f *File) Client() *tls.Config {
	c := f.config()
	c.InsecureSkipVerify = true // skips only the host name: VerifyConnection checks the chain
	return c
}

func (f *File) config() *tls.Config {
	now := f.inForce.Load()
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{*now.leaf},
		SessionTicketsDisabled: true, // every handshake must check the certificate
		VerifyConnection:       func(s tls.ConnectionState) error { return now.accept(s.PeerCertificates) },
	}
}

// accept returns an error unless one of the issuers has issued the remote's certificate.
func (d *derivedKeys) accept(certs []*x509.Certificate) error {
	if len(certs) == 0 {
		return errForeignCertificate
	}
	for _, a := range d.issuers {
		if a.verify(certs[0]) == nil {
			return nil
		}
	}
	return errForeignCertificate
}

// Verify returns an error unless the remote end of a connection is node.
func (f *File) Verify(s tls.ConnectionState, node [16]byte) error {
	if err := f.inForce.Load().accept(s.PeerCertificates); err != nil {
		return err
	}
	uris := s.PeerCertificates[0].URIs
	if len(uris) != 1 || uris[0].String() != nodeURI(node).String() {
		return fmt.Errorf("%w: its certificate is not for node %x", errForeignCertificate, node)
	}
	return nil
}

// Current reports whether a connection uses the values in force. config is what
// made the connection, and s its state.
func (f *File) Current(s tls.ConnectionState, config *tls.Config) bool {
	now := f.inForce.Load()
	used := config.Certificates[0].Certificate[0]
	return bytes.Equal(used, now.leaf.Certificate[0]) && now.accept(s.PeerCertificates) == nil
}
