package cluster

import (
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// standsBack is by how much longer a node whose store fails waits before it stands for election. It would vote and be
// elected all the same, for its term can be saved, and its log is as long as the others'; and it would lead, again and
// again, without being able to store an entry.
const standsBack = 20

// watchedLogs is a log store that takes note whether writes fail.
type watchedLogs struct {
	raft.LogStore
	failing atomic.Bool
	news    chan struct{} // capacity 1: failing has changed
}

func watchLogs(logs raft.LogStore) *watchedLogs {
	return &watchedLogs{LogStore: logs, news: make(chan struct{}, 1)}
}

// StoreLog stores one entry.
func (w *watchedLogs) StoreLog(l *raft.Log) error { return w.note(w.LogStore.StoreLog(l)) }

// StoreLogs stores entries.
func (w *watchedLogs) StoreLogs(logs []*raft.Log) error { return w.note(w.LogStore.StoreLogs(logs)) }

func (w *watchedLogs) note(err error) error {
	if w.failing.Swap(err != nil) != (err != nil) {
		poke(w.news)
	}
	return err
}

// standBack is the loop that keeps a node from leading whose store fails, or that applies nothing more, where another one
// could lead. The first entry that is stored again ends that; a stuck node stays so, and hands the lead on if it has it.
func (c *crew) standBack() {
	t := time.NewTicker(c.cfg.Timings.Reconcile)
	defer t.Stop()
	stopped := c.machine.stopped
	var again <-chan time.Time // nil until this node is stuck: who else votes may be seen later
	back := false
	for {
		select {
		case <-c.logs.news:
		case <-stopped:
			stopped, again = nil, t.C
			c.noteStuck()
		case <-again:
		case <-c.ctx.Done():
			return
		}
		stuck := c.machine.stuck.Load() != nil
		if want := (stuck || c.logs.failing.Load()) && c.otherVoter(); want != back && c.standFor(want) {
			back = want
		}
		if stuck {
			c.handLeadOn(c.ctx)
		}
	}
}

// standFor makes this node stand for election late, or as others do.
func (c *crew) standFor(late bool) bool {
	r := c.raft.Load()
	rc := r.ReloadableConfig()
	rc.HeartbeatTimeout, rc.ElectionTimeout = c.cfg.Timings.Heartbeat, c.cfg.Timings.Election
	if late {
		rc.HeartbeatTimeout *= standsBack
		rc.ElectionTimeout = max(rc.HeartbeatTimeout, c.cfg.Timings.Election)
	}
	if err := r.ReloadConfig(rc); err != nil {
		c.cfg.Logger.Warn("the time until an election can't be changed", "error", err)
		return false
	}
	c.cfg.Logger.Warn("Raft's store", "fails", c.logs.failing.Load(), "stuck", c.machine.stuck.Load() != nil,
		"stands_for_election_after", rc.HeartbeatTimeout.Round(time.Millisecond))
	return true
}

// noteStuck says that this node is stuck, and gives its authority up at once.
func (c *crew) noteStuck() {
	c.holder.Revoke()
	c.cfg.Logger.Error("this node stores and votes, and decides nothing as an owner any more", "error", c.machine.stuck.Load())
}

// Stuck says why this node applies nothing more; nil: it does.
func (c *core) Stuck() error {
	if s := c.machine.stuck.Load(); s != nil {
		return s
	}
	return nil
}
