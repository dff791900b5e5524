package persist

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// Bounds of one transaction and one checkpoint.
const (
	batchCounters = 10_000
	batchBytes    = 8 << 20
	dropsEach     = 8 // expired buckets dropped in one checkpoint; at most one more expires every 16 s
	maxBackoff    = 10
)

// Start begins the checkpoints. Load comes before it.
func (c *Counters) Start() error {
	if err := c.acquire(c.ctx); err != nil {
		return err
	}
	defer c.release()
	switch {
	case c.closed:
		return ErrClosed
	case !c.loaded:
		return ErrNotLoaded
	case c.started:
		return nil
	}
	c.started = true
	go c.loop() // Close waits for it
	return nil
}

func (c *Counters) acquire(ctx context.Context) error {
	select {
	case c.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Counters) release() { <-c.lock }

func (c *Counters) loop() {
	defer close(c.done)
	timer := time.NewTimer(c.cfg.Interval)
	defer timer.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-timer.C:
		}
		begin := time.Now()
		// Checkpoint logs and records its error.
		_ = c.Checkpoint(c.ctx)
		// On a full disk each try makes bbolt walk the whole file.
		pause := c.cfg.Interval * time.Duration(min(1+c.Status().Failures, maxBackoff))
		timer.Reset(max(0, pause-time.Since(begin)))
	}
}

// Checkpoint writes what changed since the last one. What could not be written counts as changed still. When ctx
// ends, it stops between two batches.
func (c *Counters) Checkpoint(ctx context.Context) error {
	if err := c.acquire(ctx); err != nil {
		return err
	}
	defer c.release()
	if c.closed {
		return ErrClosed
	}
	return c.checkpoint(ctx)
}

func (c *Counters) checkpoint(ctx context.Context) error {
	if !c.loaded {
		return ErrNotLoaded
	}
	begin := time.Now()
	n, err := c.write(ctx)
	if damaged(err) {
		if again := c.discard(err); again != nil {
			err = errors.Join(err, again)
		}
		c.cfg.Source.MarkAll()
	}
	if err != nil && ctx.Err() != nil {
		return err
	}
	c.report(begin, n, err)
	return err
}

// report records the outcome of a checkpoint, and logs the first of several failures and the recovery.
func (c *Counters) report(begin time.Time, n int64, err error) {
	c.statusMu.Lock()
	s := &c.status
	failed := s.Failures
	s.Err = err
	if err != nil {
		s.Failures++
	} else {
		s.Failures = 0
		s.Completed, s.Duration, s.Counters = begin, time.Since(begin), n
	}
	if c.file != nil {
		if info, err := c.file.handle.Stat(); err == nil {
			s.FileSize = info.Size()
		}
	}
	c.statusMu.Unlock()
	switch {
	case err != nil && failed == 0:
		c.cfg.Logger.Error("checkpoint failed; counters are kept in memory and checks go on", "path", c.path, "error", err)
	case err == nil && failed > 0:
		c.cfg.Logger.Info("checkpoints are written again", "path", c.path, "failures", failed)
	}
}

// write makes one checkpoint and returns how many counters it wrote.
func (c *Counters) write(ctx context.Context) (int64, error) {
	if c.file == nil {
		if err := c.open(); err != nil {
			return 0, fmt.Errorf("open new counter file: %w", err)
		}
	}
	now := c.cfg.Now()
	for range dropsEach {
		if len(c.buckets) == 0 || c.buckets[0] > seconds(now.Wall) {
			break
		}
		if err := c.drop(); err != nil {
			return 0, fmt.Errorf("drop expired counters: %w", err)
		}
	}
	c.seq++
	var n int64
	err := c.cfg.Source.Changed(func(records []counters.Record) error {
		for len(records) > 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			taken := c.batch.fill(now, c.seq, records, c.buckets)
			if err := c.put(now); err != nil {
				return fmt.Errorf("write counters: %w", err)
			}
			n += int64(taken)
			records = records[taken:]
		}
		return nil
	})
	return n, err
}

// update runs one guarded transaction.
func (c *Counters) update(f func(tx *bolt.Tx) error) error {
	if err := c.file.intact(c.used); err != nil {
		return err
	}
	var used int64
	err := guard(func() error {
		return c.file.db.Update(func(tx *bolt.Tx) error {
			used = tx.Size()
			return f(tx)
		})
	})
	if err == nil {
		// The size before this transaction's own pages: a lower bound is enough.
		c.used = used
	}
	return err
}

// drop removes the first bucket, which has expired.
func (c *Counters) drop() error {
	name := bucketName(c.buckets[0])
	err := c.update(func(tx *bolt.Tx) error { return tx.DeleteBucket(name) })
	if err == nil {
		c.buckets = c.buckets[1:]
	}
	return err
}

// put writes the batch in one transaction.
func (c *Counters) put(now algorithms.Now) error {
	var made expiries
	err := c.update(func(tx *bolt.Tx) error {
		made = made[:0]
		open := map[int64]*bolt.Bucket{}
		for i := range c.batch.items {
			it := &c.batch.items[i]
			if it.bucket != 0 {
				b := open[it.bucket]
				if b == nil {
					var err error
					if b, err = c.target(tx, it); err != nil {
						return err
					}
					open[it.bucket] = b
					made = append(made, it.bucket)
				}
				if err := b.Put(c.batch.key(it), c.batch.value(it)); err != nil {
					return err
				}
			}
			if err := c.forget(tx, open, it); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, e := range made {
		c.buckets = c.buckets.add(e)
	}
	for i := range c.batch.items {
		if it := &c.batch.items[i]; it.bucket != 0 {
			c.horizon.note(it.id, it.bucket, seconds(now.Wall))
		}
	}
	return nil
}

// target opens the bucket that the batch writes to, from item it on.
func (c *Counters) target(tx *bolt.Tx, it *item) (*bolt.Bucket, error) {
	b, err := tx.CreateBucketIfNotExists(bucketName(it.bucket))
	if err != nil {
		return nil, err
	}
	// Sorted keys behind the last one fill pages; keys in between split them, and then need room.
	b.FillPercent = 0.5
	if last, _ := b.Cursor().Last(); last == nil || string(last) < string(c.batch.key(it)) {
		b.FillPercent = 0.9
	}
	return b, b.SetSequence(c.seq)
}

// forget deletes copies of a counter from buckets that outlive the one it is in now. Later buckets of the same
// batch were not written yet; a key is in a batch once.
func (c *Counters) forget(tx *bolt.Tx, open map[int64]*bolt.Bucket, it *item) error {
	latest := c.horizon.of(it.id)
	if latest <= it.bucket {
		return nil
	}
	for _, e := range c.buckets.between(it.bucket, latest) {
		b := open[e]
		if b == nil {
			if b = tx.Bucket(bucketName(e)); b == nil {
				continue
			}
		}
		key := c.batch.key(it)
		if b.Get(key) == nil {
			continue
		}
		if err := b.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

// Close stops the checkpoints, writes a last one and closes the file. When ctx ends first, what was not written
// is lost. Further calls return what the first did.
func (c *Counters) Close(ctx context.Context) error {
	c.once.Do(func() {
		c.result = c.close(ctx)
		if c.result != nil {
			c.result = fmt.Errorf("close counters: %w", c.result)
		}
	})
	return c.result
}

func (c *Counters) close(ctx context.Context) error {
	// A checkpoint under way stops at its next batch; the last one writes the rest.
	c.cancel()
	if err := c.acquire(ctx); err != nil {
		return err
	}
	var err error
	if c.loaded {
		err = c.checkpoint(ctx)
		if damaged(err) && ctx.Err() == nil {
			// The file was set aside; there is still time for all counters to go into a new one.
			err = c.checkpoint(ctx)
		}
	}
	if c.file != nil {
		err = errors.Join(err, c.file.close())
		c.file = nil
	}
	c.closed = true
	started := c.started
	c.release()
	if started {
		<-c.done
	}
	return err
}

// batch is what one transaction writes.
type batch struct {
	items []item
	bytes []byte // keys and values, one after the other
}

type item struct {
	id         counters.Key
	bucket     int64 // 0: the counter is fresh and only goes from the file
	begin, end int   // of key and value in bytes
}

func (b *batch) key(it *item) []byte   { return b.bytes[it.begin : it.begin+keySize] }
func (b *batch) value(it *item) []byte { return b.bytes[it.begin+keySize : it.end] }

// fill takes as many records as fit in one transaction, in order of bucket and key, and returns how many.
func (b *batch) fill(now algorithms.Now, seq uint64, records []counters.Record, existing expiries) int {
	b.items, b.bytes = b.items[:0], b.bytes[:0]
	delta := now.Wall - now.Steady
	// Rounded up: a counter is not to expire early.
	ahead, wall := -floorDiv(-delta, int64(time.Second)), seconds(now.Wall)
	for i := range records {
		if i == batchCounters || len(b.bytes) >= batchBytes {
			break
		}
		r := &records[i]
		it := item{id: r.Key, begin: len(b.bytes)}
		b.bytes = appendKey(b.bytes, r.Key)
		expiry := min(r.FreshAt+ahead, maxExpiry)
		if fresh := r.State.Fresh() && len(r.Log) == 0; !fresh && expiry > wall {
			it.bucket = existing.choose(bucketFor(r.Kind, expiry, wall))
			b.bytes = appendValue(b.bytes, b.bytes[it.begin:], r, delta, expiry, seq)
		}
		it.end = len(b.bytes)
		b.items = append(b.items, it)
	}
	slices.SortFunc(b.items, func(x, y item) int {
		return cmp.Or(cmp.Compare(x.bucket, y.bucket), cmp.Compare(x.id.Hi, y.id.Hi), cmp.Compare(x.id.Lo, y.id.Lo),
			cmp.Compare(x.begin, y.begin))
	})
	return len(b.items)
}
