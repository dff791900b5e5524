package node

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/cluster/regions"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/loads"
	"github.com/rlnode/rlnode/internal/tracing"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/usage"
)

// How long Close takes at most. All of it is done within stopBound: callers are promised ten seconds.
const (
	stopBound = 9 * time.Second
	// leaveBound is for handing counters over to other nodes, while checks are still decided.
	leaveBound = 5 * time.Second
	// drainGrace is how long checks are still decided after /readyz has said that the node goes away: time for a
	// load balancer to look, and for clients to use up what they have sent.
	drainGrace = time.Second
	// saveBound is for most of the counters, while checks are still decided.
	saveBound = 3 * time.Second
	// closeBound is for requests under way when the listeners close.
	closeBound = 2 * time.Second
)

// Node is a running node. Its methods may be called from many goroutines at once.
//
// All parts are there from the beginning, see build; a part that was not started yet answers that it knows nobody and decides
// nothing.
type Node struct {
	config *settings
	log    *slog.Logger
	world  world
	storage

	table      *counters.Table
	private    *counters.Table // of what this node decides by itself
	clock      *limiter.Clock
	meter      *usage.Meter    // nil: turned off
	tracer     *tracing.Tracer // nil: turned off
	protection protection
	peers      *peer.Peers
	wan        *regions.Pool
	loads      *loads.Loads
	cluster    *cluster.Cluster
	keeper     *partitions.Keeper
	limiter    *limiter.Limiter
	usage      *usage.Cluster // nil: turned off
	files      counterFiles
	debts
	api    *api.API
	recent recent

	inquiries sync.Pool     // of *inquiry
	opened    chan struct{} // closed once checks are decided
	over      atomic.Bool   // they are not any more
	left      atomic.Bool   // this node has left the cluster for good
	gone      atomic.Bool   // as left, also at a stop
	replacing atomic.Bool   // this node has just started, and may have to wait until a dead voter is replaced

	ctx    context.Context
	cancel context.CancelFunc
	loops  sync.WaitGroup
	built  []func(context.Context) error // what ends the parts; the last one first

	closing  sync.Once
	closeErr error
}

// Start starts a node. It returns when the node takes part; [Node.WaitReady] returns when it decides checks. If ctx ends before, or
// something fails, all that was opened is closed again.
//
// What stands on something comes after it; and whatever can fail for a mistake in the Config comes before what takes long:
//
//  1. the data directory and its identity, then Raft's store, whose lock keeps a second process away from everything in the
//     directory; then all parts are made, and say which calls of other nodes they answer. None of them runs yet;
//  2. the listeners of the planes: probes are answered from here on, checks with 503 not-ready;
//  3. the counters of the last checkpoint, before this node owns any partition: afterwards they would come too late; and
//     what it had decided by itself, so that a restart renews no share;
//  4. the calls between nodes, and the cluster. It gives the limiter rules and partitions, and the node is ready when it has.
func Start(ctx context.Context, config Config) (*Node, error) {
	c, err := config.complete()
	if err != nil {
		return nil, err
	}
	n, err := build(c)
	for _, step := range []func() error{n.listen, n.load, n.start} {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopBound)
		defer cancel()
		return nil, errors.Join(err, n.release(ctx))
	}
	return n, nil
}

// start has all parts run, in the order in which they stand on each other.
func (n *Node) start() error {
	n.peers.Start()
	if err := n.cluster.Start(); err != nil {
		return err
	}
	if file := n.protection.file; file != nil {
		n.loops.Go(func() { file.Follow(n.ctx, n.peers.Renew) })
	}
	n.loops.Go(func() { n.recent.follow(n.ctx.Done()) })
	n.loops.Go(n.followLoads)
	n.loops.Go(n.awaitReady)
	return nil
}

// open lets checks in.
func (n *Node) open() {
	for _, w := range n.limiter.Rules().Document.Warnings() {
		n.log.Warn("the rules ask for what is not in force", "at", w.Path, "what", w.Message)
	}
	n.api.Ready()
	close(n.opened)
}

// ready says that probes are told so, too.
func (n *Node) ready() {
	attributes := []any{"name", n.config.Name}
	scheme := "http"
	if n.config.CertFile != "" {
		scheme = "https"
	}
	if a := n.api.DataAddr(); a != nil {
		attributes = append(attributes, "data", scheme+"://"+a.String())
	}
	if a := n.api.AdminAddr(); a != nil {
		attributes = append(attributes, "admin", scheme+"://"+a.String())
	}
	n.log.Info("ready", append(attributes, "rules_version", n.limiter.Rules().Version)...)
}

// WaitReady returns when the node decides checks: at once in a cluster that is well, and not before a new one is founded. The
// error is the context's, or client.ErrClosed.
func (n *Node) WaitReady(ctx context.Context) error {
	select {
	case <-n.opened:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-n.ctx.Done():
		return client.ErrClosed
	}
}

// DataAddr is where the data plane listens, AdminAddr the admin plane; nil without one.
func (n *Node) DataAddr() net.Addr { return n.api.DataAddr() }

// AdminAddr is where the admin plane listens; nil without one.
func (n *Node) AdminAddr() net.Addr { return n.api.AdminAddr() }

// Close ends a node in good order, within ten seconds, and waits for its goroutines. Nothing that it has counted is lost: other
// nodes have it, or the data directory. It may be called again.
//
//  1. /readyz says 503, so that load balancers turn away, while checks are decided as before;
//  2. the partitions are handed over: from then on other nodes decide, and this one asks them;
//  3. most counters that are left are saved meanwhile, while time is not short;
//  4. with LeaveOnClose the cluster is left for good;
//  5. the listeners close, when what is under way has been answered: nothing is decided any more;
//  6. what has changed since step 3 is saved, so that nothing decided is forgotten; a node that leaves for good hands
//     over what it has counted for bills since step 4;
//  7. the calls between nodes end, and Raft; its store closes last: its lock says to others that the directory is in
//     use until then.
func (n *Node) Close() error {
	n.closing.Do(func() { n.closeErr = n.stop() })
	return n.closeErr
}

func (n *Node) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopBound)
	defer cancel()
	n.api.Drain()
	grace := time.NewTimer(drainGrace)
	defer grace.Stop()
	n.handOver(ctx)
	if err := n.save(ctx); err != nil {
		// The last checkpoint, in release, is what matters; it tells if it fails as well.
		n.log.Warn("counters are not saved yet", "error", err)
	}
	if n.api.DataAddr() != nil || n.api.AdminAddr() != nil {
		<-grace.C
	}
	err := n.release(ctx)
	if err == nil {
		n.log.Info("stopped")
	}
	return err
}

// handOver hands the partitions over. What could not be handed over in time is saved, and found again by the next start.
func (n *Node) handOver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveBound)
	defer cancel()
	if err := n.stepBack(ctx, n.config.LeaveOnClose); err != nil {
		n.log.Warn("not all counters are handed over", "error", err)
	}
}

// release closes what is open, the last thing first.
func (n *Node) release(ctx context.Context) error {
	var errs []error
	for len(n.built) > 0 {
		last := len(n.built) - 1
		errs = append(errs, n.built[last](ctx))
		n.built = n.built[:last]
	}
	return errors.Join(errs...)
}

// stepBack hands this node's partitions over, and leaves the cluster if it is for good.
func (n *Node) stepBack(ctx context.Context, forGood bool) error {
	if n.left.Load() {
		return nil
	}
	n.limiter.UseLeases(false)
	if err := n.cluster.LeaveRing(ctx); err != nil || !forGood {
		n.limiter.UseLeases(err != nil)
		return err
	}
	return n.leaveCluster(ctx)
}

// leaveCluster leaves for good, once another node has what was counted here: without that this node stays a member
// that is away, so that nobody takes what the others have for all.
func (n *Node) leaveCluster(ctx context.Context) error {
	if err := n.handUsage(ctx); err != nil {
		return err
	}
	if err := n.cluster.LeaveCluster(ctx); err != nil {
		return err
	}
	if err := n.wan.Leave(ctx); err != nil {
		n.log.Info("other regions were not told that this node leaves", "error", err)
	}
	n.gone.Store(true)
	return nil
}
