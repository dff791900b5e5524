package regions

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/testca"
)

// inCluster makes a node belong to another cluster than its region's.
func inCluster(cluster byte) option {
	return func(_ *Config, pc *peer.Config) {
		self := pc.Self
		pc.Self = func() peer.Identity {
			i := self()
			i.Cluster = [16]byte{cluster}
			return i
		}
	}
}

// asRegion makes a node use the name of another region, in a cluster of its own.
func asRegion(name string, cluster byte) option {
	return func(c *Config, pc *peer.Config) {
		inCluster(cluster)(c, pc)
		self := pc.Self
		pc.Self = func() peer.Identity {
			i := self()
			i.Region = name
			return i
		}
		c.Self.Region = name
	}
}

func withKey(b byte) option {
	return func(c *Config, _ *peer.Config) { c.Keyring = keyring(append(make([]byte, 31), b)) }
}

// TestTwoClustersOfOneName: a second "eu" appears beside the first. No node
// calls it, and every node logs an error.
func TestTwoClustersOfOneName(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.startRegions(1)
		second := w.start(3, 1, asRegion("eu", 9))
		second.setEntry(true)
		time.Sleep(time.Minute)
		caller := w.node(2, 1)
		for range 50 {
			if by, err := caller.call(1, "x", time.Second); err != nil || by != "eu-1" {
				t.Fatalf("have %s, %v", by, err)
			}
		}
		if have := caller.log.Count(`several clusters use the region name \"eu\"`); have != 1 {
			t.Errorf("the third region logs it %d times:\n%s", have, caller.log)
		}
		for _, n := range []*node{w.node(1, 1), second} {
			if have := n.log.Count("two clusters use the name of one region"); have == 0 || have > 4 {
				t.Errorf("%v logs it %d times:\n%s", n, have, n.log)
			}
		}
		if second.pool.Load().Reachable("ap") {
			t.Error("the second eu reaches another region")
		}
		// The first one is dead for good, and the second one gets the name.
		w.kill(w.node(1, 1))
		w.until(2*time.Minute, "the second eu is called", func() bool {
			return caller.pool.Load().Reachable("eu") && second.pool.Load().Reachable("us")
		})
	})
}

// TestOneClusterOfTwoNames: a data directory was copied, or a node's --region was changed.
func TestOneClusterOfTwoNames(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.startRegions(1)
		w.start(3, 1, asRegion("sa", 2)).setEntry(true) // eu's cluster
		time.Sleep(time.Minute)
		if have := w.node(1, 1).log.Count("uses the name of another region"); have == 0 {
			t.Errorf("nothing is logged:\n%s", w.node(1, 1).log)
		}
		if w.node(1, 1).pool.Load().Reachable("sa") {
			t.Error("the node with the other name can be called")
		}
	})
}

func TestAnotherKeyStaysOut(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.startRegions(1, withKey(1))
		stranger := w.start(3, 1, withKey(2))
		stranger.setEntry(true)
		plain := w.start(3, 2, func(c *Config, _ *peer.Config) { c.Join = c.Join[:1] })
		plain.setEntry(true)
		time.Sleep(2 * time.Minute)
		for _, n := range w.nodes {
			want := 2
			if n.region == 3 {
				want = 0
			}
			if have := n.pool.Load().Regions(); len(have) != want {
				t.Errorf("%v knows %v", n, have)
			}
		}
		if stranger.log.Count("level=WARN") == 0 || w.node(0, 1).log.Count("level=WARN") == 0 {
			t.Errorf("nothing is logged:\n%s", stranger.log)
		}
	})
}

// TestTLSIsRequired: two regions use TLS, the third doesn't. It meets them in
// gossip, but they exchange no calls with it.
func TestTLSIsRequired(t *testing.T) {
	ca := testca.New(t, "all regions")
	secure := func(_ *Config, pc *peer.Config) { pc.TLS = loadTLS(t, ca) }
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.start(0, 1, secure).setEntry(true)
		w.start(1, 1, secure).setEntry(true)
		w.start(2, 1).setEntry(true)
		ap, eu, us := w.node(0, 1), w.node(1, 1), w.node(2, 1)
		w.until(10*time.Second, "those with certificates reach each other", func() bool {
			return ap.pool.Load().Reachable("eu") && eu.pool.Load().Reachable("ap")
		})
		time.Sleep(time.Minute)
		for _, n := range []*node{ap, eu} {
			if n.pool.Load().Reachable("us") {
				t.Errorf("%v reaches the region without TLS", n)
			}
			if _, err := n.call(2, "secret", time.Second); !isAway(err) {
				t.Errorf("have %v", err)
			}
		}
		if us.pool.Load().Reachable("eu") {
			t.Error("the region without TLS reaches another one")
		}
		if us.log.Count("uses TLS here, and this node does not") == 0 {
			t.Errorf("nothing is logged:\n%s", us.log)
		}
		if by, err := ap.call(1, "x", time.Second); err != nil || by != "eu-1" {
			t.Errorf("have %s, %v", by, err)
		}
	})
}

// TestNobodyCallsAnEntryNodeThatIsNone: only an entry node accepts far connections.
func TestNobodyCallsAnEntryNodeThatIsNone(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.startRegions(1)
		n := w.start(0, 2)
		for _, test := range []struct {
			remote peer.Identity
			want   error
		}{
			{peer.Identity{Region: "us", Cluster: [16]byte{3}}, errNotEntry},
		} {
			expect.Equal(t, n.pool.Load().Accept(test.remote), test.want, "n.pool.Load().Accept(test.remote)")
		}
		entry := w.node(0, 1).pool.Load()
		for _, remote := range []peer.Identity{
			{Region: "us", Cluster: [16]byte{9}},                        // another us
			{Region: "sa", Cluster: [16]byte{1}},                        // with ap's own cluster
			{Region: "sa", Cluster: [16]byte{9}, Node: w.node(1, 1).id}, // eu's node
		} {
			if err := entry.Accept(remote); err == nil {
				t.Errorf("%+v is accepted", remote)
			}
		}
		for _, remote := range []peer.Identity{{Region: "us", Cluster: [16]byte{3}}, {Region: "us"},
			{Region: "sa", Cluster: [16]byte{9}}} {
			if err := entry.Accept(remote); err != nil {
				t.Errorf("%+v: have %v", remote, err)
			}
		}
	})
}
