package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
)

// A change that no entry of the log can hold is refused for certain, whichever
// node is asked: nobody has to wonder whether it was made.
func TestTooLargeAChangeIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.founded(3)
		large := strings.Repeat("x", 60_000)
		var changes []EntryChange
		for range agreement.MaxEntriesChange/len(large) + 1 {
			changes = append(changes, denial(large, 60_000, false)...)
		}

		for _, n := range nodes {
			began := time.Now()
			_, _, err := n.c.Load().WriteEntries(t.Context(), changes)
			if !errors.Is(err, ErrRefused) || time.Since(began) > 5*time.Second {
				t.Errorf("%s: got %v after %v, want ErrRefused at once", n.name, err, time.Since(began))
			}
		}
	})
}
