package persist

import (
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// LoadStats tells what Load found.
type LoadStats struct {
	Restored int64 // counters put back into the table
	Expired  int64 // passed over: fresh by now (buckets that expired whole are not counted)
	Older    int64 // passed over: a newer copy was there
	Bad      int64 // passed over: the value was damaged
	NoRoom   int64 // passed over: the table was full
	Duration time.Duration
	// SetAside: the file was damaged and a new one begun; what was read before that stays.
	SetAside bool
}

// maxAhead is how far in the future, in seconds, a windowed counter can expire: at the end of the window after
// the present one.
const maxAhead = 2 * int64(algorithms.MaxWindow/time.Second)

// Load puts the counters of the file back into the table, before its first use. A state from the future, written
// while the clock was ahead, is moved to now. Memory does not depend on how many counters there are.
func (c *Counters) Load(now algorithms.Now) (LoadStats, error) {
	var stats LoadStats
	if err := c.acquire(c.ctx); err != nil {
		return stats, ErrClosed
	}
	defer c.release()
	if c.closed {
		return stats, ErrClosed
	}
	begin := time.Now()
	if c.file != nil {
		err := c.file.intact(c.used)
		if err == nil {
			err = c.file.view(func(tx *bolt.Tx) error { return c.merge(tx, now, &stats) })
		}
		if damaged(err) {
			stats.SetAside = true
			if err = c.discard(err); err == nil {
				c.cfg.Source.MarkAll()
			}
		}
		if err != nil {
			return stats, fmt.Errorf("load counters: %w", err)
		}
	}
	c.loaded, c.lead = true, now.Wall-now.Steady
	c.giveBack(stats.Restored)
	stats.Duration = time.Since(begin)
	return stats, nil
}

// merge walks all buckets at once in order of keys, so that the copies of one counter meet and the newest can be
// told, without remembering any key.
func (c *Counters) merge(tx *bolt.Tx, now algorithms.Now, stats *LoadStats) error {
	wall := seconds(now.Wall)
	var h copies
	for _, e := range c.buckets.after(wall) {
		b := tx.Bucket(bucketName(e))
		if b == nil {
			return pageError("bucket %d is gone", e)
		}
		s := &copyOf{cursor: b.Cursor(), filter: c.filter(e)}
		if s.first(stats) {
			h.push(s)
		}
	}
	var best stored
	// Two, so that the best copy's entries outlive the parsing of the next.
	var logs [2][]algorithms.Entry
	for len(h) > 0 {
		id, found := h[0].id, false
		for len(h) > 0 && h[0].id == id {
			top := h[0]
			have, err := parseValue(top.key, top.value, logs[0])
			if have.Log != nil {
				logs[0] = have.Log
			}
			switch {
			case err != nil:
				stats.Bad++
			case found && have.seq <= best.seq:
				stats.Older++
			default:
				if found {
					stats.Older++
				}
				best, found = have, true
				logs[0], logs[1] = logs[1], logs[0]
			}
			top.filter.add(id)
			h.advance(stats)
		}
		if found {
			c.restore(now, &best, stats)
		}
	}
	return nil
}

func (c *Counters) restore(now algorithms.Now, s *stored, stats *LoadStats) {
	c.seq = max(c.seq, s.seq)
	if s.FreshAt <= seconds(now.Wall) {
		stats.Expired++
		return
	}
	s.toSteady(now)
	if c.cfg.Source.Restore(now, s.Record) {
		stats.Restored++
	} else {
		stats.NoRoom++
	}
}

// toSteady turns the wall clock's times into this process's steady ones. What lies in the future was written
// while the clock was ahead: it is moved to now, and expires as much earlier. A window ahead of the clock is left
// to [algorithms.Limit.Advance], which knows the limit.
func (s *stored) toSteady(now algorithms.Now) {
	delta := now.Wall - now.Steady
	over := int64(0)
	clamp := func(wall int64) int64 {
		if wall > now.Wall {
			over = max(over, wall-now.Wall)
			return now.Steady
		}
		return wall - delta
	}
	switch {
	case s.Kind == algorithms.SlidingLog:
		// Those in a queue were ahead of the clock when it was right; they stay as far ahead as they were.
		for i := range s.Log {
			queue := max(0, s.Log[i].At-s.written*1e9)
			s.Log[i].At = clamp(s.Log[i].At-queue) + queue
		}
	case s.Kind.Bucket():
		s.State.At = clamp(s.State.At)
	default:
		s.FreshAt = min(s.FreshAt, seconds(now.Wall)+maxAhead)
	}
	s.FreshAt -= seconds(delta) + seconds(over)
}

// copyOf is the place in one bucket where merge is.
type copyOf struct {
	cursor     *bolt.Cursor
	filter     *filter
	id         counters.Key
	key, value []byte
}

func (s *copyOf) first(stats *LoadStats) bool {
	k, v := s.cursor.First()
	return s.settle(k, v, stats)
}

// settle stops at k, or at the next key that is a counter's.
func (s *copyOf) settle(k, v []byte, stats *LoadStats) bool {
	for ; k != nil; k, v = s.cursor.Next() {
		if len(k) == keySize && v != nil {
			s.id, s.key, s.value = parseKey(k), k, v
			return true
		}
		stats.Bad++
	}
	return false
}

// copies is a heap: the least key is first.
type copies []*copyOf

func (h copies) less(i, j int) bool {
	a, b := h[i].id, h[j].id
	return a.Hi < b.Hi || a.Hi == b.Hi && a.Lo < b.Lo
}

func (h *copies) push(s *copyOf) {
	*h = append(*h, s)
	for i := len(*h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(i, up) {
			return
		}
		(*h)[i], (*h)[up] = (*h)[up], (*h)[i]
		i = up
	}
}

// advance moves the first bucket on to its next key.
func (h *copies) advance(stats *LoadStats) {
	top := (*h)[0]
	k, v := top.cursor.Next()
	if !top.settle(k, v, stats) {
		last := len(*h) - 1
		(*h)[0] = (*h)[last]
		*h = (*h)[:last]
	}
	for i := 0; ; {
		least := i
		for _, child := range []int{2*i + 1, 2*i + 2} {
			if child < len(*h) && h.less(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		(*h)[i], (*h)[least] = (*h)[least], (*h)[i]
		i = least
	}
}
