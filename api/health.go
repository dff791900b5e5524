package api

import (
	"encoding/json"
	"time"
)

// healthReport is the body of the probes of either plane.
type healthReport struct {
	Status       string            `json:"status"` // ok, or degraded: checks go on, but something is wrong
	Node         string            `json:"node"`
	Version      string            `json:"version"`
	RulesVersion int64             `json:"rules_version"` // 0 before there are rules
	Checkpoint   *checkpointReport `json:"checkpoint,omitempty"`
	Cluster      *clusterReport    `json:"cluster,omitempty"` // only for a node in a cluster
}

// clusterReport says what keeps a node from doing its part in the cluster.
type clusterReport struct {
	View        string `json:"view"`         // connected or cut-off
	LeaderKnown bool   `json:"leader_known"` // without a leader nothing new can be agreed on
	RaftStore   string `json:"raft_store"`   // ok, hung or failing
	Error       string `json:"error,omitempty"`
}

type checkpointReport struct {
	OK       bool   `json:"ok"`
	AgeMS    int64  `json:"age_ms"` // since the last completed checkpoint began; -1 if there is none
	Failures int64  `json:"failures"`
	Error    string `json:"error,omitempty"`
}

// health reports the state of the node.
func (a *API) health() []byte {
	r := healthReport{Status: "ok", Node: a.config.Node, Version: a.config.Version}
	if set := a.config.Decider.Rules(); set != nil {
		r.RulesVersion = set.Version
	}
	if a.config.Checkpoints != nil {
		s := a.config.Checkpoints()
		c := &checkpointReport{OK: s.Err == nil, AgeMS: -1, Failures: int64(s.Failures)}
		if !s.Completed.IsZero() {
			c.AgeMS = max(0, time.Since(s.Completed).Milliseconds())
		}
		if s.Err != nil {
			r.Status, c.Error = "degraded", s.Err.Error()
		}
		r.Checkpoint = c
	}
	if a.config.Health != nil {
		c, good := reportCluster(a.config.Health())
		if r.Cluster = c; !good {
			r.Status = "degraded"
		}
	}
	body, err := json.Marshal(r)
	if err != nil {
		a.log.Error("health not told", "error", err)
		return []byte(`{"status":"degraded"}`)
	}
	return body
}

// reportCluster reports the node's state in the cluster, and whether all of it is good.
func reportCluster(h ClusterHealth) (r *clusterReport, good bool) {
	r = &clusterReport{View: "connected", LeaderKnown: h.LeaderKnown, RaftStore: "ok"}
	if !h.Connected {
		r.View = "cut-off"
	}
	switch {
	case h.StoreHung:
		r.RaftStore, r.Error = "hung", "the disk of Raft's log does not answer"
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
