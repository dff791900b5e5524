package main

import (
	"errors"
	"testing"

	"github.com/rlnode/rlnode/peer"
)

// TestFarConnectionsBeforeThereIsAPool: other regions look for a node that was restarted before it has a way to them.
func TestFarConnectionsBeforeThereIsAPool(t *testing.T) {
	m := &mates{abroad: make(chan struct{})}
	if err := m.acceptFar(peer.Identity{Region: "us"}); !errors.Is(err, errStarting) {
		t.Errorf("have %v, want %v", err, errStarting)
	}
}
