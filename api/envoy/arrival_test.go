package envoy

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/rls"
	"github.com/rlnode/rlnode/internal/expect"
)

// appendFrame appends an HTTP/2 frame.
func appendFrame(b []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	n := len(payload)
	b = append(b, byte(n>>16), byte(n>>8), byte(n), kind, flags)
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// callHeaders returns the headers of a call, without its message.
func callHeaders(b []byte, stream uint32, method string) []byte {
	var fields []byte
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method},
		{":authority", "n"}, {"content-type", "application/grpc"}} {
		fields = append(fields, 0, byte(len(f[0])))
		fields = append(append(append(fields, f[0]...), byte(len(f[1]))), f[1]...)
	}
	const endHeaders = 4
	return appendFrame(b, headersFrame, endHeaders, stream, fields)
}

// halfSend opens a connection and sends a part of a message on each of several
// streams, in frames of at most piece bytes. It returns when everything is sent
// or the node has closed the connection, which closes gone.
func halfSend(t *testing.T, n *node, method string, streams, part, piece int) (gone chan struct{}) {
	t.Helper()
	gone = make(chan struct{})
	conn, err := net.Dial("tcp", n.server.Addr().String())
	if err != nil {
		t.Error(err)
		return gone
	}
	t.Cleanup(func() {
		conn.Close()
		<-gone
	})
	go func() {
		defer close(gone)
		io.Copy(io.Discard, conn)
	}()
	message := make([]byte, part)
	binary.BigEndian.PutUint32(message[1:], rls.MaxMessage)
	const settings = 4
	b := appendFrame([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), settings, 0, 0, nil)
	for i := range streams {
		id := uint32(2*i + 1)
		b = callHeaders(b, id, method)
		for rest := message; len(rest) > 0; rest = rest[min(piece, len(rest)):] {
			b = appendFrame(b, dataFrame, 0, id, rest[:min(piece, len(rest))])
		}
		if _, err := conn.Write(b); err != nil {
			break
		}
		b = b[:0]
	}
	return gone
}

// Incomplete requests take little memory, although callers send 240 MiB of them
// here, or half as much to the smaller methods. Meanwhile the node answers
// others.
func TestHalfSentRequestsAreBounded(t *testing.T) {
	const connections, part, most = 40, 60 << 10, 64 << 20
	methods := []string{
		path, healthpb.Health_Check_FullMethodName, healthpb.Health_Watch_FullMethodName,
		reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName,
	}
	if testing.Short() {
		methods = methods[:1]
	}
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			n := startNode(t, vectorRules, nil)
			before := heap()
			callers := connections
			if method != path {
				callers /= 2
			}
			var all sync.WaitGroup
			for range callers {
				all.Go(func() { halfSend(t, n, method, maxStreams, part, 16<<10) })
			}
			all.Wait()
			apitest.UntilWithin(t, 8*time.Second, "little is held", func() bool { return heap()-before < most })
			apitest.UntilWithin(t, 8*time.Second, "the node answers others", func() bool {
				_, err := ask(t, n.conn, "", oneDescriptor("k", "a", ""))
				return err == nil
			})
		})
	}
}

// Calls of which only a few bytes arrive are charged for what a call takes, and end in time.
func TestHalfSentCallsAreCharged(t *testing.T) {
	t.Parallel()
	const calls = 50
	n := startNode(t, vectorRules, func(c *apitest.Config) { c.Timeout = 2 * time.Second })
	n.answer(oneDescriptor("k", "a", ""))
	halfSend(t, n, path, calls, 64, 64)
	apitest.Until(t, "all calls are charged", func() bool { return n.Budget.Used() >= calls*callMemory })
	apitest.Until(t, "the calls have ended", func() bool { return n.Budget.Used() == 0 })
}

// Where there is no room for what has arrived, a connection waits for some,
// unless it is a stranger's.
func TestHalfSentCallsWaitForRoom(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name    string
		change  func(*apitest.Config)
		isEnded bool
	}{{"any caller", nil, false}, {"stranger", apitest.TheirTokens, true}} {
		t.Run(v.name, func(t *testing.T) {
			n := startNode(t, vectorRules, v.change)
			n.Budget.Capacity = 1 << 20
			expect.Equal(t, n.Budget.Take(n.Budget.Capacity), true, "takes all")
			gone := halfSend(t, n, healthpb.Health_Check_FullMethodName, 1, 64, 64)

			time.Sleep(4 * checkInterval) // it has missed room by now, or passes anyway
			n.Budget.Give(n.Budget.Capacity)
			if v.isEnded {
				<-gone
				return
			}
			apitest.Until(t, "it is charged", func() bool { return n.Budget.Used() > 0 })
			select {
			case <-gone:
				t.Error("its connection was closed")
			default:
			}
		})
	}
}

// Messages of which only a few bytes arrive keep others waiting no longer than
// it takes to see that they stall, though there are more of them than the
// bound.
func TestHalfSentRequestsKeepNobodyOut(t *testing.T) {
	n := startNode(t, vectorRules, nil)
	n.answer(oneDescriptor("k", "a", ""))
	for range maxIncomplete/maxStreams + 4 {
		halfSend(t, n, path, maxStreams, 64, 64)
	}
	apitest.UntilWithin(t, readTimeout/2, "the node answers others", func() bool {
		_, err := ask(t, n.conn, "", oneDescriptor("k", "a", ""))
		return err == nil
	})
}

// The number of health watches is bounded, and they keep no one from asking.
func TestWatchersAreBounded(t *testing.T) {
	n := startNode(t, vectorRules, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	served, refused := 0, 0
	for i := range maxOpenStreams + 5 {
		if i%(maxStreams-1) == 0 {
			n.conn = dial(t, n)
		}
		watch, err := healthpb.NewHealthClient(n.conn).Watch(ctx, &healthpb.HealthCheckRequest{})
		if err == nil {
			_, err = watch.Recv()
		}
		switch {
		case err == nil:
			served++
		case status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "more than 512 streams are open"):
			refused++
		default:
			t.Fatal(err)
		}
	}
	if served != maxOpenStreams || refused != 5 {
		t.Errorf("%d streams were served and %d refused", served, refused)
	}
	if have := n.answer(oneDescriptor("k", "a", "")); have != ok(two, "1") {
		t.Errorf("have %s", have)
	}
}

// A watch that is refused does not count as a call that is incomplete: a prober
// without a token goes on. Half of the streams are for callers with one.
func TestRefusedWatchesAreComplete(t *testing.T) {
	n := startNode(t, vectorRules, apitest.TheirTokens)
	background, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	watch := func(ctx context.Context, i int) error {
		if i%(maxStreams-1) == 0 {
			n.conn = dial(t, n)
		}
		w, err := healthpb.NewHealthClient(n.conn).Watch(ctx, &healthpb.HealthCheckRequest{})
		if err == nil {
			_, err = w.Recv()
		}
		return err
	}

	for i := range maxStrangersStreams {
		expect.NoError(t, watch(background, i))
	}
	for i := range 2 * maxStrangersCalls {
		if err := watch(background, 1); err == nil || !strings.Contains(err.Error(), "more than 256 streams without a token are open") {
			t.Fatalf("watch %d beyond: got %v", i, err)
		}
	}
	_, err := healthpb.NewHealthClient(n.conn).Check(background, &healthpb.HealthCheckRequest{})
	expect.NoError(t, err)

	known := metadata.AppendToOutgoingContext(background, "authorization", "Bearer "+apitest.SlotsToken)
	for i := range maxOpenStreams - maxStrangersStreams {
		expect.NoError(t, watch(known, i))
	}
	if err := watch(known, 1); err == nil || !strings.Contains(err.Error(), "more than 512 streams are open") {
		t.Errorf("got %v", err)
	}
}

// heap returns how many bytes are in use.
func heap() int64 {
	for range 2 { // pools are emptied only by the second collection
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A caller that sends tiny frames, each of which costs as much as one of 64
// bytes, loses its connection.
func TestSmallFrames(t *testing.T) {
	n := startNode(t, vectorRules, nil)
	n.answer(oneDescriptor("k", "a", ""))
	gone := halfSend(t, n, path, 1, 4000, 1)
	select {
	case <-gone:
	case <-time.After(5 * time.Second):
		t.Error("the connection stays open")
	}
	if have := n.answer(oneDescriptor("k", "a", "")); have != ok(two, "") {
		t.Errorf("have %s", have)
	}
}
