package persist

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// Bounds of one transaction.
const (
	batchCounters = 5_000
	batchBytes    = 8 << 20 // and one counter more, which may be a log of about a megabyte
)

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
	// Rounded up: a counter is not to expire early.
	ahead, wall := -floorDiv(now.Steady-now.Wall, int64(time.Second)), seconds(now.Wall)
	second := -floorDiv(-now.Wall, int64(time.Second))
	at := algorithms.Now{Steady: now.Steady + second*int64(time.Second) - now.Wall}
	for i := range records {
		if i == batchCounters || len(b.bytes) >= batchBytes {
			break
		}
		r := &records[i]
		it := item{id: r.Key, begin: len(b.bytes)}
		b.bytes = counters.AppendKey(b.bytes, r.Key)
		expiry := min(r.FreshAt+ahead, maxExpiry)
		if fresh := r.State.Fresh() && len(r.Log) == 0; !fresh && expiry > wall {
			it.bucket = existing.choose(bucketFor(r.Kind, expiry, wall))
			b.bytes = appendValue(b.bytes, b.bytes[it.begin:], r, second, at, seq)
		}
		it.end = len(b.bytes)
		b.items = append(b.items, it)
	}
	slices.SortFunc(b.items, item.compare)
	return len(b.items)
}

// compare orders by bucket, then by key, then as they came. It looks at no more than it has to: a busy node sorts some ten
// thousand a second.
func (x item) compare(y item) int {
	switch {
	case x.bucket != y.bucket:
		return cmp.Compare(x.bucket, y.bucket)
	case x.id.Hi != y.id.Hi:
		return cmp.Compare(x.id.Hi, y.id.Hi)
	case x.id.Lo != y.id.Lo:
		return cmp.Compare(x.id.Lo, y.id.Lo)
	}
	return cmp.Compare(x.begin, y.begin)
}

// put writes the batch in one transaction.
func (c *Counters) put() error {
	w := writer{c: c, buckets: map[int64]*bolt.Bucket{}, written: map[int64]bool{}}
	err := c.update(func(tx *bolt.Tx) error {
		w.tx = tx
		for i := range c.batch.items {
			it := &c.batch.items[i]
			if err := w.store(it); err != nil {
				return err
			}
			if err := w.forget(it); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for e := range w.written {
		c.buckets = c.buckets.add(e)
	}
	for i := range c.batch.items {
		if it := &c.batch.items[i]; it.bucket != 0 {
			c.filter(it.bucket).add(it.id)
		}
	}
	return nil
}

// writer is one transaction at work.
type writer struct {
	c       *Counters
	tx      *bolt.Tx
	buckets map[int64]*bolt.Bucket // opened so far; nil where there is none
	written map[int64]bool
	later   []laterBucket // those after bucket from
	from    int64
}

// laterBucket is a bucket that was in the file before this batch.
type laterBucket struct {
	expiry int64
	*filter
}

func (w *writer) open(e int64) *bolt.Bucket {
	b, ok := w.buckets[e]
	if !ok {
		b = w.tx.Bucket(bucketName(e))
		w.buckets[e] = b
	}
	return b
}

// store puts the counter into its bucket, unless it is fresh.
func (w *writer) store(it *item) error {
	if it.bucket == 0 {
		return nil
	}
	key := w.c.batch.key(it)
	b := w.open(it.bucket)
	if !w.written[it.bucket] {
		if b == nil {
			var err error
			if b, err = w.tx.CreateBucket(bucketName(it.bucket)); err != nil {
				return err
			}
			w.buckets[it.bucket] = b
		}
		// Sorted keys behind the last one fill pages; keys in between split them, and then need room.
		b.FillPercent = 0.5
		if last, _ := b.Cursor().Last(); bytes.Compare(last, key) < 0 {
			b.FillPercent = 0.9
		}
		if err := b.SetSequence(w.c.seq); err != nil {
			return err
		}
		w.written[it.bucket] = true
	}
	return b.Put(key, w.c.batch.value(it))
}

// forget deletes copies of the counter from buckets that outlive the one it is in now. A key is in a batch once,
// so none of them is this checkpoint's.
func (w *writer) forget(it *item) error {
	if it.bucket != w.from || w.later == nil {
		// Items come in order of their buckets.
		w.from, w.later = it.bucket, make([]laterBucket, 0, len(w.c.buckets))
		for _, e := range w.c.buckets.after(it.bucket) {
			w.later = append(w.later, laterBucket{e, w.c.filter(e)})
		}
	}
	key := w.c.batch.key(it)
	for _, l := range w.later {
		if !l.has(it.id) {
			continue
		}
		b := w.open(l.expiry)
		if b == nil || b.Get(key) == nil {
			continue
		}
		if err := b.Delete(key); err != nil {
			return err
		}
	}
	return nil
}
