package peer

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/ring"
)

func benchPair(b *testing.B, serve func(*Call)) (near *Peers, far ring.NodeID) {
	b.Helper()
	open := func(i int) (*Peers, string) {
		p, err := New(Config{
			Self:   func() Identity { return Identity{Node: nodeID(i)} },
			Logger: slog.New(slog.DiscardHandler),
			Listen: func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
			Dial: func(ctx context.Context, a string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", a)
			},
		})
		expect.NoError(b, err)
		handleAll(p, Near, serve)
		p.Start()
		b.Cleanup(func() { p.Close() })
		return p, p.Raft().Addr().String()
	}
	p, _ := open(1)
	_, address := open(2)
	p.SetNodes(map[ring.NodeID]string{nodeID(2): address})
	process.Eventually(b, "the nodes are connected", func() bool { return p.Reachable(nodeID(2)) })
	return p, nodeID(2)
}

// BenchmarkCall measures a round trip over TCP on this machine, with both ends in one process.
func BenchmarkCall(b *testing.B) {
	for _, callers := range []int{1, 16, 256} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			p, to := benchPair(b, func(c *Call) { c.Reply(c.Body) })
			body := make([]byte, 64)
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ReportAllocs()
			b.ResetTimer()
			var group sync.WaitGroup
			for range callers {
				group.Go(func() {
					done := make(chan error, 1)
					reply := func(_ []byte, err error) { done <- err }
					for left.Add(-1) >= 0 {
						p.Go(to, methodEcho, body, time.Second, reply)
						if err := <-done; err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			group.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
		})
	}
}

// BenchmarkSend measures one-way messages.
func BenchmarkSend(b *testing.B) {
	for _, size := range []int{64, 64 << 10} {
		b.Run(fmt.Sprint("bytes=", size), func(b *testing.B) {
			var served atomic.Int64
			p, to := benchPair(b, func(*Call) { served.Add(1) })
			body := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; {
				switch err := p.Send(to, methodCount, body); err {
				case nil:
					i++
				case ErrBusy:
					time.Sleep(50 * time.Microsecond)
				default:
					b.Fatal(err)
				}
			}
			for served.Load() < int64(b.N) {
				time.Sleep(50 * time.Microsecond)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}
