package regions

import (
	"errors"
	"log/slog"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
)

// Node says who this node is.
type Node struct {
	ID       ring.NodeID
	Boot     uint64 // of the process: another one after each start
	Name     string // for people
	Region   string
	PeerPort int
}

// Config says who this node is, and where it meets those of other regions.
type Config struct {
	Self      Node
	Primary   string              // the region that this node takes for the primary
	Bind      string              // IP of the listeners
	Port      int                 // TCP and UDP
	AnyPort   bool                // as gossip.Config.AnyPort
	Advertise string              // IP at which other regions reach this node, here and at the peer port
	Keyring   *memberlist.Keyring // as gossip.Config.Keyring
	Join      []string            // host[:wan-port] of nodes in other regions, at most 64. Those that are entry nodes answer

	Remembered []string                 // what Remember was given in an earlier run
	Remember   func(addresses []string) // gets where entry nodes gossip, when that changes; at most 1,000. It may be nil

	Peers *peer.Peers // carries the calls
	// Transport takes the place of the network. It is asked for one each time this node enters the WAN pool.
	Transport func() (memberlist.Transport, error)
	Logger    *slog.Logger
}

func (c Config) validate() error {
	if c.Peers == nil {
		return errors.New("there must be Peers")
	}
	if c.Self.Region == "" {
		return errors.New("there must be a region")
	}
	return c.gossip(0, 0, nil).Validate()
}

// gossip is the configuration of this node's part in the WAN pool. Each time it enters it is another process to the others:
// what they remember of the last time, that it left, must not count for this one.
func (c Config) gossip(entered uint64, members int, learned []string) gossip.Config {
	return gossip.Config{
		WAN: true,
		Self: gossip.Member{
			ID: c.Self.ID, Boot: c.Self.Boot + entered, Name: c.Self.Name, Region: c.Self.Region, PeerPort: c.Self.PeerPort,
			Members: min(members, mostMembers), Primary: c.Primary,
		},
		BindAddr: c.Bind, Port: c.Port, AnyPort: c.AnyPort, Advertise: c.Advertise, Keyring: c.Keyring, Join: c.Join,
		Remembered: append(learned, c.Remembered...), Logger: c.Logger.With("pool", "wan"),
	}
}

// mostMembers bounds the number of nodes that a region announces.
const mostMembers = 65535
