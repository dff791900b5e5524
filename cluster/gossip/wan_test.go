package gossip

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/internal/expect"
)

// inWAN puts a node into the WAN pool.
func inWAN(region string, cluster byte) func(*Config) {
	return func(c *Config) {
		c.WAN, c.Self.Region = true, region
		c.Self.Cluster = [16]byte{cluster}
	}
}

func TestWANHasAllRegions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.net.Delay(40 * time.Millisecond)
		w.start(1, inWAN("eu", 1))
		w.start(2, inWAN("us", 2))
		w.start(3, inWAN("ap", 3))
		w.start(4, inWAN("eu", 1))
		w.start(5, inWAN("us", 0)) // does not know its cluster yet
		w.agree(15*time.Second, summaryOf(5, nil))
		expect.NoError(t, w.nodes[2].Update(func(m *Member) { m.RegionSize, m.Primary = 7, "eu" }))
		until(t, 10*time.Second, "the others hear of it", func() bool {
			for _, n := range w.nodes {
				for _, m := range n.Members() {
					if m.ID == id(2) && (m.RegionSize != 7 || m.Primary != "eu") {
						return false
					}
				}
			}
			return true
		})
		w.crash(3)
		w.agree(40*time.Second, summaryOf(5, map[int]State{3: Failed}))
		expect.NoError(t, w.nodes[4].Leave(t.Context()))
		w.agree(40*time.Second, summaryOf(5, map[int]State{3: Failed, 4: Left}), 1, 2, 5)
	})
}

// TestWANIsNoRegionsPool: a WAN pool and a region's pool never mix, even with
// the same ports and keys.
func TestWANIsNoRegionsPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(1, func(c *Config) { c.Self.Region = "eu" })
		w.start(2, inWAN("eu", 0))
		staysTrue(t, time.Minute, "they stay apart", func() bool {
			return w.nodes[1].summary() == "1 alive" && w.nodes[2].summary() == "2 alive"
		})
	})
}

func TestRegionsAreCalledByOneNameEach(t *testing.T) {
	for _, test := range []struct {
		name    string
		second  func(*Config)
		refused error
	}{
		{"two clusters, one name", inWAN("eu", 2), ErrSameRegion},
		{"one cluster, two names", inWAN("us", 1), ErrSameCluster},
		{"one cluster, one name", inWAN("eu", 1), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.start(1, inWAN("eu", 1))
				w.start(2, test.second)
				if test.refused == nil {
					w.agree(15*time.Second, summaryOf(2, nil))
					return
				}
				staysTrue(t, 3*time.Minute, "they stay apart", func() bool {
					return w.nodes[1].summary() == "1 alive" && w.nodes[2].summary() == "2 alive"
				})
				for i, n := range w.nodes {
					if have := n.log.count(slog.LevelError, test.refused.Error()); have != 1 {
						t.Errorf("node %d: logged %d times as an error, want once: %q", i, have, n.log.lines)
					}
				}
			})
		})
	}
}

// TestOneThatTurnsOutToBeASecondEU: a node was accepted before it knew its cluster.
func TestOneThatTurnsOutToBeASecondEU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(1, inWAN("eu", 1))
		w.start(2, inWAN("eu", 0))
		w.start(3, inWAN("us", 3))
		w.agree(15*time.Second, summaryOf(3, nil))
		expect.NoError(t, w.nodes[2].Update(func(m *Member) { m.Cluster = [16]byte{2} }))
		w.agree(15*time.Second, "1 alive, 3 alive", 1)
		w.agree(15*time.Second, "2 alive, 3 alive", 2)
		staysTrue(t, time.Minute, "the third sees both",
			func() bool { return w.nodes[3].summary() == summaryOf(3, nil) })
	})
}

func TestMeet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		alone := func(c *Config) {
			inWAN("eu", 1)(c)
			c.Join = nil
		}
		w.start(1, alone)
		w.start(2, alone)
		time.Sleep(time.Minute)
		w.agree(0, "1 alive", 1)
		w.nodes[1].AddAddresses([]string{"nonsense", ip(1) + ":7946", ip(2) + ":7946", ip(9) + ":7946"})
		w.agree(2*time.Second, summaryOf(2, nil))
		var many []string
		for i := range 2 * maxRemembered {
			many = append(many, fmt.Sprintf("10.1.%d.%d:7946", i/256, i%256))
		}
		w.nodes[1].AddAddresses(many)
		if have := len(w.nodes[1].Addresses()); have > maxRemembered {
			t.Errorf("have %d addresses", have)
		}
	})
}

func TestValidate(t *testing.T) {
	ok := Config{Self: Member{ID: id(1), Name: "n1"}, BindAddr: "127.0.0.1", WAN: true}
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
	bad := ok
	bad.Self.Name = strings.Repeat("n", 1000)
	expect.ErrorIs(t, bad.Validate(), ErrMetadata, "bad.Validate()")
	bad = ok
	bad.Keyring = &memberlist.Keyring{}
	expect.ErrorIs(t, bad.Validate(), ErrConfig, "bad.Validate()")
}
