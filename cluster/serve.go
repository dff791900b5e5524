package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
)

// Methods of this package's calls between nodes, from 1 to 31. This package
// also serves those of package authority.
const (
	MethodPromise        peer.Method = 1 + iota // promiseRequest → promiseReply
	MethodIsAttemptValid                        // attempt → bool
	MethodInvite                                // invitation → nothing
	MethodPropose                               // an entry → agreement.Result; also from other regions
	MethodRemove                                // removalRequest → nothing
	MethodFollow                                // followRequest → followKind and its data; from other regions
	// nothing → nothing; fails unless the node leads the primary; from other regions
	MethodProbePrimary
	MethodRemoveRegion // a region's name → agreement.Result; also from other regions
	MethodFollowNow    // nothing → nothing
	MethodRaise        // a feature level → the agreed level
	MethodWriteEntries // entriesWrite → entriesReply; also from other regions
)

// Codes of failed calls. All but codeUnknown mean that nothing was changed.
const (
	codeNoLeader peer.Code = 1 + iota
	codeUnknown
	codeRefused
	codeNotFound
	codeBusy
	codeNoPrimary
)

// kindsByCode maps codes to errors on both ends. The sender uses the first match.
var kindsByCode = []struct {
	code peer.Code
	kind error
}{
	{codeUnknown, ErrOutcomeUnknown}, {codeNoPrimary, ErrNoPrimary},
	{codeNoLeader, ErrLeaderUnavailable}, {codeNoLeader, authority.ErrNotLeading},
	{codeRefused, ErrRefused}, {codeNotFound, ErrNotFound},
	// These are only received.
	{codeBusy, ErrLeaderUnavailable}, {peer.CodeNoMethod, ErrRefused},
}

// errBadCall means that a call is malformed or has invalid arguments.
var errBadCall = fmt.Errorf("%w: the call can't be read", ErrRefused)

// crossRegionMethods lists the methods that other regions may call. The leader serves all of them.
var crossRegionMethods = [...]peer.Method{MethodFollow, MethodProbePrimary, MethodPropose,
	MethodRemoveRegion, MethodWriteEntries}

// serveTimeout bounds the work on one call; removing a node waits until its authority expires.
const serveTimeout = 30 * time.Second

// request is an incoming call.
type request struct {
	from peer.Identity
	body []byte
}

// handler answers a call for this package.
type handler func(context.Context, request) ([]byte, error)

// jsonHandler is a handler whose requests and replies are JSON.
func jsonHandler[In, Out any](serve func(context.Context, In) (Out, error)) handler {
	return func(ctx context.Context, r request) ([]byte, error) {
		var in In
		if err := json.Unmarshal(r.body, &in); err != nil {
			return nil, errBadCall
		}
		out, err := serve(ctx, in)
		if err != nil {
			return nil, err
		}
		return json.Marshal(out)
	}
}

// noBody is an empty request or reply.
type noBody struct{}

// localHandlers returns the handlers for calls from this region.
func (c *Cluster) localHandlers() map[peer.Method]handler {
	return map[peer.Method]handler{
		MethodPromise:             c.founder.servePromise,
		MethodIsAttemptValid:      jsonHandler(c.founder.serveIsAttemptValid),
		MethodInvite:              jsonHandler(c.founder.serveInvitation),
		MethodPropose:             c.sharedRules.servePropose,
		MethodRemove:              jsonHandler(c.serveRemove),
		MethodFollow:              c.sharedRules.serveFollow,
		MethodProbePrimary:        c.sharedRules.serveProbe,
		MethodRemoveRegion:        c.sharedRules.serveRemoveRegion,
		MethodFollowNow:           jsonHandler(c.sharedRules.serveFollowNow),
		MethodWriteEntries:        c.sharedRules.serveWriteEntries,
		MethodRaise:               jsonHandler(c.reconciler.raise),
		authority.MethodAsk:       jsonHandler(c.tracker.answerRequest),
		authority.MethodCommitted: jsonHandler(c.serveCommitted),
	}
}

// Handle registers this package's handlers with p.
func (c *Cluster) Handle(p *peer.Peers) {
	for m, h := range c.handlers {
		p.Handle(m, peer.Near, func(call *peer.Call) { c.serveWith(call, h) })
	}
	for _, m := range crossRegionMethods {
		p.Handle(m, peer.Far, func(call *peer.Call) {
			// The call is forwarded to the leader, which sees this node as the caller. That is
			// safe because no method that other regions may call uses its caller's
			// identity.
			c.serveWith(call,
				func(ctx context.Context, r request) ([]byte, error) { return c.callLeader(ctx, m, r.body) })
		})
	}
}

// serveWith answers a call with a handler, on a new goroutine.
func (c *core) serveWith(call *peer.Call, h handler) {
	if !c.started.Load() {
		call.Fail(codeNoLeader, "this node is still starting")
		return
	}

	call.CopyBody()
	started := c.calls.Go(func() {
		ctx, cancel := context.WithTimeout(c.ctx, serveTimeout)
		defer cancel()
		reply, err := h(ctx, request{from: call.From, body: call.Body})
		if err != nil {
			call.Fail(codeOf(err))
			return
		}
		call.Reply(reply)
	})

	switch {
	case started:
	case c.ctx.Err() != nil:
		call.Fail(codeNoLeader, ErrClosed.Error())
	default:
		call.Fail(codeBusy, "too many calls are being answered")
	}
}

// codeOf returns the code and text with which to send an error.
func codeOf(err error) (peer.Code, string) {
	if remote, ok := errors.AsType[*peer.RemoteError](err); ok {
		return remote.Code, remote.Detail
	}
	for _, k := range kindsByCode {
		if errors.Is(err, k.kind) {
			return k.code, err.Error()
		}
	}
	return codeUnknown, err.Error()
}

// callError translates the error of a call into this package's errors.
func callError(err error) error {
	remote, isRemote := errors.AsType[*peer.RemoteError](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, peer.ErrBusy), errors.Is(err, peer.ErrTooLarge), errors.Is(err, peer.ErrNotSent):
		return fmt.Errorf("%w: %w", ErrLeaderUnavailable, err) // nothing was sent
	case isRemote:
		for _, k := range kindsByCode {
			if remote.Code == k.code {
				return &agreement.ReportedError{Text: remote.Detail, Kind: k.kind}
			}
		}
	}

	return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
}

// toLeader addresses a call of callJSON to the leader.
var toLeader ring.NodeID

// callJSON makes a call in JSON to a node that gossip knows, or to the leader.
// It returns the same errors as callLeader.
func (c *core) callJSON(ctx context.Context, to ring.NodeID, m peer.Method, body, reply any) error {
	b, err := json.Marshal(body)
	switch {
	case err != nil:
		return err
	case to == toLeader:
		b, err = c.callLeader(ctx, m, b)
	default:
		b, err = c.config.Peers.Call(ctx, to, m, b)
		err = callError(err)
	}

	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, reply); err != nil {
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}

	return nil
}

// callLeader makes a call to the leader. The error wraps ErrLeaderUnavailable
// if the leader certainly did not carry it out.
func (c *core) callLeader(ctx context.Context, m peer.Method, body []byte) ([]byte, error) {
	leader := c.Leader()
	switch {
	case leader == c.config.Self.ID && c.leads():
		return c.handlers[m](ctx, request{from: c.Identity(), body: body})
	case leader.IsZero() || leader == c.config.Self.ID || !c.config.Peers.Reachable(leader):
		return nil, fmt.Errorf("%w: this node reaches no leader", ErrLeaderUnavailable)
	}

	b, err := c.config.Peers.Call(ctx, leader, m, body)
	return b, callError(err)
}

// serveCommitted returns, on the leader, the index up to which entries are committed.
func (c *core) serveCommitted(ctx context.Context, _ noBody) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timings.Write)
	defer cancel()
	index, err := c.granter.Committed(ctx)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrLeaderUnavailable, err)
	}
	return index, nil
}

// retry retries an idempotent operation until it succeeds, fails for good, or
// ctx ends. It calls try with unknown set if an earlier attempt may have
// succeeded.
func (c *core) retry(ctx context.Context, try func(unknown bool) error) error {
	for unknown := false; ; {
		err := try(unknown)
		unknown = unknown || errors.Is(err, ErrOutcomeUnknown)
		again := errors.Is(err, ErrLeaderUnavailable) || errors.Is(err, ErrOutcomeUnknown) ||
			unknown && errors.Is(err, ErrNoPrimary)
		if again && c.pauseBeforeRetry(ctx) {
			continue
		}

		if again && unknown && !errors.Is(err, ErrOutcomeUnknown) {
			err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		}
		if again && c.ctx.Err() != nil {
			err = errors.Join(err, ErrClosed)
		}

		return err
	}
}

// pauseBeforeRetry waits for retryPause. It returns false if ctx ends or this node closes first.
func (c *core) pauseBeforeRetry(ctx context.Context) bool {
	select {
	case <-time.After(retryPause):
		return true
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	return false
}
