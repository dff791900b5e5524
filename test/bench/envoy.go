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

// envoyRules limit descriptors by a bucket that is never empty.
const envoyRules = `version: 1
rules: [{name: other, key: [ip], limits: [{limit: 1, per: 1h}]}]
envoy:
  - domain: bench
    descriptors:
      - {key: user, rate_limit: {unit: hour, requests_per_unit: 10000, algorithm: token-bucket, burst: 1000000000}}
`

const (
	envoyMethod      = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	envoyConnections = 8 // each with a part of the connections' callers
)

// envoyRequest is a request about one descriptor of one entry, as it goes over the wire.
func envoyRequest(value string) []byte {
	text := func(b []byte, field protowire.Number, s []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), s)
	}
	entry := text(text(nil, 1, []byte("user")), 2, []byte(value))
	return text(text(nil, 1, []byte("bench")), 2, text(nil, 1, entry))
}

// asBytes hands messages over as they are.
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

// serveEmptyUnary is a worker: a server of grpc-go whose handler answers each call with the same bytes.
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
		Methods: []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: func(_ any, _ context.Context, receive func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var in []byte
			return &task.Body, receive(&in)
		}}},
	}, nil)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	if err := c.answer("listening"); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, c.r) // until it is told to end
	server.Stop()
	return <-served
}

// grpcLoad is a closed loop over gRPC.
func grpcLoad(ctx context.Context, address string, requests [][]byte, warm, duration time.Duration) (answers, all int64, err error) {
	var callers sync.WaitGroup
	var counted, total atomic.Int64
	var failed atomic.Pointer[error]
	began := time.Now()
	for i := range envoyConnections {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(asBytes{})))
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

// asEnvoy measures S10.
func (b *bench) asEnvoy(ctx context.Context) error {
	rules, host := filepath.Join(b.dir, "envoy.yaml"), b.host(7)
	if err := os.WriteFile(rules, []byte(envoyRules), 0o644); err != nil {
		return fmt.Errorf("write the rules: %w", err)
	}
	p, err := b.procs.start("envoy", nil, nil, b.program, "serve", "--name", "envoy", "--bind", host, "--data-dir", filepath.Join(b.dir, "envoy"), "--rules", rules)
	if err != nil {
		return err
	}
	defer p.stop()
	n := &node{process: p, name: "envoy", data: host + ":8080", admin: "http://" + host + ":8081", call: b.caller}
	if err := n.awaitReady(ctx); err != nil {
		return err
	}
	var requests [][]byte
	for _, key := range keysUpTo(singleKeys) {
		requests = append(requests, envoyRequest(key))
	}
	conn, err := grpc.NewClient(host+":8082", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(asBytes{})))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	var body []byte
	if err := conn.Invoke(ctx, envoyMethod, &requests[0], &body); err != nil {
		return fmt.Errorf("ask the node: %w", err)
	}
	empty := b.host(8) + ":8082"
	w, err := b.procs.startWorker(ctx, "empty-unary", "unary", map[string]any{"Address": empty, "Body": body}, nil)
	if err != nil {
		return err
	}
	defer w.close()
	all := []*server{
		{process: p, name: "rlnode, as Envoy's rate limit service", target: target{host + ":8082", requests}},
		{process: w.process, name: "empty unary handler of grpc-go", target: target{empty, requests}},
	}
	var turns []contender
	for _, s := range all {
		turns = append(turns, contender{s.name, func(ctx context.Context) error { return s.grpcRound(ctx, b) }})
	}
	if err := takeTurns(ctx, b.rounds, turns, b.progress); err != nil {
		return err
	}
	r := b.report
	r.add("S10", "Envoy's rate limit service, one descriptor ÷ an empty unary handler of grpc-go", atLeast(0.85, "≥ 0.85"), over(all[0].rates, all[1].rates), "")
	r.missing("S10", "Envoy's rate limit service ÷ envoyproxy/ratelimit with Redis", atLeast(2, "≥ 2"), "it is not built here")
	for _, s := range all {
		r.figure("S10", s.name, "", "checks/s", s.rates)
		r.figure("S10", s.name, "processor time of the server", "µs a check", s.cpu)
	}
	return nil
}

// grpcRound is round over gRPC.
func (s *server) grpcRound(ctx context.Context, b *bench) error {
	before, err := s.process.cpu()
	if err != nil {
		return err
	}
	answers, all, err := grpcLoad(ctx, s.target.address, s.target.requests, b.warm(), b.time)
	if err != nil {
		return err
	}
	after, err := s.process.cpu()
	if err != nil {
		return err
	}
	s.rates = append(s.rates, float64(answers)/b.time.Seconds())
	s.cpu = append(s.cpu, micros(after-before)/float64(all))
	return nil
}
