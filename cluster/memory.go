package cluster

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/wake"
)

// Raft applies nothing until it hears from a leader, because it can't tell
// which of its entries are committed. A node that restarts while it is cut off
// would know neither the rules nor the ring. So each node periodically records
// the index up to which it has applied entries: these are certainly committed.
// The record may lag behind the applied index, but is never ahead of it.

const (
	// appliedInterval is how often the applied index is recorded while the state
	// changes.
	appliedInterval = time.Second
	// recallAfter is how long after its start a node that is not in sync begins to
	// rely on its memory, provided that it has also been without a majority for
	// missingFor.
	recallAfter = 3 * time.Second
	missingFor  = time.Second
	// contactInterval is how often to check for a majority.
	contactInterval = 100 * time.Millisecond
)

// recallState loads the remembered state. It must be called before Raft runs.
// It discards a state without rules, and one whose ring lacks this node.
func (c *Cluster) recallState() {
	if c.config.AppliedStore == nil {
		return
	}

	b, err := c.config.AppliedStore.Read()
	cluster := c.identity.Load().Cluster
	if err != nil || len(b) != len(cluster)+8 || [16]byte(b) != cluster {
		if err != nil {
			c.config.Logger.Warn("can't read the record of applied entries", "error", err)
		}
		return
	}

	c.memory.recordedIndex = binary.LittleEndian.Uint64(b[len(cluster):])
	s, err := stateAt(c.config.Build, c.config.Store, c.memory.recordedIndex)
	if err != nil {
		c.config.Logger.Warn("can't restore all recorded entries", "error", err)
	}

	c.warnOfOlderLog(s)
	c.warnOfAnotherRegion(s)
	if s.To.Rank(c.config.Self.ID) >= 0 && s.History.Set() != nil {
		c.memory.state.Store(s)
	}
}

// warnOfAnotherRegion logs a warning if this node was in another region when it
// last ran. Its cluster is then a new region to all regions. The old one stays
// in the list, without nodes, until somebody removes it.
func (c *Cluster) warnOfAnotherRegion(restored *agreement.State) {
	was, now := restored.Members[c.config.Self.ID].Region, c.config.Self.Region
	if was == now || !slices.Contains(restored.Regions.Committed, was) {
		return
	}
	c.config.Logger.Warn("the region of this node has another name than before: that makes a new region, and the old one keeps its share of limits. "+
		"Start the region's nodes with the old --region; or, if the new name is meant, take the old region out with rlnode remove --region",
		"was", was, "region", now)
}

// warnOfOlderLog logs an error if Raft's log ends before an entry that this
// node has applied. The store has then lost entries that the node acknowledged,
// so the node's vote may help to elect a leader that lacks an acknowledged
// write. restored is the newest state in the store, up to the recorded index.
func (c *Cluster) warnOfOlderLog(restored *agreement.State) {
	last, err := c.config.Store.Logs().LastIndex()
	last = max(last, restored.Index)
	if err != nil || last >= c.memory.recordedIndex {
		return
	}
	c.config.Logger.Error("Raft's log is older than what this node has applied, as if it had been replaced by an older copy: acknowledged "+
		"writes may be lost. End this node, take it out with rlnode remove, move its data directory away, and start it with a new one. Keep the old one: it has "+
		"what this node counted for bills",
		"last_entry", last, "applied", c.memory.recordedIndex)
}

// stateAt returns the state after the entry with the given index, or a later
// state if a snapshot has one. With an error, it returns an earlier state.
func stateAt(build agreement.Build, store Store, index uint64) (*agreement.State, error) {
	m := newMachine(build, func() {})
	list, err := store.Snapshots().List()

	from := uint64(0)
	for _, meta := range list { // newest first
		var r io.ReadCloser

		_, r, err = store.Snapshots().Open(meta.ID)
		if err == nil {
			err = m.Restore(r)
		}
		if err == nil {
			from = meta.Index
			break
		}
	}

	if err != nil {
		return m.state.Load(), fmt.Errorf("read a snapshot: %w", err)
	}

	last, err := store.Logs().LastIndex()
	for i := from + 1; err == nil && i <= min(index, last); i++ {
		var l raft.Log
		err = store.Logs().GetLog(i, &l)
		if err == nil && l.Type == raft.LogCommand {
			m.Apply(&l)
		}
	}

	if err != nil {
		err = fmt.Errorf("read Raft's log: %w", err)
	} else if stuck := m.stuck.Load(); stuck != nil {
		err = stuck
	}

	return m.state.Load(), err
}

// recordApplied is the loop that records how far this node has applied entries,
// whenever rules, ring or regions have changed.
func (c *Cluster) recordApplied() {
	if c.config.AppliedStore == nil {
		return
	}

	t := time.NewTicker(appliedInterval)
	defer t.Stop()

	r := appliedRecorder{core: c.core, recorded: agreement.New()}
	for {
		select {
		case <-t.C:
			r.recordOnce()
		case <-c.ctx.Done():
			r.recordOnce()
			return
		}
	}
}

// appliedRecorder is what recordApplied's loop keeps between its rounds.
type appliedRecorder struct {
	*core
	recorded *agreement.State // the last one recorded
	failing  bool             // the last write failed
}

// recordOnce records the applied index if the state has changed.
func (r *appliedRecorder) recordOnce() {
	s := r.State()
	// After a restart, the state being applied again may be older than the recorded one.
	isNew := s.Index > r.memory.recordedIndex
	hasChanged := ringChanged(r.recorded, s) || s.History.Set() != r.recorded.History.Set() ||
		s.Regions != r.recorded.Regions || s.Entries != r.recorded.Entries
	if s.Cluster.IsZero() || !isNew || !hasChanged {
		return
	}

	err := r.config.AppliedStore.Write(binary.LittleEndian.AppendUint64(s.Cluster[:], s.Index))
	if err != nil && !r.failing {
		r.config.Logger.Warn("can't record applied entries; "+
			"after a restart without contact to the others, this node will know less", "error", err)
	}
	r.failing = err != nil
	if r.failing {
		return
	}

	r.recorded = s
	r.memory.recordedIndex = s.Index
}

// watchContact is the loop of a node with a memory that waits for contact with
// a majority. It ends once the node is in sync, or once it has signalled that
// the node should rely on its memory.
func (c *Cluster) watchContact() {
	since := c.startedAt
	c.loop(contactInterval, nil, func() (last bool) {
		switch {
		case c.memory.state.Load() == nil:
			return true
		case c.ReadyError() == nil:
			c.memory.state.Store(nil)
		case c.reachesMajority():
			// A leader may be elected soon. If this node decided alone until then, a
			// healthy cluster would exceed limits.
			since = time.Now()
		case time.Since(c.startedAt) >= recallAfter && time.Since(since) >= missingFor:
			wake.Signal(c.memory.noMajority)
			return true
		}

		return false
	})
}

// reachesMajority reports whether a majority of the known voters is reachable
// or alive in gossip, including this node.
func (c *core) reachesMajority() bool {
	alive := c.aliveNodes()
	voters := c.voterIDs()
	seen := 0
	for _, id := range voters {
		if id == c.config.Self.ID || alive[id] || c.config.Peers.Reachable(id) {
			seen++
		}
	}
	return 2*seen > len(voters)
}
