package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/api/envoy"
	"github.com/rlnode/rlnode/api/httpd"
	"github.com/rlnode/rlnode/api/resp"
	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/cluster/regions"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/history"
	"github.com/rlnode/rlnode/internal/tasks"
	"github.com/rlnode/rlnode/internal/tracing"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/limiter/loads"
	"github.com/rlnode/rlnode/usage"
)

// Bounds on the steps of Close. Together they take at most stopTimeout, because
// Close promises ten seconds. Only a step that waits for a disk may take
// longer, because no context ends the wait. Close then returns without the
// step, after hangTimeout.
const (
	stopTimeout = 9 * time.Second
	hangTimeout = stopTimeout + 500*time.Millisecond
	// leaveTimeout bounds handing partitions over to other nodes, while checks are still decided.
	leaveTimeout = 5 * time.Second
	// saveTimeout bounds saving most of the counters, while checks are still decided.
	saveTimeout = 3 * time.Second
	// closeTimeout bounds waiting for requests in flight when the listeners close.
	closeTimeout = 2 * time.Second
)

// Node is a running node. Its methods may be called from many goroutines at once.
//
// All parts exist from the beginning; see build. A part that hasn't started yet
// answers that it knows no other node and decides nothing.
type Node struct {
	config *settings
	log    *slog.Logger
	env    environment
	storage

	table      *counters.Table
	fallback   *counters.Table // counters of what this node decides alone
	clock      *limiter.Clock
	meter      *usage.Meter    // nil if turned off
	tracer     *tracing.Tracer // nil if turned off
	protection protection
	peers      *peer.Peers
	wan        *regions.Pool
	loads      *loads.Loads
	cluster    *cluster.Cluster
	keeper     *partitions.Keeper
	limiter    *limiter.Limiter
	usage      *usage.Totals // nil if turned off
	history    *history.History
	events     *history.Events // what the node logs
	// doorLatencies has the open doors. It does not change once all are open.
	doorLatencies []doorLatency
	files         counterFiles
	debtsSaving
	doors *api.Doors
	data  *httpd.Server // nil: no data plane
	grpc  *envoy.Server // nil: no Envoy service
	redis *resp.Server  // nil: no Redis protocol
	// grpcConfigured is the configured address for Envoy if its port was in use, so
	// that the node took another; else empty.
	grpcConfigured string
	admin          *admin.Server // nil: no admin plane
	recent         recent

	slots         client.SlotSet // the slots that this process holds
	inquiries     sync.Pool      // of *inquiry
	opened        chan struct{}  // closed once checks are decided
	closed        atomic.Bool    // set once checks are no longer decided
	leftByRequest atomic.Bool    // this node has left the cluster for good, by a request
	leftForGood   atomic.Bool    // this node has left the cluster for good, by a request or in Close
	replacing     atomic.Bool    // set after the start, while a dead voter may still have to be replaced

	ctx          context.Context
	cancel       context.CancelFunc
	loops        tasks.Group
	releaseSteps []func(context.Context) error // close the parts; called last to first

	closing  sync.Once
	closeErr error
}

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
	for _, step := range []func() error{n.listen, n.load, n.start} {
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

// acceptChecks starts to decide checks.
func (n *Node) acceptChecks() {
	for _, w := range n.limiter.Rules().Document.Warnings() {
		n.log.Warn("part of the rules has no effect", "at", w.Path, "what", w.Message)
	}
	n.doors.Ready()
	close(n.opened)
}

// announceReady announces that the node is ready. Probes already report it.
func (n *Node) announceReady() {
	scheme := "http"
	if n.config.CertFile != "" {
		scheme = "https"
	}

	var attributes []any
	if a := n.DataAddr(); a != nil {
		attributes = append(attributes, "data", scheme+"://"+a.String())
	}
	if a := n.AdminAddr(); a != nil {
		attributes = append(attributes, "admin", scheme+"://"+a.String())
	}
	if a := n.GRPCAddr(); a != nil {
		attributes = append(attributes, "grpc", a.String())
	}
	if a := n.RedisAddr(); a != nil {
		attributes = append(attributes, "redis", a.String())
	}

	n.log.Info("ready", append(attributes, "rules_version", n.limiter.Rules().Version)...)

	if n.grpcConfigured != "" {
		level := slog.LevelWarn
		if n.config.AnyPort {
			level = slog.LevelInfo // this is expected where several nodes share a machine
		}
		n.log.Log(context.Background(), level,
			"the port for Envoy is in use; took a free one (--grpc-port sets another, or 0 for none)",
			"wanted", n.grpcConfigured, "taken", n.GRPCAddr())
	}

	if n.config.Ready != nil {
		n.config.Ready(n)
	}
}

// WaitReady returns when the node decides checks. In a healthy cluster that
// takes a moment; a new cluster has to be founded first. The error is the
// context's cause, or client.ErrClosed.
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

// DataAddr returns the address of the data plane; nil without one.
func (n *Node) DataAddr() net.Addr {
	if n.data == nil {
		return nil
	}
	return n.data.Addr()
}

// GRPCAddr returns the address of Envoy's rate limit service over gRPC; nil without one.
func (n *Node) GRPCAddr() net.Addr {
	if n.grpc == nil {
		return nil
	}
	return n.grpc.Addr()
}

// RedisAddr returns the address at which the node speaks the Redis protocol; nil without one.
func (n *Node) RedisAddr() net.Addr {
	if n.redis == nil {
		return nil
	}
	return n.redis.Addr()
}

// AdminAddr returns the address of the admin plane; nil without one.
func (n *Node) AdminAddr() net.Addr {
	if n.admin == nil {
		return nil
	}
	return n.admin.Addr()
}

// Close shuts the node down gracefully, within ten seconds, and waits for its
// goroutines. Nothing it has counted is lost: other nodes or the data directory
// have it. Further calls return the same error.
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
//  7. The calls between nodes end, then Raft. Raft's store closes last: until
//     then its lock tells others that the directory is in use.
//
// If the disk hangs, Close returns an error in time all the same. The remaining
// steps follow when the disk answers; until then, the directory stays in use.
func (n *Node) Close() error {
	n.closing.Do(func() { n.closeErr = inTime(n.stop) })
	return n.closeErr
}

// inTime calls steps, and returns their error or, if they hang, one that wraps
// context.DeadlineExceeded.
func inTime(steps func(context.Context) error) error {
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		ended <- steps(ctx)
	}()

	select {
	case err := <-ended:
		return err
	case <-time.After(hangTimeout):
		return fmt.Errorf("a part of the node does not close, perhaps because the disk hangs: %w", context.DeadlineExceeded)
	}
}

func (n *Node) stop(ctx context.Context) error {
	// Step 1. The time runs while the partitions are handed over.
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

const (
	// debtsPatience bounds how long a node that leaves for good waits until it has
	// reported its debts: they are held back for up to two seconds after a cut.
	debtsPatience = 3 * time.Second
	// leaveReserve is how much time the wait for debts leaves to the steps after it.
	leaveReserve = 2 * time.Second
	// debtsPollInterval is the time between two looks of awaitDebtsReported.
	debtsPollInterval = 20 * time.Millisecond
)

// awaitDebtsReported waits until owners have acknowledged what this node admitted
// without them, or until debtsPatience has passed or little is left of ctx. Once
// this node is no longer a member, they refuse its reports.
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

// release closes all open parts, in reverse order.
func (n *Node) release(ctx context.Context) error {
	var errs []error
	for len(n.releaseSteps) > 0 {
		last := len(n.releaseSteps) - 1
		errs = append(errs, n.releaseSteps[last](ctx))
		n.releaseSteps = n.releaseSteps[:last]
	}
	return errors.Join(errs...)
}

// leave hands this node's partitions over and, if forGood is set, leaves the
// cluster, once another node has the usage counted here. by names the user who
// gave the command; it is empty if nobody did.
//
// If no other node takes the usage, this node stays a member. Without it, the
// others would report incomplete usage as complete.
func (n *Node) leave(ctx context.Context, forGood bool, by string) error {
	if n.leftByRequest.Load() {
		return nil
	}

	if forGood {
		// This comes first: if it fails, the node is still a member.
		if err := n.handOverUsage(ctx); err != nil {
			return err
		}
	}

	n.limiter.UseLeases(false)
	err := n.cluster.LeaveRing(ctx)
	if err != nil || !forGood {
		// A node that stays in the ring goes on as before.
		n.limiter.UseLeases(err != nil)
		return err
	}

	return n.leaveCluster(ctx, by)
}

// leaveCluster ends the membership, after this node has handed over its
// partitions and what it has counted since its usage was handed over.
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
	n.leftForGood.Store(true)
	return nil
}
