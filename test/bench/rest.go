package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

const (
	restAfter = 15 * time.Second // until the aftermath of a start is over: the ring, hand-offs, the first checkpoints
	restFor   = 10 * time.Second // per round, because processor time has a resolution of 10 ms
)

// atRest measures S11: three nodes without checks.
func (b *bench) atRest(ctx context.Context) error {
	var addresses []string
	for i := range clusterSize {
		addresses = append(addresses, b.host(21+i))
	}

	nodes, err := b.startCluster(ctx, addresses)
	if err != nil {
		return err
	}

	defer stopAll(nodes)

	if err := pause(ctx, restAfter); err != nil {
		return err
	}

	var cpu, written series // per node
	for range b.rounds {
		before := make([]spent, len(nodes))
		for i, n := range nodes {
			if before[i], err = n.spent(); err != nil {
				return err
			}
		}

		start := time.Now()
		if err := pause(ctx, restFor); err != nil {
			return err
		}

		for i, n := range nodes {
			now, err := n.spent()
			if err != nil {
				return err
			}
			took := time.Since(start).Seconds()
			cpu = append(cpu, 100*(now.cpu-before[i].cpu).Seconds()/took)
			written = append(written, float64(now.written-before[i].written)/1000/took)
		}

		b.progress("three nodes at rest")
	}

	b.report.add("S11", "an idle node of three: processor, % of a core", atMost(2, "≤ 2"), asRatio(cpu), "")
	b.report.add("S11", "an idle node of three: written to disk, kB/s", atMost(2, "≤ 2"), asRatio(written), "")
	return nil
}

// spent is the resources that a process has used.
type spent struct {
	cpu     time.Duration
	written int64 // bytes that it caused to be written to disk
}

func (p *process) spent() (u spent, err error) {
	if u.cpu, err = p.cpu(); err != nil {
		return u, err
	}

	f, err := os.Open(fmt.Sprintf("/proc/%d/io", p.cmd.Process.Pid))
	if err != nil {
		return u, fmt.Errorf("read what %s has written: %w", p.name, err)
	}

	defer f.Close()

	for name := ""; ; {
		var n int64
		if _, err := fmt.Fscan(f, &name, &n); err != nil {
			return u, fmt.Errorf("read what %s has written: %w", p.name, err)
		}
		if name == "write_bytes:" {
			u.written = n
			return u, nil
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
