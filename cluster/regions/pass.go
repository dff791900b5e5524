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
	MethodPass    peer.Method = 200 // a call to another region for an entry node to forward
	MethodRegions peer.Method = 201 // asks an entry node for its answer; has no body
)

const (
	maxRegionLen = 100
	// maxPassing bounds the forwarded calls in flight.
	maxPassing = 4096
	// maxOwnEntries bounds the entry nodes of this region that are tried for one call, or polled at once.
	maxOwnEntries = 8
)

var errMessage = errors.New("regions: malformed message")

// First byte of the reply to MethodPass. The other region's reply, or the failure, follows.
const (
	passedReply   = iota // the body
	passedFailure        // a code and the detail
	passedAway           // nothing was sent
	passedUnknown        // the link broke
	passedLate           // no reply in time
)

// A call to forward: format 1 | method | timeout in ms, 4 bytes | length of the region | region | body.
const (
	passFormat = 1
	passHead   = 1 + 1 + 4 + 1
)

func newPass(region string, m peer.Method, timeout time.Duration, body []byte) []byte {
	b := append(make([]byte, 0, passHead+len(region)+len(body)), passFormat, byte(m), 0, 0, 0, 0)
	setTimeout(b, timeout)
	return append(wire.AppendShortText(b, region), body...)
}

func setTimeout(b []byte, timeout time.Duration) {
	binary.BigEndian.PutUint32(b[2:], uint32(max(timeout.Milliseconds(), 1)))
}

func parsePass(b []byte) (region string, m peer.Method, timeout time.Duration, body []byte, err error) {
	d := wire.NewDecoder(b)
	format := d.Byte()
	m, timeout = peer.Method(d.Byte()), min(time.Duration(d.BigUint32())*time.Millisecond, maxCallTime)
	region = d.ShortText(maxRegionLen)
	if d.Failed() || format != passFormat || region == "" {
		return "", 0, 0, nil, errMessage
	}
	return region, m, timeout, d.Rest(), nil
}

// passed is a call that an entry node of this region is to forward. As long as certainly nothing was sent, the next one is
// tried.
type passed struct {
	pool     *Pool
	request  []byte // for MethodPass
	deadline time.Time
	relays   []ring.NodeID // not yet tried
	done     func([]byte, error)
}

// pass sends a call to entry nodes of this region, to be forwarded.
func (p *Pool) pass(v *view, region string, m peer.Method, body []byte, timeout time.Duration, done func([]byte, error)) {
	if len(region) > maxRegionLen || region == "" || region == p.config.Self.Region {
		done(nil, fmt.Errorf("%w: %q is not another region", ErrAway, region))
		return
	}
	relays := p.relays(v, region)
	if len(relays) == 0 {
		done(nil, ErrAway)
		return
	}
	(&passed{pool: p, request: newPass(region, m, timeout, body), deadline: time.Now().Add(timeout), relays: relays, done: done}).next()
}

// relays returns the entry nodes of this region to try, best first. If this node is an entry node, it tries only those that
// report the region as reachable.
func (p *Pool) relays(v *view, region string) []ring.NodeID {
	p.mu.Lock()
	find, last := p.ownEntries, p.lastOwnEntry
	p.mu.Unlock()
	reaching := p.heard.Load().reaching(region)
	var can, may []ring.NodeID
	for _, id := range find() {
		switch {
		case id == p.config.Self.ID:
		case slices.Contains(reaching, id):
			can = append(can, id)
		case !v.entry:
			may = append(may, id)
		}
	}
	for _, part := range [][]ring.NodeID{can, may} {
		if i := slices.Index(part, last); i > 0 {
			part[0], part[i] = part[i], part[0]
		}
	}
	all := append(can, may...)
	return all[:min(len(all), maxOwnEntries)]
}

// next tries the next reachable entry node.
func (p *passed) next() {
	for len(p.relays) > 0 {
		relay := p.relays[0]
		p.relays = p.relays[1:]
		left := time.Until(p.deadline)
		if left <= 0 {
			break
		}
		setTimeout(p.request, left)
		if p.pool.try(relay, MethodPass, p.request, left, p.answered) {
			return
		}
	}
	p.done(nil, ErrAway)
}

// answered handles an entry node's reply.
func (p *passed) answered(reply []byte, err error) {
	if err != nil {
		if remote, ok := errors.AsType[*peer.RemoteError](err); ok && remote.Code != peer.CodeTooLarge {
			p.next() // it does not forward calls: it is starting, or runs an older version
			return
		}
		p.done(nil, err)
		return
	}
	reply, err = parsePassed(reply)
	if errors.Is(err, ErrAway) {
		p.next()
		return
	}
	p.done(reply, err)
}

// appendPassed appends the outcome of a forwarded call.
func appendPassed(b, reply []byte, err error) []byte {
	remote, failed := errors.AsType[*peer.RemoteError](err)
	switch {
	case err == nil:
		return append(append(b, passedReply), reply...)
	case failed:
		return append(append(b, passedFailure, byte(remote.Code)), remote.Detail...)
	case errors.Is(err, ErrAway), errors.Is(err, peer.ErrTooLarge):
		return append(b, passedAway)
	case errors.Is(err, peer.ErrTimeout):
		return append(b, passedLate)
	}
	return append(b, passedUnknown)
}

func parsePassed(b []byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, errMessage
	}
	switch rest := b[1:]; b[0] {
	case passedReply:
		return rest, nil
	case passedFailure:
		if len(rest) == 0 {
			return nil, errMessage
		}
		return nil, &peer.RemoteError{Code: peer.Code(rest[0]), Detail: string(rest[1:])}
	case passedAway:
		return nil, ErrAway
	case passedUnknown:
		return nil, fmt.Errorf("regions: forward a call: %w", peer.ErrUnreachable)
	case passedLate:
		return nil, fmt.Errorf("regions: forward a call: %w", peer.ErrTimeout)
	}
	return nil, errMessage
}

// CodeMessage is the failure code for malformed calls.
const CodeMessage peer.Code = 1

// Handle registers the handlers for calls from nodes of this region.
func (p *Pool) Handle(peers *peer.Peers) {
	peers.Handle(MethodPass, peer.Near, p.servePass)
	peers.Handle(MethodRegions, peer.Near, p.serveRegions)
}

func (p *Pool) servePass(c *peer.Call) {
	name, m, timeout, body, err := parsePass(c.Body)
	if err != nil {
		c.Fail(CodeMessage, err.Error())
		return
	}
	if p.passing.Add(1) > maxPassing {
		p.passing.Add(-1)
		c.Reply(appendPassed(nil, nil, ErrAway))
		return
	}
	done := func(reply []byte, err error) {
		p.passing.Add(-1)
		c.Reply(appendPassed(make([]byte, 0, 1+len(reply)), reply, err))
	}
	r := p.view.Load().region(name)
	if r == nil || p.ctx.Err() != nil || !p.callEntry(r, m, body, timeout, done) {
		done(nil, ErrAway)
	}
}
