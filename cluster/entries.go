package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/rules/entries"
)

const (
	// endInterval is how often the leader removes entries that have ended. Nodes
	// stop applying them by their own clocks.
	endInterval = time.Second
	// MaxEntryChanges bounds the changes of one write of entries.
	MaxEntryChanges = 1000
)

// EntryChange is a change of an entry beside the rules that a node asks for.
// The leader adds the time.
type EntryChange struct {
	entries.Change
	For int64 `json:"for,omitempty"` // in ms: the entry ends so long after the leader's time; 0: as Entry.Until says
	// Restored means that the entry keeps its time and author.
	Restored bool `json:"restored,omitempty"`
}

// entriesWrite is a write of entries as nodes send it to the leader.
type entriesWrite struct {
	Request agreement.RequestID `json:"request"`
	Changes []EntryChange       `json:"changes"`
}

// entriesReply is the leader's answer: the result and, unless the result is an
// error, the last entry that was written or removed.
type entriesReply struct {
	Result agreement.Result `json:"result"`
	Entry  *entries.Entry   `json:"entry,omitempty"`
}

// WriteEntries makes changes of entries beside the rules, all or none, and
// returns when they are in force on this node. It returns the version of the
// entries, and the last entry that was written or removed. The error wraps an
// error of package entries, or is one that [Cluster.Write] returns. From a
// secondary region, WriteEntries waits only briefly for the changes to arrive
// in this region.
func (c *Cluster) WriteEntries(
	ctx context.Context, changes []EntryChange,
) (version int64, last *entries.Entry, err error) {
	ctx, cancel := c.withWriteTimeout(ctx)
	defer cancel()

	w := entriesWrite{Changes: changes}
	_, _ = rand.Read(w.Request[:]) // never fails
	b, err := json.Marshal(w)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}

	var reply entriesReply
	err = c.retry(ctx, func(bool) error {
		answer, err := c.sharedRules.callPrimary(ctx, MethodWriteEntries, b)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(answer, &reply); err != nil {
			return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		}
		return nil
	})

	if err != nil {
		return 0, nil, c.primaryError(err)
	}
	if reply.Result.Err != nil {
		return 0, nil, reply.Result.Err
	}

	version = reply.Result.Version
	if c.isSecondary() {
		c.awaitPrimaryEntries(ctx, version)
		return version, reply.Entry, nil
	}
	if c.awaitState(ctx, func(s *agreement.State) bool { return s.Entries.Version() >= version }) != nil {
		return 0, nil,
			fmt.Errorf("%w: version %d of the entries was agreed on, but is not in force on this node yet",
				ErrOutcomeUnknown, version)
	}

	return version, reply.Entry, nil
}

// awaitPrimaryEntries waits until a version of the primary's entries is in
// force on this node, but at most for awaitPrimaryBound.
func (c *core) awaitPrimaryEntries(ctx context.Context, version int64) {
	ctx, cancel := context.WithTimeout(ctx, awaitPrimaryBound)
	defer cancel()

	if err := c.callJSON(ctx, toLeader, MethodFollowNow, noBody{}, &noBody{}); err != nil {
		c.config.Logger.Debug("can't notify the leader of changed entries", "error", err)
	}

	err := c.awaitState(ctx,
		func(s *agreement.State) bool { return c.hasPrimaryRules(s) && s.Entries.Version() >= version })
	if err != nil {
		c.config.Logger.Info("an entry written through this node is not in force here yet", "entries_version", version)
	}
}

// serveWriteEntries proposes changes of entries on the leader. It stamps when
// they were made, and when they end.
func (sr *sharedRules) serveWriteEntries(ctx context.Context, r request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, sr.config.Timings.WriteTimeout)
	defer cancel()

	var w entriesWrite
	if err := json.Unmarshal(r.body, &w); err != nil || len(w.Changes) == 0 || len(w.Changes) > MaxEntryChanges {
		return nil, errBadCall
	}
	if err := sr.requirePrimaryLeader(); err != nil {
		return nil, err
	}

	e := agreement.ChangeEntries{Request: w.Request}
	now := time.Now().UnixMilli()
	for i := range w.Changes {
		if w.Changes[i].Entry == nil || w.Changes[i].For < 0 {
			return nil, errBadCall
		}
		e.Changes = append(e.Changes, w.Changes[i].Stamped(now))
	}

	result, err := sr.propose(ctx, e)
	if err != nil {
		return nil, err
	}

	reply := entriesReply{Result: result}
	if result.Err == nil {
		reply.Entry = entryIn(sr.State().Entries.RecordAt(result.Version))
	}

	return json.Marshal(reply)
}

// Stamped returns the change with the leader's time, in Unix ms.
func (c *EntryChange) Stamped(now int64) entries.Change {
	entry := *c.Entry
	if !c.Restored {
		entry.When = now
		entry.By = c.By
	}
	if c.For > 0 {
		entry.Until = now + c.For
	}

	stamped := c.Change
	stamped.When = now
	stamped.Entry = &entry
	return stamped
}

// entryIn returns the entry that a change wrote or removed; nil if the change is not known.
func entryIn(r *entries.Record) *entries.Entry {
	switch {
	case r == nil:
		return nil
	case r.After != nil:
		return r.After
	}
	return r.Before
}

// maxUnknownClocks is how many times in a row expireEntries waits for the clock of
// another node. After that, this node's own clock decides: the other nodes may
// all be too far away for their clocks to be known.
const maxUnknownClocks = 60

// expireEntries is the primary leader's loop that removes entries that have ended
// by every clock that the leader knows. An entry that a wrong clock removed
// would not come back.
func (sr *sharedRules) expireEntries() {
	var ends endWatch
	unknown := 0 // how often in a row no other clock was known
	sr.loop(endInterval, nil, func() (last bool) {
		earliest, others := sr.config.Peers.EarliestClock()
		now := earliest.UnixMilli()
		if sr.isSecondary() || sr.requirePrimaryLeader() != nil || !ends.hasExpired(sr.State().Entries, now) {
			unknown = 0
			return false
		}

		// A leader reaches other nodes, and learns the clocks of nearby nodes within
		// seconds.
		if others == 0 && len(sr.State().To.Members()) > 1 && unknown < maxUnknownClocks {
			unknown++
			return false
		}
		unknown = 0

		ctx, cancel := context.WithTimeout(sr.ctx, sr.config.Timings.WriteTimeout)
		defer cancel()

		before := sr.State().Entries.Len()
		r, err := sr.propose(ctx, agreement.ExpireEntries{Before: now})
		if err != nil || r.Err != nil {
			sr.config.Logger.Debug("expired entries could not be removed; retrying", "error", err, "refused", r.Err)
			return false
		}

		// At least one has ended, even if others have been added meanwhile.
		sr.config.Logger.Info("entries have ended",
			"entries", max(1, before-sr.State().Entries.Len()), "entries_version", r.Version)
		return false
	})
}

// endWatch remembers the first end of the entries that it has seen last. After
// the entry that ends first was removed, the state does not know the next end,
// and all entries are looked at: not every second, if nothing changes.
type endWatch struct {
	seen     *entries.State
	firstEnd int64 // as State.FirstEnd has it
}

// hasExpired reports whether an entry of s has ended by now, in Unix ms.
func (w *endWatch) hasExpired(s *entries.State, now int64) bool {
	mayHave := w.firstEnd != 0 && w.firstEnd <= now
	if s != w.seen || mayHave {
		w.seen = s
		w.firstEnd = s.FirstEnd(now)
	}
	return w.firstEnd != 0 && w.firstEnd <= now
}
