package counters

import (
	"math/bits"
	"os"
	"sync/atomic"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/ring"
)

const (
	shardTarget = 16384   // approximate counters per shard when the table is at its bound
	minShards   = 64      // fewer only if a shard would hold fewer than shardTarget/128 counters
	maxShards   = 1 << 14 // beyond this, shards grow instead
	// minLogEntries is the lowest bound on the entries of all logs together. It is
	// a few times the largest log.
	minLogEntries = 4 * algorithms.MaxLogEntries
)

// Table holds counters. All methods may be called concurrently.
type Table struct {
	shards      []shard
	hints       []groupsHint // of the shards, by index
	shift       uint         // Key.Subject >> shift is the shard
	maxCounters int64
	drawSize    int // room that a shard draws from the budget at a time
	// A subtable that would have more slots than maxSubtableSlots is split.
	maxSubtableSlots int

	maxLogEntries int64
	maxInline     int         // inline counters that a shard may hold: together they fill at most half of the table
	replicated    atomic.Bool // set by the first Copy or Replicate: from then on, replicas must receive resets
	gates         gates
	notes         *notes.Store
	// lineages[p] is the lineage that was given to the last Open of p.
	lineages      [ring.Partitions]atomic.Uint64
	outgrewCaches atomic.Bool // shards have drawn more than cachedCounters

	_             [64]byte // separates the fields that every Take reads from those that change constantly
	memory        memory
	logs          [numClasses]atomic.Int64
	logEntries    [numClasses]atomic.Int64
	sweepCursor   atomic.Int64 // the shard that Sweep visited last
	dropCalls     atomic.Int64 // see Drops
	followedCount atomic.Int64 // in all shards
	// budget is the room that no shard has drawn yet. Invariant: budget, the room
	// of all shards and the counters in them add up to maxCounters.
	budget       atomic.Int64
	searchCursor atomic.Uint64 // the shard where the last search for room in other shards ended
	// noSearchUntil is the steady time, in nanoseconds, before which no shard
	// searches the others for room. A search that found none sets it.
	noSearchUntil [numClasses]atomic.Int64
}

// soleLineage is the lineage of the counters of a table whose gates were never shut.
const soleLineage = 1

// DefaultReservationBytes is the room for reservations of a new table, in bytes.
const DefaultReservationBytes = notes.DefaultReservationBytes

// New returns an empty table for at most bound counters (at least 1), with all
// gates open. Inline counters fill at most half of it.
//
// The entries of all logs together have a bound of their own: bound, or 262,144
// if that is more. Once it is reached, a log that grows beyond its fair share
// becomes coarser. Close frees the table's memory.
func New(bound int64) *Table {
	bound = max(bound, 1)
	n := int64(1)
	for n < maxShards && (bound/n > shardTarget || n < minShards && bound/n > shardTarget/128) {
		n *= 2
	}

	t := &Table{
		shards:        make([]shard, n),
		hints:         make([]groupsHint, n),
		shift:         uint(64 - bits.TrailingZeros64(uint64(n))),
		maxCounters:   bound,
		maxLogEntries: max(bound, minLogEntries),
		maxInline:     int(max(bound/n/2, 1)),
		notes:         notes.New(notes.DefaultReservationBytes),
	}
	for p := range t.lineages {
		t.lineages[p].Store(soleLineage)
	}

	// A shard that does not need its room keeps at most twice drawSize of it (see
	// returnSpare). So at most a 32nd of the bound sits idle.
	t.drawSize = int(min(max(bound/n/64, 1), 64))
	t.maxSubtableSlots = 2 * shardTarget
	t.budget.Store(bound)

	// A full table has one subtable for each shard, or more if shards are split. A
	// split leaves its halves half full, so there may be as many subtables as twice
	// the counters would fill. The extra eighth is for subtables that are growing.
	subtables := max(n, 2*bound/int64(t.maxSubtableSlots))
	t.memory.init(int(subtables+subtables/8+8), os.Getpagesize())

	for i := range t.shards {
		s := &t.shards[i]
		s.table = t
		s.hint = &t.hints[i]
		s.single.shard = s
	}

	return t
}

// Notes returns the notes that are kept with the table's counters.
func (t *Table) Notes() *notes.Store { return t.notes }

// Close frees the table's memory and leaves it empty.
func (t *Table) Close() {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()

		s.forEachLocked(func(sub *subtable) {
			for k := range sub.logs {
				t.dropLog(s, k)
			}

			// dropLog has already returned the room of the logs.
			s.room += sub.live
			sub.releaseAll()
		})

		s.subtables = nil
		s.unsaved = 0
		s.unsent = 0
		s.followedClocks = nil

		t.budget.Add(int64(s.room))
		s.room = 0
		s.inline = 0
		s.mu.Unlock()
	}
}
