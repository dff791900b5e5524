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

// standBack is the loop that keeps a node whose store fails from leading, where another one could. The first entry that
// is stored again ends that.
func (c *Cluster) standBack() {
	for {
		select {
		case <-c.logs.news:
		case <-c.ctx.Done():
			return
		}
		failing := c.logs.failing.Load() && c.otherVoter()
		r := c.raft.Load()
		rc := r.ReloadableConfig()
		rc.HeartbeatTimeout, rc.ElectionTimeout = c.cfg.Timings.Heartbeat, c.cfg.Timings.Election
		if failing {
			rc.HeartbeatTimeout *= standsBack
			rc.ElectionTimeout = max(rc.HeartbeatTimeout, c.cfg.Timings.Election)
		}
		if err := r.ReloadConfig(rc); err != nil {
			c.cfg.Logger.Warn("the time until an election can't be changed", "error", err)
			continue
		}
		c.cfg.Logger.Warn("Raft's store", "fails", failing, "stands_for_election_after", rc.HeartbeatTimeout.Round(time.Millisecond))
	}
}
