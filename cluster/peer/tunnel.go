package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/rlnode/rlnode/ring"
)

const (
	// maxRelayed bounds the tunnels that a node relays.
	maxRelayed = 256
	// relayBuffer is the number of bytes of a tunnel that a relay buffers in each
	// direction, in addition to the kernel.
	relayBuffer = 32 << 10
	// relayIdle is how long a tunnel may be idle before it is closed.
	relayIdle = time.Minute
	// methodReceivesFrom asks a node whether it receives data directly from another
	// one. This package answers it, without a registered handler.
	methodReceivesFrom Method = 255
)

// A relay's answers to a request for a tunnel.
const (
	tunnelOpen   = 1
	tunnelNotNow = 2
)

// relayAnswer is a node's answer to methodReceivesFrom.
type relayAnswer byte

const (
	relayNo     relayAnswer = iota
	relayYes                // just now
	relayUnsure             // it has just lost the connection, and dials
)

var (
	errNoTunnel   = errors.New("the relay does not reach the node, or is busy")
	errTunnelOver = errors.New("a tunnel can't go through another tunnel")
)

// dialVia connects to target's node through a tunnel over relay. The handshake
// is end to end: the relay sees only bytes.
func (p *Peers) dialVia(ctx context.Context, relay, target *link, k connKind) (*socket, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()

	outer, err := p.dial(ctx, relay.address, kindTunnel, relay.expected)
	if err != nil {
		return nil, fmt.Errorf("dial the relay: %w", err)
	}

	s := &socket{kind: k, relay: relay.node}
	if err := p.register(outer, s); err != nil {
		return nil, err
	}

	return p.runHandshake(ctx, s, func() error {
		var answer [1]byte
		if _, err := s.Write(target.node[:]); err != nil {
			return fmt.Errorf("ask for a tunnel: %w", err)
		}
		if _, err := io.ReadFull(s, answer[:]); err != nil {
			return fmt.Errorf("ask for a tunnel: %w", err)
		}
		if answer[0] != tunnelOpen {
			return errNoTunnel
		}
		return p.dialHandshake(s, target.expected)
	})
}

func (p *Peers) relay(s *socket) {
	defer s.Close()
	_ = s.SetDeadline(time.Now().Add(handshakeTime))

	var target ring.NodeID
	if _, err := io.ReadFull(s, target[:]); err != nil {
		return
	}

	onward, err := p.dialTarget(target)
	if err != nil {
		_, _ = s.Write([]byte{tunnelNotNow}) // if it fails, the other end gives up by itself
		return
	}

	defer onward.Close()
	defer p.relayedTunnels.Add(-1)

	if _, err := s.Write([]byte{tunnelOpen}); err != nil {
		return
	}
	_ = s.SetDeadline(time.Time{})

	// Each direction ends by itself. The tunnel is over when both have.
	var back sync.WaitGroup
	back.Go(func() { p.copy(s, onward) })
	p.copy(onward, s)
	back.Wait()
}

// dialTarget dials the target; after success, the caller decrements
// relayedTunnels.
func (p *Peers) dialTarget(target ring.NodeID) (*socket, error) {
	l := (*p.links.Load())[target]
	if l == nil || !l.receivesDirectly() {
		return nil, errNoTunnel
	}

	s := &socket{kind: kindTunnel}
	err := errNoTunnel
	// The tunnel is counted before the dial, so that the bound also covers tunnels
	// that are being made.
	if p.relayedTunnels.Add(1) <= maxRelayed {
		var raw net.Conn

		raw, err = p.dialRaw(p.ctx, l.address, nearDialTime)
		if err == nil {
			err = p.register(raw, s)
		}
	}

	if err != nil {
		p.relayedTunnels.Add(-1)
		return nil, err
	}
	return s, nil
}

// copy copies bytes from one end of a tunnel until an end is closed or fails,
// and then closes the other end. After an error, it drops buffered data, which
// would arrive after data of a newer connection.
func (p *Peers) copy(to, from *socket) {
	defer to.Close()
	b := make([]byte, relayBuffer)

	for {
		_ = from.SetReadDeadline(time.Now().Add(relayIdle))
		n, err := from.Read(b)
		if n > 0 {
			p.relayedBytes.Add(int64(n))
			if _, err := to.Write(b[:n]); err != nil {
				from.discard()
				from.Close()
				return
			}
		}

		if err != nil {
			if err != io.EOF {
				to.discard()
			}
			return
		}
	}
}

// Relayed returns how many bytes this node has relayed for other nodes, and how
// many tunnels it relays now.
func (p *Peers) Relayed() (bytes, tunnels int64) {
	return p.relayedBytes.Load(), p.relayedTunnels.Load()
}

// answerReceivesFrom answers a call of methodReceivesFrom.
func (p *Peers) answerReceivesFrom(c *Call) {
	answer := relayNo
	if len(c.Body) == len(ring.NodeID{}) {
		l := (*p.links.Load())[ring.NodeID(c.Body)]
		switch {
		case l == nil:
		case l.receivesDirectly():
			answer = relayYes
		case p.now() < l.unsureByDialUntil.Load():
			answer = relayUnsure
		}
	}
	c.Reply([]byte{byte(answer)})
}
