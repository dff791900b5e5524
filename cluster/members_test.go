package cluster

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/gossip"
)

func TestRecordsTellSinceWhen(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	m := &member{inGossip: true, boot: 1}
	r := nodeHealth{}.updated(now, m, true)
	r = r.updated(now.Add(time.Second), m, true)
	if !r.healthy || !r.healthySince.Equal(now) {
		t.Errorf("have %+v, want good since the beginning", r)
	}
	m.boot = 2
	r = r.updated(now.Add(2*time.Second), m, true)
	if !r.healthySince.Equal(now.Add(2 * time.Second)) {
		t.Errorf("have %+v, want good since the new process", r)
	}
	r = r.updated(now.Add(3*time.Second), m, false)
	if r.healthy {
		t.Error("a node that is behind is not good")
	}
	m.State = gossip.Failed
	r = r.updated(now.Add(4*time.Second), m, true)
	r = r.updated(now.Add(5*time.Second), m, true)
	if !r.failed || r.healthy || !r.failedSince.Equal(now.Add(4*time.Second)) {
		t.Errorf("have %+v, want bad since it failed", r)
	}
}
