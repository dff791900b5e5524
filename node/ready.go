package node

import (
	"errors"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/persist"
)

const (
	// readyInterval is how often a node that is starting looks whether it is ready.
	readyInterval = 10 * time.Millisecond
	// copiesTime is how long a node that starts waits for copies of what it is the standby of.
	copiesTime = 2 * time.Second
	// replacingTime is how long a node that starts waits for a dead voter to be replaced: that takes fifteen seconds, or thirty
	// where the leader changes. After that something hinders it, and this node is of more use when it is ready.
	replacingTime = 2 * time.Minute
)

// While these last, the cluster can't do without another node: checks of a partition could only wait, or be decided without
// its owner; or its counters are in one place only.
var (
	errRecovering = errors.New("its partitions are coming back from their standbys")
	errCopies     = errors.New("copies of others' partitions are coming")
)

// awaitReady lets checks in once the node can decide them, and tells probes once other nodes may be restarted, too.
func (n *Node) awaitReady() {
	if n.awaitRules() && n.awaitVoters() {
		n.ready()
	}
}

// await looks again and again until why is nil. It reports false when the node stops first.
func (n *Node) await(why func() error) bool {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for why() != nil {
		select {
		case <-tick.C:
		case <-n.ctx.Done():
			return false
		}
	}
	return true
}

// awaitRules opens the node once it can decide checks, and says meanwhile why it can't. It reports false when the node
// stops first.
func (n *Node) awaitRules() bool {
	var since time.Time // when all but copies was there
	n.replacing.Store(true)
	there := n.await(func() error {
		_ = n.cluster.Replacing() // it remembers how many voters there were
		err := n.notReady()
		if err == nil && since.IsZero() {
			since = time.Now()
		}
		if err == nil && time.Since(since) < copiesTime && n.keeper.Lacking() {
			err = errCopies
		}
		if err != nil {
			n.api.Explain(err.Error())
		}
		return err
	})
	if !there {
		return false
	}
	if c := n.config; len(c.Rules) > 0 && n.firstBy() != c.seedBy {
		n.log.Warn(c.FieldName("Rules")+" is not used: there are rules already; rlnode apply changes them", "file", c.RulesFrom,
			"rules_version", n.limiter.Rules().Version)
	}
	n.open()
	return true
}

// awaitVoters waits until there are as many live voters as before; meanwhile checks are decided, and probes are told
// that the node is not ready. It reports false when the node stops first.
func (n *Node) awaitVoters() bool {
	since := time.Now()
	return n.await(func() error {
		err := n.cluster.Replacing()
		if err != nil && time.Since(since) >= replacingTime {
			n.log.Warn("no node takes a dead voter's place: restart no other node before rlnode members shows why", "reason", err)
			err = nil
		}
		if err == nil {
			n.replacing.Store(false)
		}
		return err
	})
}

// notReady is why the node is not ready yet; nil: it is.
func (n *Node) notReady() error {
	if err := n.cluster.Ready(); err != nil {
		return err
	}
	if n.cluster.Authority() && (n.keeper.Used() < n.cluster.State().Revision || n.keeper.Recovering()) {
		return errRecovering
	}
	return nil
}

// firstBy is who wrote the first rules, if that is still known.
func (n *Node) firstBy() string {
	for _, v := range n.cluster.Last().History.Versions() {
		if v.Number == 1 {
			return strings.TrimSpace(v.By)
		}
	}
	return ""
}

// storeStatus is how Raft's store does; a node without a disk has nothing to tell.
func (n *Node) storeStatus() (st persist.RaftStatus) {
	if n.disk != nil {
		st = n.disk()
	}
	return st
}

// clusterHealth says what keeps this node from doing its part in the cluster.
func (n *Node) clusterHealth() api.ClusterHealth {
	view, st := n.cluster.View(), n.storeStatus()
	return api.ClusterHealth{
		Connected: view.Connected, LeaderKnown: view.Leader != "", Stuck: n.cluster.Stuck(),
		StoreHung: !st.HungSince.IsZero(), StoreFull: !st.FullSince.IsZero(), StoreErr: st.Err,
	}
}
