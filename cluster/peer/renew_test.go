package peer

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/secret"
	"github.com/rlnode/rlnode/internal/expect"
)

func writeSecrets(t *testing.T, name string, all ...secret.Secret) {
	t.Helper()
	var text strings.Builder
	for _, s := range all {
		text.WriteString(s.String() + "\n")
	}
	expect.NoError(t, os.WriteFile(name, []byte(text.String()), 0o600))
}

// withSecret makes a node follow a secret file. A cleanup stops that before the node closes.
func withSecret(t *testing.T, name string) option {
	return func(c *Config, n *node) {
		f, err := secret.Open(name, n.id, slog.New(slog.DiscardHandler))
		expect.NoError(t, err)
		c.TLS = f
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.Follow(ctx, func() { n.Renew() })
		}()
		t.Cleanup(func() { cancel(); <-done })
	}
}

// TestSecretIsChanged: no call fails while two nodes move from one secret to
// another in three steps. Afterwards, a node with the old secret is a stranger.
func TestSecretIsChanged(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		old, next := secret.Secret{1}, secret.Secret{2}
		dir := t.TempDir()
		files := []string{filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "c")}
		write := func(name string, all ...secret.Secret) { writeSecrets(t, name, all...) }
		for _, name := range files {
			write(name, old)
		}
		a, b := w.node(1, withSecret(t, files[0])), w.node(2, withSecret(t, files[1]))
		w.connect(a, b)
		// One of Raft's connections. It keeps the secret that it was dialled with until
		// it is closed.
		toRaft, err := a.Raft().Dial(b.address, time.Second)
		expect.NoError(t, err)
		atRaft, err := b.Raft().Accept()
		expect.NoError(t, err)
		defer atRaft.Close()

		ctx, cancel := context.WithCancel(t.Context())
		var load sync.WaitGroup
		var calls atomic.Int64
		for _, pair := range [][2]*node{{a, b}, {b, a}} {
			load.Go(func() {
				for ctx.Err() == nil {
					if _, err := pair[0].Call(context.Background(), pair[1].id, methodSlow,
						[]byte("hello")); err != nil {
						t.Errorf("a call failed: %v", err)
					}
					calls.Add(1)
				}
			})
		}
		first := [2]*conn{a.link(b), b.link(a)}
		for _, step := range [][]secret.Secret{{old, next}, {next, old}, {next}} {
			for _, name := range files[:2] {
				write(name, step...)
				time.Sleep(20 * time.Second) // the other nodes are still at the previous step
			}
		}
		if _, err := toRaft.Write([]byte("x")); err == nil {
			t.Error("Raft's connection with the old secret is still open")
		}
		for i, c := range [2]*conn{a.link(b), b.link(a)} {
			if c == first[i] || !c.socket.hasCurrentCredentials() || first[i].endReason() == nil {
				t.Errorf("connection %d does not use the new secret", i)
			}
		}
		cancel()
		load.Wait()
		if calls.Load() < 4_000 {
			t.Errorf("only %d calls were made", calls.Load())
		}

		stranger := w.node(3, withSecret(t, files[2]))
		stranger.knows(a)
		time.Sleep(5 * time.Second)
		if _, _, err := stranger.CallAt(t.Context(), a.address, methodEcho, nil); !errors.Is(err, ErrUnreachable) {
			t.Errorf("a node with the old secret: have %v", err)
		}
		if _, err := stranger.Raft().Dial(a.address, time.Second); err == nil {
			t.Error("Raft of a node with the old secret is accepted")
		}
		if stranger.Reachable(a.id) {
			t.Error("a node with the old secret is connected")
		}
	})
}

// TestSecretThatIsLost: a node that did not get a new secret is cut off ten
// seconds after the last step of the change.
func TestSecretThatIsLost(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		old, next := secret.Secret{1}, secret.Secret{2}
		dir := t.TempDir()
		ours, theirs := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		writeSecrets(t, ours, old, next)
		writeSecrets(t, theirs, old)
		a, b := w.node(1, withSecret(t, ours)), w.node(2, withSecret(t, theirs))
		w.connect(a, b)
		writeSecrets(t, ours, next)
		time.Sleep(5 * time.Second)
		w.echo(a, b, "still")
		w.echo(b, a, "still")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if a.Reachable(b.id) || b.Reachable(a.id) {
			t.Error("they are still connected")
		}
	})
}

// TestNamesAreCertified: even with the secret, a node can't use another node's ID by mistake.
func TestNamesAreCertified(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		name := filepath.Join(t.TempDir(), "secret")
		writeSecrets(t, name, secret.Secret{1})
		a := w.node(1, withSecret(t, name))
		b := w.node(2, withSecret(t, name), withID(nodeID(2)))
		b.mu.Lock()
		b.self.Node = nodeID(7) // its certificate is for node 2
		b.mu.Unlock()
		if _, _, err := b.CallAt(t.Context(), a.address, methodEcho, nil); err == nil ||
			!strings.Contains(err.Error(), "certificate") {
			t.Errorf("have %v", err)
		}
		if _, _, err := a.CallAt(t.Context(), b.address, methodEcho, nil); err == nil ||
			!strings.Contains(err.Error(), "certificate") {
			t.Errorf("the other way: have %v", err)
		}
	})
}

// link returns the connection for calls to another node.
func (n *node) link(to *node) *conn { return (*n.links.Load())[to.id].currentConn() }
