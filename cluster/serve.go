package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
)

// Methods of the calls between nodes that belong to this package: 1 to 31; and those of package authority are served
// here, too.
const (
	MethodPromise      peer.Method = 1 + iota // promiseRequest → promiseReply
	MethodStands                              // attempt → bool
	MethodInvite                              // invitation → {}
	MethodPropose                             // an entry → answer
	MethodRemove                              // departure → {}
	MethodFollow                              // followRequest → followKind and what it needs; from other regions
	MethodGoverns                             // nothing → nothing, if the node leads the primary region; from other regions
	MethodWriteFar                            // as MethodPropose; from other regions
	MethodRemoveRegion                        // a region's name → as MethodPropose; from other regions, too
	MethodFollowNow                           // nothing → nothing
	MethodRaise                               // a feature level → the one that is agreed on
)

// Codes of calls that failed. Of all but codeUnknown it is known that nothing was changed.
const (
	codeNoLeader peer.Code = 1 + iota
	codeUnknown
	codeRefused
	codeNotFound
	codeBusy
	codeBad
	codeNoPrimary
)

// errBadCall means that a call can't be read.
var errBadCall = errors.New("the call can't be read")

const (
	// serveBound is how long a call is worked on; removing a node waits for its authority to run out.
	serveBound = 30 * time.Second
)

// request is a call that has come in.
type request struct {
	from peer.Identity
	body []byte
}

// handler answers a call for this package.
type handler func(context.Context, request) ([]byte, error)

// near are the handlers of calls from this region.
func (c *Cluster) near() map[peer.Method]handler {
	return map[peer.Method]handler{
		MethodPromise:             c.servePromise,
		MethodStands:              c.serveStands,
		MethodInvite:              c.serveInvitation,
		MethodPropose:             c.servePropose,
		MethodRemove:              c.serveRemove,
		MethodFollow:              c.serveFollow,
		MethodGoverns:             c.serveGoverns,
		MethodWriteFar:            c.serveWriteFar,
		MethodRemoveRegion:        c.serveRemoveRegion,
		MethodFollowNow:           c.serveFollowNow,
		MethodRaise:               c.serveRaise,
		authority.MethodAsk:       c.serveAsk,
		authority.MethodCommitted: c.serveCommitted,
	}
}

// Handle has p bring this package's calls here.
func (c *Cluster) Handle(p *peer.Peers) {
	for m, h := range c.handlers {
		p.Handle(m, peer.Near, func(call *peer.Call) { c.serveBy(call, h) })
	}
	for _, m := range foreign {
		p.Handle(m, peer.Far, func(call *peer.Call) {
			// It is passed on to the leader, who sees this node as the caller: no method that other regions may call looks at
			// who does.
			c.serveBy(call, func(ctx context.Context, r request) ([]byte, error) { return c.callLeader(ctx, m, r.body) })
		})
	}
}

// serveBy answers a call by a handler, beside.
func (c *Cluster) serveBy(call *peer.Call, h handler) {
	if !c.started.Load() {
		call.Fail(codeNoLeader, "the node is starting")
		return
	}
	select {
	case c.tasks <- struct{}{}:
	default:
		call.Fail(codeBusy, "too many calls are being answered")
		return
	}
	call.Keep()
	if !c.spawn(func() {
		defer func() { <-c.tasks }()
		ctx, cancel := context.WithTimeout(c.ctx, serveBound)
		defer cancel()
		reply, err := h(ctx, request{from: call.From, body: call.Body})
		if err != nil {
			call.Fail(codeOf(err), detailOf(err))
			return
		}
		call.Reply(reply)
	}) {
		<-c.tasks
		call.Fail(codeNoLeader, ErrClosed.Error())
	}
}

// codeOf is how an error travels.
func codeOf(err error) peer.Code {
	var remote *peer.RemoteError
	switch {
	case errors.As(err, &remote):
		return remote.Code
	case errors.Is(err, ErrUnknown):
		return codeUnknown
	case errors.Is(err, ErrNoPrimary):
		return codeNoPrimary
	case errors.Is(err, ErrNoLeader), errors.Is(err, authority.ErrNotLeading):
		return codeNoLeader
	case errors.Is(err, ErrRefused):
		return codeRefused
	case errors.Is(err, ErrNotFound):
		return codeNotFound
	case errors.Is(err, errBadCall):
		return codeBad
	}
	return codeUnknown
}

func detailOf(err error) string {
	var remote *peer.RemoteError
	if errors.As(err, &remote) {
		return remote.Detail
	}
	return err.Error()
}

// callError is what an error of a call means here.
func callError(err error) error {
	var remote *peer.RemoteError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, peer.ErrBusy), errors.Is(err, peer.ErrTooLarge), errors.Is(err, peer.ErrNotSent):
		return fmt.Errorf("%w: %w", ErrNoLeader, err) // nothing was sent
	case !errors.As(err, &remote):
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	for code, kind := range map[peer.Code]error{
		codeNoLeader: ErrNoLeader, codeBusy: ErrNoLeader, codeBad: ErrRefused, codeRefused: ErrRefused, codeNotFound: ErrNotFound,
		codeNoPrimary: ErrNoPrimary, peer.CodeNoMethod: ErrRefused,
	} {
		if remote.Code == code {
			return &told{kind, remote.Detail}
		}
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// callJSON calls a node of which gossip knows.
func (c *Cluster) callJSON(ctx context.Context, to ring.NodeID, m peer.Method, body, reply any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if b, err = c.cfg.Peers.Call(ctx, to, m, b); err != nil {
		return callError(err)
	}
	if err := json.Unmarshal(b, reply); err != nil {
		return fmt.Errorf("%w: %w", errBadCall, err)
	}
	return nil
}

// callLeader brings a call to the leader. The error wraps ErrNoLeader if the leader certainly did not get it.
func (c *Cluster) callLeader(ctx context.Context, m peer.Method, body []byte) ([]byte, error) {
	leader := c.leader()
	switch {
	case leader == c.cfg.Self.ID && c.leads():
		return c.handlers[m](ctx, request{from: c.Identity(), body: body})
	case leader.IsZero() || leader == c.cfg.Self.ID || !c.cfg.Peers.Reachable(leader):
		return nil, fmt.Errorf("%w that could be reached", ErrNoLeader)
	}
	b, err := c.cfg.Peers.Call(ctx, leader, m, body)
	return b, callError(err)
}

func (c *Cluster) serveAsk(ctx context.Context, r request) ([]byte, error) {
	ask, err := authority.ParseRequest(r.body)
	if err != nil {
		return nil, errBadCall
	}
	ctx, cancel := context.WithTimeout(ctx, authority.Term)
	defer cancel()
	return c.answer(ctx, ask).Encode()
}

func (c *Cluster) serveCommitted(ctx context.Context, _ request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timings.Write)
	defer cancel()
	index, err := c.giver.Committed(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLeader, err)
	}
	return authority.Reply{Granted: true, Index: index}.Encode()
}
