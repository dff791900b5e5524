package regions

import (
	"log/slog"
	"testing"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/testca"
)

// loadTLS creates and loads a node's certificate.
func loadTLS(t *testing.T, a *testca.Authority) *peer.TLS {
	t.Helper()
	cert, key, ca := a.Write(t, t.TempDir())
	s, err := peer.LoadTLS(cert, key, ca, slog.New(slog.DiscardHandler))
	expect.NoError(t, err)
	return s
}
