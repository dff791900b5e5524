package counters

import (
	"math"
	"math/bits"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

// evictionSample is the number of groups that an eviction examines before it
// takes the best victim among them.
const evictionSample = 6

// rescanDelay is how long the next search waits after one that found no victim,
// in one subtable or in the whole table, by the class of the newcomer.
var rescanDelay = [numClasses]time.Duration{configured: 100 * time.Millisecond, inline: time.Second}

// victim is a candidate for eviction. The candidate with the lowest rank is evicted.
type victim struct {
	location
	key    Key
	rank   uint64 // how far from fresh; 0 if expired, lastResort for a reset that some reader has not received
	chosen bool
}

// lastResort is the rank of a reset that some reader has not received. Such a
// reset is evicted only if the search finds nothing else: otherwise a flood of
// resets would lock out new subjects. A copy may then keep what was used before
// the reset, which costs quota, but creates none.
const lastResort = math.MaxUint64

// isGood reports whether the search may end with v.
func (v *victim) isGood() bool { return v.chosen && v.rank < lastResort }

// offer makes the counter at loc the victim if it ranks lower than the present
// one. Its rank is its fullness, as of its last change, times the order of
// magnitude of the time it has left. So a monthly quota that is hardly used
// goes before one that is half used. Of two equally used counters, the one that
// is fresh sooner goes first.
func (v *victim) offer(loc location, k Key, fullness uint8, expiresAt uint32, second int64) {
	rank := uint64(0)
	if left := int64(expiresAt) - second; left > 0 {
		rank = (1+uint64(fullness))*uint64(bits.Len64(uint64(left)))<<32 | uint64(expiresAt)
	}
	v.offerRanked(loc, k, rank)
}

func (v *victim) offerRanked(loc location, k Key, rank uint64) {
	if !v.chosen || rank < v.rank {
		*v = victim{location: loc, key: k, rank: rank, chosen: true}
	}
}

// makeRoom ensures that s has room for one more counter, k, besides the
// reserved ones. While the table has budget left, the shard draws on it. When
// the table is full, makeRoom evicts a counter of k's subtable: of a sample,
// the one closest to fresh. It spares refusing counters and those of ops. If it
// finds no victim, another shard must give room. makeRoom returns false if none
// can. The caller must hold s.
//
// A new inline counter evicts only other inline counters. If the shard already
// holds as many inline counters as it may, the evicted one must be in the same
// subtable.
func (t *Table) makeRoom(s *shard, k Key, steady int64, reserved int, ops []Op) bool {
	c := k.class()
	if c == inline && s.inline+reserved >= t.maxInline {
		return t.evict(s, s.subtableOf(k), c, steady, ops)
	}
	if s.room > reserved || t.drawRoom(s) {
		return true
	}
	return t.evict(s, s.subtableOf(k), c, steady, ops) || t.findRoomElsewhere(s, c, steady, ops)
}

// makeRoomFor makes room in s for the counters of added that are missing,
// without evicting those of spared. The caller must hold s.
func (t *Table) makeRoomFor(s *shard, now algorithms.Instant, added, spared []Op) bool {
	missing := 0
	for i := range added {
		k := added[i].Key
		if s.log(k) != nil || s.find(k).found() {
			continue
		}
		if !t.makeRoom(s, k, now.Steady, missing, spared) {
			return false
		}
		missing++
	}
	return true
}

// countAdded returns how many counters ops add to s.
func (t *Table) countAdded(s *shard, ops []Op) (n int) {
	for i := range ops {
		if ops[i].addsCounter() && t.shardOf(ops[i].Key) == s {
			n++
		}
	}
	return n
}

// drawRoom takes room for s from the budget.
func (t *Table) drawRoom(s *shard) bool {
	for {
		free := t.budget.Load()
		n := min(free, int64(t.drawSize))
		if n < 1 {
			return false
		}

		if t.budget.CompareAndSwap(free, free-n) {
			s.room += int(n)

			// The flag is written only once, because every Take reads its cache line.
			if t.maxCounters-free > cachedCounters && !t.outgrewCaches.Load() {
				t.outgrewCaches.Store(true)
			}
			return true
		}
	}
}

// evict drops one counter of sub, a subtable of shard s, for a newcomer of
// class c. The caller must hold s.
func (t *Table) evict(s *shard, sub *subtable, c class, steady int64, ops []Op) bool {
	if !s.isSearchable(sub, c, steady) {
		return false
	}

	v := sub.pickVictim(c, steady, ops, t.activeReaders())
	if !v.chosen {
		full := &sub.lastSearch[c]
		full.until = steady + int64(rescanDelay[c])

		// If the first refusing counter becomes fresh sooner, the subtable may be
		// searched again then.
		if full.freeAt <= full.until/1e9 {
			full.until = full.freeAt * 1e9
		}
		return false
	}

	if v.rank == 0 {
		s.expired++
	} else {
		s.evicted++
	}

	if v.log != nil {
		t.dropLog(s, v.key)
	} else {
		s.remove(v.location)
	}

	return true
}

// isSearchable reports whether it makes sense to search sub, a subtable of s, for a victim.
func (s *shard) isSearchable(sub *subtable, c class, steady int64) bool {
	return steady >= sub.lastSearch[c].until && (c == configured || s.inline > 0)
}

// maxSearches bounds how many subtables of other shards one check searches
// without success. The next search continues from there.
const maxSearches = 2

// findRoomElsewhere takes room for s from another shard: either spare room, or
// that of a counter that it evicts there. It never waits for another shard's
// lock, as that could deadlock. If no shard has room, it makes all shards wait
// for rescanDelay before they search again. For an inline counter, a locked
// shard counts as one without room. The caller must hold s.
func (t *Table) findRoomElsewhere(s *shard, c class, steady int64, ops []Op) bool {
	if steady < t.noSearchUntil[c].Load() {
		return false
	}

	searches := 0
	missed := false
	for range t.shards {
		other := &t.shards[t.searchCursor.Add(1)%uint64(len(t.shards))]
		if other == s {
			continue
		}
		if !other.mu.TryLock() {
			missed = true
			continue
		}

		given, searched := t.takeRoom(other, c, steady, ops)
		other.mu.Unlock()

		if given > 0 {
			s.room += given
			return true
		}

		if searched {
			searches++
			if searches >= maxSearches {
				return false
			}
		}
	}

	// A shard that was locked may have room, so for a configured subject the next
	// check searches again. For inline subjects it does not: under load some shard
	// is nearly always locked, and a flood of these subjects must not cost a search
	// for each check.
	if !missed || c == inline {
		t.noSearchUntil[c].Store(steady + int64(rescanDelay[c]))
	}

	return false
}

// takeRoom takes room from donor for another shard. It returns how much, and
// whether it searched donor without success. The caller must hold donor.
func (t *Table) takeRoom(donor *shard, c class, steady int64, ops []Op) (given int, searched bool) {
	if donor.room > 0 {
		given = min(donor.room, t.drawSize)
		donor.room -= given
		return given, false
	}

	sub := &donor.single
	if donor.subtables != nil {
		donor.searchTurn++
		sub = donor.subtables.list[donor.searchTurn%uint64(len(donor.subtables.list))]
	}

	if !donor.isSearchable(sub, c, steady) {
		return 0, false
	}
	if !t.evict(donor, sub, c, steady, ops) {
		return 0, true
	}

	// evict has left the victim's room to donor. It moves to the other shard.
	donor.room--
	return 1, false
}

// search is a search of a subtable for a victim.
type search struct {
	victim   victim
	class    class         // of the newcomer
	second   int64         // now, in Unix seconds on the steady clock
	spared   []Op          // ops whose counters are not evicted
	unreadBy notes.Readers // a reset that one of them has not received is the last resort
	freeAt   int64         // when the first refusing counter that was seen will be fresh
}

// pickVictim searches a sample of the subtable for a victim. If the sample has
// none, it goes on until it finds one or has seen the whole subtable. For an
// inline newcomer it considers only inline counters.
func (sub *subtable) pickVictim(c class, steady int64, spared []Op, unreadBy notes.Readers) victim {
	sr := search{class: c, second: steady / 1e9, spared: spared, unreadBy: unreadBy, freeAt: math.MaxInt64}
	sr.visitGroups(sub)
	sr.visitLogs(sub)
	sub.lastSearch[c].freeAt = sr.freeAt
	return sr.victim
}

func (sr *search) visitGroups(sub *subtable) {
	for seen := 0; seen < len(sub.groups) && !(sr.victim.isGood() && seen >= evictionSample); seen++ {
		// The search goes on where the last one ended, so that every counter
		// has its turn.
		sub.clockHand++
		if sub.clockHand >= len(sub.groups) {
			sub.clockHand = 0
		}

		g := &sub.groups[sub.clockHand]
		for slot, tag := range g.tags {
			if tag < tagUsed || sr.class == inline && g.inline>>slot&1 == 0 {
				continue
			}

			loc := sub.locationAt(sub.clockHand*groupSize + slot)
			fullness := g.kindFullnesses[slot].packedFullness()
			sr.visit(loc, g.entries[slot].key, fullness, g.expiresAt[slot], g.isUnreadReset(slot, sr.unreadBy))
		}
	}
}

func (sr *search) visitLogs(sub *subtable) {
	seen := 0
	for k, e := range sub.logs { // in random order, so this is a sample
		if sr.class == inline && !k.IsInline() {
			continue
		}

		seen++
		if sr.victim.isGood() && seen > evictionSample*groupSize {
			break
		}

		unreadReset := e.dirty&sr.unreadBy != 0 && e.log.Fresh()
		sr.visit(location{index: -1, log: e}, k, e.kindFullness.packedFullness(), e.expiresAt, unreadReset)
	}
}

// visit considers the counter at loc as the victim.
func (sr *search) visit(loc location, k Key, fullness uint8, expiresAt uint32, unreadReset bool) {
	switch {
	case fullness == packedRefusedFullness && int64(expiresAt) > sr.second:
		sr.freeAt = min(sr.freeAt, int64(expiresAt))
	case isKeyOf(k, sr.spared):
	case unreadReset:
		sr.victim.offerRanked(loc, k, lastResort)
	default:
		sr.victim.offer(loc, k, fullness, expiresAt, sr.second)
	}
}

func isKeyOf(k Key, ops []Op) bool {
	for i := range ops {
		if ops[i].Key == k {
			return true
		}
	}
	return false
}
