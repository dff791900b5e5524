package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/raftio"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// initCluster is the loop that proposes a new cluster's first entries: its ID
// and its first rules. It runs on every node, because a founder may die between
// these entries, and the next leader then completes them.
func (c *Cluster) initCluster() {
	c.loop(c.config.Timings.Founding, c.leadChanged, func() (last bool) {
		if !c.leads() {
			return false
		}
		err := c.initClusterOnce()
		if err != nil {
			c.config.Logger.Debug("can't propose the cluster's first entries yet", "error", err)
		}
		return err == nil
	})
}

// foundingLevel returns the highest feature level that all founders know, or 0
// if gossip does not know one of them.
func (c *Cluster) foundingLevel() agreement.Level {
	level := c.config.Build.Level
	members := c.gossipMembers()
	conf, _ := c.configuration()
	for _, s := range conf.Servers {
		at := slices.IndexFunc(members, func(m gossip.Member) bool { return m.ID == raftio.NodeID(s.ID) })
		switch {
		case raftio.NodeID(s.ID) == c.config.Self.ID:
		case at < 0:
			return 0
		default:
			level = min(level, agreement.Level(members[at].Level))
		}
	}

	return level
}

// initClusterOnce proposes whichever of the first entries are missing.
func (c *Cluster) initClusterOnce() error {
	ctx, cancel := context.WithTimeout(c.ctx, c.config.Timings.WriteTimeout)
	defer cancel()

	// A leader knows the current state only after applying an entry of its own.
	if _, err := c.propose(ctx, agreement.Empty{}); err != nil {
		return err
	}

	if c.State().Cluster.IsZero() {
		e := agreement.FoundCluster{SigningKey: make([]byte, 32)}
		e.Level = c.foundingLevel()
		_, _ = rand.Read(e.Cluster[:]) // these never fail
		_, _ = rand.Read(e.SigningKey)
		if _, err := c.propose(ctx, e); err != nil {
			return err
		}
	}

	if err := c.sharedRules.claimPrimary(ctx); err != nil {
		return err
	}
	if rulesVersion(c.State()) != 0 || c.config.InitialRules == nil {
		return nil
	}

	text, by := c.config.InitialRules()
	r, err := c.propose(ctx,
		agreement.WriteRules{Change: document.Change{Body: text}, OnlyFirst: true, By: by,
			Via: rules.ViaSeed, When: time.Now()})
	if err != nil {
		return err
	}

	// A conflict means that there are rules by now, so these are not needed.
	if r.Err != nil && !errors.Is(r.Err, rules.ErrConflict) {
		c.config.Logger.Error("the first rules are invalid; write new ones", "error", r.Err)
	}

	return nil
}
