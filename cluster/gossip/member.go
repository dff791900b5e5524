package gossip

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/rlnode/rlnode/ring"
)

// Member is a node's description of itself, and its state as this node sees it.
type Member struct {
	ID              ring.NodeID
	Boot            uint64 // differs at each start of the process
	Name            string // for people
	Address         string // IP
	Region          string
	Zone            string
	GossipPort      int
	PeerPort        int
	Cluster         [16]byte // zero: none yet
	BootstrapExpect int      // bootstrap-expect; 0: none
	RaftEmpty       bool     // its Raft log is empty
	SettingsVersion uint8    // newest version of the settings it supports
	RegionSize      int      // number of nodes in its region; only in a WAN pool
	// Level is the newest feature level that the node knows. 0 means that its
	// release sends none, and so knows only the first.
	Level   uint32
	Primary string // the region that it believes to be primary; only in a WAN pool
	State   State
}

// State is a member's state as this node sees it.
type State uint8

const (
	Alive  State = iota
	Left         // it has announced that it leaves
	Failed       // it does not answer
)

// states holds the names used in the API.
var states = [...]string{Alive: "alive", Left: "left", Failed: "failed"}

// String returns the name used in the API.
func (s State) String() string {
	if int(s) < len(states) {
		return states[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// MarshalText returns the name used in the API.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the name used in the API.
func (s *State) UnmarshalText(text []byte) error {
	i := slices.Index(states[:], string(text))
	if i < 0 {
		return fmt.Errorf("%q is not a member's state", text)
	}
	*s = State(i)
	return nil
}

// gossipAddress returns the member's address for gossip, if Address is an IP.
func (m Member) gossipAddress() netip.AddrPort {
	ip, err := netip.ParseAddr(m.Address)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(m.GossipPort))
}
