package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/ring"
)

// transferTries is how often leadership is handed on before it is given up; another node may be behind.
const transferTries = 3

// LeaveRing hands everything that this node owns over to the others and returns when that is done. Alone, or without a
// ring, there is nothing to do. It ends with ctx; the node then stays in the ring until it fails.
//
// When it has returned without an error, this process will have no authority any more.
func (c *Cluster) LeaveRing(ctx context.Context) error {
	if c.onlyOne(c.State()) {
		return nil
	}
	if c.Stuck() == nil { // else its standbys have what it had, or will have when its end is agreed on
		c.leaving.Store(true)
		// A leader that hands its work on first spares the others an election at the end.
		c.crew.handLeadOn(ctx)
		c.holder.Poke()
		self := c.cfg.Self.ID
		err := c.wait(ctx, func(s *agreement.State) bool { return c.onlyOne(s) || !s.InRing(self) && s.Settled })
		if err != nil {
			return fmt.Errorf("leave the ring: %w", err)
		}
		if c.onlyOne(c.State()) {
			c.leaving.Store(false)
			return nil
		}
	}
	if err := c.holder.GiveUp(ctx); err != nil {
		return fmt.Errorf("give authority up: %w", err)
	}
	return nil
}

// onlyOne says that there is nobody to hand anything to.
func (c *Cluster) onlyOne(s *agreement.State) bool {
	members := slices.Concat(s.From.Members(), s.To.Members())
	return !slices.ContainsFunc(members, func(id ring.NodeID) bool { return id != c.cfg.Self.ID })
}

// handLeadOn makes another voter the leader, if this node leads and there is one that answers. It may fail: then an
// election will do it later.
func (c *crew) handLeadOn(ctx context.Context) {
	heirs := c.heirs()
	for _, heir := range heirs[:min(len(heirs), transferTries)] {
		r := c.raft.Load()
		if r.State() != raft.Leader || ctx.Err() != nil {
			return
		}
		err := c.await(ctx, r.LeadershipTransferToServer(serverID(heir.ID), raft.ServerAddress(heir.at)))
		if err != nil {
			c.cfg.Logger.Debug("leadership was not handed on", "error", err)
		}
	}
}

// otherVoter says whether some other voter is alive and applies what is agreed on.
func (c *crew) otherVoter() bool { return len(c.heirs()) > 0 }

// heirs are the other voters that are alive, and not stuck as far as this node has heard as the leader. Those that apply what
// is agreed on come first, and if there are any, the others are left out: while Raft tries to hand the lead on it proposes
// nothing, and to a node that stores nothing it may try for good.
func (c *crew) heirs() []member {
	var well, others []member
	for _, m := range c.census(c.State()) {
		if !m.Voter || m.ID == c.cfg.Self.ID || !m.alive() {
			continue
		}
		switch h := c.lastHeard(m.ID); {
		case h.stuck && time.Since(h.at) < heardWithin:
		case time.Since(h.moved) < lately:
			well = append(well, m)
		default:
			others = append(others, m)
		}
	}
	list := well
	if len(well) == 0 {
		list = others
	}
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// lately is how long ago a node that applies what is agreed on may have said so: it does four times a second.
const lately = time.Second

// lastHeard is what a node last reported with a request for authority.
func (c *crew) lastHeard(id ring.NodeID) heard {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard[id]
}

// LeaveCluster takes this node out of the cluster for good, after LeaveRing: out of Raft, of the members, and of
// gossip. Its data directory is of no more use after that. Alone, it does nothing.
func (c *Cluster) LeaveCluster(ctx context.Context) error {
	conf, _ := c.configuration()
	if len(conf.Servers) < 2 {
		return nil
	}
	c.departing.Store(true)
	c.crew.handLeadOn(ctx)
	if err := c.depart(ctx, departure{Node: c.cfg.Self.ID, Leaves: true}); err != nil {
		return fmt.Errorf("leave the cluster: %w", err)
	}
	return c.gossip.Load().Leave(ctx)
}

// Remove takes a node that is gone for good out of the cluster, by its name (or ID). A node that is alive is refused, unless
// by force: it can leave. It returns when the node is out; its authority may have to run out before.
//
// A process that was removed by force gets no authority any more, and hands nothing over: its standbys go on. Started again,
// the node joins again.
func (c *Cluster) Remove(ctx context.Context, name string, force bool) error {
	return c.depart(ctx, departure{Name: name, Force: force})
}

// departure is a node that is to be taken out.
type departure struct {
	Node   ring.NodeID `json:"node"`
	Name   string      `json:"name"`
	Leaves bool        `json:"leaves"` // it asks for itself
	Force  bool        `json:"force"`  // also if it is alive
}

// depart has a departure made by the leader; it may be asked for more than once. It takes serveBound at most if ctx has
// no deadline.
func (c *Cluster) depart(ctx context.Context, d departure) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, serveBound)
		defer cancel()
	}
	return c.insist(ctx, func(unknown bool) error {
		err := c.callJSON(ctx, toLeader, MethodRemove, d, &done{})
		if unknown && errors.Is(err, ErrNotFound) {
			return nil // the call before did it, and its answer was lost
		}
		return err
	})
}

// serveRemove makes a departure, on the leader.
func (c *Cluster) serveRemove(ctx context.Context, d departure) (done, error) {
	if d.Leaves && d.Node.IsZero() {
		return done{}, errBadCall
	}
	if !c.leads() {
		return done{}, fmt.Errorf("%w here", ErrNoLeader)
	}
	m, err := c.crew.find(d)
	if err != nil {
		return done{}, err
	}
	switch {
	case m.ID == c.cfg.Self.ID:
		if d.Leaves {
			return done{}, fmt.Errorf("%w: this node leads still", ErrNoLeader)
		}
		if d.Force {
			c.crew.handLeadOn(ctx)
			return done{}, fmt.Errorf("%w: node %s has led until now", ErrNoLeader, m.Name)
		}
		return done{}, fmt.Errorf("%w: node %s is alive, and leads", ErrRefused, m.Name)
	case m.State == gossip.Alive && !d.Leaves && !d.Force:
		return done{}, fmt.Errorf("%w: node %s is alive; let it leave, or remove it by force", ErrRefused, m.Name)
	case d.Force && c.State().InRing(m.ID) && len(c.State().To.Members()) == 1:
		return done{}, fmt.Errorf("%w: node %s is alone in the ring", ErrRefused, m.Name)
	}
	c.crew.takeOut(m, d.Force)
	if !d.Leaves {
		defer c.crew.doneRemoving(m.ID)
	}
	// The giver ends its authority when that has run out; the reconcile loop does the rest.
	poke(c.reconcile)
	for c.leads() {
		now, err := c.crew.find(departure{Node: m.ID})
		if err != nil || !now.server && (d.Leaves || !now.known) {
			return done{}, nil
		}
		if now.alive() && !d.Leaves && !d.Force {
			return done{}, fmt.Errorf("%w: node %s has come back", ErrRefused, m.Name)
		}
		select {
		case <-time.After(retryPause):
			poke(c.reconcile)
		case <-ctx.Done():
			return done{}, fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
		}
	}
	return done{}, fmt.Errorf("%w: leadership was lost", ErrUnknown)
}

// takeOut marks the process of a node that gossip has seen: it is not added again.
func (c *crew) takeOut(m member, force bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removing[m.ID] = removal{m.boot, force}
}

func (c *crew) doneRemoving(id ring.NodeID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.removing, id)
}
