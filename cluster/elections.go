package cluster

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/raftio"
)

// probeStore is the loop that checks whether the store responds.
func (c *Cluster) probeStore() {
	c.loop(c.config.Timings.Probe, nil, func() (last bool) {
		c.logs.Probe()
		return false
	})
}

// electionDelayFactor multiplies the election timeout of a node whose store
// fails. Without the delay, such a node could be elected again and again,
// although it can store no entry: it may be able to save its term, and its log
// is as long as the others'.
const electionDelayFactor = 20

// deferElections is the loop that keeps this node from leading while its store
// fails or it is stuck, if another voter could lead. If it leads, it hands over
// the lead. A failing store recovers with the next successful write and probe.
// A stuck node stays stuck.
func (nt *nodeTracker) deferElections() {
	t := time.NewTicker(nt.config.Timings.Reconcile)
	defer t.Stop()

	stopped := nt.machine.stopped

	deferred := false
	for {
		select {
		case <-nt.logs.Changed():
		case <-stopped:
			stopped = nil // a closed channel would wake this loop all the time
			nt.handleStuck()
		case <-t.C: // other voters may have appeared
		case <-nt.ctx.Done():
			return
		}

		fails := nt.machine.stuck.Load() != nil || nt.logs.IsFailing()

		want := fails && nt.hasOtherVoter()
		if want != deferred && nt.setElectionTimeouts(want) {
			deferred = want
		}
		if fails {
			nt.transferLead(nt.ctx)
		}
	}
}

// setElectionTimeouts sets this node's election timeouts, either delayed or
// normal. It reports whether that succeeded.
func (nt *nodeTracker) setElectionTimeouts(late bool) bool {
	r := nt.raft.Load()
	rc := r.ReloadableConfig()
	rc.HeartbeatTimeout = nt.config.Timings.HeartbeatTimeout
	rc.ElectionTimeout = nt.config.Timings.ElectionTimeout
	if late {
		rc.HeartbeatTimeout *= electionDelayFactor
		// Raft demands that the election timeout is not the shorter one.
		rc.ElectionTimeout = max(rc.HeartbeatTimeout, nt.config.Timings.ElectionTimeout)
	}

	if err := r.ReloadConfig(rc); err != nil {
		nt.config.Logger.Warn("can't change the election timeout", "error", err)
		return false
	}

	level := slog.LevelInfo
	message := "this node stands for election normally again"
	if late {
		level = slog.LevelWarn
		message = "this node stands for election late: its store fails, or it is stuck"
	}

	nt.config.Logger.Log(nt.ctx, level, message, "fails", nt.logs.IsFailing(), "stuck", nt.machine.stuck.Load() != nil,
		"stands_for_election_after", rc.HeartbeatTimeout.Round(time.Millisecond))
	return true
}

// handleStuck logs that this node is stuck, and revokes its authority at once.
func (nt *nodeTracker) handleStuck() {
	nt.holder.Revoke()
	nt.config.Logger.Error("this node still stores and votes, but no longer acts as an owner",
		"error", nt.machine.stuck.Load())
}

// transferTries bounds the attempts to transfer the lead: a candidate may be behind.
const transferTries = 3

// transferLead tries to transfer the lead to another voter, if this node leads.
// If that fails, a later election decides.
func (nt *nodeTracker) transferLead(ctx context.Context) {
	heirs := nt.transferTargets()
	for _, heir := range heirs[:min(len(heirs), transferTries)] {
		r := nt.raft.Load()
		if r.State() != raft.Leader || ctx.Err() != nil {
			return
		}
		err := nt.awaitRaft(ctx, r.LeadershipTransferToServer(raftio.ServerID(heir.ID), raft.ServerAddress(heir.raftAddress)))
		if err != nil {
			nt.config.Logger.Debug("leadership was not transferred", "error", err)
		}
	}
}

// hasOtherVoter reports whether another voter is alive and not known to be unfit.
func (nt *nodeTracker) hasOtherVoter() bool { return len(nt.transferTargets()) > 0 }

// transferTargets returns, in random order, the other voters that are alive and
// have not recently reported to this leader that they are unfit. If some of
// them have caught up, it returns only those: Raft proposes nothing while it
// transfers the lead, and it may try forever to transfer the lead to a node
// that stores nothing.
func (nt *nodeTracker) transferTargets() []member {
	var well, others []member
	index := nt.State().Index
	for _, m := range nt.listMembers(nt.State()) {
		if !m.Voter || m.ID == nt.config.Self.ID || !m.isAlive() {
			continue
		}

		h := nt.lastReport(m.ID)
		switch {
		case h.unfitToLead && time.Since(h.at) < nodeReportTTL:
		case h.isCaughtUp(index):
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
