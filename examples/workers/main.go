// Command workers is a pool of workers of which, over all machines, only so
// many work at once: see README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rlnode/rlnode/client"
)

func main() {
	nodes := flag.String("nodes", "http://127.0.0.1:8080", "the nodes' addresses, separated by commas")
	workers := flag.Int("workers", 50, "how many workers this machine has")
	tenant := flag.String("tenant", "acme", "for whom they work")
	takes := flag.Duration("takes", 2*time.Second, "how long a job takes")
	flag.Parse()

	// The nodes decide, or nobody works: what passes without them would be unbounded.
	c, err := client.New(client.Options{Nodes: strings.Split(*nodes, ","), OnError: client.Closed,
		Rules: []string{"render"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close() // which releases what is held
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	p := pool{client: c, tenant: *tenant, job: func(ctx context.Context, worker int) {
		log.Printf("worker %d begins a job", worker)
		select {
		case <-time.After(*takes):
		case <-ctx.Done():
			log.Printf("worker %d stops: %v", worker, context.Cause(ctx))
		}
	}}
	p.run(ctx, *workers)
}

// pool is the workers of one machine.
type pool struct {
	client *client.Client
	tenant string
	// job is one piece of work. It has to stop when its context ends: its slot is
	// lost, or the program is to end.
	job func(ctx context.Context, worker int)
}

// run has all workers work until ctx ends.
func (p *pool) run(ctx context.Context, workers int) {
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				p.workOnce(ctx, worker)
			}
		})
	}
	all.Wait()
}

// workOnce waits for a slot and does one job while it holds it.
func (p *pool) workOnce(ctx context.Context, worker int) {
	slot, err := p.client.Acquire(ctx, client.Request{Rule: "render", Key: []string{p.tenant}, Wait: true}, 0)
	if err != nil {
		if ctx.Err() == nil {
			log.Printf("worker %d: %v", worker, err)
			rest(ctx, err)
		}
		return
	}
	defer slot.Close()
	p.job(slot.Context(), worker)
}

// rest waits before the next attempt: nodes that don't answer need not be asked
// by all workers at once.
func rest(ctx context.Context, err error) {
	pause := time.Second
	if refused, ok := errors.AsType[*client.Refused](err); ok && refused.RetryAfter > 0 {
		pause = refused.RetryAfter
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
}
