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

// Raft applies nothing before it hears from a leader, since it can't tell which of its entries are agreed on. A node that
// is restarted while it is cut off would know neither rules nor ring. So it notes, now and then, up to which index it has
// applied: these entries are agreed on, whatever else happens. The note may be older than what was applied; it is never
// newer.

const (
	// noteInterval is how old the note of what was applied gets, while there is news.
	noteInterval = time.Second
	// recallAfter is from when on a node that has not been in sync since it started goes by what it remembers, if it
	// has not reached a majority for missingFor either.
	recallAfter = 3 * time.Second
	missingFor  = time.Second
	// contactInterval is how often it looks for one.
	contactInterval = 100 * time.Millisecond
)

// AppliedNote is where a node notes what it has applied: the cluster, so that the note is not taken for another one's, and the
// index. A persist.Note is one.
type AppliedNote interface {
	// Read returns what was written last, nil if there is nothing.
	Read() ([]byte, error)
	// Write need not outlive a power cut. It is called at most once a second.
	Write(content []byte) error
}

// memory is what an earlier process of this node had applied.
type memory struct {
	state   atomic.Pointer[agreement.State] // nil: nothing that would be of use, or what is applied now is as new
	relied  atomic.Bool                     // this node was ready by it
	missing chan struct{}                   // capacity 1: nobody else is there to ask
	noted   uint64                          // the index that is noted; used by one goroutine at a time
}

// Last is the newest state that this node goes by: what is applied, or, where it was not in sync since it started and
// goes by what it remembers, that. It says nothing of who owns what now.
func (c *core) Last() *agreement.State {
	s := c.State()
	if m := c.memory.state.Load(); m != nil && c.memory.relied.Load() && s.Index < m.Index {
		return m
	}
	return s
}

// recallState reads what is remembered. It has to be called before Raft runs. A node with nothing to go by, or none of
// the ring, has no memory.
func (c *Cluster) recallState() {
	if c.cfg.Applied == nil {
		return
	}
	b, err := c.cfg.Applied.Read()
	own := c.identity.Load().Cluster
	if err != nil || len(b) != len(own)+8 || [16]byte(b) != own {
		if err != nil {
			c.cfg.Logger.Warn("what was applied is not known any more", "error", err)
		}
		return
	}
	c.memory.noted = binary.LittleEndian.Uint64(b[len(own):])
	s, err := stateAt(c.cfg.Build, c.cfg.Store, c.memory.noted)
	if err != nil {
		c.cfg.Logger.Warn("what was applied can't all be read", "error", err)
	}
	if s.To.Rank(c.cfg.Self.ID) >= 0 && s.History.Set() != nil {
		c.memory.state.Store(s)
	}
}

// stateAt is the state after the entry of an index that was applied, or a later one that is in a snapshot; with an error,
// an earlier one.
func stateAt(build agreement.Build, store Store, index uint64) (*agreement.State, error) {
	m := newMachine(build, func() {})
	list, err := store.Snapshots().List()
	from := uint64(0)
	for _, meta := range list { // the newest first
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

// noteApplied is the loop that notes up to where this node has applied, when there is news that it could go by.
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
		// What is applied anew after a restart may be older than what was applied before it.
		if s.Cluster.IsZero() || s.Index <= c.memory.noted || !ringChanged(noted, s) && s.History.Set() == noted.History.Set() && s.Regions == noted.Regions {
			continue
		}
		err := c.cfg.Applied.Write(binary.LittleEndian.AppendUint64(s.Cluster[:], s.Index))
		if err != nil && !failing {
			c.cfg.Logger.Warn("what is applied is not noted: after a restart without the others, less is remembered", "error", err)
		}
		if failing = err != nil; !failing {
			noted, c.memory.noted = s, s.Index
		}
	}
}

// missContact is the loop of a node with a memory that waits for the others. It ends when the node is in sync, or goes by
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
			// There may be a leader soon, and then all is as it should be: to decide alone meanwhile would admit more
			// than the limit in a cluster that is well.
			since = time.Now()
		case time.Since(c.opened) >= recallAfter && time.Since(since) >= missingFor:
			poke(c.memory.missing)
			return true
		}
		return false
	})
}

// reachesMajority reports whether this node and those that it sees are a majority of the voters that it knows.
func (c *Cluster) reachesMajority() bool {
	alive, voters, seen := c.alive(), c.voterIDs(), 0
	for _, id := range voters {
		if id == c.cfg.Self.ID || alive[id] || c.cfg.Peers.Reachable(id) {
			seen++
		}
	}
	return 2*seen > len(voters)
}

// relyOnMemory puts the remembered rules in force. It runs in the follower's loop.
func (c *Cluster) relyOnMemory() {
	m := c.memory.state.Load()
	if m == nil {
		return // in sync at the last moment
	}
	c.cfg.Logger.Warn("no majority can be reached: this node decides by itself, by what it remembers",
		"rules_version", rulesVersion(m), "epoch", m.Epoch, "members", len(m.To.Members()))
	if c.State().Index < m.Index { // else it was all in the snapshot
		c.tellRules(m)
	}
	c.memory.relied.Store(true)
}

// older reports whether s is less than what is remembered and in force: rules never go back.
func (c *core) older(s *agreement.State) bool {
	m := c.memory.state.Load()
	if m == nil || !c.memory.relied.Load() {
		return false
	}
	if s.Index < m.Index {
		return true
	}
	c.memory.state.Store(nil) // Last gives s from here on
	return false
}
