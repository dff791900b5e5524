package envoy

import (
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/rlnode/rlnode/api"
)

// handshake makes grpc-go attach the connection to its calls, where connectionOf finds it.
type handshake struct {
	credentials.TransportCredentials
}

func newCredentials(config *tls.Config) credentials.TransportCredentials {
	if config == nil {
		return handshake{insecure.NewCredentials()}
	}
	return handshake{credentials.NewTLS(config)}
}

// ServerHandshake implements credentials.TransportCredentials.
func (h handshake) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := h.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		return nil, nil, err
	}
	in := &inbound{Conn: secured, tracked: api.Unwrap[*api.Connection](conn),
		skipBytes: prefaceBytes, smallFrames: maxSmallFrames}
	return in, caller{info, in}, nil
}

// Clone implements credentials.TransportCredentials.
func (h handshake) Clone() credentials.TransportCredentials {
	return handshake{h.TransportCredentials.Clone()}
}

// caller is the AuthInfo of a call, with its connection.
type caller struct {
	credentials.AuthInfo
	conn *inbound
}

// connectionOf returns the connection of a call; nil if it is unknown.
func connectionOf(ctx context.Context) *inbound {
	if p, ok := peer.FromContext(ctx); ok {
		if c, ok := p.AuthInfo.(caller); ok {
			return c.conn
		}
	}
	return nil
}
