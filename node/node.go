package node

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

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
	"github.com/rlnode/rlnode/internal/latency"
	"github.com/rlnode/rlnode/internal/tasks"
	"github.com/rlnode/rlnode/internal/tracing"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/limiter/loads"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/usage"
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
	// doorLatencies has one for each open door. It does not change once all are
	// open.
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
	opened        chan struct{}  // closed once this node decides checks
	closed        atomic.Bool    // set once this node decides no more checks
	leftOnRequest atomic.Bool    // this node has left the cluster for good, by a request
	left          atomic.Bool    // this node has left the cluster for good, by a request or in Close
	replacing     atomic.Bool    // set after the start, while a dead voter may still have to be replaced

	ctx          context.Context
	cancel       context.CancelFunc
	loops        tasks.Group
	releaseSteps []func(context.Context) error // close the parts; called last to first

	closing  sync.Once
	closeErr error
}

// doorLatency reads the latencies at a door.
type doorLatency struct {
	name string
	read func() latency.Counts
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

// ring returns the latest ring known to this node; nil before the first.
func (n *Node) ring() *ring.Table { return n.cluster.StateInUse().To }

// nodeCount returns the number of nodes in the ring; 1 before the first ring.
func (n *Node) nodeCount() int {
	return max(1, len(n.ring().Members()))
}

// signingKey returns the key that signs IDs and hashes subjects; nil until this node has a cluster.
func (n *Node) signingKey() []byte { return n.cluster.StateInUse().SigningKey }
