package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

const leaveRules = `version: 1
rules: [{name: year, key: [user], limits: [{limit: 1000000, per: 8760h, algorithm: fixed-window}]}]
envoy: [{domain: edge, descriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 1000000}}]}]
`

// rawCodec passes messages through as bytes.
type rawCodec struct{}

func (rawCodec) Name() string                  { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (rawCodec) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), b...)
	return nil
}

// envoyDoor is a connection to a node's port for Envoy.
type envoyDoor struct{ conn *grpc.ClientConn }

func openEnvoyDoor(t *testing.T, ip string) envoyDoor {
	t.Helper()
	conn, err := grpc.NewClient(net.JoinHostPort(ip, "8082"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	expect.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return envoyDoor{conn}
}

// ask asks about a descriptor of leaveRules. Whether it is limited does not matter here.
func (d envoyDoor) ask() error {
	field := func(b []byte, number protowire.Number, value []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
	}
	entry := field(field(nil, 1, []byte("k")), 2, []byte("v"))
	request := field(field(nil, 1, []byte("edge")), 2, field(nil, 1, entry))

	ctx, cancel := context.WithTimeout(context.Background(), process.Timeout)
	defer cancel()
	var answer []byte
	err := d.conn.Invoke(ctx, "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
		request, &answer, grpc.ForceCodec(rawCodec{}))
	if err == nil && len(answer) == 0 {
		err = errors.New("the answer is empty")
	}
	return err
}

// serving reports whether the node says so.
func (d envoyDoor) serving() bool {
	ctx, cancel := context.WithTimeout(context.Background(), process.Timeout)
	defer cancel()
	h, err := healthpb.NewHealthClient(d.conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err == nil && h.GetStatus() == healthpb.HealthCheckResponse_SERVING
}

// A node that is stopped says so in its probes at once, and answers at both
// doors for as long as callers need to notice.
func TestStoppedNodeAnswersForTheGrace(t *testing.T) {
	t.Parallel()
	f := newEmptyFleet(t)
	m := f.newNode(1, 0, "--rules", file(t, "rules.yaml", leaveRules), "--bootstrap-expect", "1")
	f.nodes = append(f.nodes, m)
	m.startProcess()
	m.waitReady()
	envoy := openEnvoyDoor(t, m.ip)
	check := func() error {
		code, text, err := m.call("POST", m.data+"/v1/check", "", `{"rule": "year", "key": "u"}`)
		if err == nil && code != 200 {
			err = errors.New(text)
		}
		return err
	}
	if err := errors.Join(check(), envoy.ask()); err != nil || !envoy.serving() {
		t.Fatalf("before the stop: got %v, or not serving", err)
	}

	began := time.Now()
	m.signal(syscall.SIGTERM)
	var asking sync.WaitGroup
	for name, ask := range map[string]func() error{"HTTP": check, "Envoy": envoy.ask} {
		asking.Go(func() {
			err := ask()
			for err == nil {
				time.Sleep(20 * time.Millisecond)
				err = ask()
			}
			if after := time.Since(began); after < api.DrainGrace {
				t.Errorf("%s: got %v after %v, want answers for at least %v", name, err, after, api.DrainGrace)
			}
		})
	}
	process.Eventually(t, "the probes fail", func() bool {
		code, _, err := m.call("GET", m.data+"/readyz", "", "")
		tooSlow := time.Since(began) > api.DrainGrace // this machine, so that nothing is there to look at any more
		return tooSlow || err == nil && code == 503 && !envoy.serving()
	})
	asking.Wait()
	m.awaitExit()
}

// A node that has left by command goes on answering over HTTP. Envoy has other
// nodes to turn to: after the grace it is refused.
func TestNodeThatLeftRefusesEnvoy(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, "--rules", file(t, "rules.yaml", leaveRules))
	gone := f.nodes[1]
	envoy := openEnvoyDoor(t, gone.ip)
	if err := envoy.ask(); err != nil {
		t.Fatalf("before it leaves: got %v, want an answer", err)
	}

	began := time.Now()
	if code, out := gone.command("leave"); code != 0 {
		t.Fatalf("leave: got %d %s", code, out)
	}
	if envoy.serving() {
		t.Error("it says that it is serving, want not")
	}
	process.Eventually(t, "it refuses Envoy", func() bool {
		err := envoy.ask()
		if after := time.Since(began); err != nil && after < api.DrainGrace {
			t.Errorf("got %v after %v, want answers for at least %v", err, after, api.DrainGrace)
		}
		return status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "left the cluster")
	})
	if code, text, err := gone.call("POST", gone.data+"/v1/check", "",
		`{"rule": "year", "key": "u"}`); err != nil || code != 200 {
		t.Errorf("over HTTP: got %d %s, %v, want 200", code, text, err)
	}
}
