package api

import (
	"encoding/json"
	"time"
)

// Health is the body that both planes answer to probes.
type Health struct {
	Status       string            `json:"status"` // ok, or degraded: checks go on, but something is wrong
	Node         string            `json:"node"`
	Version      string            `json:"version"`
	RulesVersion int64             `json:"rules_version"` // 0 before there are rules
	Checkpoint   *checkpointReport `json:"checkpoint,omitempty"`
	Cluster      *clusterReport    `json:"cluster,omitempty"` // only for a node in a cluster
}

// clusterReport is the JSON form of ClusterHealth.
type clusterReport struct {
	View        string `json:"view"`         // connected or cut-off
	LeaderKnown bool   `json:"leader_known"` // without a leader the cluster can't agree on any change
	RaftStore   string `json:"raft_store"`   // ok, hung or failing
	Error       string `json:"error,omitempty"`
}

type checkpointReport struct {
	OK       bool   `json:"ok"`
	AgeMS    int64  `json:"age_ms"` // since the last completed checkpoint began; -1 if there is none
	Failures int64  `json:"failures"`
	Error    string `json:"error,omitempty"`
}

// reportFor is how long a report answers probes. Many probes at once must cost
// little: they need no token, and each report that is made takes locks.
const reportFor = 20 * time.Millisecond

// healthReport is a report, made at a time.
type healthReport struct {
	at   time.Time
	body []byte
}

// HealthReport returns the JSON body that answers probes: the state of the
// node. It must not be changed.
func (d *Doors) HealthReport() []byte {
	now := time.Now()
	last := d.lastReport.Load()
	if last != nil && now.Sub(last.at) < reportFor {
		return last.body
	}

	// One caller makes the report, and the others answer with the last one. Before
	// there is a first report, each caller makes its own.
	mine := d.reporting.TryLock()
	if mine {
		defer d.reporting.Unlock()
	} else if last != nil {
		return last.body // another report is just being made
	}

	made := &healthReport{at: now, body: d.reportHealth()}
	d.lastReport.Store(made)
	return made.body
}

// reportHealth makes a report.
func (d *Doors) reportHealth() []byte {
	r := Health{Status: "ok", Node: d.Node, Version: d.Version}
	if set := d.Decider.Rules(); set != nil {
		r.RulesVersion = set.Version
	}

	if d.Checkpoints != nil {
		s := d.Checkpoints()
		c := &checkpointReport{OK: s.Err == nil, AgeMS: -1, Failures: int64(s.Failures)}
		if !s.Completed.IsZero() {
			c.AgeMS = max(0, time.Since(s.Completed).Milliseconds())
		}
		if s.Err != nil {
			r.Status = "degraded"
			c.Error = s.Err.Error()
		}
		r.Checkpoint = c
	}

	if d.Health != nil {
		c, good := reportCluster(d.Health())
		r.Cluster = c
		if !good {
			r.Status = "degraded"
		}
	}

	body, _ := json.Marshal(r) // strings and numbers can't fail
	return body
}

// reportCluster returns the node's state in the cluster, and whether nothing is wrong with it.
func reportCluster(h ClusterHealth) (r *clusterReport, good bool) {
	r = &clusterReport{View: "connected", LeaderKnown: h.LeaderKnown, RaftStore: "ok"}
	if !h.Connected {
		r.View = "cut-off"
	}

	switch {
	case h.StoreHung:
		r.RaftStore = "hung"
		r.Error = "the disk of Raft's log does not answer"
	case h.StoreFull:
		r.RaftStore = "failing"
	}

	if h.StoreErr != nil {
		r.Error = h.StoreErr.Error()
	}
	if h.Stuck != nil {
		r.Error = h.Stuck.Error()
	}

	return r, h.Connected && h.Stuck == nil && r.LeaderKnown && r.RaftStore == "ok"
}

// CheckpointHealth is how the last checkpoints of the counters went.
type CheckpointHealth struct {
	Completed time.Time // when the last completed checkpoint began; zero before the first
	Failures  int       // checkpoints that failed since then
	Err       error     // of the last checkpoint; nil if it completed
}

// ClusterHealth is what can keep a node from taking part in the cluster.
type ClusterHealth struct {
	Connected   bool  // the node may act as an owner
	LeaderKnown bool  // without a leader the cluster can't agree on any change
	StoreHung   bool  // a write to Raft's log has been in progress for too long
	StoreFull   bool  // the last write failed, for lack of space or for another reason
	StoreErr    error // why the last write failed
	Stuck       error // why the node no longer applies agreed entries; nil if it does
}
