package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	// handshakeTime bounds the exchange before the first message, at either end:
	// the TLS handshake and the preamble. With a round-trip time of 300 ms, they
	// take 600 ms.
	handshakeTime = 2 * time.Second
	// nearDialTime bounds how long a near connection waits for TCP. TCP itself
	// would try again only after a second.
	nearDialTime = 500 * time.Millisecond
	// farDialTime bounds how long a far connection waits for TCP. During a cut, TCP
	// doubles the pause before each of its retries; a new dial every one to two
	// seconds avoids that.
	farDialTime = 1500 * time.Millisecond
	maxHalfOpen = 256
	maxAccepted = 4096
	// maxFar bounds the accepted connections from other regions: 31 regions with 8
	// entry nodes make 248. This leaves room for near ones.
	maxFar      = 512
	raftWaiting = 64
	acceptPause = 50 * time.Millisecond // after an error, such as no free file descriptor
)

// accept accepts connections until the listener is closed.
func (p *Peers) accept() {
	for {
		// Room in halfOpen is taken before Accept, so that connections beyond the
		// bound wait in the listener.
		select {
		case p.halfOpen <- struct{}{}:
		case <-p.ctx.Done():
			return
		}

		c, err := p.listener.Accept()
		if err == nil {
			if !p.spawn(func() { p.handleIncoming(c) }) {
				c.Close()
				<-p.halfOpen
			}
			continue
		}

		<-p.halfOpen
		if p.ctx.Err() != nil {
			return
		}

		if p.loggedOnce.claimOnce("accept") {
			p.log.Error("can't accept peer connections, retrying", "error", err)
		}
		sleep(p.ctx, acceptPause)
	}
}

// handleIncoming does the handshake of an incoming connection and hands the
// connection over. At the end, it frees the connection's room in halfOpen.
func (p *Peers) handleIncoming(raw net.Conn) {
	defer func() { <-p.halfOpen }()

	host := hostOf(raw.RemoteAddr())
	s := &socket{accepted: true}
	err := p.register(raw, s)
	if err != nil {
		if !errors.Is(err, ErrClosed) && p.loggedOnce.claimOnce("full") {
			p.log.Warn("peer connection closed", "remote", host, "error", err)
		}
		return
	}

	err = p.acceptHandshake(s)
	if err == nil {
		s.handshakeDone.Store(true)
		err = p.handOver(s)
	}

	if err != nil {
		s.Close()
		// Failures while this node or the remote stops are not logged, and neither
		// are health probes, which close without sending anything.
		if p.ctx.Err() == nil && !errors.Is(err, ErrClosed) && !errors.Is(err, io.EOF) &&
			p.shouldLog(err, s.remote.Node, &p.loggedOnce, host+" ") {
			p.log.Warn("peer connection refused", "remote", host, "error", err)
		}
		return
	}

	p.loggedOnce.forget(host)
	p.notifyLink(s)
}

func (p *Peers) acceptHandshake(s *socket) error {
	_ = s.SetDeadline(time.Now().Add(handshakeTime))

	if p.config.TLS != nil {
		if err := s.startTLS(tls.Server, p.config.TLS.Server()); err != nil {
			return err
		}
	}

	theirs, err := readPreamble(s)
	if err != nil {
		return fmt.Errorf("read preamble: %w", err)
	}

	if err := p.checkPreamble(s, theirs); err != nil {
		p.refuse(s, err.Error())
		if !errors.As(err, new(*versionError)) {
			err = refused(s.remote, err)
		}
		return err
	}

	welcome := preamble{p.config.versions, answerWelcome, p.config.Self().appendBinary(nil)}
	if err := welcome.write(s); err != nil {
		return fmt.Errorf("answer preamble: %w", err)
	}
	return s.SetDeadline(time.Time{})
}

// checkPreamble checks the preamble of an incoming connection, and sets what it
// says in s. The error is the reason to refuse the connection.
func (p *Peers) checkPreamble(s *socket, theirs preamble) (err error) {
	s.remote, err = parseIdentity(theirs.body)
	if err != nil {
		return err
	}
	err = s.verify(s.remote)
	if err != nil {
		return err
	}

	s.version, err = negotiate(p.config.Self(), p.config.versions, s.remote, theirs.versions)
	if err != nil {
		return err
	}

	s.kind = connKind(theirs.tag) &^ viaTunnel
	s.tunnelled = connKind(theirs.tag)&viaTunnel != 0
	switch {
	case s.kind < kindNear || s.kind > kindTunnel:
		return errKind
	case s.tunnelled && (s.kind == kindTunnel || s.kind == kindFar):
		return errTunnelOver
	}

	err = p.checkRemote(s.kind, s.remote)
	if err == nil && s.kind == kindFar && !p.countFar(s) {
		err = errTooManyFar
	}

	return err
}

// handOver gives a connection to Raft, to a goroutine that serves its messages,
// or to one that relays it as a tunnel.
func (p *Peers) handOver(s *socket) error {
	if s.kind == kindRaft {
		if err := p.offerToRaft(s); err != nil {
			return fmt.Errorf("hand over to Raft: %w", err)
		}
		return nil
	}

	serve := func() { _ = p.newConn(s, false).run(p.ctx) } // the other end logs why the connection ended
	if s.kind == kindTunnel {
		serve = func() { p.relay(s) }
	}

	if !p.spawn(serve) {
		return ErrClosed
	}

	return nil
}

// refuse sends the dialling side the reason, if possible.
func (p *Peers) refuse(s *socket, reason string) {
	_ = preamble{p.config.versions, answerRefused, []byte(reason[:min(len(reason), maxReason)])}.write(s)
}

func refused(remote Identity, why error) error {
	return fmt.Errorf("%w node %s (%s): %w", ErrRefused, remote.Node, printable(remote.Name), why)
}

// dial makes a connection and completes the handshake. expected checks that the
// right node answers. For a near connection, the dial and the handshake
// together take at most handshakeTime.
func (p *Peers) dial(ctx context.Context, address string, k connKind, expected func(Identity) error) (*socket, error) {
	dialTime, totalTime := nearDialTime, handshakeTime
	if k == kindFar {
		dialTime, totalTime = farDialTime, farDialTime+handshakeTime
	}

	ctx, cancel := context.WithTimeout(ctx, totalTime)
	defer cancel()

	raw, err := p.dialRaw(ctx, address, dialTime)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}

	s := &socket{kind: k}
	if err := p.register(raw, s); err != nil {
		return nil, err
	}
	return p.runHandshake(ctx, s, func() error { return p.dialHandshake(s, expected) })
}

// runHandshake runs the handshake on a dialled connection. It fails when ctx ends.
func (p *Peers) runHandshake(ctx context.Context, s *socket, handshake func() error) (*socket, error) {
	// The deadline is set on the raw connection, because startTLS replaces s.Conn at
	// the same time.
	stop := context.AfterFunc(ctx, func() { _ = s.raw.SetDeadline(time.Unix(1, 0)) })
	err := handshake()

	// If ctx has ended, the deadline was set or will be, even after the last byte
	// of the handshake: the connection can't be used any more.
	inTime := stop()
	if !inTime && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		s.Close()
		return nil, err
	}

	s.handshakeDone.Store(true)
	return s, nil
}

func (p *Peers) dialRaw(ctx context.Context, address string, most time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return p.config.Dial(ctx, address)
}

func (p *Peers) dialHandshake(s *socket, expected func(Identity) error) error {
	if p.config.TLS != nil {
		if err := s.startTLS(tls.Client, p.config.TLS.Client()); err != nil {
			return err
		}
	}

	k := s.kind
	if !s.relay.IsZero() {
		k |= viaTunnel
	}

	remote, version, err := exchangePreambles(s, k, p.config.Self(), p.config.versions)
	if err != nil {
		return err
	}

	s.version = version
	if err := expected(remote); err != nil {
		return err
	}

	err = s.verify(remote)
	if err == nil {
		err = p.checkRemote(s.kind, remote)
	}
	if err != nil {
		return refused(remote, err)
	}

	s.remote = remote
	return nil
}

func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}
