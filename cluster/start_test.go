package cluster

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

// Before Start, a Cluster knows no other nodes, leads nothing and changes
// nothing, no matter which methods are called, and it can be closed.
func TestBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.add(1)
		n.idle = true
		n.run()
		c := n.c.Load()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if v := c.View(); len(v.Members) > 0 || v.Connected || c.Authority() ||
			!c.Leader().IsZero() || len(c.EntryNodes()) > 0 {
			t.Errorf("have %+v", v)
		}
		if err := c.ReadyError(); err == nil {
			t.Error("it is ready")
		}
		if c.AwaitRevision(ctx, 1, 1) || c.tracker.Behind() || c.tracker.Split() || c.DegradedError() != nil ||
			c.ReplacingError() != nil {
			t.Error("it reports something that it can't know")
		}
		expect.ErrorIs(t, c.CatchUp(ctx), ErrLeaderUnavailable, "catch")
		for what, ask := range map[string]func() error{
			"write": func() error {
				_, err := c.Write(ctx, document.Change{Body: []byte(firstRules)}, WriteOptions{})
				return err
			},
			"raise":         func() error { _, err := c.Raise(ctx, 0); return err },
			"remove":        func() error { return c.Remove(ctx, "n2", false, "ann") },
			"remove region": func() error { _, err := c.RemoveRegion(ctx, "there"); return err },
		} {
			if err := ask(); err == nil || errors.Is(err, ErrOutcomeUnknown) {
				t.Errorf("%s: have %v", what, err)
			}
		}
		w.end()
	})
}
