package cluster

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
)

// Raft applies nothing until it hears from a leader, since it can't tell which of its entries are committed. A node that
// restarts while it is cut off would know neither rules nor ring. So each node periodically records the index up to which
// it has applied entries: these are certainly committed. The record may lag behind what was applied, but is never ahead of
// it.

const (
	// noteInterval is how often the applied index is recorded while there is news.
	noteInterval = time.Second
	// recallAfter is how long after its start a node that is not in sync begins to rely on its memory, provided that it has
	// not reached a majority for missingFor either.
	recallAfter = 3 * time.Second
	missingFor  = time.Second
	// contactInterval is how often to check for a majority.
	contactInterval = 100 * time.Millisecond
)

// AppliedNote stores what a node has applied: the index, and the cluster, so that the note is not mistaken for another
// cluster's. A persist.Note is one.
type AppliedNote interface {
	// Read returns what was last written, nil if nothing was.
	Read() ([]byte, error)
	// Write stores content, which need not survive a power cut. It is called at most once a second, and once more at the
	// end.
	Write(content []byte) error
}

// memory is the state that an earlier process of this node had applied.
type memory struct {
	state   atomic.Pointer[agreement.State] // nil: nothing useful, or the applied state has caught up
	relied  atomic.Bool                     // this node became ready by it
	missing chan struct{}                   // capacity 1: no majority can be reached
	noted   uint64                          // the recorded index; used by one goroutine at a time
}

// Last returns the newest state that this node uses: the applied one or, if the node has not been in sync since it started
// and relies on its memory, the remembered one. It says nothing about which node owns what now.
func (c *core) Last() *agreement.State {
	s := c.State()
	if m := c.memory.state.Load(); m != nil && c.memory.relied.Load() && s.Index < m.Index {
		return m
	}
	return s
}

// recallState loads the remembered state. Call it before Raft runs. A node whose memory lacks rules, or that was not in the
// remembered ring, has no memory.
func (c *Cluster) recallState() {
	if c.cfg.Applied == nil {
		return
	}
	b, err := c.cfg.Applied.Read()
	own := c.identity.Load().Cluster
	if err != nil || len(b) != len(own)+8 || [16]byte(b) != own {
		if err != nil {
			c.cfg.Logger.Warn("the record of what was applied is lost", "error", err)
		}
		return
	}
	c.memory.noted = binary.LittleEndian.Uint64(b[len(own):])
	s, err := stateAt(c.cfg.Build, c.cfg.Store, c.memory.noted)
	if err != nil {
		c.cfg.Logger.Warn("the record of what was applied can't be read in full", "error", err)
	}
	if s.To.Rank(c.cfg.Self.ID) >= 0 && s.History.Set() != nil {
		c.memory.state.Store(s)
	}
}

// stateAt returns the state after the applied entry with the given index, or a later state from a snapshot; with an error,
// an earlier one.
func stateAt(build agreement.Build, store Store, index uint64) (*agreement.State, error) {
	m := newMachine(build, func() {})
	list, err := store.Snapshots().List()
	from := uint64(0)
	for _, meta := range list { // newest first
		var r io.ReadCloser
		if _, r, err = store.Snapshots().Open(meta.ID); err == nil {
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
		if err = store.Logs().GetLog(i, &l); err == nil && l.Type == raft.LogCommand {
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

// noteApplied is the loop that records how far this node has applied, when there is news worth remembering.
func (c *Cluster) noteApplied() {
	if c.cfg.Applied == nil {
		return
	}
	t := time.NewTicker(noteInterval)
	defer t.Stop()
	noted := agreement.New()
	for failing, last := false, false; !last; {
		select {
		case <-t.C:
		case <-c.ctx.Done():
			last = true
		}
		s := c.State()
		// After a restart, the state being applied again may be older than the recorded one.
		if s.Cluster.IsZero() || s.Index <= c.memory.noted || !ringChanged(noted, s) && s.History.Set() == noted.History.Set() && s.Regions == noted.Regions {
			continue
		}
		err := c.cfg.Applied.Write(binary.LittleEndian.AppendUint64(s.Cluster[:], s.Index))
		if err != nil && !failing {
			c.cfg.Logger.Warn("can't record what was applied: after a restart without the others, less is remembered", "error", err)
		}
		if failing = err != nil; !failing {
			noted, c.memory.noted = s, s.Index
		}
	}
}

// missContact is the loop of a node with a memory that waits for the others. It ends when the node is in sync, or relies on
// its memory.
func (c *Cluster) missContact() {
	since := c.opened
	c.loop(contactInterval, nil, func() (last bool) {
		switch {
		case c.memory.state.Load() == nil:
			return true
		case c.Ready() == nil:
			c.memory.state.Store(nil)
		case c.reachesMajority():
			// A leader may emerge soon. Deciding alone meanwhile would admit more than the limit in a healthy cluster.
			since = time.Now()
		case time.Since(c.opened) >= recallAfter && time.Since(since) >= missingFor:
			poke(c.memory.missing)
			return true
		}
		return false
	})
}

// reachesMajority reports whether this node and those that it can reach or gossip sees are a majority of the voters that it
// knows.
func (c *Cluster) reachesMajority() bool {
	alive, voters, seen := c.alive(), c.voterIDs(), 0
	for _, id := range voters {
		if id == c.cfg.Self.ID || alive[id] || c.cfg.Peers.Reachable(id) {
			seen++
		}
	}
	return 2*seen > len(voters)
}

// relyOnMemory puts the remembered rules in force. It runs in the state feed's loop.
func (c *Cluster) relyOnMemory() {
	m := c.memory.state.Load()
	if m == nil {
		return // in sync just in time
	}
	c.cfg.Logger.Warn("no majority can be reached: this node decides alone, from what it remembers",
		"rules_version", rulesVersion(m), "epoch", m.Epoch, "members", len(m.To.Members()))
	if c.State().Index < m.Index { // otherwise the snapshot had it all
		c.tellRules(m)
	}
	c.memory.relied.Store(true)
}

// older reports whether s is older than the remembered state in force: rules never go back.
func (c *core) older(s *agreement.State) bool {
	m := c.memory.state.Load()
	if m == nil || !c.memory.relied.Load() {
		return false
	}
	if s.Index < m.Index {
		return true
	}
	c.memory.state.Store(nil) // from here on, Last returns s
	return false
}
