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

// longestCall bounds a call whose caller gave no limit.
const longestCall = 30 * time.Second

// Go calls an entry node of another region. done runs exactly once: with the reply, which is valid only during done, or with
// an error: ErrAway or ErrClosed if certainly nothing was sent; peer.ErrTooLarge; a *peer.RemoteError of who was called; or
// peer.ErrUnreachable or peer.ErrTimeout, where nobody knows whether the call was served. done may run before Go returns, or
// on a goroutine of Peers, so it must not block. body may be used again after Go returns. A timeout of 0 means 30 s.
func (p *Pool) Go(region string, m peer.Method, body []byte, timeout time.Duration, done func(reply []byte, err error)) {
	if timeout <= 0 || timeout > longestCall {
		timeout = longestCall
	}
	if p.ctx.Err() != nil {
		done(nil, ErrClosed)
		return
	}
	v := p.view.Load()
	if r := v.region(region); r != nil && p.callEntry(r, m, body, timeout, done) {
		return
	}
	p.pass(v, region, m, body, timeout, done)
}

// Call is Go for those who can wait. It takes 30 s at most if ctx has no deadline.
func (p *Pool) Call(ctx context.Context, region string, m peer.Method, body []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, ended(err)
	}
	timeout := longestCall
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(min(time.Until(deadline), longestCall), 1)
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
		return nil, ended(ctx.Err())
	}
}

// ended is what a call fails with when its context has ended.
func ended(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return peer.ErrTimeout
	}
	return fmt.Errorf("wait for a reply of another region: %w", err)
}

// callEntry calls the entry node of a region that was called last, or else another one, and says whether one may have got it.
// If not, done does not run.
func (p *Pool) callEntry(r *region, m peer.Method, body []byte, timeout time.Duration, done func([]byte, error)) bool {
	var last ring.NodeID
	if id := r.last.Load(); id != nil && slices.Contains(r.entries, *id) {
		last = *id
		if p.try(last, m, body, timeout, r.judging(last, done)) {
			return true
		}
	}
	from := rand.IntN(mostEntries) // so that the nodes of a region share the work
	for i := range r.entries {
		id := r.entries[(from+i)%len(r.entries)]
		if id != last && p.try(id, m, body, timeout, r.judging(id, done)) {
			r.last.Store(&id)
			return true
		}
	}
	return false
}

// judging has the next calls go to another entry node than to one that was late, or did not do what it was asked: it may be
// gone, which its silence shows only later, or cut off in its own region, and another one is not.
func (r *region) judging(id ring.NodeID, done func([]byte, error)) func([]byte, error) {
	return func(reply []byte, err error) {
		var remote *peer.RemoteError
		failed := errors.Is(err, peer.ErrTimeout) || errors.As(err, &remote)
		if last := r.last.Load(); failed && last != nil && *last == id {
			next := r.entries[(slices.Index(r.entries, id)+1)%len(r.entries)]
			r.last.CompareAndSwap(last, &next)
		}
		done(reply, err)
	}
}

// try calls a node and says whether it may have got that. If not, done does not run.
func (p *Pool) try(to ring.NodeID, m peer.Method, body []byte, timeout time.Duration, done func([]byte, error)) bool {
	if !p.config.Peers.Reachable(to) {
		return false
	}
	unsent := false
	p.config.Peers.Go(to, m, body, timeout, func(reply []byte, err error) {
		if errors.Is(err, peer.ErrNotSent) || errors.Is(err, peer.ErrBusy) {
			unsent = true // Go finds that out before it returns
			return
		}
		done(reply, err)
	})
	return !unsent
}
