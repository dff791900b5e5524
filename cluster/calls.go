package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
)

// serveTimeout bounds the work on one call; removing a node waits until its authority expires.
const serveTimeout = 30 * time.Second

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
	ctx, cancel := context.WithTimeout(ctx, c.config.Timings.WriteTimeout)
	defer cancel()
	index, err := c.granter.CommittedIndex(ctx)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrLeaderUnavailable, err)
	}
	return index, nil
}

// retry retries an idempotent operation until it succeeds, fails for good, or
// ctx ends. It calls try with unknown set if an earlier attempt may have
// succeeded.
func (c *core) retry(ctx context.Context, try func(unknown bool) error) error {
	unknown := false
	for {
		err := try(unknown)
		if errors.Is(err, ErrOutcomeUnknown) {
			unknown = true
		}

		// Once an outcome is unknown, only another attempt can tell what it was. The
		// primary is then tried again even when it can't be reached.
		canRetry := errors.Is(err, ErrLeaderUnavailable) || errors.Is(err, ErrOutcomeUnknown) ||
			unknown && errors.Is(err, ErrNoPrimary)
		if !canRetry {
			return err
		}

		inTime := c.pauseBeforeRetry(ctx)
		if inTime {
			continue
		}

		if unknown && !errors.Is(err, ErrOutcomeUnknown) {
			err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		}
		if c.ctx.Err() != nil {
			err = errors.Join(err, ErrClosed)
		}
		return err
	}
}

// retryPause is how long to wait between two attempts of a write. An election takes several pauses.
const retryPause = 50 * time.Millisecond

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

// withWriteTimeout gives ctx a deadline if it has none.
func (c *core) withWriteTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.config.Timings.WriteTimeout)
}
