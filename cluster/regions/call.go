package regions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
)

// maxCallTime is the maximum timeout of a call, and the default.
const maxCallTime = 30 * time.Second

// Go calls an entry node of another region. done runs exactly once, with the
// reply, which is valid only during done, or with an error: ErrNoRoute or
// ErrClosed if certainly nothing was sent; peer.ErrTooLarge; a
// *peer.RemoteError from the called node; or peer.ErrUnreachable or
// peer.ErrTimeout if nobody knows whether the call was served. done may run
// before Go returns, or on a goroutine of Peers, so it must not block. body may
// be reused after Go returns. A timeout of 0 means 30 s, which is also the
// maximum.
func (p *Pool) Go(
	region string, m peer.Method, body []byte, timeout time.Duration, done func(reply []byte, err error),
) {
	if timeout <= 0 || timeout > maxCallTime {
		timeout = maxCallTime
	}
	if p.ctx.Err() != nil {
		done(nil, ErrClosed)
		return
	}

	v := p.view.Load()
	if r := v.region(region); r != nil && p.callEntryNode(r, m, body, timeout, done) {
		return
	}
	p.forward(v, region, m, body, timeout, done)
}

// Call is the blocking form of Go. It takes at most 30 s. If ctx ends at its
// deadline, the error is peer.ErrTimeout. The reply belongs to the caller.
func (p *Pool) Call(ctx context.Context, region string, m peer.Method, body []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, contextError(err)
	}

	timeout := maxCallTime
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(min(time.Until(deadline), maxCallTime), 1)
	}

	type answer struct {
		reply []byte
		err   error
	}

	answers := make(chan answer, 1)
	p.Go(region, m, body, timeout, func(reply []byte, err error) { answers <- answer{bytes.Clone(reply), err} })

	select {
	case a := <-answers:
		return a.reply, a.err
	case <-ctx.Done():
		return nil, contextError(ctx.Err())
	}
}

// contextError returns the error of a call whose context has ended.
func contextError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return peer.ErrTimeout
	}
	return fmt.Errorf("wait for a reply from another region: %w", err)
}

// callEntryNode calls r's nextEntryNode or, if that node can't be reached,
// another entry node, which then becomes nextEntryNode. It reports whether a
// node may have received the call. If not, done does not run.
func (p *Pool) callEntryNode(r *region, m peer.Method, body []byte, timeout time.Duration, done func([]byte, error)) bool {
	var first ring.NodeID
	if id := r.nextEntryNode.Load(); id != nil && slices.Contains(r.entryNodes, *id) {
		first = *id
		if p.callNode(first, m, body, timeout, r.withFailover(first, done)) {
			return true
		}
	}

	start := rand.IntN(maxEntryNodes) // spreads the load of this region's nodes
	for i := range r.entryNodes {
		id := r.entryNodes[(start+i)%len(r.entryNodes)]
		if id != first && p.callNode(id, m, body, timeout, r.withFailover(id, done)) {
			r.nextEntryNode.Store(&id)
			return true
		}
	}

	return false
}

// withFailover wraps done for a call to id. If the call times out, or id
// answers with a failure, the next calls go to another node: id may be dead,
// which its link notices only after some silence, or cut off in its own region.
func (r *region) withFailover(id ring.NodeID, done func([]byte, error)) func([]byte, error) {
	return func(reply []byte, err error) {
		failed := errors.Is(err, peer.ErrTimeout) || errors.As(err, new(*peer.RemoteError))
		if current := r.nextEntryNode.Load(); failed && current != nil && *current == id {
			next := r.entryNodes[(slices.Index(r.entryNodes, id)+1)%len(r.entryNodes)]
			// Another call may have chosen another node meanwhile.
			r.nextEntryNode.CompareAndSwap(current, &next)
		}
		done(reply, err)
	}
}

// callNode calls a node and reports whether the node may have received the
// call. If not, done does not run.
func (p *Pool) callNode(
	to ring.NodeID, m peer.Method, body []byte, timeout time.Duration, done func([]byte, error),
) bool {
	if !p.config.Peers.Reachable(to) {
		return false
	}

	unsent := false
	p.config.Peers.Go(to, m, body, timeout, func(reply []byte, err error) {
		if errors.Is(err, peer.ErrNotSent) || errors.Is(err, peer.ErrBusy) {
			unsent = true // this error comes before Go returns
			return
		}
		done(reply, err)
	})
	return !unsent
}
