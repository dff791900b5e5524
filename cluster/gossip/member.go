package gossip

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/rlnode/rlnode/ring"
)

// Member is what a node tells about itself, and how it is seen from here.
type Member struct {
	ID         ring.NodeID
	Boot       uint64 // differs with each start of the process
	Name       string // for people
	Address    string // IP
	Region     string
	Zone       string
	GossipPort int
	PeerPort   int
	Cluster    [16]byte // zero: belongs to none yet
	Expect     int      // bootstrap-expect; 0: none
	Empty      bool     // nothing in its Raft log yet
	Version    uint8    // newest settings it supports
	Members    int      // how many nodes its region has; told in a WAN pool
	Primary    string   // the region that it takes for the primary; told in a WAN pool
	State      State
}

// State is how a member is seen from here.
type State uint8

const (
	Alive   State = iota
	Suspect       // not used: see the package's caveats
	Left          // said itself that it goes
	Failed        // does not answer
)

// states are the words of the API.
var states = [...]string{Alive: "alive", Suspect: "suspect", Left: "left", Failed: "failed"}

// String is the word of the API.
func (s State) String() string {
	if int(s) < len(states) {
		return states[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// MarshalText writes the word of the API.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the word of the API.
func (s *State) UnmarshalText(text []byte) error {
	i := slices.Index(states[:], string(text))
	if i < 0 {
		return fmt.Errorf("there is no state %q of a member", text)
	}
	*s = State(i)
	return nil
}

// gossipAddress is where the member gossips; not valid if its address is none.
func (m Member) gossipAddress() netip.AddrPort {
	ip, err := netip.ParseAddr(m.Address)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(m.GossipPort))
}
