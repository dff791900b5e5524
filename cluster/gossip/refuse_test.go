package gossip

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestStrangersAreKeptOut(t *testing.T) {
	here, there := [16]byte{1}, [16]byte{2}
	key := func(b byte) []byte { return append(make([]byte, 31), b) }
	in := func(cluster [16]byte) func(*Config) { return func(c *Config) { c.Self.Cluster = cluster } }
	with := func(key []byte) func(*Config) { return func(c *Config) { c.Keyring = keyring(key) } }
	region := func(c *Config) { c.Self.Region = "elsewhere" }
	picky := func(c *Config) {
		c.Accept = func(m Member) error {
			if m.Name == "n3" {
				return errors.New("not wanted")
			}
			return nil
		}
	}
	plain := func(*Config) {}
	for _, test := range []struct {
		name            string
		members, joiner func(*Config)
		alone           bool // the joiner also refuses the members
		in              bool
	}{
		{name: "no cluster yet", members: in(here), joiner: plain, in: true},
		{name: "another cluster", members: in(here), joiner: in(there), alone: true},
		{name: "another region", members: plain, joiner: region, alone: true},
		{name: "not accepted", members: picky, joiner: plain},
		{name: "the same key", members: with(key(1)), joiner: with(key(1)), in: true},
		{name: "another key", members: with(key(1)), joiner: with(key(2)), alone: true},
		{name: "no key", members: with(key(1)), joiner: plain, alone: true},
		{name: "a key where there is none", members: plain, joiner: with(key(1)), alone: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.start(1, test.members)
				w.start(2, test.members)
				w.agree(15*time.Second, summaryOf(2, nil))
				j := w.start(3, test.joiner)
				if test.in {
					w.agree(15*time.Second, summaryOf(3, nil))
					return
				}
				staysTrue(t, 3*time.Minute, "the joiner is out", func() bool {
					return w.nodes[1].summary() == summaryOf(2, nil) && w.nodes[2].summary() == summaryOf(2, nil) &&
						(!test.alone || j.summary() == "3 alive")
				})
				for i, n := range w.nodes {
					if lines := n.log.count(slog.LevelWarn, ""); lines > 6 {
						t.Errorf("node %d: have %d lines in three minutes: %q", i, lines, n.log.lines)
					}
				}
				if test.alone && test.name[:2] == "an" && test.name != "another key" {
					if n := w.nodes[1].log.count(slog.LevelWarn, "kept out"); n != 1 {
						t.Errorf("have %d lines about it, want 1: %q", n, w.nodes[1].log.lines)
					}
				}
			})
		})
	}
}

// Nodes form one pool while none has a cluster, and then found two clusters.
func TestOneThatJoinsAnotherClusterIsHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAgreedWorld(t, 4)
		for i := 1; i <= 4; i++ {
			cluster := [16]byte{byte(i % 2), 1}
			expect.NoError(t, w.nodes[i].Update(func(m *Member) { m.Cluster = cluster }))
		}
		w.agree(10*time.Second, "1 alive, 3 alive", 1, 3)
		w.agree(10*time.Second, "2 alive, 4 alive", 2, 4)
		staysTrue(t, 5*time.Minute, "they stay apart", func() bool {
			return w.nodes[1].summary() == "1 alive, 3 alive" && w.nodes[4].summary() == "2 alive, 4 alive"
		})
	})
}
