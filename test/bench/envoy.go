package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// envoyRules limit descriptors with a bucket that is never empty.
const envoyRules = `version: 1
rules: [{name: other, key: [ip], limits: [{limit: 1, per: 1h}]}]
envoy:
  - domain: bench
    descriptors:
      - {key: user, rate_limit: {unit: hour, requests_per_unit: 10000, algorithm: token-bucket, burst: 1000000000}}
`

// peerRules limit the same descriptors for the reference server, with a window that is never full.
const peerRules = `domain: bench
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
`

const (
	envoyMethod      = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	envoyConnections = 8 // each with a part of the callers
)

// envoyRequest is an encoded request about one descriptor with one entry.
func envoyRequest(value string) []byte {
	text := func(b []byte, field protowire.Number, s []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), s)
	}
	entry := text(text(nil, 1, []byte("user")), 2, []byte(value))
	return text(text(nil, 1, []byte("bench")), 2, text(nil, 1, entry))
}

// asBytes passes messages through unchanged.
type asBytes struct{}

func (asBytes) Name() string { return "proto" }

func (asBytes) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (asBytes) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.MaterializeToBuffer(mem.DefaultBufferPool()).ReadOnlyData()
	return nil
}

var _ encoding.CodecV2 = asBytes{}

// serveEmptyUnary is a worker: a grpc-go server whose handler answers each call
// with the same bytes.
func serveEmptyUnary(c *conversation) error {
	var task struct {
		Address string
		Body    []byte
	}
	if ok, err := c.next(&task); !ok {
		return err
	}

	ln, err := net.Listen("tcp", task.Address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}

	server := grpc.NewServer(grpc.ForceServerCodecV2(asBytes{}))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "envoy.service.ratelimit.v3.RateLimitService", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "ShouldRateLimit",
			Handler: func(_ any, _ context.Context, receive func(any) error,
				_ grpc.UnaryServerInterceptor) (any, error) {
				var in []byte
				return &task.Body, receive(&in)
			}}},
	}, nil)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()

	if err := c.answer("listening"); err != nil {
		return err
	}

	_, _ = io.Copy(io.Discard, c.r) // until the bench closes it
	server.Stop()
	return <-served
}

// grpcLoad is a closed loop over gRPC.
func grpcLoad(
	ctx context.Context, address string, requests [][]byte, warm, duration time.Duration,
) (answers, all int64, err error) {
	var callers sync.WaitGroup
	var counted, total atomic.Int64
	var failed atomic.Pointer[error]

	began := time.Now()
	for i := range envoyConnections {
		conn, err := grpc.NewClient(address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(asBytes{})))
		if err != nil {
			return 0, 0, fmt.Errorf("connect to %s: %w", address, err)
		}

		defer conn.Close()

		for j := range connections / envoyConnections {
			callers.Go(func() {
				for n := i*7919 + j*104729; ctx.Err() == nil && failed.Load() == nil; n++ {
					at := time.Since(began)
					if at > warm+duration {
						return
					}

					var out []byte
					if err := conn.Invoke(ctx, envoyMethod, &requests[n%len(requests)], &out); err != nil {
						failed.Store(&err)
						return
					}

					if total.Add(1); at > warm {
						counted.Add(1)
					}
				}
			})
		}
	}

	callers.Wait()
	if e := failed.Load(); e != nil {
		return 0, 0, fmt.Errorf("ask %s: %w", address, *e)
	}

	return counted.Load(), total.Load(), ctx.Err()
}

// noLimit is the answer for a descriptor without a limit.
var noLimit = []byte{8, 1, 18, 2, 8, 1}

// askOnce sends one request on its own connection, and returns the answer.
func askOnce(ctx context.Context, address string, request []byte) (answer []byte, err error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(asBytes{})))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	defer conn.Close()
	if err := conn.Invoke(ctx, envoyMethod, &request, &answer); err != nil {
		return nil, fmt.Errorf("ask %s: %w", address, err)
	}
	return answer, nil
}

// asEnvoy measures S10.
func (b *bench) asEnvoy(ctx context.Context) error {
	rules, host := filepath.Join(b.dir, "envoy.yaml"), b.host(7)
	if err := os.WriteFile(rules, []byte(envoyRules), 0o644); err != nil {
		return fmt.Errorf("write the rules: %w", err)
	}

	n, err := b.startForEnvoy(ctx, b.program, "envoy", host, rules)
	if err != nil {
		return err
	}

	defer n.stop()

	var requests [][]byte
	for _, key := range keysUpTo(singleKeys) {
		requests = append(requests, envoyRequest(key))
	}

	body, err := askOnce(ctx, host+":8082", requests[0])
	if err != nil {
		return err
	}

	empty := b.host(8) + ":8082"
	w, err := b.procs.startWorker(ctx, "empty-unary", "unary", map[string]any{"Address": empty, "Body": body}, nil)
	if err != nil {
		return err
	}

	defer w.close()

	all := []*server{
		{process: n.process, name: "rlnode, as Envoy's rate limit service", target: target{host + ":8082", requests}},
		{process: w.process, name: "empty unary handler of grpc-go", target: target{empty, requests}},
	}
	var before *server
	if b.beside != "" {
		other, err := b.startForEnvoy(ctx, b.beside, "envoy-beside", b.host(5), rules)
		if err != nil {
			return err
		}
		defer other.stop()
		before = &server{process: other.process, name: "rlnode of -beside", target: target{b.host(5) + ":8082", requests}}
		all = append(all, before)
	}

	peer, missing, err := b.startPeer(ctx)
	if err != nil {
		return err
	}

	if peer != nil {
		defer peer.end()
		peer.target.requests = requests
		all = append(all, peer)
	}

	var turns []contender
	for _, s := range all {
		turns = append(turns, contender{s.name, func(ctx context.Context) error { return s.grpcRound(ctx, b) }})
	}

	if err := takeTurns(ctx, b.rounds, turns, b.progress); err != nil {
		return err
	}

	r := b.report
	r.add("S10", "Envoy's rate limit service, one descriptor ÷ an empty unary handler of grpc-go",
		atLeast(0.85, "≥ 0.85"), over(all[0].rates, all[1].rates), "")
	const what = "Envoy's rate limit service ÷ envoyproxy/ratelimit with Redis"
	if peer == nil {
		r.missing("S10", what, atLeast(2, "≥ 2"), missing)
	} else {
		r.add("S10", what, atLeast(2, "≥ 2"), over(all[0].rates, peer.rates), "")
		r.add("S10", "processor time a request ÷ that of envoyproxy/ratelimit with its Redis",
			noGoal(), over(all[0].cpu, peer.cpu), "")
	}

	if before != nil {
		r.add("S10", "Envoy's rate limit service ÷ that of -beside", noGoal(), over(all[0].rates, before.rates), "")
		r.add("S10", "processor time a request ÷ that of -beside", noGoal(), over(all[0].cpu, before.cpu), "")
	}

	for _, s := range all {
		r.figure("S10", s.name, "", "checks/s", s.rates)
		r.figure("S10", s.name, "processor time of the server", "µs a check", s.cpu)
	}

	return nil
}

// startForEnvoy starts a node that serves Envoy, and waits until it is ready.
func (b *bench) startForEnvoy(ctx context.Context, program, name, host, rules string) (*node, error) {
	p, err := b.procs.start(name, nil, nil, program, "serve", "--name", name, "--bind", host,
		"--data-dir", filepath.Join(b.dir, name), "--rules", rules)
	if err != nil {
		return nil, err
	}

	n := &node{process: p, name: name, data: host + ":8080", admin: "http://" + host + ":8081", call: b.caller}
	if err := n.awaitReady(ctx); err != nil {
		p.stop()
		return nil, err
	}
	return n, nil
}

// startPeer starts the reference server with its own Redis. If one of them is
// missing, it returns nil and the reason.
func (b *bench) startPeer(ctx context.Context) (_ *server, missing string, err error) {
	if b.peer == "" {
		return nil, "-ratelimit was not given", nil
	}

	store, err := b.startRedis(ctx, b.host(9), nil)
	if err != nil {
		return nil, "", err
	}
	if store == nil {
		return nil, "there is no redis-server on this machine", nil
	}

	defer func() {
		if err != nil {
			store.close()
		}
	}()

	host, folder := b.host(10), filepath.Join(b.dir, "ratelimit")
	if err = os.MkdirAll(filepath.Join(folder, "config"), 0o755); err == nil {
		err = os.WriteFile(filepath.Join(folder, "config", "bench.yaml"), []byte(peerRules), 0o644)
	}

	if err != nil {
		return nil, "", fmt.Errorf("write the reference server's rules: %w", err)
	}

	// It has its default configuration, but with as many connections to Redis as
	// callers, and without sending metrics.
	p, err := b.procs.start("ratelimit", nil, nil, "/usr/bin/env", "HOST="+host, "GRPC_HOST="+host,
		"DEBUG_HOST="+host, "GRPC_PORT=8082",
		"RUNTIME_ROOT="+folder, "RUNTIME_WATCH_ROOT=false", "REDIS_SOCKET_TYPE=tcp",
		"REDIS_URL="+store.client.Options().Addr,
		fmt.Sprint("REDIS_POOL_SIZE=", connections), "USE_STATSD=false", "LOG_LEVEL=error", b.peer)
	if err != nil {
		return nil, "", err
	}

	s := &server{process: p, with: store.server, name: "envoyproxy/ratelimit with Redis",
		target: target{address: host + ":8082"}}
	s.end = func() {
		p.stop()
		store.close()
	}
	err = p.await(ctx, "it answers by its rules", func() bool {
		answer, err := askOnce(ctx, s.target.address, envoyRequest("ready"))
		return err == nil && len(answer) > len(noLimit)
	})
	if err != nil {
		p.stop()
		return nil, "", err
	}

	return s, "", nil
}

// used returns the processor time of a server and of the servers it asks.
func (s *server) used() (time.Duration, error) {
	used, err := s.process.cpu()
	if err != nil || s.with == nil {
		return used, err
	}
	more, err := s.with.cpu()
	return used + more, err
}

// grpcRound is round over gRPC.
func (s *server) grpcRound(ctx context.Context, b *bench) error {
	before, err := s.used()
	if err != nil {
		return err
	}

	answers, all, err := grpcLoad(ctx, s.target.address, s.target.requests, b.warm(), b.time)
	if err != nil {
		return err
	}

	after, err := s.used()
	if err != nil {
		return err
	}

	s.rates = append(s.rates, float64(answers)/b.time.Seconds())
	s.cpu = append(s.cpu, micros(after-before)/float64(all))
	return nil
}
