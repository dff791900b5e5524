package regions

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// Methods of calls inside a region. Methods up to 207 belong to this package.
const (
	MethodForward peer.Method = 200 // a call to another region for an entry node to forward
	MethodRegions peer.Method = 201 // asks an entry node what it knows of other regions; has no body
)

const (
	maxRegionLen = 100
	// maxForwarding bounds the calls in flight that this node forwards.
	maxForwarding = 4096
	// maxOwnEntries bounds the entry nodes of this region that are tried for one
	// call, or polled at once.
	maxOwnEntries = 8
)

var errMessage = errors.New("regions: malformed message")

// The first byte of a reply to MethodForward says what follows.
const (
	outcomeReply   = iota // the body
	outcomeFailure        // a code and the detail
	outcomeNotSent        // nothing was sent
	outcomeUnknown        // the link broke: the call may have been served
	outcomeTimeout        // no reply in time
)

// A call to forward: format 1 | method | timeout in ms, 4 bytes | length of the
// region | region | body.
const (
	forwardFormat   = 1
	forwardHeadSize = 1 + 1 + 4 + 1
)

func encodeForward(region string, m peer.Method, timeout time.Duration, body []byte) []byte {
	b := append(make([]byte, 0, forwardHeadSize+len(region)+len(body)), forwardFormat, byte(m), 0, 0, 0, 0)
	setTimeout(b, timeout)
	return append(wire.AppendShortText(b, region), body...)
}

func setTimeout(b []byte, timeout time.Duration) {
	binary.BigEndian.PutUint32(b[2:], uint32(max(timeout.Milliseconds(), 1)))
}

func parseForward(b []byte) (region string, m peer.Method, timeout time.Duration, body []byte, err error) {
	d := wire.NewDecoder(b)
	format := d.Byte()
	m, timeout = peer.Method(d.Byte()), min(time.Duration(d.BigUint32())*time.Millisecond, maxCallTime)
	region = d.ShortText(maxRegionLen)
	if d.Failed() || format != forwardFormat || region == "" {
		return "", 0, 0, nil, errMessage
	}
	return region, m, timeout, d.Rest(), nil
}

// forwardedCall is a call that an entry node of this region is to forward. If
// certainly nothing was sent, the next entry node is tried.
type forwardedCall struct {
	pool       *Pool
	request    []byte // for MethodForward
	deadline   time.Time
	forwarders []ring.NodeID // not yet tried
	done       func([]byte, error)
}

// forward sends a call to entry nodes of this region, to be forwarded.
func (p *Pool) forward(
	v *wanView, region string, m peer.Method, body []byte, timeout time.Duration, done func([]byte, error),
) {
	if len(region) > maxRegionLen || region == "" || region == p.config.Self.Region {
		done(nil, fmt.Errorf("%w: %q is not another region", ErrNoRoute, region))
		return
	}

	relays := p.forwarders(v, region)
	if len(relays) == 0 {
		done(nil, ErrNoRoute)
		return
	}

	(&forwardedCall{
		pool: p, request: encodeForward(region, m, timeout, body),
		deadline: time.Now().Add(timeout), forwarders: relays, done: done,
	}).tryNext()
}

// forwarders returns the entry nodes of this region to try, best first. An entry
// node knows the other regions itself, so it tries only those that report the
// region as reachable.
func (p *Pool) forwarders(v *wanView, region string) []ring.NodeID {
	p.mu.Lock()
	find, last := p.ownEntryNodes, p.lastOwnEntry
	p.mu.Unlock()

	reaching := p.reports.Load().reaching(region)
	var reporting, others []ring.NodeID
	for _, id := range find() {
		switch {
		case id == p.config.Self.ID:
		case slices.Contains(reaching, id):
			reporting = append(reporting, id)
		case !v.isEntryNode:
			others = append(others, id)
		}
	}

	for _, part := range [][]ring.NodeID{reporting, others} {
		if i := slices.Index(part, last); i > 0 {
			part[0], part[i] = part[i], part[0]
		}
	}

	all := append(reporting, others...)
	return all[:min(len(all), maxOwnEntries)]
}

// tryNext tries the next reachable entry node.
func (f *forwardedCall) tryNext() {
	for len(f.forwarders) > 0 {
		relay := f.forwarders[0]
		f.forwarders = f.forwarders[1:]

		left := time.Until(f.deadline)
		if left <= 0 {
			break
		}

		setTimeout(f.request, left)
		if f.pool.callNode(relay, MethodForward, f.request, left, f.handleReply) {
			return
		}
	}

	f.done(nil, ErrNoRoute)
}

// handleReply handles an entry node's reply to MethodForward.
func (f *forwardedCall) handleReply(reply []byte, err error) {
	if err != nil {
		// A reply that is too large means that the call was served. It must not be sent
		// again.
		if remote, ok := errors.AsType[*peer.RemoteError](err); ok && remote.Code != peer.CodeTooLarge {
			f.tryNext() // the node refused the request itself, and so has sent nothing
			return
		}
		f.done(nil, err)
		return
	}

	reply, err = parseOutcome(reply)
	if errors.Is(err, ErrNoRoute) {
		f.tryNext()
		return
	}

	f.done(reply, err)
}

// appendOutcome appends the outcome of a forwarded call.
func appendOutcome(b, reply []byte, err error) []byte {
	remote, failed := errors.AsType[*peer.RemoteError](err)
	switch {
	case err == nil:
		return append(append(b, outcomeReply), reply...)
	case failed:
		return append(append(b, outcomeFailure, byte(remote.Code)), remote.Detail...)
	case errors.Is(err, ErrNoRoute), errors.Is(err, peer.ErrTooLarge):
		return append(b, outcomeNotSent)
	case errors.Is(err, peer.ErrTimeout):
		return append(b, outcomeTimeout)
	}
	return append(b, outcomeUnknown)
}

func parseOutcome(b []byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, errMessage
	}

	switch rest := b[1:]; b[0] {
	case outcomeReply:
		return rest, nil
	case outcomeFailure:
		if len(rest) == 0 {
			return nil, errMessage
		}
		return nil, &peer.RemoteError{Code: peer.Code(rest[0]), Detail: string(rest[1:])}
	case outcomeNotSent:
		return nil, ErrNoRoute
	case outcomeUnknown:
		return nil, fmt.Errorf("regions: forward a call: %w", peer.ErrUnreachable)
	case outcomeTimeout:
		return nil, fmt.Errorf("regions: forward a call: %w", peer.ErrTimeout)
	}

	return nil, errMessage
}

// CodeMessage is the failure code for malformed calls.
const CodeMessage peer.Code = 1

// Handle registers the handlers for calls from nodes of this region.
func (p *Pool) Handle(peers *peer.Peers) {
	peers.Handle(MethodForward, peer.Near, p.serveForward)
	peers.Handle(MethodRegions, peer.Near, p.serveRegions)
}

func (p *Pool) serveForward(c *peer.Call) {
	name, m, timeout, body, err := parseForward(c.Body)
	if err != nil {
		c.Fail(CodeMessage, err.Error())
		return
	}

	if p.forwarding.Add(1) > maxForwarding {
		p.forwarding.Add(-1)
		c.Reply(appendOutcome(nil, nil, ErrNoRoute))
		return
	}

	done := func(reply []byte, err error) {
		p.forwarding.Add(-1)
		c.Reply(appendOutcome(make([]byte, 0, 1+len(reply)), reply, err))
	}

	r := p.view.Load().region(name)
	if r == nil || p.ctx.Err() != nil || !p.callEntryNode(r, m, body, timeout, done) {
		done(nil, ErrNoRoute)
	}
}
