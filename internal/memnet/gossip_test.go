package memnet

import (
	"io"
	"log"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestGossip runs memberlist itself over the network: nodes join, one is lost and comes back.
func TestGossip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		n.Delay(time.Millisecond)
		var lists []*memberlist.Memberlist
		for _, ip := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
			transport, err := n.Host(ip).GossipTransport(7946)
			expect.NoError(t, err)
			config := memberlist.DefaultLANConfig()
			config.Name, config.Transport = ip, transport
			config.AdvertiseAddr, config.AdvertisePort, config.BindPort = ip, 7946, 7946
			config.Logger = log.New(io.Discard, "", 0)
			list, err := memberlist.Create(config)
			expect.NoError(t, err)
			defer func() {
				if err := list.Shutdown(); err != nil {
					t.Error(err)
				}
			}()
			lists = append(lists, list)
		}
		if _, err := lists[0].Join([]string{"10.0.0.2:7946", "10.0.0.3:7946"}); err != nil {
			t.Fatal(err)
		}
		expect := func(want int) {
			t.Helper()
			time.Sleep(time.Minute)
			expect.Equal(t, lists[0].NumMembers(), want, "members")
		}
		expect(3)
		n.Isolate("10.0.0.2")
		expect(2)
		n.HealAll()
		if _, err := lists[1].Join([]string{"10.0.0.1:7946"}); err != nil { // memberlist does not retry by itself
			t.Error(err)
		}
		expect(3)
	})
}

func TestGossipTransportShutsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		transport, err := n.Host("10.0.0.1").GossipTransport(0)
		expect.NoError(t, err)
		other, err := n.Host("10.0.0.2").GossipTransport(7946)
		expect.NoError(t, err)
		defer other.Shutdown()
		if _, err := transport.WriteTo([]byte("nobody reads this"), "10.0.0.2:7946"); err != nil {
			t.Error(err)
		}
		c, err := transport.DialTimeout("10.0.0.2:7946", time.Second)
		expect.NoError(t, err)
		defer c.Close()
		ended := make(chan error, 1)
		go func() {
			_, err := transport.DialTimeout("10.0.0.77:1", time.Hour)
			ended <- err
		}()
		synctest.Wait()
		for range 2 {
			if err := transport.Shutdown(); err != nil {
				t.Error(err)
			}
		}
		if err := <-ended; err == nil {
			t.Error("a dial succeeds after Shutdown")
		}
	})
}
