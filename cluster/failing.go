package cluster

import (
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// standsBack multiplies the election delay of a node whose store fails. Such a node could still be elected, because its
// term can be saved and its log is as long as the others'. It would then lead again and again without being able to store
// an entry.
const standsBack = 20

// watchedLogs is a log store that tracks whether writes fail.
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

// deferElections is the loop that keeps a node whose store fails, or that is stuck, from leading while another voter could.
// The first successful write ends this for a failing store. A stuck node stays stuck, and hands over the lead if it has it.
func (c *crew) deferElections() {
	t := time.NewTicker(c.cfg.Timings.Reconcile)
	defer t.Stop()
	stopped := c.machine.stopped
	var again <-chan time.Time // nil until this node is stuck; then other voters may still appear later
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
			c.transferLead(c.ctx)
		}
	}
}

// standFor sets this node's election timeouts, either late or normal.
func (c *crew) standFor(late bool) bool {
	r := c.raft.Load()
	rc := r.ReloadableConfig()
	rc.HeartbeatTimeout, rc.ElectionTimeout = c.cfg.Timings.Heartbeat, c.cfg.Timings.Election
	if late {
		rc.HeartbeatTimeout *= standsBack
		rc.ElectionTimeout = max(rc.HeartbeatTimeout, c.cfg.Timings.Election)
	}
	if err := r.ReloadConfig(rc); err != nil {
		c.cfg.Logger.Warn("can't change the election timeout", "error", err)
		return false
	}
	what := "this node stands for election like any other again"
	if late {
		what = "this node stands for election after the others: its store fails, or it is stuck"
	}
	c.cfg.Logger.Warn(what, "fails", c.logs.failing.Load(), "stuck", c.machine.stuck.Load() != nil,
		"stands_for_election_after", rc.HeartbeatTimeout.Round(time.Millisecond))
	return true
}

// noteStuck logs that this node is stuck, and revokes its authority at once.
func (c *crew) noteStuck() {
	c.holder.Revoke()
	c.cfg.Logger.Error("this node still stores and votes, but no longer decides as an owner", "error", c.machine.stuck.Load())
}

// Stuck returns why this node applies nothing more; nil if it does.
func (c *core) Stuck() error {
	if s := c.machine.stuck.Load(); s != nil {
		return s
	}
	return nil
}
