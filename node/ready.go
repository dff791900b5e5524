package node

import (
	"errors"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/persist"
)

const (
	// readyInterval is how often a starting node checks whether it is ready.
	readyInterval = 10 * time.Millisecond
	// copiesTime is how long a starting node waits for copies of the partitions it is the standby of.
	copiesTime = 2 * time.Second
	// replacingTime is how long a starting node waits for a dead voter to be replaced. That takes fifteen seconds, or
	// thirty if the leader changes. After longer, something prevents it, and this node is of more use when it is ready.
	replacingTime = 2 * time.Minute
)

// While either lasts, the cluster can't lose another node. Checks of some partition would have to wait or be decided
// without its owner, or the counters would exist in one place only.
var (
	errRecovering = errors.New("its partitions are coming back from their standbys")
	errCopies     = errors.New("copies of other nodes' partitions are still arriving")
)

// awaitReady lets checks in once the node can decide them. It reports ready to probes only once other nodes may be
// restarted, too.
func (n *Node) awaitReady() {
	if n.awaitRules() && n.awaitVoters() {
		n.ready()
	}
}

// await polls why until it returns nil. It returns false if the node stops first.
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

// awaitRules opens the node once it can decide checks; meanwhile it explains why it can't. It returns false if the node
// stops first.
func (n *Node) awaitRules() bool {
	var since time.Time // when all but the copies was there
	n.replacing.Store(true)
	there := n.await(func() error {
		_ = n.cluster.Replacing() // records how many voters there were
		err := n.notReady()
		if err == nil && since.IsZero() {
			since = time.Now()
		}
		if err == nil && time.Since(since) < copiesTime && n.keeper.LacksCopies() {
			err = errCopies
		}
		if err != nil {
			n.doors.Explain(err.Error())
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

// awaitVoters waits until there are as many live voters as before. Meanwhile checks are decided, but probes see the
// node as not ready. It returns false if the node stops first.
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

// notReady returns why the node is not ready yet; nil if it is.
func (n *Node) notReady() error {
	if err := n.cluster.Ready(); err != nil {
		return err
	}
	if n.cluster.Authority() && (n.keeper.AdoptedRevision() < n.cluster.State().Revision || n.keeper.Recovering()) {
		return errRecovering
	}
	return nil
}

// firstBy returns the author of the first rules; empty if no longer known.
func (n *Node) firstBy() string {
	for _, v := range n.cluster.Last().History.Versions() {
		if v.Number == 1 {
			return strings.TrimSpace(v.By)
		}
	}
	return ""
}

// storeStatus returns the status of Raft's store; zero without a disk.
func (n *Node) storeStatus() (st persist.RaftStatus) {
	if n.disk != nil {
		st = n.disk()
	}
	return st
}

// clusterHealth reports what keeps this node from doing its part in the cluster.
func (n *Node) clusterHealth() api.ClusterHealth {
	view, st := n.cluster.View(), n.storeStatus()
	return api.ClusterHealth{
		Connected: view.Connected, LeaderKnown: view.Leader != "", Stuck: n.cluster.Stuck(),
		StoreHung: !st.HungSince.IsZero(), StoreFull: !st.FullSince.IsZero(), StoreErr: st.Err,
	}
}
