package counters

import "github.com/rlnode/rlnode/algorithms"

// No counter's time goes back, though two things could turn it back.
//
// First, a caller reads the clock before it has the lock. While it waits,
// another caller with a later reading may have taken from the counter in the
// next window. So each shard remembers the latest readings of this process's
// clocks that it has seen, and decides by no earlier one: see advance.
//
// Second, counters may come from elsewhere: from another node, or from this one
// before a restart. The wall clock that counted them may have been ahead of
// this node's clock now. They would then be in windows that have yet to begin
// here. So such a partition counts its windows by the clock that its counters
// came from, until this node's own has caught up: see FollowClock.

// advance returns now, but with neither clock before its latest reading that
// the shard has seen. The shard remembers the result. The caller must hold s,
// and now must be a reading of this process's clocks.
func (s *shard) advance(now algorithms.Instant) algorithms.Instant {
	now.Steady = max(now.Steady, s.latest.Steady)
	now.Wall = max(now.Wall, s.latest.Wall)
	s.latest = now
	return now
}

// timeIn returns now as partition p counts its windows. The caller must hold s.
func (s *shard) timeIn(p int, now algorithms.Instant) algorithms.Instant {
	if s.followedClocks == nil {
		return now
	}
	return s.followedTime(p, now)
}

// followedTime is timeIn for a shard with a partition that follows another clock.
// It forgets such a clock once this node's own has caught up.
func (s *shard) followedTime(p int, now algorithms.Instant) algorithms.Instant {
	clock, follows := s.followedClocks[p]
	if !follows {
		return now
	}

	wall := clock.At(now.Steady)
	if wall <= now.Wall {
		s.unfollow(p)
		return now
	}
	return algorithms.Instant{Steady: now.Steady, Wall: wall}
}

// unfollow makes the shard count p's windows by this node's clock. The caller must hold s.
func (s *shard) unfollow(p int) {
	if _, follows := s.followedClocks[p]; !follows {
		return
	}

	s.table.followedCount.Add(-1)
	delete(s.followedClocks, p)
	if len(s.followedClocks) == 0 {
		s.followedClocks = nil
	}
}

// FollowClock makes p count its windows, from now on, by a wall clock that
// reads at least wall, in Unix nanoseconds. It is for counters that were
// counted by another clock and are put into p; wall is what that clock read
// when they were sent or written. If wall is ahead of this node's clock, p's
// clock runs slightly slower until the two agree. So no counter is in a window
// that has yet to begin, and windows keep ending.
func (t *Table) FollowClock(now algorithms.Instant, p int, wall int64) {
	shards := t.shardsOf(p)
	for i := range shards {
		shards[i].follow(now, p, wall)
	}
}

func (s *shard) follow(now algorithms.Instant, p int, wall int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now = s.advance(now)

	// An earlier copy may have brought a clock that is further ahead. No clock
	// goes back.
	if wall <= s.timeIn(p, now).Wall {
		return
	}

	if s.followedClocks == nil {
		s.followedClocks = make(map[int]algorithms.SlewedClock)
	}
	if _, follows := s.followedClocks[p]; !follows {
		s.table.followedCount.Add(1)
	}
	s.followedClocks[p] = algorithms.SlewedClock{Steady: now.Steady, Wall: wall, Lead: wall - now.Wall}
}

// WallIn returns the reading at now of the wall clock by which p counts its
// windows, for another table to follow.
func (t *Table) WallIn(now algorithms.Instant, p int) int64 {
	wall := now.Wall
	shards := t.shardsOf(p)

	// The shards have seen different readings. WallIn returns the latest, so that
	// no counter is in a window that has yet to begin in the other table.
	for i := range shards {
		s := &shards[i]
		s.mu.Lock()
		wall = max(wall, s.timeIn(p, s.advance(now)).Wall)
		s.mu.Unlock()
	}
	return wall
}

// MaxClockLead returns by how many nanoseconds, at most, the clocks by which
// partitions count their windows are ahead of this node's; 0 if none is.
func (t *Table) MaxClockLead(now algorithms.Instant) (maxLead int64) {
	if t.followedCount.Load() == 0 {
		return 0
	}

	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		at := s.advance(now)

		// timeIn may delete p from the map, which is safe during the loop.
		for p := range s.followedClocks {
			maxLead = max(maxLead, s.timeIn(p, at).Wall-at.Wall)
		}
		s.mu.Unlock()
	}
	return maxLead
}
