package node

import (
	"context"
	"errors"
)

// Start starts a node. It returns when the node takes part in the cluster;
// [Node.WaitReady] returns when it decides checks. If ctx ends first or a step
// fails, Start closes all it has opened.
//
// Each step comes after those it depends on. Steps that can fail because of a
// mistake in the Config come before those that take long:
//
//  1. Open the data directory and read the identity, then open Raft's store,
//     whose lock keeps other processes away from the whole directory. Make all
//     parts and register the calls they answer for other nodes. None of them
//     calls another node yet.
//  2. Open the planes' listeners. Probes are answered from here on; checks get
//     503 not-ready.
//  3. Load the counters of the last checkpoint, before this node can own a
//     partition. Load the fallback counters, too, so that a restart doesn't
//     renew the node's share.
//  4. Start the calls between nodes, and the cluster. The cluster gives the
//     limiter its rules and partitions; then the node is ready.
func Start(ctx context.Context, config Config) (*Node, error) {
	c, err := config.complete()
	if err != nil {
		return nil, err
	}

	n, err := build(c)
	for _, step := range []func() error{n.listen, n.restoreCounters, n.start} {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = step()
		}
	}

	if err != nil {
		// ctx is not used: its end may be why the start failed.
		return nil, errors.Join(err, inTime(n.release))
	}

	return n, nil
}

// start starts all parts, each after those it depends on.
func (n *Node) start() error {
	n.peers.Start()
	if err := n.cluster.Start(); err != nil {
		return err
	}

	file := n.protection.file
	if file != nil {
		n.loops.Go(func() { file.Follow(n.ctx, n.peers.Renew) })
	}

	n.loops.Go(func() { n.recent.follow(n.ctx.Done()) })
	n.loops.Go(func() { n.history.Follow(n.ctx.Done()) })

	refusals := n.refusals()
	if refusals != nil {
		n.loops.Go(func() { n.followRefusals(refusals) })
	}

	n.loops.Go(n.followLoads)
	n.loops.Go(n.followClock)

	if n.usage != nil {
		n.usage.Start()
	}

	n.loops.Go(n.awaitReady)
	return nil
}
