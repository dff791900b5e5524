package node

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
)

// storage holds what outlives the process, and the node's identity.
type storage struct {
	id   ring.NodeID
	boot uint64 // identifies this process; not zero
	dir  string // the data directory; empty if there is none
	// checkpoints is set if counters are saved in dir.
	checkpoints bool
	isOld       bool // an earlier process of this node has taken part in a cluster
	store       store
	disk        func() persist.RaftStatus // the store's status; nil without a disk
}

// store holds Raft's durable state. *persist.RaftStore implements it.
type store interface {
	cluster.Store
	Close() error
}

func (n *Node) openStorage() (err error) {
	n.storage, err = n.env.storage(n.config)
	if err != nil {
		return err
	}
	n.closeOnRelease(n.store)
	return nil
}

// openStore opens the data directory and Raft's state in it. Without a
// directory, both are in memory.
func openStore(c *settings) (s storage, err error) {
	s.boot = rand.Uint64() | 1 // not zero
	if c.DataDir == "" {
		s.id = newIdentity()
		s.store = newMemoryStore()
		return s, nil
	}

	if c.Rejoin {
		if err := rejoin(c); err != nil {
			return s, err
		}
	}

	s.id, err = persist.OpenDir(c.DataDir)
	if err != nil {
		return s, fmt.Errorf("%s: %w", c.FieldName("DataDir"), err)
	}

	config := persist.DefaultRaftConfig()
	config.Dir = c.DataDir
	config.Logger = c.Logger
	opened, err := persist.OpenRaft(config)
	if c.Rejoin && errors.Is(err, persist.ErrCorrupt) {
		// The damaged state is given up together with its identity.
		s.id, err = rejoinDamaged(c, err)
		if err == nil {
			opened, err = persist.OpenRaft(config)
		}
	}

	if err != nil {
		return s, fmt.Errorf("%s: %w", c.FieldName("DataDir"), err)
	}

	s.store = opened
	s.disk = opened.Status
	s.dir = c.DataDir
	s.checkpoints = true
	last, err := opened.Logs().LastIndex()
	s.isOld = err == nil && last > 0

	return s, nil
}

// rejoin gives the node a new identity, unless --rejoin has done so already.
func rejoin(c *settings) error {
	aside, err := persist.RenewIdentity(c.DataDir)
	if err != nil {
		return fmt.Errorf("%s: %w", c.FieldName("Rejoin"), err)
	}
	if aside != "" {
		c.Logger.Info("this node has a new identity; what the old one had is set aside, except for bills", "folder", aside)
	}
	return nil
}

// rejoinDamaged gives a node whose agreed state is damaged a new identity: the
// node may have forgotten what it acknowledged under the old one.
func rejoinDamaged(c *settings, damage error) (id ring.NodeID, err error) {
	c.Logger.Error("what the cluster agreed on is damaged here", "error", damage)
	// An identity that an earlier rejoin gave this node stays, unless the cluster
	// has refused it. This one must go in any case, so it is marked as refused.
	if err := persist.MarkDeparted(c.DataDir); err != nil {
		return id, errors.Join(damage, err)
	}
	if err := rejoin(c); err != nil {
		return id, errors.Join(damage, err)
	}
	return persist.OpenDir(c.DataDir)
}
