package regions

import (
	"errors"
	"log/slog"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
)

// Node describes this node.
type Node struct {
	ID       ring.NodeID
	Boot     uint64 // of the process: different after each start
	Name     string // for people
	Region   string
	PeerPort int
}

// Config describes this node and its part in the WAN pool.
type Config struct {
	Self      Node
	Primary   string              // the region that this node believes to be the primary
	Bind      string              // IP of the listeners
	Port      int                 // TCP and UDP
	AnyPort   bool                // see gossip.Config.AnyPort
	Advertise string              // IP at which other regions reach this node, at this port and the peer port
	Keyring   *memberlist.Keyring // see gossip.Config.Keyring
	// Join lists nodes in other regions, as host[:wan-port], at most 64. Only entry
	// nodes among them answer.
	Join []string

	Remembered []string // the addresses that an earlier run last passed to Remember
	// Remember is called with the gossip addresses of entry nodes, at most 1,000,
	// whenever they change. It may be nil.
	Remember func(addresses []string)

	Peers *peer.Peers // sends the calls
	// Transport replaces the network. It is called each time this node enters the WAN pool.
	Transport func() (memberlist.Transport, error)
	Logger    *slog.Logger
}

func (c Config) validate() error {
	if c.Peers == nil {
		return errors.New("regions: Peers is nil")
	}
	if c.Self.Region == "" {
		return errors.New("regions: Self.Region is empty")
	}
	return c.gossipConfig(0, 0, nil).Validate()
}

// gossipConfig returns the configuration for joining the WAN pool. entered is
// added to Boot. Other nodes remember that this node left the pool, so it must
// come back as a new process.
func (c Config) gossipConfig(entered uint64, members int, learned []string) gossip.Config {
	return gossip.Config{
		WAN: true,
		Self: gossip.Member{
			ID: c.Self.ID, Boot: c.Self.Boot + entered, Name: c.Self.Name, Region: c.Self.Region,
			PeerPort:   c.Self.PeerPort,
			RegionSize: min(members, maxMembers), Primary: c.Primary,
		},
		BindAddr: c.Bind, Port: c.Port, AnyPort: c.AnyPort, Advertise: c.Advertise, Keyring: c.Keyring, Join: c.Join,
		Remembered: append(learned, c.Remembered...), Logger: c.Logger.With("pool", "wan"),
	}
}

// maxMembers is the highest node count that a region announces.
const maxMembers = 65535
