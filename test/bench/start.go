package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/persist"
)

// fromDisk measures S9: the time from the start of a node's process until it is
// ready, with many counters in its data directory, compared with the same node
// without any.
func (b *bench) fromDisk(ctx context.Context) error {
	const name = "stored"
	start := func(ctx context.Context) (*node, float64, error) {
		begin := time.Now()
		n, err := b.startNode(b.program, name, b.host(1), benchRules, "--max-counters", strconv.FormatInt(tableBound(b.stored), 10))
		if err == nil {
			err = n.awaitReady(ctx)
		}
		return n, time.Since(begin).Seconds(), err
	}

	// The first start founds the cluster, which must not count.
	n, _, err := start(ctx)
	if err != nil {
		return err
	}

	n.stop()
	var empty, full series
	for range b.rounds {
		n, took, err := start(ctx)
		if err != nil {
			return err
		}
		n.stop()
		empty = append(empty, took)
	}

	b.progress(fmt.Sprintf("writing %d counters", b.stored))
	if err := store(ctx, filepath.Join(b.dir, name), b.stored); err != nil {
		return err
	}

	for r := range b.rounds {
		b.progress(fmt.Sprintf("round %d of %d: a start with %d counters", r+1, b.rounds, b.stored))
		n, took, err := start(ctx)
		if err != nil {
			return err
		}

		m, err := n.metrics(ctx)
		n.stop()

		if err != nil {
			return err
		}
		if have := m["rlnode_counters"]; have < float64(b.stored) {
			return fmt.Errorf("the node has %.0f counters of %d", have, b.stored)
		}

		full = append(full, took)
	}

	b.report.add("S9",
		fmt.Sprintf("start with %s counters on disk, to ready, s", thousands(int64(b.stored))),
		atMost(10, "≤ 10"), asRatio(full), "")
	b.report.figure("S9", "start without counters", "", "s", empty)
	return nil
}

// store writes count counters into the data directory of a stopped node, like a clean stop.
func store(ctx context.Context, dir string, count int) error {
	table := counters.New(tableBound(count))
	defer table.Close()

	config := persist.DefaultCounterFileConfig()
	config.Dir, config.Source, config.Now = dir, table, func() algorithms.Instant { return algorithms.At(time.Now()) }
	file, err := persist.OpenCounterFile(config)
	if err != nil {
		return err
	}
	if _, err := file.Load(config.Now()); err != nil {
		return err
	}
	if err := fill(table, count); err != nil {
		return err
	}

	return file.Close(ctx)
}
