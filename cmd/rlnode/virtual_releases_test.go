package main

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// oneState waits until all nodes have applied the same.
func (p *planet) oneState() {
	p.t.Helper()
	p.eventually("all nodes have the same state", func() bool {
		var first []byte
		for _, v := range p.nodes {
			b, err := v.server.mates.cluster.Load().State().AppendBinary(nil)
			if err != nil {
				p.t.Fatal(err)
			}
			if first != nil && !bytes.Equal(first, b) {
				return false
			}
			first = b
		}
		return true
	})
}

// A node whose release lacks a kind of entry stops at the first one: the others go on with the whole limit, it forwards
// and has no authority, and with the next release it catches up.
func TestUnknownEntryInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit, keys = 400, 6
		var lacks [3]atomic.Bool
		p := newSpace(t).planet("default", "default", 0)
		p.build = func(i int) cluster.Build {
			return cluster.Build{Lacks: func(kind string) bool { return lacks[i].Load() && kind == "agreement.Rules" }}
		}
		p.settle(3, exactRules(limit))
		p.whole()
		i := 0
		for p.nodes[i].server.mates.cluster.Load().Stats().State == "leader" {
			i++ // a leader does not propose what it can't read
		}
		odd, others := p.nodes[i], slices.Delete(slices.Clone(p.nodes), i, i+1)
		crowd := p.crowd("year", keys, 6)
		lacks[i].Store(true)
		change := rules.Change{Part: rules.TierPart, Name: "new", Body: []byte("limits: [{limit: 1, per: 1m}]")}
		for _, v := range others {
			if _, err := v.server.mates.Write(t.Context(), change, api.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		c := odd.server.mates.cluster.Load()
		p.eventually("it stops", func() bool { return c.Stuck() != nil && !c.Authority() })
		p.eventually("the others go on without it", func() bool {
			s := others[0].server.mates.cluster.Load().State()
			return s.Settled && len(s.To.Members()) == 2
		})
		time.Sleep(time.Second)
		_, by, slowest := odd.ask("year", p.keyOwnedBy("year", others[0], nil, 0), 100)
		if by[limiter.ByForward] != 100 || slowest > 100*time.Millisecond {
			t.Errorf("it does not forward: %v, the slowest in %v", by, slowest)
		}
		if f := odd.server.mates.figures(); f.Connected || f.Stuck == nil || !odd.ready.Load() {
			t.Errorf("have %+v", f)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := odd.server.mates.Write(ctx, change, api.WriteOptions{}); err == nil {
			t.Error("it says that a write is in force on it")
		}
		odd.down(true)
		lacks[i].Store(false)
		odd.up()
		p.whole()
		p.oneState()
		decided := crowd.leave()
		if crowd.failed.Load() > 0 || crowd.slow.Load() > 0 {
			t.Errorf("%d checks failed, %d were slow", crowd.failed.Load(), crowd.slow.Load())
		}
		// Between its last authority and its end its standbys, and it itself, decide within a share.
		for i := range crowd.admitted {
			if n := crowd.admitted[i].Load(); n < limit || n > limit+limit/3 {
				t.Errorf("subject %d: %d admitted of %d; all were decided by %v", i, n, limit, decided)
			}
		}
		p.peaceful()
		p.end()
	})
}
