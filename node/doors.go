package node

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/api/envoy"
	"github.com/rlnode/rlnode/api/httpd"
	"github.com/rlnode/rlnode/api/resp"
	"github.com/rlnode/rlnode/internal/metrics"
)

// listen opens the configured doors.
func (n *Node) listen() (err error) {
	c := n.config
	shared := api.Config{
		CertFile: c.CertFile, KeyFile: c.KeyFile, APIToken: c.APIToken, AdminToken: c.AdminToken,
		TokensFile: c.TokensFile,
		Memory:     c.MemoryLimit, Connections: c.MaxConnections, MaxMatched: c.MaxMatched,
		Node: c.Name, Version: Version(), Decider: n.limiter, CheckReady: n.probeError,
		CheckMember: n.membershipError, Health: n.clusterHealth, Logger: n.log,
	}

	sources := []metrics.Source{
		n.limiter.Metrics, n.table.Metrics, n.cluster.Metrics, n.keeper.Metrics, n.peers.Metrics,
		n.wan.Metrics, n.clockMetrics,
		func(s metrics.Sink) { n.storeStatus().Metrics(s) },
	}
	if n.checkpoints {
		shared.Checkpoints = func() api.CheckpointHealth {
			s := n.files.tableFile().Status()
			return api.CheckpointHealth{Completed: s.Completed, Failures: s.Failures, Err: s.Err}
		}
		sources = append(sources, n.files.tableFile().Metrics)
	}

	n.doors, err = api.Open(shared)
	if err != nil {
		return err
	}
	n.onRelease(n.closeListeners)
	n.doors.Explain("loading counters")

	if c.DataAddr != "" {
		n.data, err = httpd.Open(n.doors, httpd.Config{Addr: c.DataAddr, Tracer: n.tracer})
		if err != nil {
			return err
		}
		sources = append(sources, n.data.Metrics)
		n.doorLatencies = append(n.doorLatencies, doorLatency{"data", n.data.Latency})
	}

	if c.GRPCAddr != "" {
		n.grpc, err = n.openGRPC(c.GRPCAddr)
		if err != nil {
			return err
		}
		sources = append(sources, n.grpc.Metrics)
		n.doorLatencies = append(n.doorLatencies, doorLatency{"envoy", n.grpc.Latency})
	}

	if c.RedisAddr != "" {
		n.redis, err = resp.Open(n.doors, resp.Config{Addr: c.RedisAddr, Listen: n.env.redis, Tracer: n.tracer})
		if err != nil {
			return err
		}
		sources = append(sources, n.redis.Metrics)
		n.doorLatencies = append(n.doorLatencies, doorLatency{"redis", n.redis.Latency})
	}

	if c.AdminAddr == "" {
		return nil
	}
	return n.openAdmin(sources)
}

// openAdmin listens for the admin plane, which serves the metrics of sources.
func (n *Node) openAdmin(sources []metrics.Source) (err error) {
	c := n.config
	view := adminView{n.cluster, n}
	config := admin.Config{
		Addr: c.AdminAddr, Hosts: c.AdminHosts, Region: c.Region, Subjects: n.limiter,
		Rules: view, Entries: n.cluster, Cluster: view, Membership: view, Levels: n.cluster,
		Regions: n.cluster, Loads: n.loads, Activity: n.limiter.Activity, History: n.history.Report,
		Events: n.history.Events, CatchUp: n.cluster.CatchUp,
	}

	checks := httpd.NewAdminChecks(n.doors)
	config.Checks = checks.Answer
	sources = append(sources, checks.Metrics)
	n.doorLatencies = append(n.doorLatencies, doorLatency{"admin", checks.Latency})

	if n.usage != nil {
		config.Months = n.usage
		sources = append(sources, n.meter.Metrics, n.usage.Metrics)
	}

	config.Metrics = sources
	n.admin, err = admin.Open(n.doors, config)
	return err
}

// openGRPC listens for Envoy. If the port is in use, AnyGRPCPort makes it take a free one.
func (n *Node) openGRPC(addr string) (*envoy.Server, error) {
	s, err := envoy.Open(n.doors, envoy.Config{Addr: addr, Tracer: n.tracer})
	host, _, badAddr := net.SplitHostPort(addr)
	if !n.config.AnyGRPCPort || badAddr != nil || !errors.Is(err, syscall.EADDRINUSE) {
		return s, err
	}
	n.grpcConfigured = addr
	return envoy.Open(n.doors, envoy.Config{Addr: net.JoinHostPort(host, "0"), Tracer: n.tracer})
}

// closeListeners closes the admin plane last, so that it reports the node's
// state while the last checks are decided.
func (n *Node) closeListeners(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()

	// Calls of the program that embeds this node end as well, because what they
	// took from now on would not be saved.
	n.closed.Store(true)
	n.doors.Drain()

	var err, grpcErr, redisErr error
	var others sync.WaitGroup
	if n.grpc != nil {
		others.Go(func() { grpcErr = n.grpc.Close(ctx) })
	}
	if n.redis != nil {
		others.Go(func() { redisErr = n.redis.Close(ctx) })
	}
	if n.data != nil {
		err = n.data.Close(ctx)
	}
	others.Wait()
	err = errors.Join(err, grpcErr, redisErr)

	if n.admin != nil {
		err = errors.Join(err, n.admin.Close(ctx))
	}
	n.doors.Close()

	if errors.Is(err, context.DeadlineExceeded) {
		n.log.Info("requests that did not finish in time were cut off")
		return nil
	}

	return err
}
