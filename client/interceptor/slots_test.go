package interceptor

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// acquirer has slots, and counts them.
type acquirer struct {
	checker
	full           bool
	held, released atomic.Int64
	slots          client.SlotSet
}

func (a *acquirer) Acquire(ctx context.Context, _ client.Request, _ time.Duration) (*client.Slot, error) {
	if a.full {
		return nil,
			client.NewRefused(client.Decision{RetryAfter: time.Second, DecidedBy: client.ByOwner,
				Reason: "All are held."},
				nil)
	}
	a.held.Add(1)
	return client.NewSlot(ctx, a, client.Decision{Allowed: true, DecidedBy: client.ByOwner}, "abc",
		time.Now().Add(time.Hour))
}

func (a *acquirer) RenewSlot(context.Context, string) (time.Time, error) {
	return time.Now().Add(time.Hour), nil
}

func (a *acquirer) ReleaseSlot(context.Context, string) error {
	a.released.Add(1)
	return nil
}

func (a *acquirer) Go(f func()) bool {
	go f()
	return true
}

func (a *acquirer) Slots() *client.SlotSet { return &a.slots }

// waiting is a service whose streams last until their callers hang up.
type waiting struct {
	grpc_health_v1.UnimplementedHealthServer
}

func (waiting) Watch(
	_ *grpc_health_v1.HealthCheckRequest, s grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse],
) error {
	if err := s.Send(&grpc_health_v1.HealthCheckResponse{}); err != nil {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

// TestSlotsAreHeldForACall: until its handler returns, or its caller hangs up.
func TestSlotsAreHeldForACall(t *testing.T) {
	for _, streams := range []bool{false, true} {
		a := &acquirer{}
		if _, _, err := call(t, a, Options{Slots: true}, streams); err != nil {
			t.Fatal(err)
		}
		process.Eventually(t, "the slot is released",
			func() bool { return a.held.Load() == 1 && a.released.Load() == 1 })
		a.full = true
		if _, _, err := call(t, a, Options{Slots: true}, streams); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("got %v, want a refusal", err)
		}
	}

	a := &acquirer{}
	server := grpc.NewServer(grpc.StreamInterceptor(Stream(a, Options{Slots: true})))
	grpc_health_v1.RegisterHealthServer(server, waiting{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	go server.Serve(ln)
	defer server.Stop()
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	expect.NoError(t, err)
	defer conn.Close()
	stream, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil || a.released.Load() != 0 {
		t.Fatalf("got %v, %d released", err, a.released.Load())
	}
	conn.Close()
	process.Eventually(t, "the slot is released after a disconnect", func() bool { return a.released.Load() == 1 })
}
