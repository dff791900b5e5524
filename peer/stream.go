package peer

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	grpcpeer "google.golang.org/grpc/peer"
)

const (
	serviceName = "rlnode.Peer"
	streamName  = "Frames"
	window      = 1 << 20 // of gRPC's flow control
)

// stream is what both ends of a gRPC stream have.
type stream interface {
	SendMsg(m any) error
	RecvMsg(m any) error
}

// passThrough is a codec for frames, which are bytes already.
type passThrough struct{}

func (passThrough) Name() string { return "rlnode-frame" }

func (passThrough) Marshal(v any) (mem.BufferSlice, error) { return *v.(*mem.BufferSlice), nil }

func (passThrough) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	*v.(*mem.BufferSlice) = data
	return nil
}

func newServer(handle func(grpc.ServerStream) error) *grpc.Server {
	s := grpc.NewServer(
		grpc.ForceServerCodecV2(passThrough{}),
		grpc.MaxRecvMsgSize(largestFrame), grpc.MaxSendMsgSize(largestFrame),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window),
		grpc.MaxConcurrentStreams(1),
		grpc.MaxHeaderListSize(largestPreamble*4),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.WaitForHandlers(true),
	)
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: streamName, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, s grpc.ServerStream) error { return handle(s) },
		}},
	}, nil)
	return s
}

// openStream begins the stream on a connection that has been greeted. It ends with ctx; closing the client ends all.
func openStream(ctx context.Context, c net.Conn) (stream, *grpc.ClientConn, error) {
	var used atomic.Bool
	client, err := grpc.NewClient("passthrough:///"+c.RemoteAddr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // TLS, if there is any, is below the preamble
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errors.New("the connection is gone") // gRPC doesn't redial: the link does
			}
			return c, nil
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(passThrough{}),
			grpc.MaxCallRecvMsgSize(largestFrame), grpc.MaxCallSendMsgSize(largestFrame)),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithNoProxy(), grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, nil, err
	}
	s, err := client.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+serviceName+"/"+streamName)
	if err != nil {
		c.Close() // first: the client's Close waits for what it still has to write
		client.Close()
		return nil, nil, err
	}
	return s, client, nil
}

// socketOf is the connection that a stream came on.
func socketOf(ctx context.Context) (*socket, bool) {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return nil, false
	}
	a, ok := p.Addr.(socketAddr)
	return a.socket, ok
}

// handOver is the listener that gives accepted connections to gRPC, and to Raft.
type handOver struct {
	addr   net.Addr
	conns  chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

func newHandOver(addr net.Addr, waiting int) *handOver {
	ctx, cancel := context.WithCancel(context.Background())
	return &handOver{addr: addr, conns: make(chan net.Conn, waiting), closed: ctx, close: cancel}
}

// give says whether there was room.
func (h *handOver) give(c net.Conn) bool {
	if h.closed.Err() != nil {
		return false
	}
	select {
	case h.conns <- c:
		return h.closed.Err() == nil // if not, nobody takes it any more, and the caller closes it
	default:
		return false
	}
}

func (h *handOver) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed.Done():
		return nil, net.ErrClosed
	}
}

func (h *handOver) Close() error {
	h.close()
	return nil
}

func (h *handOver) Addr() net.Addr { return h.addr }
