package admin

import (
	"net/http/httptest"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// Callers at the same time may get the same body, so none may write behind it.
func TestSharedBodies(t *testing.T) {
	t.Parallel()
	shared := []byte("{}x")
	w := httptest.NewRecorder()
	(&Server{}).sendJSON(w, shared[:2])
	expect.Equal(t, w.Body.String(), "{}\n", "answer")
	expect.Equal(t, string(shared), "{}x", "the body and what is behind it")
}
