package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	sweepBatch = 1000
	sweepLanes = 8
	// sweepCost is more than the rule plenty gives back in six minutes. So the
	// counters of a sweep have to be kept long enough to be written to disk and
	// measured.
	sweepCost = 1000
)

// sweep checks each of n keys of an attribute once.
type sweep struct {
	address   string
	attribute string
	keys      int
}

// batches returns the number of requests of the sweep.
func (s sweep) batches() int { return (s.keys + sweepBatch - 1) / sweepBatch }

// request returns batch i. It is built when sent, because ten million checks would take a gigabyte.
func (s sweep) request(i int) []byte {
	var bodies []string
	for key := i * sweepBatch; key < min((i+1)*sweepBatch, s.keys); key++ {
		bodies = append(bodies,
			fmt.Sprintf(`%s,"cost":%d}`, strings.TrimSuffix(checkBody(s.attribute, keyName(key)), "}"), sweepCost))
	}
	return batchRequest(bodies)
}

// run sends all batches as fast as possible.
func (s sweep) run(ctx context.Context) error {
	errs := make([]error, sweepLanes)
	var next atomic.Int64
	var group sync.WaitGroup
	for i := range sweepLanes {
		group.Go(func() { errs[i] = s.send(ctx, &next) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// send sends batches over one connection, while any are left.
func (s sweep) send(ctx context.Context, next *atomic.Int64) error {
	l, err := newLane(ctx, 0, &target{address: s.address}, nil)
	if err != nil {
		return err
	}

	defer l.conn.Close()
	defer context.AfterFunc(ctx, func() { _ = l.conn.Close() })()

	for {
		i := int(next.Add(1) - 1)
		if i >= s.batches() {
			return nil
		}
		if err := l.conn.SetDeadline(time.Now().Add(stallTime)); err != nil {
			return fmt.Errorf("set a deadline: %w", err)
		}
		if _, err := l.conn.Write(s.request(i)); err != nil {
			return fmt.Errorf("send a batch: %w", err)
		}

		status, _, err := l.replies.read(l.conn)
		if err != nil {
			return fmt.Errorf("read the answer to a batch: %w", err)
		}
		if status != 200 {
			return fmt.Errorf("a batch is answered with status %d: %.300s", status, l.replies.last())
		}
	}
}
