package node

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/persist"
)

const (
	// readyInterval is how often a starting node checks whether it is ready.
	readyInterval = 10 * time.Millisecond
	// copiesTimeout is how long a starting node waits for copies of the partitions
	// for which it is the standby.
	copiesTimeout = 2 * time.Second
	// replacementTimeout is how long a starting node waits for a dead voter to be
	// replaced. That takes fifteen seconds, or thirty if the leader changes. If it
	// takes longer, something prevents it, and this node is more useful when ready.
	replacementTimeout = 2 * time.Minute
)

// Reasons why checks are not let in yet: those of some partitions would have to
// wait or be decided without their owner, or some counters exist at one node
// only.
var (
	errRecovering = errors.New("recovering its partitions from their standbys")
	errCopies     = errors.New("copies of other nodes' partitions are still arriving")
)

// awaitReady opens the node in two steps. It lets checks in once the node can
// decide them and has its copies, or has waited copiesTimeout for these. Probes
// succeed later, once the cluster could afford to lose another node.
func (n *Node) awaitReady() {
	if n.awaitDeciding() && n.awaitVoters() {
		n.announceReady()
	}
}

// pollUntilNil polls missing, which returns what is missing, until it returns
// nil. It returns false if the node stops first.
func (n *Node) pollUntilNil(missing func() error) bool {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()

	for missing() != nil {
		select {
		case <-tick.C:
		case <-n.ctx.Done():
			return false
		}
	}
	return true
}

// awaitDeciding lets checks in once nothing is missing; until then, it explains
// what is. It returns false if the node stops first.
func (n *Node) awaitDeciding() bool {
	n.replacing.Store(true)

	var copiesSince time.Time // since when nothing but copies can be missing
	decides := n.pollUntilNil(func() error {
		n.cluster.RecordVoters()

		err := n.acceptError(&copiesSince)
		if err != nil {
			n.doors.Explain(err.Error())
		}
		return err
	})
	if !decides {
		return false
	}

	c := n.config
	if len(c.Rules) > 0 && n.firstRulesAuthor() != c.initialRulesAuthor {
		n.log.Warn(c.FieldName("Rules")+
			" is ignored: the cluster already has rules; rlnode apply changes them", "file", c.RulesFrom,
			"rules_version", n.limiter.Rules().Version)
	}

	n.acceptChecks()
	return true
}

// acceptError returns why checks are not let in yet; nil if nothing is
// missing. It sets copiesSince, if that is zero, once nothing but copies can be
// missing.
func (n *Node) acceptError(copiesSince *time.Time) error {
	if err := n.readyError(); err != nil {
		return err
	}

	if copiesSince.IsZero() {
		*copiesSince = time.Now()
	}
	if time.Since(*copiesSince) < copiesTimeout && n.keeper.LacksCopies() {
		return errCopies
	}
	return nil
}

// awaitVoters waits until there are as many live voters as before, or until
// replacementTimeout has passed. Meanwhile the node decides checks, but probes
// fail. awaitVoters returns false if the node stops first.
func (n *Node) awaitVoters() bool {
	since := time.Now()
	return n.pollUntilNil(func() error {
		err := n.cluster.ReplacingError()
		if err != nil && time.Since(since) >= replacementTimeout {
			n.log.Warn("no node has replaced a dead voter: don't restart other nodes until rlnode members shows why", "reason", err)
			err = nil
		}
		if err == nil {
			n.replacing.Store(false)
		}
		return err
	})
}

// readyError returns why the node can't decide checks yet; nil if it can.
func (n *Node) readyError() error {
	if err := n.cluster.ReadyError(); err != nil {
		return err
	}
	if n.cluster.Authority() && (n.keeper.AdoptedRevision() < n.cluster.State().Revision || n.keeper.IsRecovering()) {
		return errRecovering
	}
	return nil
}

// acceptChecks starts to decide checks.
func (n *Node) acceptChecks() {
	for _, w := range n.limiter.Rules().Document.Warnings() {
		n.log.Warn("part of the rules has no effect", "at", w.Path, "what", w.Message)
	}
	n.doors.Ready()
	close(n.opened)
}

// announceReady announces that the node is ready. Probes already report it.
func (n *Node) announceReady() {
	scheme := "http"
	if n.config.CertFile != "" {
		scheme = "https"
	}

	var attributes []any
	if a := n.DataAddr(); a != nil {
		attributes = append(attributes, "data", scheme+"://"+a.String())
	}
	if a := n.AdminAddr(); a != nil {
		attributes = append(attributes, "admin", scheme+"://"+a.String())
	}
	if a := n.GRPCAddr(); a != nil {
		attributes = append(attributes, "grpc", a.String())
	}
	if a := n.RedisAddr(); a != nil {
		attributes = append(attributes, "redis", a.String())
	}

	n.log.Info("ready", append(attributes, "rules_version", n.limiter.Rules().Version)...)

	if n.grpcConfigured != "" {
		level := slog.LevelWarn
		if n.config.AnyPort {
			level = slog.LevelInfo // this is expected where several nodes share a machine
		}
		n.log.Log(context.Background(), level,
			"the port for Envoy is in use; took a free one (--grpc-port sets another, or 0 for none)",
			"wanted", n.grpcConfigured, "taken", n.GRPCAddr())
	}

	if n.config.Ready != nil {
		n.config.Ready(n)
	}
}

// firstRulesAuthor returns the author of the cluster's first rules; empty if the
// history no longer has them.
func (n *Node) firstRulesAuthor() string {
	for _, v := range n.cluster.StateInUse().History.Versions() {
		if v.Number == 1 {
			return strings.TrimSpace(v.By)
		}
	}
	return ""
}

// storeStatus returns the status of Raft's store; zero without a disk.
func (n *Node) storeStatus() persist.RaftStatus {
	if n.disk == nil {
		return persist.RaftStatus{}
	}
	return n.disk()
}

// clusterHealth reports what impairs this node as a member of the cluster.
func (n *Node) clusterHealth() api.ClusterHealth {
	view := n.cluster.View()
	status := n.storeStatus()
	return api.ClusterHealth{
		Connected: view.Connected, LeaderKnown: view.Leader != "", Stuck: n.cluster.StuckError(),
		StoreHung: !status.HungSince.IsZero(), StoreFull: !status.FailingSince.IsZero(), StoreErr: status.Err,
	}
}
