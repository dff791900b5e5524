package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/api"
)

// Close shuts the node down gracefully, within ten seconds, and waits for its
// goroutines. Other nodes or the data directory keep all that the node has
// counted; a node that has neither loses it. Further calls return the same
// error.
//
//  1. Probes fail at all doors, so that load balancers send checks elsewhere.
//     Checks are still decided, for at least api.DrainGrace.
//  2. The partitions are handed over. From then on, this node asks their new
//     owners.
//  3. With LeaveOnClose the node leaves the cluster for good.
//  4. Most of the remaining counters are saved, so that step 6 takes little
//     time. Then this process's own slots are released.
//  5. The listeners close once the requests in flight are answered. From here
//     on, no check is decided.
//  6. Counters that changed since step 4 are saved, so that no decision is
//     forgotten. A node that leaves for good hands over the usage that it has
//     counted since step 3.
//  7. Raft and gossip end, then the limiter and what holds partitions, then the
//     calls between nodes. Raft's store closes last: until then its lock tells
//     others that the directory is in use.
//
// If the disk hangs, Close returns an error in time all the same. The remaining
// steps follow when the disk answers; until then, the directory stays in use.
func (n *Node) Close() error {
	n.closing.Do(func() { n.closeErr = inTime(n.stop) })
	return n.closeErr
}

func (n *Node) stop(ctx context.Context) error {
	// Step 1. The grace time passes while the partitions are handed over.
	n.doors.Drain()
	grace := time.After(api.DrainGrace)

	left := n.handOver(ctx) // steps 2 and 3

	// Step 4.
	if err := n.saveAhead(ctx); err != nil {
		// Only the last checkpoint, in release, matters. It reports its own failure.
		n.log.Warn("counters can't be saved yet", "error", err)
	}

	// This is the end of step 1: load balancers have had their time.
	if n.data != nil || n.grpc != nil || n.redis != nil || n.admin != nil {
		<-grace
	}
	n.slots.Close()

	err := errors.Join(left, n.release(ctx)) // steps 5 to 7, in the reverse order of build and Start
	if err == nil {
		n.log.Info("stopped")
	}

	return err
}

// handOver hands the partitions over. Those that can't be handed over in time
// are saved for the next start. It returns an error if the node was to leave
// for good, and is still a member.
func (n *Node) handOver(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()

	err := n.leave(ctx, n.config.LeaveOnClose, "")
	if err != nil && n.config.LeaveOnClose {
		return fmt.Errorf("%s has not left the cluster and keeps its vote; `rlnode remove %s` at another node removes it: %w",
			n.config.Name, n.config.Name, err)
	}
	if err != nil {
		n.log.Warn("not all counters are handed over", "error", err)
	}

	return nil
}

// leave hands this node's partitions over. If forGood is set, it also leaves
// the cluster, once another node has the usage counted here. by names the user
// who gave the command; it is empty if nobody did.
//
// If no other node takes the usage, this node stays a member: if it left, the
// others would report incomplete usage as complete.
func (n *Node) leave(ctx context.Context, forGood bool, by string) error {
	if n.leftOnRequest.Load() {
		return nil
	}

	if forGood {
		// This comes first: if it fails, the node is still a member.
		if err := n.handOverUsage(ctx); err != nil {
			return err
		}
	}

	n.limiter.UseLeases(false)
	if err := n.cluster.LeaveRing(ctx); err != nil {
		n.limiter.UseLeases(true) // the node stays in the ring, and goes on as before
		return err
	}

	if !forGood {
		return nil
	}
	return n.leaveCluster(ctx, by)
}

// leaveCluster ends the membership of a node that has handed over its
// partitions. Before that, it hands over the usage counted since the last
// hand-over.
func (n *Node) leaveCluster(ctx context.Context, by string) error {
	n.awaitDebtsReported(ctx)
	if err := n.handOverUsage(ctx); err != nil {
		return err
	}
	if err := n.cluster.LeaveCluster(ctx, by); err != nil {
		return err
	}
	if err := n.wan.Leave(ctx); err != nil {
		n.log.Info("could not inform other regions that this node is leaving", "error", err)
	}
	n.left.Store(true)
	return nil
}

const (
	// debtsPatience bounds how long a node that leaves for good waits until it has
	// reported its debts: they are held back for up to two seconds after a cut.
	debtsPatience = 3 * time.Second
	// leaveReserve is how much time the wait for debts leaves to the steps after it.
	leaveReserve = 2 * time.Second
	// debtsPollInterval is the time between two looks of awaitDebtsReported.
	debtsPollInterval = 20 * time.Millisecond
)

// awaitDebtsReported waits until the owners have acknowledged what this node
// admitted without them: once this node is no longer a member, they refuse its
// reports. It gives up when debtsPatience has passed, or little is left of ctx.
func (n *Node) awaitDebtsReported(ctx context.Context) {
	patience := debtsPatience
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(deadline)-leaveReserve)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	for n.keeper.Stats().Debts > 0 {
		select {
		case <-time.After(debtsPollInterval):
		case <-ctx.Done():
			n.log.Warn("some of what this node admitted without the owners is not counted there: they don't answer",
				"counters", n.keeper.Stats().Debts)
			return
		}
	}
}
