package main

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/internal/process"
)

// TestPool: three pools of workers, as on three machines, never have more than
// seven at work, and the one that ends gives its slots back at once.
func TestPool(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "rlnode")
	if err := process.Build(program); err != nil {
		t.Fatal(err)
	}
	rules, err := filepath.Abs("rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	node := process.Start(t, program, "--rules", rules)

	var atWork, most, done atomic.Int64
	pools := make([]func(), 3)
	var all sync.WaitGroup
	defer all.Wait()
	for i := range pools {
		c, err := client.New(client.Options{Nodes: []string{node.Data}, OnError: client.Closed,
			Timeout: process.Timeout})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		pools[i] = stop
		p := pool{client: c, tenant: "acme", job: func(ctx context.Context, _ int) {
			now := atWork.Add(1)
			for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
			atWork.Add(-1)
			done.Add(1)
		}}
		all.Go(func() {
			p.run(ctx, 10)
			c.Close()
		})
	}

	process.Eventually(t, "seven are at work", func() bool { return most.Load() == 7 })
	pools[0]()
	before := done.Load()
	process.Eventually(t, "the others go on", func() bool { return done.Load() > before+20 })
	if most.Load() > 7 {
		t.Errorf("%d were at work at once", most.Load())
	}
	if _, err := os.Stat("README.md"); err != nil {
		t.Error(err)
	}
}
