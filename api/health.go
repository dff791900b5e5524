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
}

type checkpointReport struct {
	OK       bool   `json:"ok"`
	AgeMS    int64  `json:"age_ms"` // since the last completed one began; -1 without one
	Failures int64  `json:"failures"`
	Error    string `json:"error,omitempty"`
}

// health reports how the node is.
func (a *API) health() []byte {
	r := healthReport{Status: "ok", Node: a.config.Node, Version: a.config.Version}
	if set := a.config.Decider.Rules(); set != nil {
		r.RulesVersion = set.Version
	}
	if a.config.Checkpoints != nil {
		s := a.config.Checkpoints()
		c := &checkpointReport{OK: s.Err == nil, AgeMS: -1, Failures: s.Failures}
		if !s.Last.IsZero() {
			c.AgeMS = max(0, time.Since(s.Last).Milliseconds())
		}
		if s.Err != nil {
			r.Status, c.Error = "degraded", s.Err.Error()
		}
		r.Checkpoint = c
	}
	body, err := json.Marshal(r)
	if err != nil {
		a.log.Error("health not told", "error", err)
		return []byte(`{"status":"degraded"}`)
	}
	return body
}
