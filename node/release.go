package node

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Bounds on the steps of Close. Close promises to return within ten seconds, so
// all steps together may take stopTimeout. But no context ends a step that
// waits for a disk. If such a step hangs, Close returns without it, after
// hangTimeout.
const (
	stopTimeout = 9 * time.Second
	hangTimeout = stopTimeout + 500*time.Millisecond
	// leaveTimeout bounds handing partitions over to other nodes, while checks are still decided.
	leaveTimeout = 5 * time.Second
	// saveTimeout bounds saving most of the counters, while checks are still decided.
	saveTimeout = 3 * time.Second
	// closeTimeout bounds waiting for requests in flight when the listeners close.
	closeTimeout = 2 * time.Second
)

// onRelease registers a function for release, which calls them in reverse order.
func (n *Node) onRelease(step func(context.Context) error) {
	n.releaseSteps = append(n.releaseSteps, step)
}

// closeOnRelease registers the part's Close for release.
func (n *Node) closeOnRelease(part interface{ Close() error }) {
	n.onRelease(func(context.Context) error { return part.Close() })
}

// release closes all open parts, in reverse order.
func (n *Node) release(ctx context.Context) error {
	var errs []error
	for len(n.releaseSteps) > 0 {
		last := len(n.releaseSteps) - 1
		errs = append(errs, n.releaseSteps[last](ctx))
		n.releaseSteps = n.releaseSteps[:last]
	}
	return errors.Join(errs...)
}

// inTime calls steps, and returns the error. If steps hangs, inTime returns an
// error that wraps context.DeadlineExceeded, and leaves steps running.
func inTime(steps func(context.Context) error) error {
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		ended <- steps(ctx)
	}()

	select {
	case err := <-ended:
		return err
	case <-time.After(hangTimeout):
		return fmt.Errorf("a part of the node does not close, perhaps because the disk hangs: %w", context.DeadlineExceeded)
	}
}
